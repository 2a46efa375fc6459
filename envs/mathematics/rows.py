"""Rows of mathematics data as tasks."""

import re
from functools import partial
from typing import Any

from temper.envs.core.prompts import QUESTION, USUAL, Prompts
from temper.envs.core.row_fields import quote_value
from temper.envs.core.row_format import RowFormat, field, gold, has_fields
from temper.envs.core.task import Task
from temper.envs.mathematics.grader import shared_grader
from temper.envs.task_env import last_user_text
from temper.rewards.answers import Boxes, boxes
from temper.rewards.expressions import BASED, is_words, to_formula
from temper.rewards.notation import is_simple, to_plain_notation
from temper.rewards.plain_numbers import MAX_CHARACTERS, number, to_bare

REQUEST = "\nPut the final answer in \\boxed{}."
AGREE: Boxes = "agree"
BOXES = "boxes"
"""Option and spec key: whether an answer's boxes must agree, or the last one counts."""
NO_ANSWER = re.compile(r"[-+]?(?:nan|null|inf)", re.I)
WORD, MAX_WORDS = re.compile(r"(?<![\\A-Za-z])[A-Za-z]{2,}"), 10
KINDS = {QUESTION: (QUESTION,)}
TEXTS = ("problem", QUESTION)


def load_gsm8k(row: dict[str, Any], prompts: Prompts = USUAL, boxes_are: Boxes = AGREE) -> Task:
    question, answer = field(row, "question", str), field(row, "answer", str)
    _, mark, reference = answer.rpartition("####")
    if not mark or not reference.strip():
        raise ValueError("field 'answer' has no final answer after '####'")
    return _task(question, reference, "answer", prompts, boxes_are)


def load_answer(row: dict[str, Any], prompts: Prompts = USUAL, boxes_are: Boxes = AGREE) -> Task:
    """Make a task of a `question` or `problem` with a final `answer`, or a `solution` that ends in a box."""
    question = field(row, "problem" if "problem" in row else "question", str)
    answer = row.get("answer")
    if answer is not None or ("answer" in row and row.get("solution") is None):
        text = gold(field(row, "answer", str if isinstance(answer, bool) else object), "answer")
        boxed = boxes(text)
        reference = boxed[-1] if boxed else text.strip("$")
        return _task(question, reference, "answer", prompts, boxes_are)
    boxed = boxes(field(row, "solution", str))
    if not boxed:
        raise ValueError("field 'solution' has no closed \\boxed{...}; add one, or a field 'answer'")
    return _task(question, boxed[-1], "solution", prompts, boxes_are)


def formats(prompts: Prompts, boxes_are: Boxes = AGREE) -> tuple[RowFormat, ...]:
    load = partial(load_answer, prompts=prompts, boxes_are=boxes_are)
    return (
        RowFormat(
            name="gsm8k",
            matches=lambda row: "question" in row and "####" in str(row.get("answer")),
            load=partial(load_gsm8k, prompts=prompts, boxes_are=boxes_are),
        ),
        RowFormat(name="answer", matches=has_fields("question", "answer"), load=load, questions=TEXTS),
        RowFormat(
            name="math",
            matches=lambda row: "problem" in row and ("answer" in row or "solution" in row),
            load=load,
            questions=TEXTS,
        ),
    )


def bare_question(task: Task) -> str:
    """Return the question of a task without the words around it."""
    return str(task.spec[QUESTION]) if QUESTION in task.spec else last_user_text(task).removesuffix(REQUEST)


def is_gradable(reference: str) -> bool:
    """Return whether an answer can be compared with others: a number, a few words, or a formula that the grader reads.

    Simple formulas do not run the grader, because each call takes milliseconds.
    """
    if NO_ANSWER.fullmatch(reference) or len(WORD.findall(to_bare(reference))) > MAX_WORDS:
        return False
    if number(reference) is not None or is_words(reference) or BASED.search(reference):
        return True
    formula = to_formula(to_plain_notation(reference))
    return is_simple(formula) or shared_grader().can_read(formula)


def _task(question: str, reference: str, name: str, prompts: Prompts, boxes_are: Boxes) -> Task:
    """Return the task of a question with its final answer, which the field `name` holds."""
    reference = reference.strip()
    if not 0 < len(reference) <= MAX_CHARACTERS:
        length = f"1 to {MAX_CHARACTERS} characters, not {len(reference)}"
        raise ValueError(f"{name} is {quote_value(reference)}; the final answer must have {length}")
    if not is_gradable(reference):
        raise ValueError(
            f"{name} is {quote_value(reference)}, which no answer can be compared with; give a number or a formula"
        )
    if not question.strip():
        raise ValueError("the question is empty")
    question = question.strip()
    messages = prompts.messages(QUESTION, question + REQUEST, {QUESTION: question})
    spec = {"answer": reference} | ({} if boxes_are == AGREE else {BOXES: boxes_are})
    return Task(messages=messages, spec=spec | ({QUESTION: question} if QUESTION in prompts.texts else {}))
