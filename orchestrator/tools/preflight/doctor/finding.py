"""What a check found: how bad it is, in one line, and what would mend it."""

from dataclasses import dataclass
from enum import Enum

from temper.envs.core.errors import EnvError


class Level(Enum):
    """How bad it is."""

    OK = "ok"  # as it should be, or nothing that a run needs
    WARNING = "warning"  # a run can go on with it, slower or otherwise than was meant
    FAILURE = "failure"  # a run would end by it


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One line of what was found."""

    level: Level
    text: str
    remedy: str = ""
    """The one thing to do about it; empty only where nothing has to be."""
    check: str = ""
    """The name of the check that found it."""
    blocks: bool = False
    """Whether checks that build on this one could say nothing new."""

    def __post_init__(self) -> None:
        assert self.level is Level.OK or self.remedy, f"{self.text}: say what would mend it"

    @property
    def line(self) -> str:
        """All of it as one line."""
        return f"{self.level.value}: {self.check}: {self.text}" + (f"; {self.remedy}" if self.remedy else "")


def ok(text: str) -> Finding:
    """Return that something is as it should be."""
    return Finding(level=Level.OK, text=text)


def warning(text: str, remedy: str, *, blocks: bool = False) -> Finding:
    """Return what a run could go on with; `blocks` where checks that build on it could say nothing."""
    return Finding(level=Level.WARNING, text=text, remedy=remedy, blocks=blocks)


def failure(text: str, remedy: str) -> Finding:
    """Return what a run would end by."""
    return Finding(level=Level.FAILURE, text=text, remedy=remedy, blocks=True)


def of_error(error: BaseException, *, remedy: str) -> Finding:
    """Return the failure that an exception tells of. Our messages end with the remedy, behind a semicolon; `remedy` is that of
    those that do not, and of what a library or an environment of the user's own raises.
    """
    text = " ".join(str(error).split()) or repr(error)
    if not isinstance(error, ValueError | OSError | RuntimeError | EnvError):
        return failure(f"{type(error).__name__}: {text}", remedy)
    what, mark, own = text.rpartition("; ")
    return failure(what, own) if mark else failure(text, remedy)
