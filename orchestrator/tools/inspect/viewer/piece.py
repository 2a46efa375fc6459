"""A piece of a file of answers: a few whole groups with all their tokens, as the page shows them."""

from collections.abc import Sequence
from itertools import groupby
from typing import Any

from temper.orchestrator.tools.inspect.viewer.recorded_file import Row
from temper.orchestrator.tools.inspect.viewer.token_bytes import TokenBytes

DIGITS = 5
OF_ANSWER = ("reward", "outcome", "parts", "detail", "evidence", "failure", "stop", "seconds", "times", "carried")
OF_TURN = ("text", "thought_text", "answer", "observation", "context_ids", "sampled_ids", "closed", "faults", "times")


def piece_of(rows: Sequence[Row], *, first: int, tokenizer: TokenBytes | None) -> dict[str, Any]:
    """Return rows as the page reads them. `first` is the number of the first one in its file.

    Values that stay the same over many tokens are runs: `versions` of [version, count], `forced` of [first token, count].
    `tool_spans` is null of a turn that was written before calls were timed. `bytes` has those of every id in it, each as a
    character; null where the run's tokenizer is not there.
    """
    return {
        "first": first,
        "groups": [_group(list(members)) for _, members in groupby(rows, key=lambda row: row["ticket"])],
        "bytes": None if tokenizer is None else {str(one): tokenizer.of(one) for one in sorted(_ids(rows))},
    }


def _group(rows: list[Row]) -> dict[str, Any]:
    head = rows[0]
    return {
        "ticket": head["ticket"],
        "admitted": head["admitted"],
        "sampling": head["sampling"],
        "env": head["env"],
        "key": head["key"],
        "thinking": head["thinking"],
        "messages": head["messages"],
        "answers": [_answer(row) for row in rows],
    }


def _answer(row: Row) -> dict[str, Any]:
    return {name: row.get(name) for name in OF_ANSWER} | {
        "training": row.get("training"),
        "turns": [_turn(turn) for turn in row["turns"]],
    }


def _turn(turn: dict[str, Any]) -> dict[str, Any]:
    return {name: turn[name] for name in OF_TURN} | {
        "tool_spans": turn.get("tool_spans"),
        "logprobs": [None if value is None else round(value, DIGITS) for value in turn["logprobs"]],
        "versions": [[version, count] for version, _, count in _runs(turn["versions"])],
        "forced": [[first, count] for forced, first, count in _runs(turn["forced"]) if forced],
    }


def _runs(values: Sequence[Any]) -> list[tuple[Any, int, int]]:
    """Return equal neighbours as their value, the place of the first of them and how many they are."""
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
