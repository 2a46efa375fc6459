"""A finding of a check: its level, the offending value, and the remedy."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import Enum

from rich.console import Console

from temper.orchestrator.run.redaction import blank_text
from temper.orchestrator.run.screen import print_text


class Level(Enum):
    """The level of a finding."""

    OK = "ok"  # nothing to do
    WARNING = "warning"  # a run continues, but slower or not as intended
    FAILURE = "failure"  # a run would fail, or a file is invalid


STYLES = {Level.OK: "green", Level.WARNING: "yellow", Level.FAILURE: "red"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One finding of a check."""

    level: Level
    what: str
    """The finding, with the offending value."""
    remedy: str = ""
    """The remedy, or ""."""
    where: str = ""
    """The check, the setting, or file and line."""
    metrics: dict[str, float] = field(default_factory=dict)
    """Values that the check measured, which a run logs."""

    @property
    def line(self) -> str:
        return f"{self.level.value}: {self.where}: {self.what}" + (f"; {self.remedy}" if self.remedy else "")

    def to_json(self) -> dict[str, str]:
        """Return it as plain JSON data without secrets."""
        parts = {"where": self.where, "what": self.what, "remedy": self.remedy}
        return {"level": self.level.value} | {name: blank_text(text) for name, text in parts.items()}

    def print(self, console: Console, *, width: int = 14) -> None:
        """Print a line, and the remedy on a second one. The column `where` has `width` characters."""
        line = self.to_json()
        mark = "FAILURE" if self.level is Level.FAILURE else self.level.value
        where = f"{line['where']:<{width - 1}} "
        indent = 8 + width
        print_text(console, f"{mark:<8}{where}{line['what']}", mark=(len(mark), STYLES[self.level]), indent=indent)
        if self.remedy:
            print_text(console, f"{'':<{indent}}-> {line['remedy']}", indent=indent + 3)


def ok(what: str) -> Finding:
    return Finding(level=Level.OK, what=what)


def warning(what: str, remedy: str) -> Finding:
    return Finding(level=Level.WARNING, what=what, remedy=remedy)


def failure(what: str, remedy: str) -> Finding:
    return Finding(level=Level.FAILURE, what=what, remedy=remedy)


def warnings_of(found: Iterable[Finding]) -> list[str]:
    return [one.what for one in found if one.level is Level.WARNING]
