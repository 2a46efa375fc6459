"""How the tokens of a forward pass are routed: which experts were recorded for them, and how many sequences they are of.

An expert choice is an array of shape (tokens, L, K): for each expert layer of the model, in order, the K experts that a
token went to; -1 where none is recorded. Suffixes: `_T` token of a sequence, `_BT` row and token of a pass, `_L` expert
layer, `_K` chosen expert.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from learner.batches.packing import Pack

UNRECORDED = -1
"""The expert of a token that routes freely."""
Choices = NDArray[np.int16]


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One row of a pass: its number of tokens, of how many sequences it is a part, and the experts recorded for it."""

    length: int
    sequences: int
    experts_TLK: Choices | None

    def __post_init__(self) -> None:
        if self.experts_TLK is not None and len(self.experts_TLK) != self.length:
            raise ValueError(f"experts_TLK has {len(self.experts_TLK)} entries for {self.length} tokens")


@dataclass(frozen=True, slots=True, kw_only=True)
class Routes:
    """One forward pass: of how many sequences each token is (0: padding), and its experts, None where all route freely."""

    sequences_BT: NDArray[np.int32]
    experts_BTLK: Choices | None = None

    @classmethod
    def padded(cls, rows: Sequence[Row], *, left: bool = False) -> "Routes":
        """The rows of a pass, padded on the right, or on the left.

        Raises `ValueError` where choices were recorded for different numbers of layers or of experts for each token.
        """
        longest = max(row.length for row in rows)
        places = [slice(longest - row.length, longest) if left else slice(row.length) for row in rows]
        sequences_BT = np.zeros((len(rows), longest), dtype=np.int32)
        for row, (place, given) in enumerate(zip(places, rows, strict=True)):
            sequences_BT[row, place] = given.sequences
        shape_LK = recorded_shape([row.experts_TLK for row in rows])
        if shape_LK is None:
            return cls(sequences_BT=sequences_BT)
        experts_BTLK = np.full((len(rows), longest, *shape_LK), UNRECORDED, dtype=np.int16)
        for row, (place, given) in enumerate(zip(places, rows, strict=True)):
            if given.experts_TLK is not None:
                experts_BTLK[row, place] = given.experts_TLK
        return cls(sequences_BT=sequences_BT, experts_BTLK=experts_BTLK)

    def without_count(self) -> "Routes":
        """The same pass once more, only to look."""
        return Routes(sequences_BT=np.zeros_like(self.sequences_BT), experts_BTLK=self.experts_BTLK)

    @classmethod
    def uncounted(cls, experts_TLK: Choices | None, *, length: int) -> "Routes":
        """A single sequence that only looks."""
        return cls.padded([Row(length=length, sequences=0, experts_TLK=experts_TLK)])


def pack_routes(pack: Pack, lengths: Sequence[int], experts: Sequence[Choices | None]) -> tuple[Routes, ...]:
    """The passes of a pack, given each sequence's length and choices: of the prompts, if any, then of the rows.

    A prompt counts for as many sequences as have it and takes the choices of one of them: they differ by rounding alone.
    """

    def row(number: int, start: int, stop: int, *, sequences: int) -> Row:
        own = experts[number]
        return Row(length=stop - start, sequences=sequences, experts_TLK=None if own is None else own[start:stop])

    rows = [row(number, piece.prompt, lengths[number], sequences=1) for piece in pack for number in piece.rows]
    if not pack[0].prompt:
        return (Routes.padded(rows),)
    prompts = [row(piece.rows[0], 0, piece.prompt, sequences=len(piece.rows)) for piece in pack]
    return Routes.padded(prompts, left=True), Routes.padded(rows)


def joined(parts: Sequence[tuple[int, Choices | None]]) -> Choices | None:
    """The choices of parts that follow each other, each with its number of tokens; None where no part has any."""
    shape_LK = recorded_shape([choices for _, choices in parts])
    if shape_LK is None:
        return None
    return np.concatenate(
        [np.full((count, *shape_LK), UNRECORDED, np.int16) if own is None else own for count, own in parts]
    )


def recorded_shape(choices: Sequence[Choices | None]) -> tuple[int, int] | None:
    """Expert layers and experts for each token of some choices; None where there are none, an error where they differ."""
    shapes = {own.shape[1:] for own in choices if own is not None}
    if len(shapes) > 1:
        raise ValueError(
            f"expert choices differ in (layers, experts of a token): {sorted(shapes)}; one model made them?"
        )
    return next(iter(shapes), None)
