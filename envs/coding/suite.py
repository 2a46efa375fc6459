"""The tests of a coding task, each run in a new process that never sees the expected result.

The spec of a task holds one of

- `tests`: `args` and `expected` of a function, compared with types, or by JSON's rules with `json`. With `wrapped`, a list
  of one result also stands for the result.
  A method of a class `Solution` replaces a missing function, and with `method` any function.
- `stdio`: `input` and `output` of a program.
- `checks`: sources that judge the program's definitions (`temper.envs.coding.checks`), after a common `setup`.
- `check`: a source with a function `check(candidate)`: one test, or one per judging statement. `setup` may keep the
  program's function as `candidate`.

`tests` and `stdio` may come with `packed`: more tests of that kind in the format of `temper.envs.coding.io_tests`.
"""

import time
from collections.abc import Generator
from contextlib import closing
from dataclasses import dataclass, replace
from typing import Any, Literal

from temper.envs.coding.case_result import FAULTS, CaseResult, call_text, fail_case, format_value, shorten
from temper.envs.coding.checks import Start, run_checks
from temper.envs.coding.io_tests import read_packed_tests
from temper.envs.coding.row_source import join_check, split_check
from temper.envs.core.errors import GraderError
from temper.envs.sandbox.sandbox import Sandbox
from temper.envs.sandbox.sealed_process import MAX_QUEUED_S, WAITS, Limits, ReplyKind
from temper.rewards.program_output import is_json_equal, is_same_output, is_strictly_equal

CALL_LIMITS = Limits(wall_s=6.0, cpu_s=1, memory_mb=512)
MAIN_LIMITS = Limits(wall_s=15.0, cpu_s=6, memory_mb=1024)
MAX_OUT_OF_TIME = 2  # timed-out tests after which the others count as failed
MAX_SECONDS = 40.0  # for all tests, without waits for a CPU; the remaining ones then count as failed
SOLUTION = "Solution"
"""The class of LeetCode's programs, whose methods are the functions of tests."""
METHOD = "\n\nif {1} and hasattr(globals().get('Solution'), {0!r}):\n    {0} = Solution().{0}\n"


@dataclass(frozen=True, slots=True, kw_only=True)
class Suite:
    """The tests of a task: their kind, their number, and their results in order, executed lazily."""

    kind: Literal["stdio", "values", "check", "assertions"]
    count: int
    results: Generator[CaseResult, None, None]

    def execute(self, *, failures: int, seconds: float) -> "SuiteResult":
        """Execute the tests until `failures` have failed. Raise `GraderError` if none failed and not all were executed.

        Tests that remain after `seconds`, without the programs' waits for a CPU, count as failed.
        """
        passed, executed, out_of_time, wrong = 0, 0, 0, list[tuple[int, CaseResult]]()
        start, waited = time.monotonic(), WAITS.seconds
        with closing(self.results) as results:
            for tested in results:
                executed += 1
                passed += tested.passed
                out_of_time += tested.out_of_time
                if not tested.passed:
                    wrong.append((executed, tested))
                spent = time.monotonic() - start - min(WAITS.seconds - waited, MAX_QUEUED_S)
                if spent > seconds and executed < self.count:
                    detail = f"the tests before it took {seconds:g} s"
                    fault = FAULTS[ReplyKind.TIME]
                    wrong.append(
                        (executed + 1, CaseResult(passed=False, detail=detail, policy_fault=True, fault=fault))
                    )
                    break
                if out_of_time >= MAX_OUT_OF_TIME or len(wrong) >= failures:
                    break
        if not wrong and (executed != self.count or executed == 0):
            raise GraderError(f"{executed} of {self.count} tests were executed")
        return SuiteResult(executed=executed, passed=passed, wrong=wrong)


@dataclass(frozen=True, slots=True, kw_only=True)
class SuiteResult:
    """The numbers of executed and passed tests, and the failed tests with their numbers from 1."""

    executed: int
    passed: int
    wrong: list[tuple[int, CaseResult]]


