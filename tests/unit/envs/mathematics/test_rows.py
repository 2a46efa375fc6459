"""Rows of mathematics data: loading, reference and wrong answers, agreement with known labels of real rows."""

import json
import math
import random
import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import cycle, islice
from typing import Any

import pytest
import yaml
from support.bound import made
from support.refusals import refuses
from support.task_data import DATA, needs_data

from temper.envs.core.prompts import USUAL
from temper.envs.core.row_format import load_row
from temper.envs.core.task import EnvRef, Task
from temper.envs.core.thinking_mode import OFF
from temper.envs.mathematics import arithmetic
from temper.envs.mathematics.env import grade
from temper.envs.mathematics.grader import shared_grader
from temper.envs.mathematics.reference import negatives, reference
from temper.envs.mathematics.rows import formats
from temper.rewards.notation import is_simple


def correct(task: Task, turns: list[str]) -> float:
    env = made("math")
    env.reset(options={"task": task})
    *_, terminated, _, info = env.step(turns[0])
    assert terminated
    return float(info["parts"]["correct"])


def task_of(row: dict[str, Any]) -> Task:
    return replace(load_row(formats(USUAL), row), thinking=OFF)


@pytest.mark.parametrize(
    ("row", "answer"),
    [
        ({"question": "Q?", "answer": "48/2 = <<48/2=24>>24\n#### 1,024"}, "1,024"),
        ({"problem": "P?", "solution": "Hence \\boxed{1} is wrong and \\boxed{\\frac{1}{2}} right."}, "\\frac{1}{2}"),
        ({"problem": "P?", "solution": "ignored", "answer": "$x+1$"}, "x+1"),
        ({"problem": "P?", "answer": "so \\boxed{7}"}, "7"),
        ({"problem": "P?", "answer": 204}, "204"),
        ({"question": "P?", "answer": "2"}, "2"),
        ({"question": "P?", "answer": 2.5}, "2.5"),
    ],
)
def test_rows_of_both_formats_give_their_final_answer(row: dict[str, Any], answer: str) -> None:
    task = task_of(row)
    assert task.spec == {"answer": answer}
    assert task.messages[-1]["content"].endswith("?\nPut the final answer in \\boxed{}.")


@pytest.mark.parametrize(
    ("row", "key", "value"),
    [
        ({"question": "Q?", "answer": "24 ####"}, "answer", "####"),
        ({"question": "Q?", "answer": [24]}, "answer", "[24]"),
        ({"question": " ", "answer": "#### 2"}, "question", ""),
        ({"question": "Q?", "answer": "#### " + "9" * 600}, "600", ""),
        ({"problem": "P?", "solution": "\\boxed{7"}, "solution", ""),
        ({"problem": "P?", "answer": ["7"]}, "answer", '["7"]'),
        ({"prompt": "P?"}, "prompt", ""),
        ({"problem": "P?", "answer": None}, "answer", "null"),
        ({"problem": "P?", "answer": True}, "answer", "true"),
        ({"problem": "P?", "answer": ""}, "answer", '""'),
        ({"problem": "P?", "answer": math.nan}, "answer", "NaN"),
        ({"problem": "P?", "answer": -math.inf}, "answer", "-Infinity"),
        ({"problem": "P?", "solution": None}, "solution", "null"),
        *(({"problem": "P?", "answer": bad}, "answer", "") for bad in ("NaN", "x\\to\\infty", "\\frac{1}{")),
        (
            {"problem": "P?", "answer": "9. Anya climbs one floor and Vanya climbs five floors, so five times longer."},
            "answer",
            "9. Anya",
        ),
        ({"problem": "P?", "answer": f"Show that it holds for {'all of ' * 9} them"}, "answer", "Show that"),
    ],
)
def test_bad_rows_are_named(row: dict[str, Any], key: str, value: str) -> None:
    with refuses(key, value):
        load_row(formats(USUAL), row)


SHAPES = r"A | -A | \frac{A}{A} | \sqrt{A} | \sqrt[3]{A} | (A) | A^{A} | A+A | A - A | AA | A\cdot A | A*A | A/A"
LEAVES = ("2", "13", "3.5", "x", "k", "i", "e", "\\pi ", "\\theta ", "y^2")


