"""The gap between two log-probabilities of the same tokens. Suffix: `_N` one entry a token."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

RATIO = 2.0
"""A token counts as outside where exp(difference) is above it, or below 1 over it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Gap:
    """The trainer's log-probabilities less the engine's, over some tokens: `mean`, `p99` and `largest` without sign, in nats.

    `outside` is the share of tokens whose ratio exp(difference) leaves [1 / 2, 2]. `k3` estimates the divergence of the
    trainer from the engine that sampled, in nats a token: the mean of r - 1 - log r (Schulman, "Approximating KL
    Divergence", 2020).
    """

    tokens: int
    mean: float
    p99: float
    largest: float
    outside: float
    k3: float


def gap_of(differences_N: NDArray[np.float64]) -> Gap:
    """Return the gap that differences in nats make up. Raise `ValueError` where there are none, or one is no number."""
    if not len(differences_N):
        raise ValueError("there are no tokens to compare: every answer is empty; give longer answers with --tokens")
    if not np.isfinite(differences_N).all():
        places = np.flatnonzero(~np.isfinite(differences_N))
        raise ValueError(
            f"{len(places)} of {len(differences_N)} log-probabilities are no finite numbers, the first that of token "
            f"{places[0]}: a precision overflows, or a model's weights are damaged"
        )
    sizes_N = np.abs(differences_N)
    return Gap(
        tokens=len(sizes_N),
        mean=float(sizes_N.mean()),
        p99=float(np.quantile(sizes_N, 0.99)),
        largest=float(sizes_N.max()),
        outside=float((sizes_N > np.log(RATIO)).mean()),
        k3=float((np.expm1(differences_N) - differences_N).mean()),
    )


def between(
    ours: Iterable[Sequence[float] | NDArray[np.float32]], theirs: Iterable[Sequence[float] | NDArray[np.float32]]
) -> Gap:
    """Return the gap of our log-probabilities to theirs, a sequence of each for every answer. Raise as `gap_of`."""
    pairs = zip(ours, theirs, strict=True)
    parts = [np.asarray(own, dtype=np.float64) - np.asarray(other, dtype=np.float64) for own, other in pairs]
    return gap_of(np.concatenate(parts) if parts else np.zeros(0))
