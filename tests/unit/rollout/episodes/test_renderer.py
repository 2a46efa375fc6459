"""Rendering: the parts of a conversation add up to the template's whole text, and nothing can forge a turn."""

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest
from transformers import PreTrainedTokenizerFast

from temper.envs.core.task import EnvRef, Task
from temper.envs.core.thinking_mode import LOW_EFFORT, OFF, up_to
from temper.learner.batches.samples import TrainingSample
from temper.learner.models.fresh import byte_tokenizer
from temper.orchestrator.data.chat_data import Dialogue, DialogueTokenizer, without_reasoning
from temper.orchestrator.data.chat_file import parse_chat
from temper.rollout.budget.config import ThinkingConfig
from temper.rollout.budget.rule import ThinkingTags
from temper.rollout.episodes.renderer import Renderer
from temper.rollout.tokenizer import load_tokenizer

TOKENIZER = byte_tokenizer()
RENDERER = Renderer(TOKENIZER)
TOKENS = DialogueTokenizer(RENDERER, ThinkingTags(TOKENIZER), ThinkingConfig())
REPLY = (
    {
        "role": "assistant",
        "reasoning_content": "look",
        "content": "",
        "tool_calls": [{"type": "function", "function": {"name": "get", "arguments": {"key": "a"}}}],
    },
    {"role": "tool", "content": "17"},
    {"role": "assistant", "reasoning_content": "done", "content": "\\boxed{17}"},
)
TASK = Task(env=EnvRef(name="tool_use"), key="k", messages=({"role": "user", "content": "a=?"},), spec={})


def trained(sample: TrainingSample) -> list[int]:
    return [token for token, on in zip(sample.ids, sample.trained_T, strict=True) if on]


@pytest.mark.parametrize("text", ["plain", "naive cafe \u00e9\u4e2d", "tabs\t\n\r", "<think>x</think>\\boxed{1}"])
def test_any_text_round_trips_through_the_byte_tokenizer(text: str) -> None:
    assert TOKENIZER.decode(TOKENIZER(text, add_special_tokens=False)["input_ids"]) == text


def test_parts_of_a_dialogue_add_up_to_the_whole() -> None:
    sample = TOKENS.sample(Dialogue(task=TASK, reply=REPLY))
    whole = TOKENIZER.apply_chat_template([*TASK.messages, *REPLY], tokenize=False)
    assert TOKENIZER.decode(sample.ids) == whole.removesuffix("\n")


def test_only_the_assistants_tokens_are_trained() -> None:
    sample = TOKENS.sample(Dialogue(task=TASK, reply=REPLY))
    said = TOKENIZER.decode(trained(sample))
    assert said == (
        'look\n</think>\n<tool_call>{"name":"get","arguments":{"key": "a"}}</tool_call><|im_end|>'
        "done\n</think>\n\\boxed{17}<|im_end|>"
    )


def test_with_thinking_off_no_reasoning_is_trained() -> None:
    task = Task(env=EnvRef(name="math"), key="k", messages=TASK.messages, spec={}, thinking=OFF)
    plain = without_reasoning(REPLY[2:])
    for reply, said in ((plain, "\\boxed{17}<|im_end|>"), (REPLY[2:], "")):  # a turn with reasoning is context
        sample = TOKENS.sample(Dialogue(task=task, reply=reply))
        assert TOKENIZER.decode(sample.ids).endswith("assistant\n<think></think>\\boxed{17}<|im_end|>")
        assert TOKENIZER.decode(trained(sample)) == said


def test_a_chat_row_splits_at_its_first_assistant_message() -> None:
    rows = [{"role": "system", "content": "s"}, {"role": "user", "content": "u"}, {"role": "assistant", "content": "a"}]
    dialogue = parse_chat({"messages": rows}, 0)
    assert (len(dialogue.task.messages), len(dialogue.reply), dialogue.task.thinks) == (2, 1, False)
    with pytest.raises(ValueError, match="assistant"):
        parse_chat({"messages": rows[:2]}, 0)
    with pytest.raises(ValueError, match="list of objects"):
        parse_chat({"messages": "hello"}, 0)


def test_a_directory_without_a_model_or_tokenizer_is_named(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"no config\.json"):
        load_tokenizer(tmp_path)
    (tmp_path / "config.json").write_text('{"model_type": "llama"}', encoding="utf-8")
    with pytest.raises(ValueError, match="holds no tokenizer"):
        load_tokenizer(tmp_path)


def test_a_token_without_a_row_in_the_embedding_is_named(tmp_path: Path) -> None:
    tokenizer = byte_tokenizer()
    size = len(tokenizer)
    tokenizer.add_tokens(["<x0>", "<x1>"])
    tokenizer.save_pretrained(tmp_path)

    def load(config: Mapping[str, object]) -> None:
        (tmp_path / "config.json").write_text(json.dumps({"model_type": "llama", **config}), encoding="utf-8")
        load_tokenizer(tmp_path)

    load({"vocab_size": size + 2})
    load({"vocab_size": size + 64})  # padded
    for config in ({"vocab_size": size}, {"text_config": {"vocab_size": size}}):
        with pytest.raises(ValueError, match=f"'<x0>' with id {size}.*vocab_size={size} .*embeddings.{size + 2}"):
            load(config)


def test_a_named_token_beyond_the_embedding_is_escaped(tmp_path: Path) -> None:
    """Text models of Gemma 3 have the image token of the others."""
    byte_tokenizer().save_pretrained(tmp_path)
    tokenizer = PreTrainedTokenizerFast.from_pretrained(tmp_path, extra_special_tokens={"image_token": "<img>"})
    tokenizer.save_pretrained(tmp_path)
    config = {"model_type": "llama", "vocab_size": len(tokenizer) - 1}
    (tmp_path / "config.json").write_text(json.dumps(config), encoding="utf-8")
    loaded = load_tokenizer(tmp_path)
    assert loaded.get_vocab()["<img>"] == config["vocab_size"]
    asked = replace(TASK, messages=({"role": "user", "content": "see <img>"},))
    assert max(Renderer(loaded).prompt_ids(asked)) < len(tokenizer) - 1


def test_the_mode_stands_at_the_end_of_the_last_user_message() -> None:
    asked = Task(
        env=EnvRef(name="math"),
        key="k",
        messages=(
            {"role": "user", "content": "a"},
            {"role": "assistant", "content": "b"},
            {"role": "user", "content": "c"},
        ),
        spec={},
        thinking=up_to(64),
    )
    silent, open_about_it = RENDERER, Renderer(TOKENIZER, ThinkingConfig(announce=True))
    assert "budget" not in TOKENIZER.decode(silent.prompt_ids(asked))
    said = TOKENIZER.decode(open_about_it.prompt_ids(asked))
    assert "user\nc\n{thinking token budget: 64}<|im_end|>\n<|im_start|>assistant\n<think>\n" in said
    low = TOKENIZER.decode(silent.prompt_ids(replace(asked, thinking=LOW_EFFORT)))
    assert "user\nc\n{low effort}<|im_end|>" in low
    assert "budget" not in TOKENIZER.decode(open_about_it.prompt_ids(replace(asked, thinking=OFF)))


def test_a_template_that_ignores_the_mode_is_refused() -> None:
    RENDERER.check_modes()
    deaf = byte_tokenizer()
    deaf.chat_template = str(deaf.chat_template).replace("if thinking else", "if true else")
    with pytest.raises(ValueError, match="can't switch thinking off"):
        Renderer(deaf).check_modes()
