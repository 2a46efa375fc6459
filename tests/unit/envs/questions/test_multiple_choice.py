"""Multiple choice: rows of public data sets, the order of the choices, options."""

from collections import Counter
from functools import partial
from typing import Any

import pytest
from support.bound import row_task
from support.refusals import refuses

from temper.envs.core.task import Task
from temper.envs.transcript import score_turns

task_of = partial(row_task, "multiple_choice")
CHOICES = ["Oslo", "Paris", "Rome", "Bern"]
MMLU = {"question": "Capital of France?", "choices": CHOICES, "answer": 1, "subject": "geography"}
ROWS: dict[str, dict[str, Any]] = {
    "mmlu": MMLU,
    "mmlu with a letter": MMLU | {"answer": "B"},
    "mmlu_pro": {"question": "Capital of France?", "options": CHOICES, "answer": "B", "answer_index": 1},
    "mmlu_pro by its index": {"question": "Capital of France?", "options": CHOICES, "answer_index": 1},
    "arc": {
        "id": "x1",
        "question": "Capital of France?",
        "choices": {"text": CHOICES, "label": ["1", "2", "3", "4"]},
        "answerKey": "2",
    },
    "openbookqa": {
        "question_stem": "Capital of France?",
        "choices": {"text": CHOICES, "label": list("ABCD")},
        "answerKey": "B",
    },
    "gpqa": {
        "Question": "Capital of France?\n",
        "Correct Answer": "Paris\n",
        "Incorrect Answer 1": "Oslo",
        "Incorrect Answer 2": "Rome",
        "Incorrect Answer 3": "Bern",
    },
}


def marked(task: Task) -> str:
    """Return the text of the right choice."""
    lines = [line for line in task.messages[0]["content"].splitlines() if line.startswith(f"{task.spec['answer']}. ")]
    assert len(lines) == 1
    return str(lines[0][3:])


@pytest.mark.parametrize("name", ROWS)
def test_a_public_row_has_its_choices_and_the_right_one(name: str) -> None:
    task = task_of(ROWS[name])
    assert marked(task) == "Paris"
    shown = task.messages[0]["content"].splitlines()
    assert shown[0] == "Capital of France?"
    assert sorted(line[3:] for line in shown[1:5]) == sorted(CHOICES)
    assert [line[:3] for line in shown[1:5]] == ["A. ", "B. ", "C. ", "D. "]
    assert score_turns(task, [f"It is Paris.\n\nAnswer: {task.spec['answer']}"]).reward == 1.0
    assert score_turns(task, ["Paris"]).reward == 0.0


def test_the_right_choice_is_anywhere_but_fixed_for_a_row() -> None:
    rows = [MMLU | {"question": f"Capital of France, once more ({number})?"} for number in range(200)]
    places = [task_of(row).spec["answer"] for row in rows]
    assert places == [task_of(row).spec["answer"] for row in rows]
    assert set(Counter(places)) == set("ABCD")
    assert min(Counter(places).values()) > 30


def test_without_shuffling_the_order_is_that_of_the_row() -> None:
    for number in range(20):
        assert task_of(MMLU | {"question": f"{number}?"}, shuffle=False).spec["answer"] == "B"


@pytest.mark.parametrize(
    "last",
    [
        "None of the above", "all of these", "Both A and B", "A and C only", "neither of these", "(A) and (B)",
        "Option A",
    ],
)  # fmt: skip
def test_choices_that_speak_of_the_others_keep_their_place(last: str) -> None:
    for number in range(20):
        row = {"question": f"{number}?", "choices": ["x", "y", "z", last], "answer": 3}
        assert task_of(row).spec["answer"] == "D"


@pytest.mark.parametrize(
    ("changed", "key", "value"),
    [
        ({"answer": 4}, "answer", 4),
        ({"answer": -1}, "answer", -1),
        ({"answer": "E"}, "answer", 4),
        ({"answer": "2"}, "answer", '"2"'),
        ({"answer": True}, "answer", ""),
        ({"choices": ["Paris"], "answer": 0}, "26", ""),
        ({"choices": ["Paris", "Paris"]}, "Paris", ""),
        ({"choices": [["Paris"], "Rome"]}, "choices", ""),
        ({"question": 7}, "question", 7),
        ({"answerKey": "Z", "choices": {"text": CHOICES, "label": list("ABCD")}}, "answerKey", '"Z"'),
    ],
)
def test_a_broken_row_is_refused_by_name(changed: dict[str, Any], key: str, value: object) -> None:
    with refuses(key, value):
        task_of(MMLU | changed)
