"""A finding of a check, and the one way in which every tool shows its findings: as lines of text or as JSON."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum
from typing import Any

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

    def to_json(self) -> dict[str, str]:
        """Return it as plain JSON data, without secrets."""
        parts = {"where": self.where, "what": self.what, "remedy": self.remedy}
        return {"level": self.level.value} | {name: blanked(text) for name, text in parts.items()}

    def print(self, console: Console, *, width: int = 14) -> None:
        """Print it as a line, and the remedy as a second one; `width` is that of the column `where`."""
        line = self.to_json()
        mark = "FAILURE" if self.level is Level.FAILURE else self.level.value
        where = f"{line['where']:<{width - 1}} "
        console.print(Text.assemble((f"{mark:<8}", STYLES[self.level]), where, line["what"]), soft_wrap=True)
        if self.remedy:
            console.print(f"{'':<{8 + width}}-> {line['remedy']}", markup=False, soft_wrap=True)


def findings_to_json(findings: Iterable[Finding]) -> dict[str, Any]:
    """Return findings and the counts of failures and warnings as plain JSON data."""
    rows = [finding.to_json() for finding in findings]
    counts = Counter(row["level"] for row in rows)
    return {"findings": rows, "failures": counts["failure"], "warnings": counts["warning"]}


def counts_line(findings: Iterable[Finding]) -> str:
    """Return the number of findings of each level, for people."""
    counts = Counter(finding.level for finding in findings)
    bad = [
        f"{counts[level]} {level.value}{'' if counts[level] == 1 else 's'}" for level in (Level.FAILURE, Level.WARNING)
    ]
    return f"{', '.join(bad)}, {counts[Level.OK]} ok"
