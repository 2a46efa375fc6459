"""The columns of the viewer's table, with one entry per answer."""

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from statistics import fmean, pstdev
from typing import Any

import numpy as np

from temper.orchestrator.tools.inspect.viewer.recorded_file import Row
from temper.rewards.score import correctness

PROMPT_LENGTH = 160
"""Characters of a task that its rows show."""
DIGITS = 5
TEXTS = ("env", "mode", "key", "stop", "failure", "closed", "detail", "prompt", "masked")
"""Columns of text, which are written as numbers of distinct values."""


def to_columns(rows: Iterable[Row]) -> dict[str, list[Any]]:
    """Return the columns of the rows, with null for a measure that a row does not have.

    `spread` is the standard deviation of the group's rewards. `share` is the group's share of the file's update, 0 to 1. `lag`
    is the number of weight pushes between admission and training. `mismatch` is the mean |log pi - log mu| of the trained
    tokens, `surprisal` the mean -log mu of the sampled tokens, both in nats.
    """
    facts = [_facts(row) for row in rows]
    rewards: dict[int, list[float]] = {}
    for fact in facts:
        if fact["reward"] is not None:
            rewards.setdefault(fact["ticket"], []).append(fact["reward"])
    spreads = {ticket: round(pstdev(each), DIGITS) for ticket, each in rewards.items() if len(each) > 1}
    updates: defaultdict[int, float] = defaultdict(float)
    for fact in facts:
        updates[fact["ticket"]] += fact["update"]
    whole = sum(updates.values())
    for fact in facts:
        fact["spread"] = spreads.get(fact["ticket"])
        fact["share"] = round(updates[fact["ticket"]] / whole, DIGITS) if whole else None
        del fact["update"]
    return {name: [fact[name] for fact in facts] for name in facts[0]} if facts else {}


def encode_columns(columns: dict[str, list[Any]]) -> dict[str, Any]:
    """Return columns for JSON. Text columns are distinct values and one code per row."""

    def code(values: list[Any]) -> dict[str, list[Any]]:
        places = {value: place for place, value in enumerate(dict.fromkeys(values))}
        return {"values": list(places), "codes": [places[value] for value in values]}

    return {name: code(values) if name in TEXTS else values for name, values in columns.items()}


def update_sum(training: dict[str, Any] | None) -> float:
    """Return the sum of |advantage x factor| over the tokens of a recorded answer. 0 if it was not trained.

    The gradient of a token's loss is its advantage, times the correction factor for the engine, times the gradient of its
    logprob. The averaging of the loss over answer lengths is not recorded. A product that is not finite counts as 0, because
    it would hide the shares of all other groups.
    """
    if training is None or "untrained" in training:
        return 0.0
    count = len(training["logprobs"])
    with np.errstate(invalid="ignore"):
        products = _per_token(training["advantage"], count) * _per_token(training["factor"], count)
    return float(np.abs(products[np.isfinite(products)]).sum())


def _per_token(value: float | list[float | None] | None, count: int) -> np.ndarray:
    values = np.array(value, dtype=np.float64)
    assert values.ndim == 0 or len(values) == count
    return np.broadcast_to(values, count)


def _engine_logprobs(row: Row) -> np.ndarray:
    """Return the engine's logprobs of the sampled tokens over all turns."""
    values = [value for turn in row["turns"] for value in turn["logprobs"]]
    forced = [mark for turn in row["turns"] for mark in turn["injected"]]
    return np.array(values, dtype=np.float64)[~np.array(forced, dtype=np.bool_)]


def _facts(row: Row) -> dict[str, Any]:
    turns, training, failure, thinking = row["turns"], row.get("training"), row["failure"], row["thinking"]
    logprobs = _engine_logprobs(row)
    versions = [version for turn in turns for version in (turn["versions"][:1] + turn["versions"][-1:])]
    trained_at = None if training is None else training["version"]
    return {
        "ticket": row["ticket"],
        "env": row["env"],
        "mode": thinking["mode"] if thinking["budget"] is None else f"{thinking['mode']} {thinking['budget']}",
        "key": row["key"],
        "reward": _rounded(row["reward"]),
        "correct": None if row["reward"] is None else _rounded(correctness(row["parts"], row["reward"])),
        "stop": row["stop"],
        "failure": None if failure is None else failure["kind"],
        "closed": turns[-1]["closed"] if turns else None,
        "tokens": sum(len(turn["sampled_ids"]) for turn in turns),
        "thinking": sum(turn["thinking_tokens"] for turn in turns),
        "turns": len(turns),
        "injected": sum(sum(turn["injected"]) for turn in turns),
        "seconds": row["seconds"],
        "tool_s": _rounded(sum(turn["times"]["step_s"] for turn in turns)),
        "oldest": min(versions, default=None),
        "newest": max(versions, default=None),
        "lag": None if trained_at is None else trained_at - row["admitted"],
        "surprisal": _mean(-logprobs),
        "mismatch": _mismatch(training, logprobs),
        "advantage": _advantage(training),
        "update": update_sum(training),
        "masked": _masked(training),
        "detail": row.get("detail", ""),
        "prompt": _prompt(row["messages"]),
        "spread": None,
    }


def _mismatch(training: dict[str, Any] | None, logprobs: np.ndarray) -> float | None:
    if training is None or "logprobs" not in training:
        return None
    ours = np.array(training["logprobs"], dtype=np.float64)
    if len(ours) != len(logprobs):
        raise ValueError(f"{len(ours)} log-probabilities of the trainer for {len(logprobs)} sampled tokens")
    return _mean(np.abs(ours - logprobs))


def _mean(values: np.ndarray) -> float | None:
    """Return the mean of the finite values, or None."""
    known = values[np.isfinite(values)]
    return _rounded(known.mean()) if len(known) else None


def _advantage(training: dict[str, Any] | None) -> float | None:
    """Return the mean advantage of the trained tokens."""
    value = None if training is None else training.get("advantage")
    if isinstance(value, list):
        known = [one for one in value if one is not None]
        return _rounded(fmean(known)) if known else None
    return value


def _masked(training: dict[str, Any] | None) -> str | None:
    """Return the most frequent reason why tokens carry no loss. Empty if all tokens carry loss."""
    if training is None:
        return None
    if "untrained" in training:
        return str(training["untrained"])
    counts = {reason: sum(count for _, count in runs) for reason, runs in training["left_out"].items()}
    return max(counts, key=counts.__getitem__, default="")


def _prompt(messages: Sequence[dict[str, Any]]) -> str:
    """Return the beginning of the last message of the user."""
    content = next((m["content"] for m in reversed(messages) if m.get("role") == "user"), "")
    if not isinstance(content, str):
        content = " ".join(str(part.get("text", "")) for part in content if isinstance(part, dict))
    return " ".join(content.split())[:PROMPT_LENGTH]


def _rounded(value: float | None) -> float | None:
    return None if value is None or not math.isfinite(value) else round(float(value), DIGITS)
