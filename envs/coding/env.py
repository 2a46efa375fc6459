"""The code environment: a Python program, tested in the sandbox, with turns to repair it.

With `credit` set to `all`, every test must pass, and the first failure ends the tests. With `fraction`, all tests run and
the part `correct` is the share that passes. The part `tests` is the share of the executed tests that passed. If `max_turns`
is above 1, the model sees the first failing tests and may repair the program. The program of the last turn counts. The
prompt shows the first `shown` tests, by default none. Of the hidden tests the model sees only the number, since their
results would reveal an answer.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from temper.envs.coding import exercises, rows_assertions, rows_humaneval, rows_stdio
from temper.envs.coding.case_result import CaseResult, shorten
from temper.envs.coding.checks import Start
from temper.envs.coding.reference import negatives, reference
from temper.envs.coding.suite import MAX_SECONDS, SOLUTION, build_suite
from temper.envs.core.bounds import require_known
from temper.envs.core.definition import PARTS, EnvDefinition
from temper.envs.core.prompts import NAMES, USUAL, Prompts, read_prompts
from temper.envs.core.step_result import StepResult
from temper.envs.core.task import Credit, Message, Task
from temper.envs.core.turn_text import ParsedTurn
from temper.envs.sandbox.sandbox import Sandbox, shared_sandbox
from temper.envs.task_env import TaskEnv
from temper.rewards.program_text import has_definition, join_code, program_of
from temper.rewards.score import CORRECT, Score, binary_score, policy_fault

TESTS = "tests"
ASKED = {
    "completion": ("question",),
    "function": ("question", "name", "test", "tests", "starter"),
    "program": ("question",),
}
"""Kinds of `options.prompt` with their fields: code to complete, a function, or a program that reads its input."""
MAX_FAILURES_SHOWN = 3
NO_PROGRAM = "There is no program in your answer. Give the whole program in a code block."
REPAIR = "These tests failed:\n\n{}\n\nRepair the program. Give the whole program in a code block."


class CodeEnv(TaskEnv):
    """One program per turn, extracted by `temper.rewards.program_text`. One turn, or more to repair it."""

    def turn(self, task: Task, parsed: ParsedTurn) -> StepResult:
        spec, last = task.spec, self.is_last(task)
        source = program_text(parsed.answer, spec)
        if source is None:
            wrong = binary_score(False, well_formed=False, detail="no program in the answer")
            return self.end(wrong.with_parts({TESTS: 0.0})) if last else self.continue_with([_user(NO_PROGRAM)])
        score, failures = shared_sandbox().attempt(
            lambda sandbox: judge(
                sandbox, source, spec, credit=task.env.settings.credit, failures=1 if last else MAX_FAILURES_SHOWN
            )
        )
        if last or not failures:
            return self.end(score)
        return self.continue_with([_user(REPAIR.format("\n\n".join(failures)))])


def program_text(answer: str, spec: dict[str, Any]) -> str | None:
    names = [spec.get("entry_point")]
    if "tests" in spec:
        names = [SOLUTION, *names] if spec.get("method") else [*names, SOLUTION]
    found = [program_of(answer, entry_point=name, prompt=spec.get("prompt", "")) for name in names]
    defined = (
        source for source, name in zip(found, names, strict=True) if source and name and has_definition(source, name)
    )
    source = next(defined, found[0])
    return source if source is None else join_code(spec.get("imports", ""), source)


def judge(
    sandbox: Sandbox,
    source: str,
    spec: dict[str, Any],
    *,
    credit: Credit = "all",
    failures: int = 1,
    seconds: float = MAX_SECONDS,
    start: Start | None = None,
) -> tuple[Score, list[str]]:
    """Return the score of a program and the failed tests as text. With `all` it stops after `failures` failed tests.

    `start` starts the processes of the program for checks, by default in the sandbox.
    """
    partial = credit == "fraction"
    tests = build_suite(sandbox, source, spec, one_by_one=partial or failures > 1, start=start)
    done = tests.execute(failures=tests.count if partial else failures, seconds=seconds)
    share = done.passed / tests.count
    level = sandbox.isolation.level if sandbox.isolation else 0
    evidence: dict[str, str | float] = {
        "comparator": tests.kind,
        "tests": tests.count,
        "executed": done.executed,
        "isolation": level,
    }
    score = replace(_score(done.wrong, tests.count), evidence=evidence)
    score = score.with_parts({TESTS: share} | ({CORRECT: share} if partial else {}))
    limit = spec.get("shown", 0)
    messages = [
        tested.detail if number <= limit else f"hidden test {number}: {tested.fault}" for number, tested in done.wrong
    ]
    return score, [shorten(text, 1000) for text in messages[:MAX_FAILURES_SHOWN]]


def _score(wrong: list[tuple[int, CaseResult]], count: int) -> Score:
    if not wrong:
        return binary_score(True, detail=f"{count} tests passed")
    number, first = wrong[0]
    detail = f"test {number} of {count}: {first.detail}"
    return policy_fault(detail) if first.policy_fault else binary_score(False, detail=detail)


def _user(text: str) -> Message:
    return {"role": "user", "content": text}


def configure(options: Mapping[str, Any]) -> EnvDefinition:
    require_known(options, NAMES, "options")
    return _definition(read_prompts(options, ASKED))


def _definition(prompts: Prompts) -> EnvDefinition:
    """Return the environment. The formats are in the order of detection: a later one would match the earlier rows too."""
    rows = (rows_humaneval, rows_stdio, rows_assertions)
    return EnvDefinition(
        id="code",
        entry_point="temper.envs.coding.env:CodeEnv",
        generate=exercises.generate,
        levels=2,
        formats=tuple(known for module in rows for known in module.formats(prompts)),
        demonstrate=exercises.demonstrate,
        reference=reference,
        negatives=negatives,
        configure=configure,
        parts=(*PARTS, TESTS),
        max_turns=1,
        runs_programs=True,
    )


ENVIRONMENT = _definition(USUAL)
