"""Checks of a program, with the check in one sandbox and the program in another.

Values cross between them unparsed, in the forms of `temper.envs.sandbox.bridge`. Expected values stay with the check. A
check that fails before its first request is at fault itself, which is a `GraderError`. After that the program may be the
cause, so it is never an error of ours. The exchange costs the grading process time too, so its requests and its CPU time are
limited.
"""

import re
import time
from collections import deque
from collections.abc import Callable, Generator, Sequence
from contextlib import closing
from dataclasses import replace

from temper.envs.coding.case_result import CaseResult, call_text, fail_case, format_value, shorten
from temper.envs.core.errors import EnvironmentFault, GraderError
from temper.envs.sandbox.runner import MAX_REQUEST_BYTES
from temper.envs.sandbox.sandbox import STARTED_AHEAD, Sandbox
from temper.envs.sandbox.sealed_process import Limits, Reply, ReplyKind, SealedProcess

Start = Callable[[Limits, str], SealedProcess]
LIMITS = Limits(wall_s=15.0, cpu_s=5, memory_mb=1024)
MAX_REQUESTS, GRADING_CPU_S = 10_000, 5.0  # for one check: requests, and CPU seconds of the grading process
BRIDGE = "from temper.envs.sandbox import bridge as _bridge\n"  # preloaded in the sandbox's zygote
SERVE = f"{BRIDGE}def _serve(ask):\n    _bridge.serve(ask, globals())\n"
RUN = "def _run(ask):\n    _bridge.run(ask, {!r}, {!r})\n"


def run_checks(
    sandbox: Sandbox,
    source: str,
    checks: Sequence[str],
    names: Sequence[str],
    *,
    limits: Limits = LIMITS,
    start: Start | None = None,
) -> Generator[CaseResult, None, None]:
    """Yield the result of each check of a program. `names` are taken from the program, `limits` apply to a check. `start`
    starts the program's processes, by default in the sandbox.

    Raise `GraderError` if a check fails before its first request, or never makes one.
    """
    left = list(checks)
    with closing(_programs(start or sandbox.start, source, left)) as programs:
        while left:
            with sandbox.start(replace(limits, reply_bytes=MAX_REQUEST_BYTES), left[0]) as checker:
                _load(checker, BRIDGE)
                fresh = True
                while left:
                    try:
                        _load(checker, RUN.format(left[0], list(names)))
                        tested = _run(checker, next(programs), source, called=names[0], fresh=fresh)
                    except GraderError:
                        if fresh:
                            raise
                        break  # earlier checks may have used its time: retry in a fresh process
                    fresh = False
                    left.pop(0)
                    yield tested
                    if not tested.passed:
                        break


def _programs(start: Start, source: str, left: list[str]) -> Generator[SealedProcess, None, None]:
    """Yield fresh processes, each open until the next is requested. The next one starts in the background."""
    started: deque[SealedProcess] = deque()
    try:
        while True:
            started.extend(start(LIMITS, source) for _ in range(min(len(left), STARTED_AHEAD) - len(started)))
            yield started[0]
            started.popleft().close()
    finally:
        for program in started:
            program.close()


def _load(checker: SealedProcess, source: str) -> None:
    reply = checker.load(source)
    if reply.kind is not ReplyKind.VALUE:
        raise GraderError(f"a check can't be loaded: {reply.kind.value} {reply.detail}")


def _run(checker: SealedProcess, program: SealedProcess, source: str, *, called: str, fresh: bool) -> CaseResult:
    heard = program.load(source)
    if heard.kind is ReplyKind.VALUE:
        heard = program.converse("_serve", SERVE)
    if heard.kind is not ReplyKind.ASK:
        return fail_case(heard, "loading the program")
    requests, said, start_s = 0, "", time.thread_time()
    asked = checker.converse("_run")
    while asked.kind is ReplyKind.ASK:
        requests += 1
        if requests > MAX_REQUESTS or time.thread_time() - start_s > GRADING_CPU_S:
            detail = f"{requests} requests: more than {MAX_REQUESTS}, or more than {GRADING_CPU_S:g} s of grading"
            return CaseResult(passed=False, detail=detail, policy_fault=True, out_of_time=True)
        heard = program.answer(asked.value)
        if heard.kind is not ReplyKind.ASK:
            return fail_case(heard, _call(asked) or "the program")
        said = _describe_reply(asked, heard) or said
        try:
            asked = checker.answer(heard.value)
        except EnvironmentFault as error:  # the program's reply is too large to pass on
            return CaseResult(passed=False, detail=f"{said or 'the result'}: {error}", policy_fault=True)
    if asked.kind is ReplyKind.VALUE and requests:
        return CaseResult(passed=True)
    if requests == 0 or not (fresh or asked.kind is ReplyKind.RAISED):
        raise GraderError(
            f"a check can't be loaded or never called the candidate {called}: {asked.kind.value} {asked.detail}"
        )
    why = re.sub(r"^AssertionError: *$", "", re.sub(r" *\(line \d+\)$", "", asked.detail))
    detail = "; ".join(text for text in (said, why) if text)
    return CaseResult(passed=False, detail=detail, out_of_time=asked.kind is ReplyKind.TIME)


def _call(asked: Reply) -> str:
    match asked.value:
        case [("do", "call", (_, "named", str(name)), [list(arguments), dict(keywords)])]:
            return call_text(name, arguments, keywords)
    return ""


def _describe_reply(asked: Reply, heard: Reply) -> str:
    """Return a call and its result in the program, as text. The program may have sent anything."""
    call, value = _call(asked), heard.value
    match value:
        case [("value", _, result)] if call:
            return f"{call} returned {format_value(result)}"
        case [("raised", [str(name), *_], text)] if call:
            return f"{call} raised {shorten(name)}: {shorten(str(text))}"
    return ""
