"""Two records of the tokens of a step beside each other: what differs, token by token.

Suffixes: `_T` one entry per token of an answer's sequence, context included, NaN where the token is not trained.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from temper.learner.batches.builder import samples_by
from temper.learner.losses.config import LossConfig
from temper.learner.losses.corrections import LeftOut
from temper.learner.token_records import TokenRecord
from temper.orchestrator.session.recording import StepBatch
from temper.orchestrator.tools.inspect.viewer.token_bytes import TokenBytes

MEASURES = ("logprob", "advantage", "factor")
"""What is compared of a token, beside why it is left out: log pi, A, and what its loss was multiplied by."""
BEFORE = 12
"""Tokens of the text that are shown before one."""
Values = dict[str, NDArray[np.float32]]


@dataclass(frozen=True, slots=True, kw_only=True)
class OneToken:
    """A token that differs: `place` is that of its answer, `row` its row in the file of answers, `token` its place in it.

    `text` is what it says, `before` what stands before it. Of each measure that differs, and of `left_out`, there is what it
    is in the one and in the other record; None where the token is not trained there.
    """

    place: int
    row: int
    token: int
    env: str
    key: str
    ticket: int
    id: int
    text: str
    before: str
    measures: dict[str, tuple[float | str | None, float | str | None]]
    size: float
    """The largest of its differences, of those that are numbers; infinite where one of both is not there."""
    link: str | None = None
    """Its place in the viewer; None where the step has no file of answers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TokensCompared:
    """`tokens` are those that either record has, `unequal` those that differ in something, to the last digit.

    `largest` has the largest difference by measure. `worst` are the tokens with the largest ones.
    """

    tokens: int
    unequal: int
    largest: dict[str, float]
    worst: list[OneToken]


def compared(
    batch: StepBatch,
    one: tuple[Sequence[TokenRecord], LossConfig],
    other: tuple[Sequence[TokenRecord], LossConfig],
    *,
    tokenizer: TokenBytes | None,
    shown: int,
    file: str | None,
) -> TokensCompared:
    """Return what differs between two records of a batch, each with the loss that made it; `shown` tokens are described.

    `file` is the name of the step's file of answers in the viewer, None where there is none.
    """
    mine, theirs = (_by_place(batch, *both) for both in (one, other))
    total, found = 0, []
    largest = dict.fromkeys(MEASURES, 0.0)
    unequal = 0
    for place in sorted(mine.keys() | theirs.keys()):
        left, right = mine.get(place), theirs.get(place)
        size = len((left or right or {})["logprob"])
        left, right = left or _untrained(size), right or _untrained(size)
        total += int((~np.isnan(left["left_out"]) | ~np.isnan(right["left_out"])).sum())
        differs_T = np.zeros(size, dtype=bool)
        sizes_T = np.zeros(size, dtype=np.float64)
        for name in (*MEASURES, "left_out"):
            unlike_T = (left[name] != right[name]) & ~(np.isnan(left[name]) & np.isnan(right[name]))
            gap_T = np.abs(left[name].astype(np.float64) - right[name])
            gap_T = np.where(unlike_T, np.where(np.isnan(gap_T), np.inf, gap_T), 0.0)
            differs_T |= unlike_T
            if name in largest:
                largest[name] = max(largest[name], float(gap_T.max(initial=0.0)))
                sizes_T = np.maximum(sizes_T, gap_T)
        unequal += int(differs_T.sum())
        for token in np.flatnonzero(differs_T)[np.argsort(-sizes_T[differs_T], kind="stable")][:shown].tolist():
            found.append((float(sizes_T[token]), place, token, _pairs(left, right, token)))
    found.sort(key=lambda each: -each[0])
    described = _Describer(batch, tokenizer, file)
    worst = [described(place, token, size, pairs) for size, place, token, pairs in found[:shown]]
    return TokensCompared(tokens=total, unequal=unequal, largest=largest, worst=worst)


def _by_place(batch: StepBatch, records: Sequence[TokenRecord], loss: LossConfig) -> dict[int, Values]:
    """Return by answer the values of a record at the tokens that a loss trains."""
    samples = samples_by(loss, batch.groups)
    found = {}
    for record in records:
        trained_T = samples[record.place].trained_T
        if int(trained_T.sum()) != len(record.logprobs_T):
            raise ValueError(
                f"the record of step {batch.step} has {len(record.logprobs_T)} tokens of answer {record.place}, of which "
                f"{int(trained_T.sum())} are trained: the file is damaged"
            )
        values = _untrained(len(trained_T))
        own = record.logprobs_T, record.advantages_T, record.factors_T, record.left_out_T.astype(np.float32)
        for name, own_T in zip((*MEASURES, "left_out"), own, strict=True):
            values[name][trained_T] = own_T
        found[record.place] = values
    return found


def _untrained(size: int) -> Values:
    return {name: np.full(size, np.nan, dtype=np.float32) for name in (*MEASURES, "left_out")}


def _pairs(left: Values, right: Values, token: int) -> dict[str, tuple[float | str | None, float | str | None]]:
    """Return what differs of one token."""
    pairs: dict[str, tuple[float | str | None, float | str | None]] = {}
    for name in MEASURES:
        one, other = float(left[name][token]), float(right[name][token])
        if one != other and not (math.isnan(one) and math.isnan(other)):
            pairs[name] = (None if math.isnan(one) else one, None if math.isnan(other) else other)
    reasons = _reason(left["left_out"][token]), _reason(right["left_out"][token])
    return pairs | ({"left_out": reasons} if reasons[0] != reasons[1] else {})


def _reason(value: np.floating[Any]) -> str | None:
    return None if np.isnan(value) else LeftOut(int(value)).name.lower()


class _Describer:
    """Says which token it is, in words and by a link."""

    def __init__(self, batch: StepBatch, tokenizer: TokenBytes | None, file: str | None) -> None:
        self._answers = [(group, answer) for group in batch.groups for answer in group.trajectories]
        self._rows = batch.rows
        self._tokenizer = tokenizer
        self._file = file

    def __call__(
        self, place: int, token: int, size: float, pairs: dict[str, tuple[float | str | None, float | str | None]]
    ) -> OneToken:
        group, answer = self._answers[place]
        ids = [one for turn in answer.turns for part in (turn.context_ids, turn.sampled_ids) for one in part.tolist()]
        row = self._rows[place]
        return OneToken(
            place=place,
            row=row,
            token=token,
            env=group.ticket.task.env.name,
            key=group.ticket.task.key,
            ticket=group.ticket.number,
            id=ids[token],
            text=self._text(ids[token : token + 1]),
            before=self._text(ids[max(0, token - BEFORE) : token]),
            measures=pairs,
            size=size,
            link=None if self._file is None else f"#file={self._file}&row={row}&token={token}&colour=gap",
        )

    def _text(self, ids: list[int]) -> str:
        if self._tokenizer is None:
            return " ".join(map(str, ids))
        return "".join(map(self._tokenizer.of, ids)).encode("latin-1").decode("utf-8", errors="replace")