def test_the_grader_reads_simple_formulas() -> None:
    rng = random.Random(0)
    for wrap in ("A", "y=A", "A,A,A", "(1,-2.5)", "\\{-1,\\frac{1}{2}\\}", "[\\frac{1}{2},\\infty)") * 6:
        formula = wrap.replace("A", "A" if wrap != "A" else rng.choice(SHAPES.split(" | ")))
        for _ in range(2):
            formula = re.sub("A", lambda _: rng.choice((*SHAPES.split(" | "), *LEAVES)), formula)
        formula = re.sub("A", lambda _: rng.choice(LEAVES), formula)
        assert not is_simple(formula) or shared_grader().can_read(formula), formula
    assert is_simple("e^{-\\frac{x}{2}}+\\sqrt{3}")
    assert not is_simple("\\frac{1}")


def test_a_refusal_has_the_columns_line_that_mends_the_row() -> None:
    """The suggested `columns` setting of the error makes the refused row a task."""
    row = {"Problem": "P?", "final_answer": "7"}
    with pytest.raises(ValueError, match="columns") as error:
        load_row(formats(USUAL), row)
    line = yaml.safe_load(str(error.value).split("`")[-2])
    renamed = {needed: row[given] for needed, given in line["columns"].items()}
    assert load_row(formats(USUAL), renamed).spec == {"answer": "7"}


@pytest.mark.parametrize(
    "answer",
    ["24", "-3.5", "0", "\\frac{3}{4}", "1,024", "40\\%", "x=4", "x+1", "\\frac{\\sqrt{2}}{2}", "(1,2)", "[0,\\infty)"]
    + [
        "\\{1,2\\}",
        "\\text{Monday}",
        "\\text{(A)}",
        "y=2x+1",
        "1,2",
        "x<3",
        "2^{10}",
        "\\begin{pmatrix}1\\\\2\\end{pmatrix}",
    ],
)
def test_references_of_any_form_pass_and_negatives_fail(answer: str) -> None:
    task = task_of({"problem": "What comes out of this?", "answer": answer})
    assert correct(task, reference(task)) == 1.0
    named = dict(negatives(task))
    assert len(named) >= 9
    for name, turns in named.items():
        assert correct(task, turns) == 0.0, name


def test_generated_references_pass_and_negatives_fail() -> None:
    rng = random.Random(3)
    for level in (1, 2, 3) * 10:
        task = replace(arithmetic.generate(rng, level), thinking=OFF)
        assert correct(task, reference(task)) == 1.0
        for name, turns in negatives(task):
            assert correct(task, turns) == 0.0, (task, name)


def test_a_thought_is_a_negatives_only_where_thinking_is_off() -> None:
    task = arithmetic.generate(random.Random(0), 1)
    assert "reasoning while thinking is off" not in dict(negatives(task))
    assert "reasoning while thinking is off" in dict(negatives(replace(task, thinking=OFF)))


def test_a_task_without_an_answer_has_no_reference() -> None:
    task = Task(env=EnvRef(name="math"), key="k", messages=({"role": "user", "content": "?"},), spec={})
    with refuses("answer", "math/k"):
        reference(task)


def rows(name: str = "gsm8k_train.jsonl") -> Iterator[dict[str, Any]]:
    with (DATA / name).open(encoding="utf-8") as file:
        for line in file:
            yield json.loads(line)


@needs_data
def test_references_of_real_rows_pass_and_negatives_fail() -> None:
    for index, row in enumerate(rows()):
        task = task_of(row)
        assert correct(task, [row["answer"]]) == 1.0, row
        assert correct(task, reference(task)) == 1.0, row
        for name, turns in negatives(task) if index % 5 == 0 else ():
            assert correct(task, turns) == 0.0, (name, row)


@needs_data
def plain(work: str) -> str:
    return re.sub(r"<<[^>]*>>", "", work)


def grouped(number: str) -> str:
    return f"{int(number):,}"


