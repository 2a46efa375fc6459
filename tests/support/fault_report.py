"""The report of `make test-faults`: one line of observations for each fault."""

import os
from pathlib import Path

FILE = "TEMPER_FAULTS"
"""The variable with the report's path. Without it a line is only printed."""


def saw(name: str, text: str, *, skipped: bool = False) -> None:
    """Add the observations of a fault, or the reason for its skip."""
    line = f"{name}: {'skipped: ' if skipped else ''}{' '.join(text.split())}\n"
    print(line, end="")
    if file := os.environ.get(FILE):
        with Path(file).open("a", encoding="utf-8") as report:
            report.write(line)
