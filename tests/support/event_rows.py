"""The rows of a short event log, read as a whole."""

from pathlib import Path

from temper.orchestrator.run.event_log import EventRow, parse_row
from temper.orchestrator.run.folder import complete_lines


def read_event_log(path: Path) -> list[EventRow]:
    """Read the rows in order, without a torn last line."""
    return [parse_row(line) for line in complete_lines(path.read_text(encoding="utf-8"))]
