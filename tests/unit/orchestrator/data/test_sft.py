"""Supervised data: which samples lose their thinking, which are truncated, and how the seed alone determines each batch."""

import random
from collections import Counter
from dataclasses import replace
from typing import Any

import pytest

from temper.envs.binding import bind_all
from temper.envs.config import EnvConfig
from temper.envs.core.task import EnvRef, Task
from temper.envs.core.thinking_mode import LOW_EFFORT, UNLIMITED, ThinkingMix, up_to
from temper.envs.core.turn_text import call_message
from temper.envs.data.config import OnError
from temper.learner.batches.samples import TrainingSample
from temper.learner.models.fresh import byte_tokenizer
from temper.orchestrator.config.supervised import SftDataConfig
from temper.orchestrator.data.chat_data import Demonstrations, Dialogue, DialogueTokenizer
from temper.orchestrator.data.chat_file import parse_chat
from temper.orchestrator.data.row_intake import limit_name
from temper.orchestrator.data.sft import SftData, under_mode
from temper.orchestrator.loop.mixture import open_mixture
from temper.rollout.budget.config import ThinkingConfig
from temper.rollout.budget.rule import ThinkingLimit, ThinkingTags
from temper.rollout.episodes.renderer import Renderer

TOKENIZER = byte_tokenizer()
CALL = {
    "role": "assistant",
    "reasoning_content": "get a b",
    "content": "",
    "tool_calls": [call_message("get", {"key": "a"})],
}
RESULT = {"role": "tool", "content": "17"}
ANSWER = {"role": "assistant", "reasoning_content": "done", "content": "\\boxed{17}"}


def tokens_of(*, train_closing: bool = False, thinking: ThinkingConfig | None = None) -> DialogueTokenizer:
    config = thinking or ThinkingConfig()
    return DialogueTokenizer(Renderer(TOKENIZER, config), ThinkingTags(TOKENIZER), config, train_closing=train_closing)


def data(
    *, strip: float, truncate: float, seed: int = 1, max_tokens: int | None = 512, on_error: OnError = "raise"
) -> SftData:
    envs = bind_all({"math": EnvConfig()})
    mixture = open_mixture(envs, {}, split="train", seed=seed)
    config = SftDataConfig(thinking=ThinkingMix(budget=truncate, no_thinking=strip))
    return SftData(
        Demonstrations(mixture, envs).dialogue,
        tokens_of(),
        config,
        batch_size=64,
        max_tokens=max_tokens,
        on_error=on_error,
        seed=seed,
    )


def trained_text(sequence: TrainingSample) -> str:
    kept = [token for token, trained in zip(sequence.ids, sequence.trained_T, strict=True) if trained]
    return str(TOKENIZER.decode(kept))


def tokens(batch: list[TrainingSample]) -> list[tuple[tuple[int, ...], tuple[bool, ...]]]:
    return [(tuple(sequence.ids), tuple(sequence.trained_T)) for sequence in batch]


TASK = Task(env=EnvRef(name="tool_use"), key="k", messages=({"role": "user", "content": "a+b=?"},), spec={})
DIALOGUE = Dialogue(task=TASK, reply=(CALL, RESULT, ANSWER))


def cut(config: SftDataConfig, *, seed: int = 0, dialogue: Dialogue = DIALOGUE) -> Dialogue:
    return under_mode(dialogue, config, tokens_of(), random.Random(seed))


def pieces(dialogue: Dialogue, by: DialogueTokenizer) -> tuple[str, str]:
    """Return the text after the prompt and the trained text."""
    sample = by.sample(dialogue)
    return TOKENIZER.decode(sample.ids[sample.first_trained :]), trained_text(sample)


def test_at_a_budget_every_longer_thought_is_cut_and_the_dialogue_goes_on_with_its_own_answers() -> None:
    cut_at_three = replace(DIALOGUE, task=replace(TASK, thinking=up_to(3)))
    whole, trained = pieces(cut_at_three, tokens_of())
    assert whole.startswith('get\n</think>\n<tool_call>{"name":"get"')
    assert whole.endswith("don\n</think>\n\\boxed{17}<|im_end|>")
    assert "</think>" not in trained  # the model did not sample the end of thinking
    assert trained.startswith('get<tool_call>{"name":"get"')
    _, with_closing = pieces(cut_at_three, tokens_of(train_closing=True))
    assert with_closing.count("\n</think>\n") == 2


