r"""reasoning-gym (https://github.com/open-thought/reasoning-gym): its generators as tasks, its scores as rewards.

Options: `dataset` (a name or a list of names, by default all but `LEFT_OUT`) and, for one data set, `config` with its
settings, which include the difficulty. The part `correct` is 1 only for the library's full score. The part `score` is the
library's score from 0 to 1. It rewards wrong answers too, so weigh it with care.
`temper.envs.puzzles.library_child.CONDITIONS` refuses wrong answers that the library would accept.

`rewards.answers.find_answers` finds the answers of a text. Several different ones give no answer.
"""

import random
import re
from collections.abc import Iterator, Mapping
from functools import partial
from importlib.util import find_spec
from typing import Any

from temper.envs.core.bounds import require_known, require_type
from temper.envs.core.definition import PARTS, EnvDefinition
from temper.envs.core.errors import GraderError
from temper.envs.core.step_result import StepResult
from temper.envs.core.task import Task
from temper.envs.core.turn_text import ParsedTurn
from temper.envs.puzzles.library import Origin, shared_library
from temper.envs.task_env import TaskEnv
from temper.rewards.answers import find_answers
from temper.rewards.score import binary_score, policy_fault

REQUEST = "{}\n\nPut the final answer between <answer> and </answer>."
WHOLE_NUMBER = re.compile(r"-?\d{1,15}")
MAX_CHARACTERS = 20_000
SCORE = "score"
LEFT_OUT = ("game_of_life", "propositional_logic")
"""Data sets that are used only by name: an empty board is often right, and one formula follows from most premises."""
FEW_ANSWERS = (
    *("acre", "aiw", "binary_alternation", "circuit_logic", "count_bits", "course_schedule", "game_of_life"),
    *("family_relationships", "game_of_life_halting", "gcd", "isomorphic_strings", "letter_counting", "maze"),
    *("mahjong_puzzle", "polynomial_equations", "ransom_note", "rotten_oranges", "self_reference", "syllogism"),
    *("largest_island", "shortest_path", "zebra_puzzles"),
)
"""Data sets in which more than a fifth of the tasks share an answer."""
CHANCE = 0.85
"""Highest mean reward of one fixed answer in these."""


class PuzzleEnv(TaskEnv):
    """Single turn: reasoning-gym scores the answer."""

    def turn(self, task: Task, parsed: ParsedTurn) -> StepResult:
        found, marked = answer_of(parsed.answer)
        if not found:
            wrong = binary_score(False, well_formed=False, detail="no answer, several that differ, or too long")
            return self.end(wrong.with_parts({SCORE: 0.0}))
        library_score = _library_score(task, found)
        if library_score is None:
            late = policy_fault(f"answered {found[:80]}: over the time limit")
            return self.end(late.with_parts({SCORE: 0.0}))
        score = binary_score(library_score >= 1.0, well_formed=marked, detail=f"answered {found[:80]}")
        return self.end(score.with_parts({SCORE: library_score}))


def _library_score(task: Task, text: str) -> float | None:
    origin = Origin(dataset=task.spec["dataset"], config=task.spec["config"], seed=task.spec["seed"])
    library = shared_library("scoring")
    try:
        question = library.make(origin).question
    except ValueError as error:
        raise GraderError(str(error)) from error
    if REQUEST.format(question) != task.messages[0]["content"]:
        raise GraderError(
            f"{origin} is another question in the installed version of reasoning-gym; install the version that made it"
        )
    return library.score(origin, text)


def answer_of(text: str) -> tuple[str, bool]:
    if len(text) > MAX_CHARACTERS:
        return "", False
    distinct = {answer.strip() for answer in find_answers(text)}
    answer = distinct.pop() if len(distinct) == 1 else ""
    return answer, answer != text.strip()


def generate(
    rng: random.Random, level: int, *, datasets: tuple[str, ...] = (), config: Mapping[str, Any] | None = None
) -> Task:
    library = shared_library("making")
    name = rng.choice(datasets or tuple(name for name in library.datasets() if name not in LEFT_OUT))
    origin = Origin(dataset=name, config=dict(config or {}), seed=rng.getrandbits(31))
    puzzle = library.make(origin)
    spec = {"dataset": origin.dataset, "config": origin.config, "seed": origin.seed, "answer": puzzle.answer}
    messages = ({"role": "user", "content": REQUEST.format(puzzle.question)},)
    return Task(messages=messages, spec=spec)


def reference(task: Task) -> list[str]:
    if task.spec["answer"] is None:
        raise ValueError(f"data set {task.spec['dataset']} has no answer for seed {task.spec['seed']}")
    return [_marked(task.spec["answer"])]


def negatives(task: Task) -> Iterator[tuple[str, list[str]]]:
    yield "empty", [_marked("")]
    yield "other text", [_marked("no answer")]
    right = task.spec["answer"]
    if right is not None:
        yield "two answers", [_marked(right) + _marked("no answer")]
        if WHOLE_NUMBER.fullmatch(right):
            yield "number beside", [_marked(str(int(right) + 1))]


def _marked(answer: str) -> str:
    return f"<answer>{answer}</answer>"


def configure(options: Mapping[str, Any]) -> EnvDefinition:
    if find_spec("reasoning_gym") is None:
        raise ValueError(
            "reasoning-gym is not installed; install a C compiler for its pycosat, then run `make clean setup`"
        )
    known = ("dataset", "config")
    require_known(options, known, "options")
    named, config = options.get("dataset", []), options.get("config", {})
    names = [named] if isinstance(named, str) else named
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise ValueError(f"options.dataset is {named!r}; set the name of a data set, or a list of names")
    require_type("options.config", config, Mapping)
    if config and len(names) != 1:
        raise ValueError("options.config needs options.dataset to name one data set")
    keys = shared_library("making").datasets()
    require_known(names, tuple(keys), "options.dataset")
    if config:
        require_known(config, tuple(keys[names[0]]), f"options.config of {names[0]}")
    return _definition(tuple(names), dict(config))


def _definition(datasets: tuple[str, ...], config: dict[str, Any]) -> EnvDefinition:
    return EnvDefinition(
        id="reasoning_gym",
        entry_point="temper.envs.puzzles.env:PuzzleEnv",
        generate=partial(generate, datasets=datasets, config=config),
        levels=1,
        reference=reference,
        negatives=negatives,
        configure=configure,
        parts=(*PARTS, SCORE),
        max_turns=1,
        chance=CHANCE if {*datasets} & {*FEW_ANSWERS} else None,
    )


ENVIRONMENT = _definition((), {})
