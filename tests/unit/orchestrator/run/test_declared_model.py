"""The turn format that a run declares for a model is stored in the files of its first model."""

import json
import random
from pathlib import Path
from typing import Any

import pytest
import yaml
from support.model_families import tokenizer_of
from transformers import GenerationConfig, PreTrainedTokenizerBase

from temper.configs.recipes.smollm2 import calls
from temper.envs.core.turn_text import BadCall, Call, Tags
from temper.learner.models.fresh import byte_tokenizer
from temper.orchestrator.config.run_config import ModelConfig
from temper.orchestrator.pipeline.config import load_config
from temper.orchestrator.run.declared_model import generation_file, write_declared
from temper.rollout.declared_turns import DeclaredTurns
from temper.rollout.episodes.round_trip import Needs, check_round_trip
from temper.rollout.formats.find import find_format, generation_text
from temper.rollout.tokenizer import load_tokenizer

OF_CALLS = "configs/recipes/smollm2/calls.jinja"
TEMPLATE = (
    "{% for m in messages %}{{ m.role }}: {% if m.reasoning_content %}<why>{{ m.reasoning_content }}</why>{% endif %}"
    "{{ m.content }}<|pad|>\n{% endfor %}{% if add_generation_prompt %}assistant: {% endif %}"
)


def base_model(folder: Path) -> Path:
    tokenizer = byte_tokenizer()
    tokenizer.chat_template = None
    tokenizer.save_pretrained(folder)
    (folder / "config.json").write_text('{"model_type": "llama"}', encoding="utf-8")
    (folder / "model.safetensors").write_bytes(b"weights")
    return folder


def test_a_base_model_is_told_its_template_its_end_of_a_turn_and_its_tags(tmp_path: Path) -> None:
    source = base_model(tmp_path / "base")
    with pytest.raises(ValueError, match=r"model\.chat_template"):
        load_tokenizer(source)
    (tmp_path / "chat.jinja").write_text(TEMPLATE, encoding="utf-8")
    config = ModelConfig(
        path=str(source),
        chat_template=str(tmp_path / "chat.jinja"),
        end_of_turn=["<|pad|>"],
        thinking_tags=["<why>", "</why>"],
    )
    made = tmp_path / "made"
    made.mkdir()
    write_declared(source, made, config.declared())
    tokenizer = load_tokenizer(made)
    form = find_format(tokenizer)
    assert (form.tags, form.closing) == (Tags(opening="<why>", closing="</why>"), "</why>")
    assert (form.ends, form.end_ids, tokenizer.eos_token) == (("<|pad|>",), (tokenizer.pad_token_id,), "<|pad|>")
    assert (made / "model.safetensors").read_bytes() == b"weights"
    assert json.loads((made / "generation_config.json").read_text())["eos_token_id"] == list(form.end_ids)
    assert find_format(load_tokenizer(source, config.declared())) == form
    file = made / "tokenizer_config.json"
    file.write_text(file.read_text().replace("thinking_tags", "thought_tags"))  # of a model of version 0.1
    assert find_format(load_tokenizer(made)) == form


ASKS = (
    "{% for c in m.tool_calls or [] %}<ask>{{ c.function.name }}|{{ c.function.arguments | tojson }}</ask>{% endfor %}"
)
PATTERN: dict[str, Any] = {
    "open_pattern": r"<ask>(?P<name>[^|<]+)\|",
    "close": "</ask>",
    "repeats": True,
    "content": "json",
    "transform": {"type": "function", "function": {"name": "{name}", "arguments": "{content}"}},
}


def test_calls_that_no_known_format_reads_are_read_as_the_configuration_declares_and_the_round_trip_judges_it(
    tmp_path: Path,
) -> None:
    source = base_model(tmp_path / "base")
    shown = "{% for t in tools or [] %}{{ t.function.name }}{% endfor %}"
    (tmp_path / "chat.jinja").write_text(shown + TEMPLATE.replace("<|pad|>", ASKS + "<|pad|>"), encoding="utf-8")
    file = tmp_path / "config.yaml"
    lines = {"path": str(source), "chat_template": str(tmp_path / "chat.jinja"), "end_of_turn": ["<|pad|>"]}
    lines |= {"thinking_tags": ["<why>", "</why>"]}

    def made(number: int, **more: Any) -> PreTrainedTokenizerBase:
        file.write_text(
            yaml.safe_dump({"name": "x", "model": lines | more, "envs": {"tool_use": {}}}), encoding="utf-8"
        )
        folder = tmp_path / f"made{number}"
        folder.mkdir()
        write_declared(source, folder, load_config(file, []).model.declared())
        return load_tokenizer(folder)

    needs = Needs(tools=True)
    with pytest.raises(ValueError, match=r"model\.tool_calls"):
        check_round_trip(made(0), needs)
    with pytest.raises(ValueError, match=r"model\.tool_calls"):
        check_round_trip(made(1, tool_calls={"format": "xml"}), needs)
    tokenizer = made(2, tool_calls=PATTERN)
    assert find_format(tokenizer).name == "declared"
    check_round_trip(tokenizer, needs)
    calls, said = find_format(tokenizer).calls.read('so<ask>get|{"key": 1}</ask><ask>get|{</ask>', ())  # type: ignore[union-attr]
    assert (calls, said) == (
        (Call(name="get", arguments={"key": 1}), BadCall(error="error: tool call is not JSON")),
        "so",
    )


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"format": "morse"}, "morse.* json, xml"),
        ({"format": "json", "open": "<a>"}, "model.tool_calls"),
        ({"open": "<a>"}, "`open` .* `close`"),
        ({"open_pattern": "(", "close": "x", "content": "json"}, "model.tool_calls"),
        ({"open": "<a>", "close": "</a>", "content": "yaml"}, "model.tool_calls"),
    ],
)
def test_a_declaration_of_calls_that_is_none_is_refused(tmp_path: Path, given: dict[str, Any], said: str) -> None:
    source = base_model(tmp_path)
    template = str(byte_tokenizer().chat_template)
    with pytest.raises(ValueError, match=said):
        find_format(load_tokenizer(source, DeclaredTurns(chat_template=template, tool_calls=given)))


