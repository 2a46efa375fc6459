"""From groups to training batches: sequences, padded micro-batches, and their split over ranks.

Suffixes: `_T` one entry per token of a sequence, `_BT` per sequence and token of a micro-batch (padded on the right).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray

from learner.batches.expert_routes import Choices, Routes, joined, pack_routes
from learner.batches.packing import Pack, cheapest_plan
from learner.batches.shared_prefixes import Prompts, families
from learner.losses.batch_advantages import batch_advantages
from rollout.trajectory import Group, Trajectory, TurnFault, WeightVersion

NO_OVERRIDES: Mapping[TurnFault, float] = MappingProxyType({})


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingSample:
    """One training sequence. `trained_T[t]` says whether token t, predicted from those before it, carries loss.

    `behaviour_T` is the engine's log-probability of a sampled token and NaN elsewhere. `oldest` and `newest` are the
    weight versions that sampled it, None where nothing was sampled (supervised data). `group` is the same for sequences
    that may begin with the same prompt, None for one that stands alone. `experts` are the expert choices recorded for
    its tokens (`learner/batches/expert_routes.py`), None where there are none.
    """

    ids: tuple[int, ...]
    trained_T: tuple[bool, ...]
    advantages_T: tuple[float, ...]
    behaviour_T: tuple[float, ...]
    oldest: WeightVersion | None = None
    newest: WeightVersion | None = None
    group: int | None = None
    experts: Choices | None = field(default=None, compare=False)

    def __post_init__(self) -> None:
        count = len(self.ids)
        for name, length in (
            ("trained_T", len(self.trained_T)),
            ("advantages_T", len(self.advantages_T)),
            ("behaviour_T", len(self.behaviour_T)),
            ("experts", count if self.experts is None else len(self.experts)),
        ):
            if length != count:
                raise ValueError(f"{name} has {length} entries for {count} ids")
        if not count:
            raise ValueError("a training sequence has no tokens")
        if self.trained_T[0]:
            raise ValueError("the first token of a sequence can not be trained: nothing predicts it")

    @classmethod
    def supervised(cls, *, ids: Sequence[int], trained_T: Sequence[bool]) -> "TrainingSample":
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
    """Arrays of one forward pass, all of shape (B, T). `weights_BT` is what a token counts for, 0 if untrained.

    With `prompts` a row begins with the last token of its prompt, without them with its first token. `routes` says how
    the tokens of its forward passes are routed, the prompts' first; a pass that it does not name routes freely, uncounted.
    """

    ids_BT: NDArray[np.int64]
    weights_BT: NDArray[np.float32]
    advantages_BT: NDArray[np.float32]
    behaviour_BT: NDArray[np.float32]
    prompts: Prompts | None = None
    routes: tuple[Routes, ...] = ()

    def __post_init__(self) -> None:
        shapes = {a.shape for a in (self.ids_BT, self.weights_BT, self.advantages_BT, self.behaviour_BT)}
        if len(shapes) != 1:
            raise ValueError(f"the arrays of a micro-batch differ in shape: {sorted(shapes)}")


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainBatch:
    """One optimiser step: `micro_batches[rank]` has the same number of micro-batches for each rank.

    `denominator` is what the sum of the loss over all ranks is divided by. `tokens` counts real tokens (no padding),
    `trained_tokens` those with loss; without any there are no micro-batches.
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


def sequences_from_groups(
    groups: Sequence[Group],
    *,
    advantage: str,
    advantage_clip: float = 20.0,
    mask_truncated: bool = False,
    overrides: Mapping[TurnFault, float] = NO_OVERRIDES,
    normalise: bool = True,
) -> list[TrainingSample]:
    """The training sequences of a batch's groups, one for each trajectory with a score. `normalise`: see `batch_advantages`.

    A token is trained if it was sampled, not forced, and (with `mask_truncated`) its trajectory ended by itself.
    `overrides` are the advantages of turns with a fault, in place of their trajectory's; the lowest counts.
    The other turns keep theirs.
    """
    rewards_NG = [group.rewards_G for group in groups]
    tokens_NG = [[0 if mask_truncated and t.truncated else t.unforced_tokens for t in g.trajectories] for g in groups]
    advantages_NG = batch_advantages(rewards_NG, tokens_NG, kind=advantage, clip=advantage_clip, normalise=normalise)
    return [
        _trajectory_sequence(
            trajectory,
            advantage=value,
            masked=mask_truncated and trajectory.truncated,
            overrides=overrides,
            group=group.ticket.number,
        )
        for group, advantages_G in zip(groups, advantages_NG, strict=True)
        for trajectory, value in zip(group.trajectories, advantages_G, strict=True)
    ]


def _trajectory_sequence(
    trajectory: Trajectory, *, advantage: float, masked: bool, overrides: Mapping[TurnFault, float], group: int
) -> TrainingSample:
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
    return TrainingSample(
        ids=tuple(ids),
        trained_T=tuple(trained_T),
        advantages_T=tuple(advantages_T),
        behaviour_T=tuple(behaviour_T),
        oldest=WeightVersion(step=min(versions)) if versions else None,
        newest=WeightVersion(step=max(versions)) if versions else None,
        group=group,
        experts=joined([(len(t.context_ids) + len(t.sampled_ids), t.experts) for t in trajectory.turns]),
    )


