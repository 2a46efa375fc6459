"""The report of `make test-faults`: one line for each fault, with what its test saw."""

import os
from pathlib import Path

FILE = "TEMPER_FAULTS"
"""The variable that names the report. Without it a line is only printed."""


def saw(name: str, text: str, *, skipped: bool = False) -> None:
    """Add what was seen of a fault, or why this machine can not show it."""
    line = f"{name}: {'skipped: ' if skipped else ''}{' '.join(text.split())}\n"
    print(line, end="")
    if file := os.environ.get(FILE):
        with Path(file).open("a", encoding="utf-8") as report:
            report.write(line)
