"""From groups to training batches: sequences, padded micro-batches, and their split over ranks.

Suffixes: `_T` one entry per token of a sequence, `_BT` per sequence and token of a micro-batch (padded on the right).
"""

from collections.abc import Mapping
from collections.abc import Sequence as Seq
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray

from learner.advantages import group_advantages
from rollout.trajectory import Group, Trajectory, TurnFault, WeightVersion

NO_OVERRIDES: Mapping[TurnFault, float] = MappingProxyType({})


@dataclass(frozen=True, slots=True, kw_only=True)
class Sequence:
    """One training sequence. `trained_T[t]` says whether token t, predicted from those before it, carries loss.

    `behaviour_T` is the engine's log-probability of a sampled token and NaN elsewhere. `oldest` and `newest` are the
    weight versions that sampled it, None where nothing was sampled (supervised data).
    """

    ids: tuple[int, ...]
    trained_T: tuple[bool, ...]
    advantages_T: tuple[float, ...]
    behaviour_T: tuple[float, ...]
    oldest: WeightVersion | None = None
    newest: WeightVersion | None = None

    def __post_init__(self) -> None:
        count = len(self.ids)
        for name, length in (
            ("trained_T", len(self.trained_T)),
            ("advantages_T", len(self.advantages_T)),
            ("behaviour_T", len(self.behaviour_T)),
        ):
            if length != count:
                raise ValueError(f"{name} has {length} entries for {count} ids")
        if not count:
            raise ValueError("a training sequence has no tokens")
        if self.trained_T[0]:
            raise ValueError("the first token of a sequence can not be trained: nothing predicts it")

    @classmethod
    def supervised(cls, *, ids: Seq[int], trained_T: Seq[bool]) -> "Sequence":
        """A sequence of supervised data: advantage 1, nothing sampled."""
        count = len(ids)
        return cls(
            ids=tuple(ids),
            trained_T=tuple(trained_T),
            advantages_T=(1.0,) * count,
            behaviour_T=(float("nan"),) * count,
        )

    @property
    def trained_tokens(self) -> int:
        return sum(self.trained_T)


@dataclass(frozen=True, slots=True, kw_only=True)
class MicroBatch:
    """Arrays of one forward pass, all of shape (B, T). `weights_BT` is what a token counts for, 0 if untrained."""

    ids_BT: NDArray[np.int64]
    weights_BT: NDArray[np.float32]
    advantages_BT: NDArray[np.float32]
    behaviour_BT: NDArray[np.float32]

    def __post_init__(self) -> None:
        shapes = {a.shape for a in (self.ids_BT, self.weights_BT, self.advantages_BT, self.behaviour_BT)}
        if len(shapes) != 1:
            raise ValueError(f"the arrays of a micro-batch differ in shape: {sorted(shapes)}")


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainBatch:
    """One optimiser step: `micro_batches[rank]` has the same number of micro-batches for each rank.

    `denominator` is what the sum of the loss over all ranks is divided by. `tokens` counts real tokens (no padding),
    `trained_tokens` those with loss.
    """

    micro_batches: tuple[tuple[MicroBatch, ...], ...]
    denominator: float
    sequences: int
    tokens: int
    trained_tokens: int
    oldest: WeightVersion | None = None
    newest: WeightVersion | None = None

    def __post_init__(self) -> None:
        counts = {len(micro_batches) for micro_batches in self.micro_batches}
        if len(counts) != 1:
            raise ValueError(f"ranks must have the same number of micro-batches, not {sorted(counts)}")


def sequences_from_group(
    group: Group,
    *,
    advantage: str,
    advantage_clip: float = 20.0,
    mask_truncated: bool = False,
    overrides: Mapping[TurnFault, float] = NO_OVERRIDES,
) -> list[Sequence]:
    """The training sequences of a group, one for each trajectory with a score.

    A token is trained if it was sampled, not forced, and (with `mask_truncated`) its trajectory ended by itself.
    `overrides` are the advantages of turns with a fault, in place of their trajectory's; the lowest counts.
    The other turns keep theirs.
    """
    advantages_G = group_advantages(group.rewards_G, kind=advantage, clip=advantage_clip)
    return [
        _trajectory_sequence(
            trajectory, advantage=value, masked=mask_truncated and trajectory.truncated, overrides=overrides
        )
        for trajectory, value in zip(group.trajectories, advantages_G, strict=True)
    ]


def _trajectory_sequence(
    trajectory: Trajectory, *, advantage: float, masked: bool, overrides: Mapping[TurnFault, float]
) -> Sequence:
    ids: list[int] = []
    advantages_T: list[float] = []
    trained_T: list[bool] = []
    behaviour_T: list[float] = []
    versions: list[int] = []
    for turn in trajectory.turns:
        ids += [*turn.context_ids, *turn.sampled_ids]
        trained_T += [False] * len(turn.context_ids) + [not (forced or masked) for forced in turn.forced_T]
        behaviour_T += [float("nan")] * len(turn.context_ids) + list(turn.logprobs_T)
        versions += turn.versions_T
        own = min((overrides[fault] for fault in turn.faults if fault in overrides), default=advantage)
        advantages_T += [advantage] * len(turn.context_ids) + [own] * len(turn.sampled_ids)
    return Sequence(
        ids=tuple(ids),
        trained_T=tuple(trained_T),
        advantages_T=tuple(advantages_T),
        behaviour_T=tuple(behaviour_T),
        oldest=WeightVersion(step=min(versions)) if versions else None,
        newest=WeightVersion(step=max(versions)) if versions else None,
    )


