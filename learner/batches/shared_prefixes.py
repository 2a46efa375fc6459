"""Prompts that several samples share: their lengths, and their arrays in a micro-batch.

Suffixes: `_G` sample of a group, `_P` prompt, `_PS` prompt and token (padded on the left), `_B` row of a micro-batch.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from temper.rollout.token_arrays import Ids, Integers

MOST_ROWS = 16
"""Maximum number of ungrouped samples that share a prefix. Attention copies the prefix's keys and values for each of them."""


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
    """Return the prefixes that can run once, of whole groups and of samples without a group that begin alike.

    Each argument has one entry per sample.
    """
    rows_of: dict[int | None, list[int]] = {}
    for row, group in enumerate(groups):
        rows_of.setdefault(group, []).append(row)
    ungrouped = rows_of.pop(None, [])
    found = [
        SharedPrefix(
            rows=tuple(rows), prompt=shared_length([ids[row] for row in rows], [first_trained[row] for row in rows])
        )
        for rows in (*rows_of.values(), *_rows_that_begin_alike(ungrouped, ids, first_trained))
        if len(rows) > 1
    ]
    return [prefix for prefix in found if prefix.prompt]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Block:
    """Neighbours in sorted order, from `start` to before `stop`, that share `prompt` tokens."""

    start: int
    stop: int
    prompt: int

    @property
    def saved(self) -> int:
        """Tokens saved if at most `MOST_ROWS` samples share a prefix."""
        rows = self.stop - self.start
        return (rows - math.ceil(rows / MOST_ROWS)) * self.prompt


def _rows_that_begin_alike(
    rows: Sequence[int], ids: Sequence[Ids], first_trained: Sequence[int]
) -> list[tuple[int, ...]]:
    """Split samples into sets of at most `MOST_ROWS` that share many tokens before the first trained one.

    Neighbours in sorted order share the most. Adjacent blocks join, longest common prefix first, if
    that saves more tokens.
    """
    order = sorted(rows, key=lambda row: ids[row][: first_trained[row]].astype(">i4").tobytes())
    common = [shared_length([ids[a], ids[b]], [first_trained[a], first_trained[b]]) for a, b in pairwise(order)]
    # Of a block, only the entries at both ends are kept up to date.
    blocks = [_Block(start=place, stop=place + 1, prompt=0) for place in range(len(order))]
    for place in sorted(range(len(common)), key=lambda place: -common[place]):
        left, right = blocks[place], blocks[place + 1]
        joined = _Block(start=left.start, stop=right.stop, prompt=common[place])
        if joined.saved > left.saved + right.saved:
            blocks[joined.start] = blocks[joined.stop - 1] = joined
    found, start = list[tuple[int, ...]](), 0
    while start < len(order):
        stop = blocks[start].stop
        longest_first = sorted(order[start:stop], key=lambda row: -len(ids[row]))
        found += [tuple(longest_first[at : at + MOST_ROWS]) for at in range(0, stop - start, MOST_ROWS)]
        start = stop
    return found
