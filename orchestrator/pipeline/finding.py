"""A finding of a check: how severe it is, the offending value, and the remedy."""

from dataclasses import dataclass
from enum import Enum

from rich.console import Console
from rich.text import Text

from temper.orchestrator.run.redaction import blanked


class Level(Enum):
    """How severe a finding is."""

    OK = "ok"  # nothing to do
    WARNING = "warning"  # a run can continue, but slower or otherwise than intended
    FAILURE = "failure"  # a run would fail, or a file is wrong


STYLES = {Level.OK: "green", Level.WARNING: "yellow", Level.FAILURE: "red"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One line of what a check found."""

    level: Level
    what: str
    """The finding, with the offending value."""
    remedy: str = ""
    """The one thing to do about it; empty if there is none."""
    where: str = ""
    """The check, setting, or file and line that it is about."""

    @property
    def line(self) -> str:
        return f"{self.level.value}: {self.where}: {self.what}" + (f"; {self.remedy}" if self.remedy else "")

    def to_json(self) -> dict[str, str]:
        """Return it as plain JSON data, without secrets."""
        parts = {"where": self.where, "what": self.what, "remedy": self.remedy}
        return {"level": self.level.value} | {name: blanked(text) for name, text in parts.items()}

    def print(self, console: Console, *, width: int = 14) -> None:
        """Print a line, and the remedy as a second one. The column `where` has `width` characters."""
        line = self.to_json()
        mark = "FAILURE" if self.level is Level.FAILURE else self.level.value
        where = f"{line['where']:<{width - 1}} "
        console.print(Text.assemble((f"{mark:<8}", STYLES[self.level]), where, line["what"]), soft_wrap=True)
        if self.remedy:
            console.print(f"{'':<{8 + width}}-> {line['remedy']}", markup=False, soft_wrap=True)


def ok(what: str) -> Finding:
    return Finding(level=Level.OK, what=what)


def warning(what: str, remedy: str) -> Finding:
    return Finding(level=Level.WARNING, what=what, remedy=remedy)


def failure(what: str, remedy: str) -> Finding:
    return Finding(level=Level.FAILURE, what=what, remedy=remedy)
