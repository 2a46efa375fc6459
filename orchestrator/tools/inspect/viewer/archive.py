"""The columns of one file of answers, packed: its table, and its pieces of a few whole groups with all their tokens."""

import gzip
import json
from collections.abc import Sequence
from itertools import groupby
from typing import Any

from temper.orchestrator.tools.inspect.viewer.recorded_file import Lines, RecordedFile, Row
from temper.orchestrator.tools.inspect.viewer.table import encode_columns, to_columns
from temper.orchestrator.tools.inspect.viewer.token_bytes import TokenBytes

LEVEL = 4
"""Of gzip: a third of the time of the usual 6 for a tenth more bytes."""
DIGITS = 5
OF_GROUP = ("ticket", "admitted", "sampling", "env", "key", "thinking", "messages")
OF_ANSWER = (
    *("reward", "outcome", "parts", "detail", "evidence", "failure", "stop", "seconds", "times", "resumption"),
    "training",
)
OF_TURN = ("text", "reasoning", "answer", "observation", "context_ids", "sampled_ids", "closed", "faults", "times")


class Archive:
    """One file of answers as the page reads it: `table`, and pieces by number. Each is JSON, compressed by gzip."""

    def __init__(self, file: RecordedFile, tokenizer: TokenBytes | None, *, mark: str | None = None) -> None:
        """Read the whole file once. Raise `ValueError` for a line that is no answer.

        The page asks for pieces with `mark`, so that they are of the same file as its table; None if the file can't change.
        """
        self._tokenizer = tokenizer
        self._lines = Lines(file.path)
        columns = to_columns(self._lines.rows())
        self.pieces = self._lines.pieces(columns.get("ticket", []))
        masked = columns.get("masked", [])
        self.table = compress_json(
            file.about()
            | {
                "mark": mark,
                "rows": len(masked),
                "trained": sum(reason is not None for reason in masked),
                "tokenizer": tokenizer is not None,
                "pieces": self.pieces,
                "columns": encode_columns(columns),
            }
        )

    def piece(self, number: int) -> bytes:
        """Return a piece. Raise `IndexError` if there is none of this number."""
        first, count = self.pieces[number]
        return compress_json(_piece(self._lines.some(first, count), first=first, tokenizer=self._tokenizer))


def compress_json(value: dict[str, Any]) -> bytes:
    """Return plain JSON data, compressed; the same data is the same bytes."""
    text = json.dumps(value, separators=(",", ":"), allow_nan=False)
    return gzip.compress(text.encode(), compresslevel=LEVEL, mtime=0)


def _piece(rows: Sequence[Row], *, first: int, tokenizer: TokenBytes | None) -> dict[str, Any]:
    """Return rows as the page reads them. `first` is the number of the first one in its file.

    Values that stay the same over many tokens are runs: `versions` of [version, count], `forced` of [first token, count].
    `tool_spans` is null in a turn that was written before calls were timed. `bytes` has the bytes of every id as characters;
    null if the run's tokenizer is not there.
    """
    return {
        "first": first,
        "groups": [_group(list(members)) for _, members in groupby(rows, key=lambda row: row["ticket"])],
        "bytes": None if tokenizer is None else {str(one): tokenizer.of(one) for one in sorted(_ids(rows))},
    }


def _group(rows: list[Row]) -> dict[str, Any]:
    return {name: rows[0][name] for name in OF_GROUP} | {"answers": [_answer(row) for row in rows]}


def _answer(row: Row) -> dict[str, Any]:
    return {name: row.get(name) for name in OF_ANSWER} | {"turns": [_turn(turn) for turn in row["turns"]]}


def _turn(turn: dict[str, Any]) -> dict[str, Any]:
    return {name: turn[name] for name in OF_TURN} | {
        "tool_spans": turn.get("tool_spans"),
        "logprobs": [None if value is None else round(value, DIGITS) for value in turn["logprobs"]],
        "versions": [[version, count] for version, _, count in _runs(turn["versions"])],
        "injected": [[first, count] for forced, first, count in _runs(turn["injected"]) if forced],
    }


def _runs(values: Sequence[Any]) -> list[tuple[Any, int, int]]:
    """Return equal neighbours as their value, the place of the first one, and their number."""
    runs, first = [], 0
    for value, members in groupby(values):
        count = len(list(members))
        runs.append((value, first, count))
        first += count
    return runs


def _ids(rows: Sequence[Row]) -> set[int]:
    return {
        one for row in rows for turn in row["turns"] for part in ("context_ids", "sampled_ids") for one in turn[part]
    }
