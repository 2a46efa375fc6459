"""The compressed columns of a trajectory file: a table, and pieces of whole groups with all tokens."""

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
    """A trajectory file for the page: `table`, and numbered pieces. Each is JSON compressed by gzip."""

    def __init__(self, file: RecordedFile, tokenizer: TokenBytes | None, *, mark: str | None = None) -> None:
        """Read the whole file once. Raise `ValueError` for an invalid line.

        The page requests pieces with `mark`, so that they match its table. None if the file cannot change.
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
        """Return a piece. Raise `IndexError` if it does not exist."""
        first, count = self.pieces[number]
        return compress_json(_piece(self._lines.some(first, count), first=first, tokenizer=self._tokenizer))


def compress_json(value: dict[str, Any]) -> bytes:
    """Return compressed JSON. The same data gives the same bytes."""
    text = json.dumps(value, separators=(",", ":"), allow_nan=False)
    return gzip.compress(text.encode(), compresslevel=LEVEL, mtime=0)


def _piece(rows: Sequence[Row], *, first: int, tokenizer: TokenBytes | None) -> dict[str, Any]:
    """Return rows in the page's format. `first` is the index of the first row in its file.

    Constant values over many tokens are runs: `versions` of [version, count], `forced` of [first token, count]. `tool_spans` is
    null in files without call times. `bytes` has the bytes of every id as characters, or is null without a tokenizer.
    """
    return {
        "first": first,
        "groups": [_group(list(members)) for _, members in groupby(rows, key=lambda row: row["ticket"])],
        "bytes": None if tokenizer is None else {str(one): tokenizer.of(one) for one in sorted(_ids(rows))},
    }


def _group(rows: list[Row]) -> dict[str, Any]:
    return {name: rows[0][name] for name in OF_GROUP} | {"answers": [_answer(row) for row in rows]}


def _answer(row: Row) -> dict[str, Any]:
    return {name: row.get(name) for name in OF_ANSWER} | {
        "turns": [_turn(turn) for turn in row["turns"]],
        "forced_answers": [_forced_answer(one, row) for one in row.get("forced_answers", ())],
    }


def _forced_answer(row: Row, whole: Row) -> dict[str, Any]:
    """Return an answer at a nested budget, without the prompt and the tokens that it shares with the whole answer.

    `kept` counts its tokens of reasoning.
    """
    facts = {"budget": row["thinking"]["budget"], "kept": sum(turn["thinking_tokens"] for turn in row["turns"])}
    shared = len(whole["turns"][0]["sampled_ids"])
    return _answer(row | {"turns": [_own_tokens(turn, shared) for turn in row["turns"]]}) | facts


def _own_tokens(turn: dict[str, Any], shared: int) -> dict[str, Any]:
    """Return a turn from its first injected token on, or without the first `shared` tokens."""
    start = turn["injected"].index(True) if True in turn["injected"] else shared
    own = {"context_ids": [], "text": turn["answer"], "reasoning": None}
    return turn | own | {name: turn[name][start:] for name in ("sampled_ids", "logprobs", "versions", "injected")}


def _turn(turn: dict[str, Any]) -> dict[str, Any]:
    return {name: turn[name] for name in OF_TURN} | {
        "tool_spans": turn.get("tool_spans"),
        "logprobs": [None if value is None else round(value, DIGITS) for value in turn["logprobs"]],
        "versions": [[version, count] for version, _, count in _runs(turn["versions"])],
        "injected": [[first, count] for forced, first, count in _runs(turn["injected"]) if forced],
    }


def _runs(values: Sequence[Any]) -> list[tuple[Any, int, int]]:
    """Return runs of equal values as value, first index and length."""
    runs, first = [], 0
    for value, members in groupby(values):
        count = len(list(members))
        runs.append((value, first, count))
        first += count
    return runs


def _ids(rows: Sequence[Row]) -> set[int]:
    turns = [turn for row in rows for one in (row, *row.get("forced_answers", ())) for turn in one["turns"]]
    return {one for turn in turns for part in ("context_ids", "sampled_ids") for one in turn[part]}