def build_suite(
    sandbox: Sandbox, source: str, spec: dict[str, Any], *, one_by_one: bool, start: Start | None = None
) -> Suite:
    """Return the tests of a task for a program. `one_by_one` splits a check function into its statements. `start` starts
    the program of a check.
    """
    spec = _with_packed(spec)
    if "stdio" in spec:
        return Suite(kind="stdio", count=len(spec["stdio"]), results=_outputs(sandbox, source, spec["stdio"]))
    if "tests" in spec:
        return Suite(kind="values", count=len(spec["tests"]), results=_calls(sandbox, source, spec))
    name, setup = spec["entry_point"], spec.get("setup", "")
    names = spec.get("names", [name])
    if "check" in spec:
        candidate = spec.get("candidate", name)
        parts = split_check(spec["check"], candidate, names) if one_by_one else []
        bodies = parts or [join_check(spec["check"], candidate, names)]
        texts = [body.rpartition("\n")[2] for body in parts] or [f"check({name})"]
    else:
        bodies = texts = spec["checks"]
    checks = [f"{setup}\n\n{body}" for body in bodies]
    results = run_checks(sandbox, source, checks, names, start=start)
    return Suite(kind="check" if "check" in spec else "assertions", count=len(bodies), results=_named(results, texts))


def _with_packed(spec: dict[str, Any]) -> dict[str, Any]:
    if "packed" not in spec:
        return spec
    try:
        tests = read_packed_tests(spec["packed"], calls="stdio" not in spec)
    except ValueError as error:
        raise GraderError(str(error)) from error
    kind = "stdio" if "stdio" in spec else "tests"
    return spec | {kind: [*spec[kind], *tests]}


def _calls(sandbox: Sandbox, source: str, spec: dict[str, Any]) -> Generator[CaseResult, None, None]:
    name, tests = spec["entry_point"], spec["tests"]
    equal, limits = (is_json_equal, MAIN_LIMITS) if spec.get("json") else (is_strictly_equal, CALL_LIMITS)
    equal = _equals_wrapped if spec.get("wrapped") else equal
    source += METHOD.format(name, bool(spec.get("method")) or f"not callable(globals().get({name!r}))")
    replies = sandbox.call_each(source, name, [test["args"] for test in tests], limits)
    for test, reply in zip(tests, replies, strict=True):
        call = call_text(name, test["args"])
        if reply.kind is not ReplyKind.VALUE:
            yield fail_case(reply, call)
        elif equal(reply.value, test["expected"]):
            yield CaseResult(passed=True)
        else:
            detail = f"{call} returned {format_value(reply.value)}, expected {format_value(test['expected'])}"
            yield CaseResult(passed=False, detail=detail)


def _equals_wrapped(result: Any, expected: Any) -> bool:
    wrapped = isinstance(expected, list) and len(expected) == 1
    return is_json_equal(result, expected) or (wrapped and is_json_equal(result, expected[0]))


def _outputs(sandbox: Sandbox, source: str, tests: list[dict[str, str]]) -> Generator[CaseResult, None, None]:
    for test in tests:
        given = f"input:\n{shorten(test['input'])}\n"
        reply = sandbox.run_main(source, test["input"], MAIN_LIMITS, most=2 * len(test["output"].encode()))
        if reply.kind is not ReplyKind.VALUE:
            yield fail_case(reply, f"{given}the program")
        elif is_same_output(reply.value, test["output"]):
            yield CaseResult(passed=True)
        else:
            detail = f"{given}output:\n{shorten(reply.value)}\nexpected:\n{shorten(test['output'])}"
            yield CaseResult(passed=False, detail=detail)


def _named(results: Generator[CaseResult, None, None], texts: list[str]) -> Generator[CaseResult, None, None]:
    for tested, text in zip(results, texts, strict=True):
        failed_text = f"{shorten(text)} failed: {tested.detail}"
        yield tested if tested.passed else replace(tested, detail=failed_text)