# how models end their solutions: worked steps and final answer to text
STYLES: dict[str, Callable[[str, str], str]] = {
    "as trained": lambda work, end: f"{work}\n#### {end}",
    "without annotations": lambda work, end: f"{plain(work)}\n#### {end}",
    "thousands": lambda work, end: f"{work}\n#### {grouped(end)}",
    "end token": lambda work, end: f"{work}\n#### {end}<|endoftext|>",
    "unit": lambda work, end: f"{plain(work)}\n#### {end} dollars per day.",
    "sentence behind": lambda work, end: f"{plain(work)}\n#### {end} is the number of apples that are left.",
    "cents": lambda work, end: f"{plain(work)}\n#### ${end}.00",
    "running on": lambda work, end: f"{work}\n#### {end}\n\nI hope this helps!",
    "twice": lambda work, end: f"{work}\n#### {end}\n#### {end}",
    "box": lambda work, end: f"{plain(work)}\n\nTherefore the final answer is $\\boxed{{{end}}}$.",
    "displayed box": lambda work, end: f"{plain(work)}\n\\[\n\\boxed{{{grouped(end)}}}\n\\]",
    "money in a box": lambda work, end: f"{plain(work)}\n\n\\boxed{{\\${end}}}",
    "unit in a box": lambda work, end: f"{plain(work)}\n\n\\boxed{{{end} \\text{{ cm}}^2}}",
    "box and mark": lambda work, end: f"{plain(work)}\nSo \\boxed{{{end}}}.\n#### {end}",
    "bold": lambda work, end: f"## Solution\n{plain(work)}\n\n**Answer: {end} apples**",
    "prose": lambda work, end: f"{plain(work)}\nThe answer is ${grouped(end)}.",
    "headings": lambda work, end: f"#### Step 1: add\n{plain(work)}\n#### Final answer\nIt is **{end}**.",
}


@needs_data
def test_known_labels_of_model_like_solutions_are_met() -> None:
    """Right and wrong solutions in many styles. One in a hundred is truncated before its answer and labelled wrong."""
    rng, met, asked = random.Random(0), 0, 0
    for row in islice(rows(), 0, None, 5):
        task = task_of(row)
        right = task.spec["answer"].replace(",", "")
        work = row["answer"].rpartition("####")[0].strip()
        wrong = str(rng.choice([int(right) + 1, -int(right) - 1, int(right) * 2 + 1]))
        solutions = [(style(work, end), end == right) for style in STYLES.values() for end in (right, wrong)]
        solutions += [(work, False)] * (rng.random() < 0.34)
        for text, label in solutions:
            judged = grade(text, reference=task.spec["answer"], question=task.messages[-1]["content"])
            met += (judged.parts["correct"] == 1.0) == label
            asked += 1
    assert asked > 12_000
    assert met / asked >= 0.999


def is_right(text: str, task: Task) -> bool:
    return grade(text, reference=task.spec["answer"], question=task.messages[-1]["content"]).parts["correct"] == 1.0


@needs_data
def test_labels_of_a_models_own_solutions_are_met() -> None:
    found = [(is_right(row["response"], task_of(row)), row["is_correct"]) for row in rows("gsm8k_labelled.jsonl")]
    assert len(found) == 2000
    assert sum(judged == label for judged, label in found) / len(found) >= 0.999


# where a solution may be cut off before its answer
CUTS: list[Callable[[str, random.Random], str]] = [
    lambda work, rng: f"{work}\n{'#' * rng.randint(1, 4)}",
    lambda work, rng: f"{work}\nA:",
    lambda work, rng: work[: rng.randint(work.rfind("\n") + 2, len(work))],
    lambda work, rng: "\n".join((lines := work.split("\n"))[: rng.randint(1, len(lines))]),
    lambda work, rng: work[: rng.randint(1, len(work))],
]


@needs_data
def test_solutions_cut_before_their_answer_are_not_right() -> None:
    rng, whole, cut = random.Random(0), list[bool](), list[bool]()
    for row, place in zip(rows(), cycle(CUTS), strict=False):
        task, work = task_of(row), row["answer"].rpartition("####")[0].strip()
        whole.append(is_right(work, task))
        cut.append(is_right(place(work, rng), task))
    assert len(whole) == 2000
    assert sum(whole) < 20
    assert sum(cut) < 20
