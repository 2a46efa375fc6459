"""Supervised data: which samples lose their thought, which are cut, and that a step's batch depends on the seed only."""

import random
from collections import Counter

from envs.source import EnvConfig
from learner.batch import Sequence
from learner.fresh_model import byte_tokenizer
from orchestrator.mixture import open_mixture
from orchestrator.sft_data import Demonstrations, SftData, cut_thought
from rollout.renderer import Renderer

TOKENIZER = byte_tokenizer()
CALL = {"role": "assistant", "reasoning_content": "get a b", "content": "", "tool_calls": [{"type": "function"}]}
RESULT = {"role": "tool", "content": "17"}
ANSWER = {"role": "assistant", "reasoning_content": "done", "content": "\\boxed{17}"}


def data(*, strip: float, truncate: float, seed: int = 1) -> SftData:
    mixture = open_mixture({"math": EnvConfig()}, {}, split="train", seed=seed)
    return SftData(
        Demonstrations(mixture).dialogue,
        Renderer(TOKENIZER),
        batch_size=64,
        strip_share=strip,
        truncate_share=truncate,
        max_tokens=512,
        seed=seed,
    )


def trained_text(sequence: Sequence) -> str:
    kept = [token for token, trained in zip(sequence.ids, sequence.trained_T, strict=True) if trained]
    return str(TOKENIZER.decode(kept))


def tokens(batch: list[Sequence]) -> list[tuple[tuple[int, ...], tuple[bool, ...]]]:
    return [(sequence.ids, sequence.trained_T) for sequence in batch]


def test_a_budget_that_runs_out_in_a_later_thought_keeps_the_turns_before_and_answers_at_once() -> None:
    cuts = [cut_thought((CALL, RESULT, ANSWER), random.Random(seed)) for seed in range(200)]
    assert {len(reply) for reply in cuts} == {1, 3}
    for reply in cuts:
        *before, last = reply
        assert tuple(before) == (CALL, RESULT)[: len(before)]
        thought = (CALL if not before else ANSWER)["reasoning_content"]
        assert str(thought).startswith(last["reasoning_content"])
        assert last["reasoning_content"]
        assert last["content"] == "\\boxed{17}"
        assert "tool_calls" not in last


def test_a_reply_without_a_thought_stays_as_it_is() -> None:
    reply = ({"role": "assistant", "content": "17"},)
    assert cut_thought(reply, random.Random(0)) == reply


def test_shares_of_stripped_and_cut_thoughts_hold() -> None:
    plain = [trained_text(sequence) for sequence in data(strip=0, truncate=0).batch(1)]
    assert all("</think>" in text for text in plain)
    mixed = [trained_text(sequence) for step in (1, 2, 3) for sequence in data(strip=0.25, truncate=0.5).batch(step)]
    whole = [trained_text(sequence) for step in (1, 2, 3) for sequence in data(strip=0, truncate=0).batch(step)]
    kinds = Counter(
        "stripped" if "</think>" not in text else "whole" if text == full else "cut"
        for text, full in zip(mixed, whole, strict=True)
    )
    assert 0.15 < kinds["stripped"] / len(mixed) < 0.35
    assert 0.35 < kinds["cut"] / len(mixed) < 0.6  # a cut may fall on the thought's last character


def test_a_step_has_the_same_batch_in_a_continued_run() -> None:
    whole = data(strip=0.1, truncate=0.3)
    for step in range(1, 4):
        whole.batch(step)
    expected = tokens(whole.batch(4))
    assert tokens(data(strip=0.1, truncate=0.3).batch(4)) == expected
    assert tokens(data(strip=0.1, truncate=0.3, seed=2).batch(4)) != expected
