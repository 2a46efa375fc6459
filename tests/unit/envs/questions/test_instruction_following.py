"""Instruction following: rows of IFEval and IFBench, the parts of the score, refused rows."""

import json
import random
from collections import Counter
from functools import partial
from typing import Any

import pytest
from support.bound import row_task

from temper.envs.questions.instruction_following import BREAKS, generate
from temper.envs.transcript import score_turns
from temper.rewards.instructions.rules import IFEVAL

ROW: dict[str, Any] = {
    "key": 1000,
    "prompt": "Write of a cat in 3 bullet points, without commas, and end with Meow.",
    "instruction_id_list": ["detectable_format:number_bullet_lists", "punctuation:no_comma", "startend:end_checker"],
    "kwargs": [{"num_bullets": 3.0, "relation": None}, {}, {"end_phrase": "Meow."}],
}
task_of = partial(row_task, "instruction_following")
RIGHT = "* a cat\n* a tail\n* a purr\nMeow."


@pytest.mark.parametrize(
    ("response", "correct", "loose", "strict_count", "loose_count"),
    [
        (RIGHT, 1, 1, 3, 3),
        (f"Sure, here:\n{RIGHT}", 0, 1, 2, 3),
        (f"{RIGHT}\nBye, then", 0, 1, 1, 3),
        ("* a cat, a tail\nMeow.", 0, 0, 1, 2),
        ("", 0, 0, 0, 0),
    ],
)
def test_strict_and_loose_accuracy_by_prompt_and_by_instruction(
    response: str, correct: float, loose: float, strict_count: float, loose_count: float
) -> None:
    scored = score_turns(task_of(ROW), [response])
    parts = scored.score.parts
    assert scored.reward == correct
    assert (parts["correct"], parts["loose"]) == (correct, loose)
    assert (parts["instructions_strict"], parts["instructions_loose"], parts["instructions"]) == (
        strict_count,
        loose_count,
        3,
    )
    assert parts["followed"] == strict_count / 3


@pytest.mark.parametrize("response", ["", "x", "x.", " \n", "x x x x x x x x x x x"])
def test_a_response_without_content_earns_nothing(response: str) -> None:
    row = {"prompt": "Write.", "instruction_id_list": ["punctuation:no_comma"], "kwargs": [{}]}
    scored = score_turns(task_of(row), [response])
    assert (scored.reward, scored.score.parts["followed"], scored.score.parts["loose"]) == (0.0, 0.0, 0.0)
    assert score_turns(task_of(row), ["My answer is yes."]).reward == 1.0


def test_a_short_response_that_the_instructions_ask_for_is_right() -> None:
    kinds = ["keywords:existence", "change_case:english_lowercase"]
    row = {"prompt": "Write vedo.", "instruction_id_list": kinds, "kwargs": [{"keywords": ["vedo"]}, {}]}
    assert [score_turns(task_of(row), [text]).reward for text in ("vedo", "x")] == [1.0, 0.0]


def test_kwargs_may_be_texts_of_json_or_nothing() -> None:
    given = [json.dumps(ROW["kwargs"][0]), None, json.dumps(ROW["kwargs"][2])]
    assert task_of(ROW | {"kwargs": given}).spec == task_of(ROW).spec


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        (
            {"instruction_id_list": ["language:response_language"], "kwargs": [{"language": "bn"}]},
            "language:response_language",
        ),
        ({"instruction_id_list": ["format:emoji"], "kwargs": [{}]}, "format:emoji"),
        ({"instruction_id_list": ["punctuation:no_point"], "kwargs": [{}]}, "punctuation:no_point"),
        ({"kwargs": [{}]}, "kwargs"),
        ({"instruction_id_list": [], "kwargs": []}, "instruction_id_list"),
        ({"kwargs": [{}, {}, {}]}, "num_bullets"),
        ({"kwargs": ["{", "{}", "{}"]}, "kwargs"),
        ({"kwargs": [[1], {}, {}]}, "kwargs"),
        ({"prompt": None}, "prompt"),
    ],
)
def test_a_broken_row_is_refused_by_name(changed: dict[str, Any], reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        task_of(ROW | changed)


def test_generated_tasks_cover_all_checked_instructions() -> None:
    seen = Counter(
        instruction["id"]
        for level in (1, 2, 3)
        for index in range(400)
        for instruction in generate(random.Random(f"{level}/{index}"), level).spec["instructions"]
    )
    assert set(IFEVAL) <= set(seen)
    assert set(seen) == set(BREAKS)
