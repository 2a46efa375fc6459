"""Two records of the tokens of a step, compared token by token.

Suffixes: `_MT` measure and token of an answer's sequence, context included, NaN if the token is not trained. `_T` token.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from temper.learner.batches.builder import build_samples
from temper.learner.losses.config import LossConfig
from temper.learner.losses.corrections import MaskReason
from temper.learner.token_records import TokenRecord
from temper.orchestrator.session.recording import StepBatch
from temper.orchestrator.tools.inspect.viewer.token_bytes import TokenBytes

MEASURES = ("logprob", "advantage", "factor")
"""The compared values of a token: log pi, A, and the factor of its loss. The last row is the mask reason."""
LEFT_OUT = "left_out"
BEFORE = 12
"""Number of text tokens shown before a token."""
Record = tuple[Sequence[TokenRecord], LossConfig]
"""The records of a step, with the loss that produced them."""
Values = NDArray[np.float32]
Pair = tuple[float | str | None, float | str | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class OneToken:
    """A token that differs.

    `place` is the index of its answer, `row` its row in the trajectory file, `token` its index in the answer. `measures` has
    each measure that differs, and `left_out`, in both records. A value is None if the token is not trained.
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
    """The text before it."""
    measures: dict[str, Pair]
    size: float
    """The largest difference. Infinite if one record does not train the token."""
    link: str | None = None
    """Its link in the viewer. None if the step has no trajectory file."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TokensCompared:
    """`tokens` is the number of tokens in either record, `unequal` the number that differ in any digit.

    `largest` has the largest difference by measure, `worst` the tokens with the largest differences.
    """

    tokens: int
    unequal: int
    largest: dict[str, float]
    worst: list[OneToken]


def compare_records(
    batch: StepBatch, one: Record, other: Record, *, tokenizer: TokenBytes | None, shown: int, file: str | None
) -> TokensCompared:
    """Compare two records of a batch, and describe `shown` tokens.

    `file` is the name of the trajectory file in the viewer, or None.
    """
    mine, theirs = (_by_place(batch, *record) for record in (one, other))
    tokens = unequal = 0
    largest = np.zeros(len(MEASURES))
    found: list[tuple[float, int, int, dict[str, Pair]]] = []
    for place in sorted(mine.keys() | theirs.keys()):
        nothing_MT = np.full_like((mine if place in mine else theirs)[place], np.nan)
        left_MT, right_MT = mine.get(place, nothing_MT), theirs.get(place, nothing_MT)
        unknown_MT = np.isnan(left_MT) & np.isnan(right_MT)
        unlike_MT = (left_MT != right_MT) & ~unknown_MT
        gap_MT = np.abs(left_MT.astype(np.float64) - right_MT)[: len(MEASURES)]
        gap_MT = np.where(unlike_MT[: len(MEASURES)], np.where(np.isnan(gap_MT), np.inf, gap_MT), 0.0)
        differs_T, size_T = unlike_MT.any(axis=0), gap_MT.max(axis=0)
        tokens += int((~unknown_MT[-1]).sum())
        unequal += int(differs_T.sum())
        largest = np.maximum(largest, gap_MT.max(axis=1, initial=0.0))
        for token in np.flatnonzero(differs_T)[np.argsort(-size_T[differs_T], kind="stable")][:shown].tolist():
            pairs = _pairs(left_MT[:, token], right_MT[:, token])
            found.append((float(size_T[token]), place, token, pairs))
    found.sort(key=lambda each: -each[0])
    return TokensCompared(
        tokens=tokens,
        unequal=unequal,
        largest=dict(zip(MEASURES, largest.tolist(), strict=True)),
        worst=_described(batch, found[:shown], tokenizer=tokenizer, file=file),
    )


def _by_place(batch: StepBatch, records: Sequence[TokenRecord], loss: LossConfig) -> dict[int, Values]:
    """Return by answer the values of a record at the tokens that a loss trains."""
    samples = {sample.place: sample for sample in build_samples(loss, batch.groups)}
    found = {}
    for record in (one for one in records if len(one.logprobs_T)):  # answers without an advantage have no values
        trained_T = samples[record.place].trained_T
        if int(trained_T.sum()) != len(record.logprobs_T):
            raise ValueError(
                f"the record of step {batch.step} has {len(record.logprobs_T)} tokens of answer {record.place}, of which "
                f"{int(trained_T.sum())} are trained: the file is damaged"
            )
        values_MT = np.full((len(MEASURES) + 1, len(trained_T)), np.nan, dtype=np.float32)
        numbers = (record.logprobs_T, record.advantages_T, record.factors_T)
        values_MT[:, trained_T] = np.stack([*numbers, record.mask_reasons_T.astype(np.float32)])
        found[record.place] = values_MT
    return found


def _pairs(left_M: Values, right_M: Values) -> dict[str, Pair]:
    """Return the differences of one token."""
    pairs: dict[str, Pair] = {}
    for name, *values in zip((*MEASURES, LEFT_OUT), left_M.tolist(), right_M.tolist(), strict=True):
        one, other = (
            None if math.isnan(value) else MaskReason(int(value)).name.lower() if name == LEFT_OUT else value
            for value in values
        )
        if one != other:
            pairs[name] = (one, other)
    return pairs


def _described(
    batch: StepBatch,
    found: Sequence[tuple[float, int, int, dict[str, Pair]]],
    *,
    tokenizer: TokenBytes | None,
    file: str | None,
) -> list[OneToken]:
    """Describe tokens by their size, answer, index and pairs."""
    answers = [(group.ticket, answer) for group in batch.groups for answer in group.trajectories]
    rows = batch.rows

    def text(ids: list[int]) -> str:
        if tokenizer is None:
            return " ".join(map(str, ids))
        return "".join(map(tokenizer.of, ids)).encode("latin-1").decode("utf-8", errors="replace")

    described = []
    for size, place, token, pairs in found:
        ticket, answer = answers[place]
        ids = [one for turn in answer.turns for part in (turn.context_ids, turn.sampled_ids) for one in part.tolist()]
        described.append(
            OneToken(
                place=place,
                row=rows[place],
                token=token,
                env=ticket.task.env.name,
                key=ticket.task.key,
                ticket=ticket.number,
                id=ids[token],
                text=text(ids[token : token + 1]),
                before=text(ids[max(0, token - BEFORE) : token]),
                measures=pairs,
                size=size,
                link=None if file is None else f"#file={file}&row={rows[place]}&token={token}&colour=gap",
            )
        )
    return described