def test_a_thought_that_the_configuration_closes_otherwise_than_the_template_keeps_its_answer() -> None:
    config = ThinkingConfig(closing="\n</think>\nSo: ")
    by = DialogueTokenizer.of(TOKENIZER, config)
    whole, trained = pieces(replace(DIALOGUE, task=replace(TASK, thinking=up_to(3))), by)
    assert whole.endswith("don\n</think>\nSo: \\boxed{17}<|im_end|>")
    assert trained.endswith("don\\boxed{17}<|im_end|>")


def test_a_budget_of_the_episode_is_shared_by_its_thoughts() -> None:
    cut_at_nine = replace(DIALOGUE, task=replace(TASK, thinking=up_to(9)))
    whole, _ = pieces(cut_at_nine, tokens_of(thinking=ThinkingConfig(scope="episode")))
    assert whole.startswith("get a b\n</think>")  # 7 tokens, so 2 remain
    assert "do\n</think>\n\\boxed{17}" in whole
    assert "done\n</think>" in pieces(cut_at_nine, tokens_of())[0]  # a budget per turn truncates nothing


def test_a_sample_is_cut_exactly_as_a_rollout_would_be() -> None:
    tags = ThinkingTags(TOKENIZER)
    lines = Dialogue(task=replace(TASK, thinking=up_to(4)), reply=({**ANSWER, "reasoning_content": "one two\nthree"},))
    ids = tokens_of(thinking=ThinkingConfig(grace=6)).sample(lines).ids
    said = ids[len(Renderer(TOKENIZER).prompt_ids(lines.task)) :].tolist()
    forced_end = tags.forced_end(said, ThinkingLimit(tokens=4, grace=6))
    assert forced_end is not None
    assert tuple(said[forced_end.start : forced_end.end]) == forced_end.ids
    assert TOKENIZER.decode(said) == "one two\n</think>\n\\boxed{17}<|im_end|>"


def test_a_habit_of_answering_too_soon_takes_the_last_answer_after_a_part_of_a_thought() -> None:
    config = SftDataConfig(thinking=ThinkingMix(budget=1.0), cut_to_answer=True)
    whole = cut(SftDataConfig(thinking=ThinkingMix())).reply
    cuts = [cut(config, seed=seed) for seed in range(50)]
    assert {len(dialogue.reply) for dialogue in cuts} == {1, 3}
    for dialogue in cuts:
        *before, last = dialogue.reply
        assert before == list(whole[: len(before)])  # earlier thinking stays complete
        assert last["content"] == "\\boxed{17}"
        assert "tool_calls" not in last
        assert whole[len(before)]["reasoning_content"].startswith(last["reasoning_content"])
        assert last["reasoning_content"]
        assert dialogue.task.thinking == UNLIMITED
        turns = [message for message in dialogue.reply if message["role"] == "assistant"]
        assert pieces(dialogue, tokens_of())[1].count("</think>") == len(turns)  # every turn is trained


def test_budgets_of_the_configuration_are_drawn_and_announced() -> None:
    config = SftDataConfig(thinking=ThinkingMix(budget=1.0, budgets=[2, 5]))
    budgets = Counter(cut(config, seed=seed).task.thinking.budget for seed in range(100))
    assert set(budgets) == {2, 5}
    announced = tokens_of(thinking=ThinkingConfig(announce=True)).sample(cut(config)).ids
    assert "a+b=?\n{thinking token budget: " in TOKENIZER.decode(announced)


def test_little_effort_shortens_a_thought() -> None:
    dialogue = cut(SftDataConfig(thinking=ThinkingMix(low_effort=1.0), low_effort_keep=0.5))
    ids = tokens_of().sample(dialogue).ids
    assert "a+b=?\n{low effort}<|im_end|>" in TOKENIZER.decode(ids)
    assert pieces(dialogue, tokens_of())[1].startswith("get a\n</think>\n<tool_call>")


