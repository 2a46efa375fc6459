"""A check, and checks made one after the other."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextvars import copy_context
from dataclasses import KW_ONLY, dataclass, replace
from threading import Thread

from temper.envs.core.errors import EnvError
from temper.envs.data.hub import cache_alone
from temper.orchestrator.pipeline.finding import Finding, Level, failure, ok
from temper.orchestrator.tools.preflight.doctor.target import CheckTarget

SKIPPED = "the cluster that RAY_ADDRESS names is not asked"
LIMIT_S = 120.0
"""Seconds of a check that looks at the machine or at a model's small files."""
LONG_S = 900.0
"""The same of one that reads data, plays environments or asks a cluster, which have deadlines of their own inside."""


@dataclass(frozen=True, slots=True)
class Check:
    """One thing that is looked at."""

    name: str
    inspect: Callable[[CheckTarget], Iterable[Finding]]
    """Yields findings; an exception is a failure. It yields nothing about parts that a configuration does not have."""
    remedy: str
    """The remedy of an error that names none."""
    _: KW_ONLY
    of_run: bool = False
    """Whether it needs a configuration."""
    local: bool = False
    """Whether it looks at hardware of this machine, of which a run that joins a cluster may use none."""
    quick: bool = False
    """Whether it takes a moment, so that every run begins with it."""
    after: tuple[str, ...] = ()
    """Names of checks that must pass before this one is made."""
    blocks: bool = False
    """Whether its warning counts as a failure for the checks that build on it."""
    limit_s: float = LIMIT_S
    """Seconds until it is given up: a disk that is gone, a driver or a user's own code may never answer."""


def run_check(checks: Sequence[Check], target: CheckTarget) -> Iterator[Finding]:
    """Yield the findings of checks, one after the other. Raises nothing."""
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
