"""A check, and running checks in order."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextvars import copy_context
from dataclasses import KW_ONLY, dataclass, replace
from threading import Thread

from temper.envs.core.errors import EnvError
from temper.envs.data.hub import cache_alone
from temper.orchestrator.pipeline.finding import Finding, Level, failure, ok
from temper.orchestrator.tools.preflight.doctor.target import CheckTarget

SKIPPED = "the cluster of RAY_ADDRESS is not checked"
LIMIT_S = 120.0
"""Seconds of a check that reads the machine or a model's small files."""
LONG_S = 900.0
"""Seconds of a check that reads data, runs environments or queries a cluster. These have deadlines of their own."""


@dataclass(frozen=True, slots=True)
class Check:
    """A check of one part."""

    name: str
    inspect: Callable[[CheckTarget], Iterable[Finding]]
    """Yields findings. An exception is a failure. It yields nothing for parts that a configuration does not have."""
    remedy: str
    """The remedy of an error without one."""
    _: KW_ONLY
    of_run: bool = False
    """Whether it needs a configuration."""
    local: bool = False
    """Whether it checks hardware of this machine, which a run on a cluster may not use."""
    quick: bool = False
    """Whether it is fast enough for the start of every run."""
    after: tuple[str, ...] = ()
    """Names of checks that must pass first."""
    blocks: bool = False
    """Whether its warning counts as a failure for the checks that build on it."""
    limit_s: float = LIMIT_S
    """Seconds until the check is abandoned: a lost disk, a driver or custom code may never answer."""


def run_check(checks: Sequence[Check], target: CheckTarget) -> Iterator[Finding]:
    """Yield the findings of checks in order. Never raises."""
    blocked: set[str] = set()
    for check in checks:
        if check.of_run and target.requested is None:
            continue
        if not blocked.isdisjoint(check.after):
            blocked.add(check.name)
            continue
        for found in [ok(SKIPPED)] if check.local and target.joins else _found(check, target):
            if found.level is Level.FAILURE or (check.blocks and found.level is Level.WARNING):
                blocked.add(check.name)
            yield replace(found, where=check.name)


def _found(check: Check, target: CheckTarget) -> list[Finding]:
    found: list[Finding] = []

    def inspect() -> None:
        try:
            found.extend(check.inspect(target))
        except BaseException as error:  # of a library or a user's environment, a panic of Rust too
            found.append(of_error(error, remedy=check.remedy))

    with cache_alone():
        looking = Thread(target=copy_context().run, args=(inspect,), daemon=True)
    looking.start()
    looking.join(check.limit_s)
    if looking.is_alive():  # no thread can be ended: it is left behind, and keeps no process from ending
        return [*found, failure(f"nothing more after {check.limit_s:g} s", check.remedy)]
    return found


def of_error(error: BaseException, *, remedy: str) -> Finding:
    """Return the failure of an exception. Our messages end with a remedy, behind a semicolon. Others get `remedy`."""
    text = " ".join(str(error).split()) or repr(error)
    if not isinstance(error, ValueError | OSError | RuntimeError | EnvError):
        return failure(f"{type(error).__name__}: {text}", remedy)
    what, mark, own = text.rpartition("; ")
    return failure(what, own) if mark else failure(text, remedy)