def test_a_dialogue_without_a_thought_or_with_a_mode_of_its_own_stays_as_it_is() -> None:
    every = SftDataConfig(thinking=ThinkingMix(budget=0.5, no_thinking=0.5))
    plain = Dialogue(task=TASK, reply=({"role": "assistant", "content": "17"},))
    low = parse_chat({"messages": [*TASK.messages, ANSWER], "reasoning_effort": "low"}, 0)
    assert low.task.thinking == LOW_EFFORT
    assert all(cut(every, seed=seed, dialogue=given) == given for seed in range(20) for given in (plain, low))


def test_shares_of_stripped_and_cut_thoughts_hold() -> None:
    plain = [trained_text(sequence) for sequence in data(strip=0, truncate=0).batch(1)]
    assert all("</think>" in text for text in plain)
    mixed = [sequence for step in (1, 2, 3) for sequence in data(strip=0.25, truncate=0.5).batch(step)]
    texts = [TOKENIZER.decode(sequence.ids) for sequence in mixed]
    kinds = Counter(
        "stripped" if "<think></think>" in whole else "whole" if "</think>" in trained_text(sequence) else "cut"
        for whole, sequence in zip(texts, mixed, strict=True)
    )
    assert 0.15 < kinds["stripped"] / len(mixed) < 0.35
    assert 0.4 < kinds["cut"] / len(mixed) < 0.6


def test_a_step_has_the_same_batch_in_a_continued_run() -> None:
    whole = data(strip=0.1, truncate=0.3)
    for step in range(1, 4):
        whole.batch(step)
    expected = tokens(whole.batch(4))
    assert tokens(data(strip=0.1, truncate=0.3).batch(4)) == expected
    assert tokens(data(strip=0.1, truncate=0.3, seed=2).batch(4)) != expected


def test_a_demonstration_is_never_cut_but_named_or_left_out() -> None:
    whole = data(strip=0, truncate=0, max_tokens=None).batch(1)
    lengths = [len(sequence.ids) for sequence in whole]
    middle = sorted(lengths)[len(lengths) // 2]
    kept = data(strip=0, truncate=0, max_tokens=middle, on_error="skip").batch(1)
    assert tokens(kept) == tokens([sequence for sequence in whole if len(sequence.ids) <= middle])
    assert 0 < len(kept) < len(whole)
    with pytest.raises(ValueError, match=f"math/.*sft.max_tokens={middle}.*sft.on_error=skip"):
        data(strip=0, truncate=0, max_tokens=middle).batch(1)


def fixed(by: DialogueTokenizer, config: SftDataConfig, *, max_tokens: int | None, setting: str = "") -> SftData:
    """Build data with one dialogue per batch."""
    limits: Any = {"max_tokens": max_tokens, "setting": setting, "on_error": "raise"}
    return SftData(lambda _: DIALOGUE, by, config, name="sft-2", batch_size=1, **limits, seed=1)


@pytest.mark.parametrize(("given", "named"), [(9, "sft-2.max_tokens=9"), (None, "max_position_embeddings=9")])
def test_a_limit_is_called_by_the_setting_of_its_instance_or_by_that_of_the_model(
    given: int | None, named: str
) -> None:
    chats = fixed(tokens_of(), SftDataConfig(), max_tokens=9, setting=limit_name("sft-2", given))
    with pytest.raises(ValueError, match=f"{named}.*sft-2.on_error=skip"):
        chats.batch(1)


def test_what_is_over_the_limit_only_under_its_mode_stays_as_it_was() -> None:
    config = SftDataConfig(thinking=ThinkingMix(budget=1.0, budgets=[3]))
    told = tokens_of(thinking=ThinkingConfig(announce=True))
    length = len(told.sample(DIALOGUE).ids)
    lengths = [len(fixed(told, config, max_tokens=most).batch(1)[0].ids) for most in (length, None)]
    assert lengths[0] == length < lengths[1]


def test_every_answer_ends_with_a_trained_end_of_its_turn() -> None:
    end = TOKENIZER.eos_token_id
    for dialogue in (DIALOGUE, replace(DIALOGUE, task=replace(TASK, thinking=up_to(0)))):
        sample = tokens_of().sample(dialogue)
        assert (sample.ids[-1], sample.trained_T[-1]) == (end, True)
        assert sum(on and token == end for token, on in zip(sample.ids, sample.trained_T, strict=True)) == 2
