"""The columns of one file of answers, packed: its table, and its pieces, made when they are asked for."""

import gzip
import json
from typing import Any

from temper.orchestrator.tools.inspect.viewer.piece import piece_of
from temper.orchestrator.tools.inspect.viewer.recorded_file import Lines, RecordedFile
from temper.orchestrator.tools.inspect.viewer.table import coded, columns_of
from temper.orchestrator.tools.inspect.viewer.token_bytes import TokenBytes

LEVEL = 4
"""Of gzip: a third of the time of the usual 6 for a tenth more bytes."""


class Archive:
    """One file of answers as the page reads it: `table`, and pieces by number. Each is JSON, compressed by gzip."""

    def __init__(self, file: RecordedFile, tokenizer: TokenBytes | None, *, mark: str | None = None) -> None:
        """Read the whole file once. Raise `ValueError` for a line that is no answer.

        `mark` is what the page asks for pieces with, so that they are of the file that its table is of; None where they can't
        be of another.
        """
        self._tokenizer = tokenizer
        self._lines = Lines(file.path)
        columns = columns_of(self._lines.rows())
        self.pieces = self._lines.pieces(columns.get("ticket", []))
        advantages = columns.get("left_out", [])
        self.table = packed(
            file.about()
            | {
                "mark": mark,
                "rows": len(advantages),
                "trained": sum(reason is not None for reason in advantages),
                "tokenizer": tokenizer is not None,
                "pieces": self.pieces,
                "columns": coded(columns),
            }
        )

    def piece(self, number: int) -> bytes:
        """Return a piece. Raise `IndexError` where there is none of this number."""
        first, count = self.pieces[number]
        return packed(piece_of(self._lines.some(first, count), first=first, tokenizer=self._tokenizer))


def packed(value: dict[str, Any]) -> bytes:
    """Return plain JSON data, compressed; the same data is the same bytes."""
    text = json.dumps(value, separators=(",", ":"), allow_nan=False)
    return gzip.compress(text.encode(), compresslevel=LEVEL, mtime=0)
