"""What an audit finds wrong, named so that it can be looked up."""

from dataclasses import dataclass
from typing import Literal

Kind = Literal["unreadable", "twice", "order", "sums", "gap", "missing", "differs", "damaged"]
"""A line that is none; what stands twice; what comes before or after its time; totals that are not those of the rows; numbers
that are skipped; what should be there; two accounts of the same; a checkpoint that is not as it was saved.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One thing that is wrong. `file` is relative to the run's folder; what does not apply is None."""

    kind: Kind
    text: str
    file: str
    line: int | None = None
    stage: str | None = None
    step: int | None = None
    ticket: int | None = None

    @property
    def place(self) -> str:
        """Where to look, for people."""
        return self.file if self.line is None else f"{self.file}:{self.line}"