def make_batch(
    sequences: Sequence[TrainingSample],
    *,
    ranks: int,
    micro_batch_tokens: int,
    pad_id: int,
    aggregation: str = "token",
    constant_length: int = 0,
    shared_prompts: bool = False,
) -> TrainBatch:
    """One step's batch: sequences of like length together, at most `micro_batch_tokens` with padding in a micro-batch.

    Sequences without a trained token are left out; where none is left, ranks have no micro-batch at all. A sequence over
    the budget has a micro-batch of its own. A rank with fewer micro-batches than another gets some of weight 0, since
    every rank must take part in each collective operation. With `shared_prompts` the prompt of a group runs once where
    that is cheaper (`learner/batches/packing.py`).

    aggregation: token (mean over the trained tokens of the batch; Yu et al., "DAPO", 2025), sequence (mean over the
    tokens of each sequence, then over sequences; Shao et al., "DeepSeekMath", 2024) or constant (sum over tokens,
    divided by `constant_length` times the number of sequences, those without a trained token included; Liu et al.,
    "Understanding R1-Zero-Like Training: A Critical Perspective", 2025).
    """
    trained = [sequence for sequence in sequences if sequence.trained_tokens]
    ids = [sequence.ids for sequence in trained]
    together = families([s.group for s in trained], ids, [s.trained_T.index(True) for s in trained])
    plan = cheapest_plan(
        [len(sequence) for sequence in ids],
        together if shared_prompts else [],
        ranks=ranks,
        budget=micro_batch_tokens,
    )
    micro_batches = filled_up(
        [[micro_batch(pack, trained, pad_id=pad_id, aggregation=aggregation) for pack in packs] for packs in plan]
    )
    trained_tokens = sum(sequence.trained_tokens for sequence in trained)
    denominators = {"token": trained_tokens, "sequence": len(trained), "constant": len(sequences) * constant_length}
    return TrainBatch(
        micro_batches=micro_batches,
        denominator=float(denominators[aggregation]),
        sequences=len(trained),
        tokens=sum(len(sequence.ids) for sequence in trained),
        trained_tokens=trained_tokens,
        oldest=min((s.oldest for s in trained if s.oldest is not None), default=None),
        newest=max((s.newest for s in trained if s.newest is not None), default=None),
    )


def micro_batch(
    pack: Pack, all_sequences: Sequence[TrainingSample], *, pad_id: int, aggregation: str = "token"
) -> MicroBatch:
    """The arrays of a pack's sequences, which are named by their places in `all_sequences`; padded with `pad_id`."""
    rows = [(all_sequences[row], piece.prompt) for piece in pack for row in piece.rows]
    shape = (len(rows), max(piece.length for piece in pack))
    ids_BT = np.full(shape, pad_id, dtype=np.int64)
    weights_BT = np.zeros(shape, dtype=np.float32)
    advantages_BT = np.zeros(shape, dtype=np.float32)
    behaviour_BT = np.full(shape, np.nan, dtype=np.float32)
    for row, (sequence, prompt) in enumerate(rows):
        length = len(sequence.ids) - prompt
        scale = 1.0 / max(1, sequence.trained_tokens) if aggregation == "sequence" else 1.0
        ids_BT[row, :length] = sequence.ids[prompt:]
        weights_BT[row, :length] = np.asarray(sequence.trained_T[prompt:], dtype=np.float32) * scale
        advantages_BT[row, :length] = sequence.advantages_T[prompt:]
        behaviour_BT[row, :length] = sequence.behaviour_T[prompt:]
    prompts = None
    if pack[0].prompt:
        ids_P = [all_sequences[piece.rows[0]].ids[: piece.prompt] for piece in pack]
        prompts = Prompts.padded(ids_P, rows_P=[len(piece.rows) for piece in pack], pad_id=pad_id)
    return MicroBatch(
        ids_BT=ids_BT,
        weights_BT=weights_BT,
        advantages_BT=advantages_BT,
        behaviour_BT=behaviour_BT,
        prompts=prompts,
        routes=pack_routes(pack, [len(s.ids) for s in all_sequences], [s.experts for s in all_sequences]),
    )


def filled_up(built: list[list[MicroBatch]], *, rows: int = 1) -> tuple[tuple[MicroBatch, ...], ...]:
    """The same number of micro-batches with prompts on each rank, and after them of those without.

    What is added has `rows` rows, which count for nothing.

    Ranks must call the model's modules in the same order: under ZeRO-3 each call gathers parameters from all of them.
    """
    filled: list[list[MicroBatch]] = [[] for _ in built]
    like = next((m for share in built for m in share), None)
    if like is None:
        return tuple(() for _ in built)
    for shared in (True, False):
        kinds = [[m for m in share if (m.prompts is not None) == shared] for share in built]
        rounds = max(len(kind) for kind in kinds)
        for share, kind in zip(filled, kinds, strict=True):
            share += [*kind, *[_weightless(like, rows=rows, shared=shared)] * (rounds - len(kind))]
    return tuple(tuple(share) for share in filled)


def _weightless(like: MicroBatch, *, rows: int, shared: bool) -> MicroBatch:
    """Two tokens of each of the first rows, none of which counts; with `shared` behind a prompt of one."""
    return MicroBatch(
        ids_BT=like.ids_BT[:rows, :2],
        weights_BT=np.zeros_like(like.weights_BT[:rows, :2]),
        advantages_BT=like.advantages_BT[:rows, :2],
        behaviour_BT=like.behaviour_BT[:rows, :2],
        prompts=Prompts.padded([like.ids_BT[0, :1].tolist()], rows_P=[rows], pad_id=0) if shared else None,
    )