def make_batch(
    sequences: Seq[Sequence], *, ranks: int, micro_batch_tokens: int, pad_id: int, aggregation: str = "token"
) -> TrainBatch:
    """One step's batch: sequences of like length together, at most `micro_batch_tokens` with padding in a micro-batch.

    Sequences without a trained token are left out. A sequence over the budget has a micro-batch of its own. A rank with
    fewer micro-batches than another repeats a row with weight 0, since every rank must take part in each collective
    operation. Raises `ValueError` where there are fewer sequences than ranks.

    aggregation: token (mean over the trained tokens of the batch; Yu et al., "DAPO", 2025) or sequence (mean over the
    tokens of each sequence, then over sequences; Shao et al., "DeepSeekMath", 2024).
    """
    trained = [sequence for sequence in sequences if sequence.trained_tokens]
    if len(trained) < max(ranks, 1):
        raise ValueError(
            f"a batch of {len(sequences)} sequences, {len(trained)} of them with a trained token, can not be shared by "
            f"{ranks} ranks; give each rank at least one"
        )
    split = [_token_budget_split(share, micro_batch_tokens=micro_batch_tokens) for share in _deal(trained, ranks=ranks)]
    rounds = max(len(parts) for parts in split)
    micro_batches = []
    for parts in split:
        built = [_micro_batch(part, pad_id=pad_id, aggregation=aggregation) for part in parts]
        built += [_weightless(built[-1])] * (rounds - len(built))
        micro_batches.append(tuple(built))
    trained_tokens = sum(sequence.trained_tokens for sequence in trained)
    return TrainBatch(
        micro_batches=tuple(micro_batches),
        denominator=float(trained_tokens if aggregation == "token" else len(trained)),
        sequences=len(trained),
        tokens=sum(len(sequence.ids) for sequence in trained),
        trained_tokens=trained_tokens,
        oldest=min((s.oldest for s in trained if s.oldest is not None), default=None),
        newest=max((s.newest for s in trained if s.newest is not None), default=None),
    )


def _deal(sequences: Seq[Sequence], *, ranks: int) -> list[list[Sequence]]:
    """Sequences for each rank, longest first, dealt to and fro so that the ranks get nearly the same lengths."""
    ordered = sorted(sequences, key=lambda sequence: -len(sequence.ids))
    shares: list[list[Sequence]] = [[] for _ in range(ranks)]
    for start in range(0, len(ordered), ranks):
        row = ordered[start : start + ranks]
        order = range(ranks) if (start // ranks) % 2 == 0 else range(ranks - 1, -1, -1)
        for rank, sequence in zip(order, row):  # noqa: B905 - the last row may be shorter
            shares[rank].append(sequence)
    return shares


def _token_budget_split(sequences: list[Sequence], *, micro_batch_tokens: int) -> list[list[Sequence]]:
    """Runs of sequences (given longest first) whose padded size stays within the budget."""
    parts: list[list[Sequence]] = []
    for sequence in sequences:
        if parts and len(parts[-1][0].ids) * (len(parts[-1]) + 1) <= micro_batch_tokens:
            parts[-1].append(sequence)
        else:
            parts.append([sequence])
    return parts


def _micro_batch(sequences: list[Sequence], *, pad_id: int, aggregation: str) -> MicroBatch:
    shape = (len(sequences), max(len(sequence.ids) for sequence in sequences))
    ids_BT = np.full(shape, pad_id, dtype=np.int64)
    weights_BT = np.zeros(shape, dtype=np.float32)
    advantages_BT = np.zeros(shape, dtype=np.float32)
    behaviour_BT = np.full(shape, np.nan, dtype=np.float32)
    for row, sequence in enumerate(sequences):
        length = len(sequence.ids)
        scale = 1.0 if aggregation == "token" else 1.0 / max(1, sequence.trained_tokens)
        ids_BT[row, :length] = sequence.ids
        weights_BT[row, :length] = np.asarray(sequence.trained_T, dtype=np.float32) * scale
        advantages_BT[row, :length] = sequence.advantages_T
        behaviour_BT[row, :length] = sequence.behaviour_T
    return MicroBatch(ids_BT=ids_BT, weights_BT=weights_BT, advantages_BT=advantages_BT, behaviour_BT=behaviour_BT)


def _weightless(micro_batch: MicroBatch) -> MicroBatch:
    """One row of a micro-batch with no token that counts."""
    return MicroBatch(
        ids_BT=micro_batch.ids_BT[:1],
        weights_BT=np.zeros_like(micro_batch.weights_BT[:1]),
        advantages_BT=micro_batch.advantages_BT[:1],
        behaviour_BT=micro_batch.behaviour_BT[:1],
    )
