"""Short answers: public row formats, quantities and lists, refused rows."""

from functools import partial
from typing import Any

import pytest
from support.bound import row_task
from support.refusals import refuses

from temper.envs.transcript import score_turns

task_of = partial(row_task, "short_answer")
QUESTION = "Which city is the capital of France?"
ROWS: dict[str, dict[str, Any]] = {
    "squad": {
        "question": QUESTION,
        "context": "Paris is it.",
        "answers": {"text": ["Paris", "Paris"], "answer_start": [0, 0]},
    },
    "triviaqa": {"question": QUESTION, "answer": {"value": "Paris", "aliases": ["City of Light", "Paris", ""]}},
    "popqa": {"question": QUESTION, "possible_answers": '["Paris", "City of Light"]'},
    "hotpotqa": {
        "question": QUESTION,
        "answer": "Paris",
        "context": {"title": ["France", "Rome"], "sentences": [["It is large.", " Its capital is Paris."], ["No."]]},
    },
    "nq_open": {"question": QUESTION, "answer": ["Paris", "Paris, France"]},
    "longbench": {"input": QUESTION, "context": "Paris is it.", "answers": ["Paris"]},
}


@pytest.mark.parametrize("name", ROWS)
def test_a_row_of_a_public_form_takes_what_it_accepts(name: str) -> None:
    task = task_of(ROWS[name])
    shown = task.messages[0]["content"]
    assert QUESTION in shown
    assert ("Paris" in shown) == ("context" in ROWS[name])
    for right in ("Paris", "The answer is paris.", "\\boxed{\\text{Paris}}"):
        assert score_turns(task, [right]).reward == 1.0
    for wrong in ("Rome", "Paris or Rome", ""):
        assert score_turns(task, [wrong]).reward == 0.0
    assert score_turns(task, ["old Paris"]).score.parts["f1"] == pytest.approx(2 / 3)
    assert score_turns(task, ["the City of Light"]).reward == float(name in ("triviaqa", "popqa"))


@pytest.mark.parametrize(
    ("answer", "reward"),
    [("1.5 km", 1.0), ("1500 m", 1.0), ("\\boxed{1500\\text{ m}}", 1.0), ("1.5", 0.0), ("1.5 m", 0.0)],
)
def test_a_number_with_a_unit_is_converted(answer: str, reward: float) -> None:
    assert score_turns(task_of({"question": "How far is it?", "answer": 1.5, "unit": "km"}), [answer]).reward == reward


def test_a_tolerance_of_a_row_is_a_share() -> None:
    task = task_of({"question": "g?", "answer": "9.81", "unit": "m/s^2", "tolerance": 0.01})
    assert score_turns(task, ["9.8 m/s^2"]).reward == 1.0
    assert score_turns(task, ["9.6 m/s^2"]).reward == 0.0


def test_items_may_be_in_any_order_unless_ordered() -> None:
    row = {"question": "Which?", "items": ["Rome", ["New York", "NYC"]]}
    for ordered in (False, True):
        task = task_of(row | {"ordered": ordered})
        assert score_turns(task, ["Rome; NYC"]).reward == 1.0
        assert score_turns(task, ["NYC and Rome"]).reward == float(not ordered)
        assert score_turns(task, ["Rome"]).score.parts == {"correct": 0.0, "format": 1.0, "f1": pytest.approx(2 / 3)}


@pytest.mark.parametrize(
    ("row", "key"),
    [
        (ROWS["squad"] | {"answers": {"text": []}}, "answers.text"),
        ({"question": "?", "answer": ""}, "answer"),
        ({"question": "?", "answer": [["Paris"]]}, "answer"),
        ({"question": " ", "answer": "Paris"}, "question"),
        ({"question": "?", "possible_answers": "Paris"}, "possible_answers"),
        ({"question": "?", "answer": 5, "unit": "apples"}, "unit"),
        ({"question": "?", "answer": "five", "unit": "m"}, "answer"),
        ({"question": "?", "answer": 5, "unit": "m", "tolerance": 1}, "tolerance"),
        ({"question": "?", "items": []}, "items"),
        ({"question": "?", "items": ["a"], "ordered": "yes"}, "ordered"),
        ({"question": "?", "answer": "Paris", "context": 7}, "context"),
    ],
)
def test_a_broken_row_is_refused_by_name(row: dict[str, Any], key: str) -> None:
    with refuses(key):
        task_of(row)
