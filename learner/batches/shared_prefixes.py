"""Prompts that several samples share: their lengths, and their arrays in a micro-batch.

Suffixes: `_G` sample of a group, `_P` prompt, `_PS` prompt and token (padded on the left), `_B` row of a micro-batch.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from temper.rollout.token_arrays import Ids, Integers


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedPrefix:
    """Samples, by index, that begin with the same `prompt` tokens. None of these tokens is trained."""

    rows: tuple[int, ...]
    prompt: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Prompts:
    """Prompts that run once: their tokens but the last, their lengths, and the prompt of each row."""

    ids_PS: NDArray[np.int64]
    lengths_P: NDArray[np.int64]
    of_B: NDArray[np.int64]

    def __post_init__(self) -> None:
        if len(self.ids_PS) != len(self.lengths_P):
            raise ValueError(f"lengths_P has {len(self.lengths_P)} entries for {len(self.ids_PS)} prompts")

    @classmethod
    def padded(cls, ids_P: Sequence[Integers], *, rows_P: Sequence[int], pad_id: int) -> "Prompts":
        """Pad the prompts with these ids. The first `rows_P[0]` rows have the first prompt, and so on."""
        lengths = [len(ids) for ids in ids_P]
        ids_PS = np.full((len(lengths), max(lengths)), pad_id, dtype=np.int64)
        for place, ids in enumerate(ids_P):
            ids_PS[place, max(lengths) - len(ids) :] = ids
        return cls(
            ids_PS=ids_PS,
            lengths_P=np.array(lengths, dtype=np.int64),
            of_B=np.repeat(np.arange(len(lengths)), list(rows_P)),
        )


def shared_length(ids_G: Sequence[Ids], first_trained_G: Sequence[int]) -> int:
    """Return the number of tokens that all samples share and that can run once. The last one before a trained token does
    not."""
    common = min(first_trained_G) - 1
    for ids_T in ids_G[1:]:
        others = np.flatnonzero(ids_T[:common] != ids_G[0][:common])
        common = int(others[0]) if len(others) else common
    return common


def shared_prefixes(
    groups: Sequence[int | None], ids: Sequence[Ids], first_trained: Sequence[int]
) -> list[SharedPrefix]:
    """Return the groups whose prompt can run once. Each argument has one entry per sample. Group None shares nothing."""
    rows_of: dict[int, list[int]] = {}
    for row, group in enumerate(groups):
        if group is not None:
            rows_of.setdefault(group, []).append(row)
    found = [
        SharedPrefix(
            rows=tuple(rows), prompt=shared_length([ids[row] for row in rows], [first_trained[row] for row in rows])
        )
        for rows in rows_of.values()
        if len(rows) > 1
    ]
    return [prefix for prefix in found if prefix.prompt]
