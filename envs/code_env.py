"""The code environment: a Python function, executed against tests in the sandbox."""

import random
from typing import Any

from envs import programs
from envs.episode import StepReturn, TaskEnv
from envs.errors import GraderError
from envs.program import Kind, Limits, Program, Reply
from envs.sandbox import Sandbox, shared_sandbox
from envs.task import Task
from rewards.results import strictly_equal
from rewards.source_text import program_of
from rewards.verdict import Verdict, policy_fault, verdict

LIMITS = Limits(wall_s=4.0, cpu_s=1, memory_mb=512)
CHECK_LIMITS = Limits(wall_s=6.0, cpu_s=5, memory_mb=1024)


class CodeEnv(TaskEnv):
    """Single turn: every test must pass. The program is found by the rule of `rewards.source_text`."""

    env_id = programs.ENV

    def draw(self, rng: random.Random) -> Task:
        return programs.generate(rng, 1)

    def turn(self, task: Task, answer: str) -> StepReturn:
        spec = task.spec
        source = program_of(answer, entry_point=spec["entry_point"], prompt=spec.get("prompt", ""))
        if source is None:
            return self.end(verdict(False, well_formed=False, detail="no program in the answer"))
        return self.end(shared_sandbox().attempt(lambda sandbox: run(sandbox, source, spec)))


def run(sandbox: Sandbox, source: str, spec: dict[str, Any]) -> Verdict:
    """Judges a program by the tests or the check function of a task."""
    if "check" in spec:
        return run_check(sandbox, source, entry_point=spec["entry_point"], prompt=spec["prompt"], check=spec["check"])
    return run_tests(sandbox, source, entry_point=spec["entry_point"], tests=spec["tests"])


def run_tests(sandbox: Sandbox, source: str, *, entry_point: str, tests: list[dict[str, Any]]) -> Verdict:
    """Calls the function with each test's arguments and compares outside the sandbox; all must be equal."""
    calls = [test["args"] for test in tests]
    expected = [
        (None, "load"),
        *((test["expected"], f"test {n} of {len(tests)}") for n, test in enumerate(tests, start=1)),
    ]
    executed = 0
    with sandbox.program(LIMITS) as program:
        for reply, (value, where) in zip(program.results(source, entry_point, calls), expected, strict=False):
            if reply.kind is not Kind.VALUE or not strictly_equal(reply.value, value):
                return _judge(reply, where)
            executed += 1
    if executed != len(expected):
        raise GraderError(f"{executed} of {len(expected)} tests were executed")
    return verdict(True, detail=f"{len(tests)} tests passed")


def run_check(sandbox: Sandbox, source: str, *, entry_point: str, prompt: str, check: str) -> Verdict:
    """Runs `check(candidate)` in one sandbox and the candidate in another; only arguments and results cross.

    The check sees the prompt's helpers. What it does before it first asks for a result is the row's own doing: a
    failure there is a GraderError. How the candidate changes its arguments can't be seen by the check.
    """
    with sandbox.program(CHECK_LIMITS) as checker, sandbox.program(CHECK_LIMITS) as candidate:
        loaded = checker.load(f"{prompt}\n    pass\n\n{check}")
        if loaded.kind is not Kind.VALUE:
            raise GraderError(f"the check of {entry_point} can't be loaded: {loaded.detail}")
        reply = candidate.load(source)
        if reply.kind is not Kind.VALUE:
            return _judge(reply, "load")
        return _mediate(checker, candidate, entry_point)


def _mediate(checker: Program, candidate: Program, entry_point: str) -> Verdict:
    calls, asked = 0, checker.check("check", entry_point=entry_point)
    while asked.kind is Kind.ASK:
        calls += 1
        reply = candidate.call(entry_point, asked.value)
        if reply.kind is not Kind.VALUE:
            return _judge(reply, f"call {calls}")
        asked = checker.answer(reply.value)
    if calls == 0:
        raise GraderError(f"the check of {entry_point} never called the candidate: {asked.kind.value} {asked.detail}")
    return verdict(asked.kind is Kind.VALUE, detail=f"{calls} calls; {asked.detail}")


def _judge(reply: Reply, where: str) -> Verdict:
    """The verdict on a program that gave no right value."""
    detail = f"{where}: {reply.kind.value} {reply.detail}"
    return policy_fault(detail) if reply.policy_fault else verdict(False, detail=detail)
