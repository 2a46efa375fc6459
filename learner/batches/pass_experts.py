"""The experts of a forward pass: the recorded choices of its tokens, and how many samples each token belongs to.

For arrays of choices see `rollout/expert_choices.py`. Suffixes: `_T` token of a sample, `_BT` row and token of a pass, `_L`
expert layer, `_K` chosen expert.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from temper.learner.batches.packing import MicroBatchPlan
from temper.rollout.expert_choices import UNRECORDED, Choices


@dataclass(frozen=True, slots=True, kw_only=True)
class PassRow:
    """One row of a pass: its length in tokens, the number of samples it belongs to, and its recorded experts."""

    length: int
    samples: int
    experts_TLK: Choices | None

    def __post_init__(self) -> None:
        if self.experts_TLK is not None and len(self.experts_TLK) != self.length:
            raise ValueError(f"experts_TLK has {len(self.experts_TLK)} entries for {self.length} tokens")


@dataclass(frozen=True, slots=True, kw_only=True)
class PassExperts:
    """One forward pass: the number of samples of each token (0: padding), and its experts. None lets the router decide."""

    samples_BT: NDArray[np.int32]
    experts_BTLK: Choices | None = None

    @classmethod
    def pad(cls, rows: Sequence[PassRow], *, left: bool = False) -> "PassExperts":
        """Pad the rows of a pass on the right, or on the left.

        Raises `ValueError` if choices differ in the number of layers or of experts per token.
        """
        longest = max(row.length for row in rows)
        places = [slice(longest - row.length, longest) if left else slice(row.length) for row in rows]
        samples_BT = np.zeros((len(rows), longest), dtype=np.int32)
        for row, (place, given) in enumerate(zip(places, rows, strict=True)):
            samples_BT[row, place] = given.samples
        shape_LK = find_choices_shape([row.experts_TLK for row in rows])
        if shape_LK is None:
            return cls(samples_BT=samples_BT)
        experts_BTLK = np.full((len(rows), longest, *shape_LK), UNRECORDED, dtype=np.int16)
        for row, (place, given) in enumerate(zip(places, rows, strict=True)):
            if given.experts_TLK is not None:
                experts_BTLK[row, place] = given.experts_TLK
        return cls(samples_BT=samples_BT, experts_BTLK=experts_BTLK)

    def without_count(self) -> "PassExperts":
        return PassExperts(samples_BT=np.zeros_like(self.samples_BT), experts_BTLK=self.experts_BTLK)

    @classmethod
    def from_uncounted(cls, experts_TLK: Choices | None, *, length: int) -> "PassExperts":
        """Return the pass of a single sample whose tokens are not counted."""
        return cls.pad([PassRow(length=length, samples=0, experts_TLK=experts_TLK)])


def build_passes(
    plan: MicroBatchPlan, lengths: Mapping[int, int], experts: Mapping[int, Choices | None]
) -> tuple[PassExperts, ...]:
    """Return the passes of a micro-batch from each sample's length and choices: prompts first, if any, then rows.

    A prompt counts once per sample that shares it. It takes the choices of one of them, as these differ by rounding only.
    """

    def row(number: int, start: int, stop: int, *, samples: int) -> PassRow:
        own = experts[number]
        return PassRow(length=stop - start, samples=samples, experts_TLK=None if own is None else own[start:stop])

    rows = [row(number, item.prompt, lengths[number], samples=1) for item in plan for number in item.rows]
    if not plan[0].prompt:
        return (PassExperts.pad(rows),)
    prompts = [row(item.rows[0], 0, item.prompt, samples=len(item.rows)) for item in plan]
    return PassExperts.pad(prompts, left=True), PassExperts.pad(rows)


def join_choices(parts: Sequence[tuple[int, Choices | None]]) -> Choices | None:
    """Concatenate the choices of consecutive parts, each with its number of tokens, or None if no part has any."""
    shape_LK = find_choices_shape([choices for _, choices in parts])
    if shape_LK is None:
        return None
    return np.concatenate(
        [np.full((count, *shape_LK), UNRECORDED, np.int16) if own is None else own for count, own in parts]
    )


def find_choices_shape(choices: Sequence[Choices | None]) -> tuple[int, int] | None:
    """Return (expert layers, experts per token) of some choices, or None if there are none.

    Raises `ValueError` if they differ.
    """
    shapes = {own.shape[1:] for own in choices if own is not None}
    if len(shapes) > 1:
        raise ValueError(
            f"expert choices differ in (layers, experts per token): {sorted(shapes)}; use the choices of one model"
        )
    return next(iter(shapes), None)
