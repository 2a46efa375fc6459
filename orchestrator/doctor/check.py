"""A check, and checks made one after the other."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from envs.data.hub import cache_alone
from orchestrator.doctor.finding import Finding, of_error
from orchestrator.doctor.subject import Subject


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One thing that is looked at."""

    name: str
    look: Callable[[Subject], Iterable[Finding]]
    """Tell what is found; whatever it raises is a failure. Nothing is told of what a configuration does not have."""
    remedy: str
    """What to do about an error that does not say it itself."""
    of_run: bool = False
    """Whether it needs a configuration."""
    quick: bool = False
    """Whether it takes a moment, so that every run begins with it."""
    after: tuple[str, ...] = ()
    """Names of checks without which it could say nothing new: it is not made where one of them failed, or could not
    be made itself."""


def examined(checks: Sequence[Check], subject: Subject) -> Iterator[Finding]:
    """Yield what checks find, one after the other. Raises nothing."""
    blocked: set[str] = set()
    for check in checks:
        if check.of_run and subject.given is None:
            continue
        if not blocked.isdisjoint(check.after):
            blocked.add(check.name)
            continue
        for found in _found(check, subject):
            if found.blocks:
                blocked.add(check.name)
            yield replace(found, check=check.name)


def _found(check: Check, subject: Subject) -> list[Finding]:
    found: list[Finding] = []
    try:
        with cache_alone():
            found.extend(check.look(subject))
    except Exception as error:  # whatever a library or an environment of the user's own raises
        found.append(of_error(error, remedy=check.remedy))
    return found
