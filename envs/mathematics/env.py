"""The math environment: one question, one final answer, checked exactly."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, get_args

from temper.envs.core.bounds import require_choice, require_known
from temper.envs.core.definition import PARTS, EnvDefinition
from temper.envs.core.prompts import NAMES, USUAL, Prompts, read_prompts
from temper.envs.core.step_result import StepResult
from temper.envs.core.task import Task
from temper.envs.core.turn_text import ParsedTurn
from temper.envs.mathematics import arithmetic
from temper.envs.mathematics import reference as answers
from temper.envs.mathematics.grader import shared_grader
from temper.envs.mathematics.rows import AGREE, BOXES, KINDS, REQUEST, bare_question, formats
from temper.envs.task_env import TaskEnv, last_user_text
from temper.rewards.answers import Boxes, equal_numbers, final_answer
from temper.rewards.expressions import (
    asks_percentage,
    is_echo,
    is_same_text,
    refusal,
    remove_counted_word,
    remove_question,
    to_formula,
)
from temper.rewards.notation import to_comparable
from temper.rewards.plain_numbers import plain_number
from temper.rewards.score import Score, binary_score, policy_fault
from temper.rewards.units import equal_quantities

ECHO = "echo"


class MathEnv(TaskEnv):
    """Single turn: the final answer must equal the task's."""

    def begin(self, task: Task) -> None:
        if plain_number(task.spec["answer"]) is None:
            shared_grader().start()  # warm before the answer arrives

    def turn(self, task: Task, parsed: ParsedTurn) -> StepResult:
        score = grade(
            parsed.answer,
            reference=task.spec["answer"],
            question=last_user_text(task),
            bare=bare_question(task),
            boxes=task.spec.get(BOXES, AGREE),
        )
        return self.end(score)


def grade(text: str, *, reference: str, question: str = "", bare: str | None = None, boxes: Boxes = AGREE) -> Score:
    """Score the answer of a turn: plain numbers exactly, other expressions by math-verify in a separate process.

    An answer that only repeats text of the question is wrong and has the part `echo`. A repeated question before the answer
    is ignored. `bare` is the question without the words around it, if these are unusual. Raise `GraderError` if the
    reference answer can't be checked.
    """
    if is_echo(text, question):
        return _judged(False, "echo", "repeats the question")
    found = final_answer(remove_question(question.removesuffix(REQUEST) if bare is None else bare, text), boxes)
    if found is None:
        return _judged(False, "extraction", "no final answer, or several that differ", well_formed=False)
    detail = f"answered {found[:80]}"
    echoes = is_echo(found, question)
    found, reference = to_comparable(found, reference, question)
    if echoes and not is_same_text(found, reference):
        return _judged(False, "echo", f"{detail}: repeats the question")
    equal = equal_quantities(found, reference)
    if equal is not None:
        return _judged(equal, "units", detail)
    percent = asks_percentage(question)
    equal = equal_numbers(found, reference, percent=percent)
    if not equal:
        counted, wanted = (remove_counted_word(one, question) for one in (found, reference))
        equal = equal_numbers(counted, wanted, percent=percent)
    if equal is not None:
        return _judged(equal, "numbers", detail)
    equal = is_same_text(found, reference)
    if equal is not None:
        return _judged(equal, "text", detail)
    refused = refusal(found, reference=reference)
    if refused is not None:
        return _judged(False, "bounds", f"{detail}: {refused}")
    equal = shared_grader().is_equal(reference=to_formula(reference), answer=to_formula(found))
    if equal is None:
        return policy_fault(f"{detail}: over the time limit")
    return _judged(equal, "math-verify", detail)


def _judged(correct: bool, comparator: str, detail: str, *, well_formed: bool = True) -> Score:
    score = binary_score(correct, well_formed=well_formed, detail=detail)
    echo = {ECHO: float(comparator == "echo")}
    return replace(score, parts=score.parts | echo, evidence={"comparator": comparator})


def configure(options: Mapping[str, Any]) -> EnvDefinition:
    require_known(options, (*NAMES, BOXES), "options")
    boxes: Boxes = options.get(BOXES, AGREE)
    require_choice(f"options.{BOXES}", boxes, get_args(Boxes))
    return _definition(read_prompts(options, KINDS), boxes)


def _definition(prompts: Prompts, boxes: Boxes = AGREE) -> EnvDefinition:
    return EnvDefinition(
        id="math",
        entry_point="temper.envs.mathematics.env:MathEnv",
        generate=arithmetic.generate,
        levels=len(arithmetic.LEVELS),
        formats=formats(prompts, boxes),
        demonstrate=arithmetic.demonstrate,
        reference=answers.reference,
        negatives=answers.negatives,
        configure=configure,
        parts=(*PARTS, ECHO),
        max_turns=1,
    )


ENVIRONMENT = _definition(USUAL)
