"""The rows of a ledger, read as a whole: tests look at short ones."""

from pathlib import Path

from temper.orchestrator.run.folder import whole_lines
from temper.orchestrator.run.ledger import LedgerRow, parse_row


def read_ledger(path: Path) -> list[LedgerRow]:
    """Read the rows in order, without a torn last line."""
    return [parse_row(line) for line in whole_lines(path.read_text(encoding="utf-8"))]