def test_an_end_of_a_turn_that_is_no_token_or_that_the_template_does_not_write_is_refused(tmp_path: Path) -> None:
    source = base_model(tmp_path)
    for end, said in (("<stop>", "<stop>"), ("<|im_start|>", r"im_start.*pad")):
        declared = DeclaredTurns(chat_template=TEMPLATE, end_of_turn=(end,))
        with pytest.raises(ValueError, match=said):
            find_format(load_tokenizer(source, declared))


def test_what_is_declared_needs_a_model_and_a_file() -> None:
    with pytest.raises(ValueError, match="model.path"):
        ModelConfig(end_of_turn=["x"])
    with pytest.raises(ValueError, match="model.thinking_tags"):
        ModelConfig(path="m", thinking_tags=["<why>"])
    with pytest.raises(FileNotFoundError, match="nowhere.jinja"):
        ModelConfig(path="m", chat_template="nowhere.jinja").declared()


def test_a_checkpoint_names_the_ends_of_its_turns_and_keeps_the_other_defaults_of_its_model(tmp_path: Path) -> None:
    source = base_model(tmp_path)
    byte_tokenizer().save_pretrained(source)
    ends = {"end_of_turn": ["<|im_end|>", "<|pad|>"]}
    config = json.loads((source / "tokenizer_config.json").read_text(encoding="utf-8"))
    (source / "tokenizer_config.json").write_text(json.dumps(config | ends), encoding="utf-8")
    (source / "generation_config.json").write_text('{"eos_token_id": 3, "top_k": 20}', encoding="utf-8")
    (tmp_path / "later").mkdir()
    for name, text in generation_file(source).items():
        (tmp_path / "later" / name).write_text(text, encoding="utf-8")
    kept, vocabulary = GenerationConfig.from_pretrained(tmp_path / "later"), byte_tokenizer().get_vocab()
    assert kept.eos_token_id == [vocabulary[end] for end in ends["end_of_turn"]]
    assert kept.top_k == 20


def test_a_checkpoint_keeps_the_ends_that_its_model_had(tmp_path: Path) -> None:
    tokenizer = tokenizer_of("llama3_1")
    tokenizer.add_special_tokens({"additional_special_tokens": ["<|eom_id|>"]})
    eot, eom = tokenizer.convert_tokens_to_ids(["<|eot_id|>", "<|eom_id|>"])
    for known in ([eom, eot], eom):
        (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": known}), encoding="utf-8")
        assert json.loads(generation_text(tmp_path, tokenizer))["eos_token_id"] == [eot, eom]


def test_a_template_of_the_package_is_found_from_any_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    here = Path(OF_CALLS).read_text(encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    assert ModelConfig(path="somewhere", chat_template=OF_CALLS).declared().chat_template == here


def test_the_template_of_calls_shows_functions_and_reads_several_calls_a_turn() -> None:
    tokenizer = byte_tokenizer()
    tokenizer.chat_template = Path(OF_CALLS).read_text(encoding="utf-8")
    form = find_format(tokenizer)
    assert (form.name, form.parallel) == ("json", True)
    task = calls.generate(random.Random(1), 3)
    rows = {"type": "array", "items": {"type": "object", "properties": {"inner": {"type": "string"}}}}
    odd = {"function": {"name": "odd", "parameters": {"properties": {"rows": rows, "any": True}}}}
    shown = tokenizer.apply_chat_template(list(task.messages), tools=[*task.tools, odd], tokenize=False)
    for tool in task.tools:
        assert f"\n{tool['function']['name']}: " in shown
        assert all(f"\n- {name} (" in shown for name in tool["function"]["parameters"]["properties"])
    assert "\nodd: " in shown
    assert '"inner"' in shown
