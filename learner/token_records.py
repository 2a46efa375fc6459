"""Per-token results of a step, kept until the next step for the trajectory files.

Suffixes: `_BT` one entry per sequence and token of a micro-batch, `_T` one per trained token of an answer: sampled, not
injected, in order over all turns.
"""

import math
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from temper.learner.batches.micro_batches import MicroBatch
from temper.learner.losses.corrections import MaskReason
from temper.learner.losses.policy import TokenTerms
from temper.rollout.token_arrays import Floats

ZERO_ADVANTAGE = "zero_advantage"
"""Reason for an answer that was not computed, because none of its tokens has an advantage."""
DIGITS = 5
"""Decimal places of log-probabilities. Smaller differences are float32 rounding."""
FACTOR_DIGITS = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenRecord:
    """The tokens of one answer in the first update of a step that includes it. `place`: see `TrainingSample`.

    `logprobs_T` are the trainer's before the step's first update, at the sampling temperature. `factors_T` are loss factors,
    0 if masked, and `mask_reasons_T` the `MaskReason` of each token. An answer that was not computed has no tokens here.
    """

    place: int
    logprobs_T: Floats
    advantages_T: Floats
    factors_T: Floats
    mask_reasons_T: NDArray[np.int8]

    @classmethod
    def without_advantage(cls, place: int) -> "TokenRecord":
        """Return the record of an answer that was not computed."""
        nothing_T = np.zeros(0, dtype=np.float32)
        return cls(
            place=place,
            logprobs_T=nothing_T,
            advantages_T=nothing_T,
            factors_T=nothing_T,
            mask_reasons_T=np.zeros(0, dtype=np.int8),
        )

    def as_json(self) -> dict[str, Any]:
        """Return the record as JSON data. Equal values become one value; mask reasons are runs of [first, count]."""
        if not len(self.logprobs_T):
            return {"untrained": ZERO_ADVANTAGE}
        runs: dict[str, list[list[int]]] = {}
        first = 0
        for reason, members in groupby(self.mask_reasons_T.tolist()):
            count = len(list(members))
            if reason != MaskReason.NONE:
                runs.setdefault(MaskReason(reason).name.lower(), []).append([first, count])
            first += count
        return {
            "logprobs": _round(self.logprobs_T),
            "advantage": _collapse(_round(self.advantages_T)),
            "factor": _collapse(_round(self.factors_T, FACTOR_DIGITS)),
            "left_out": runs,
        }


def build_records(micro_batch: MicroBatch, terms: TokenTerms) -> list[TokenRecord]:
    """Return the records of the rows of a micro-batch that are trajectories."""
    if micro_batch.places_B is None:
        return []
    trained_BT = micro_batch.weights_BT > 0
    values = torch.stack([terms.old_BT, terms.advantages_BT, terms.factors_BT]).float().cpu().numpy()
    reasons_BT = terms.mask_reasons_BT.cpu().numpy()
    return [
        TokenRecord(
            place=place,
            logprobs_T=values[0, row, trained_T],
            advantages_T=values[1, row, trained_T],
            factors_T=values[2, row, trained_T],
            mask_reasons_T=reasons_BT[row, trained_T],
        )
        for row, (place, trained_T) in enumerate(zip(micro_batch.places_B.tolist(), trained_BT, strict=True))
        if place >= 0
    ]


def _round(values_T: Floats, digits: int = DIGITS) -> list[float | None]:
    return [round(value, digits) if math.isfinite(value) else None for value in values_T.tolist()]


def _collapse(values: list[float | None]) -> float | list[float | None] | None:
    return values[0] if len(set(values)) == 1 else values
