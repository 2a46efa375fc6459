"""One step's batch: samples padded to micro-batches, and the share of each rank.

Suffixes: `_B` one entry per sample of a micro-batch, `_BT` per sample and token (padded on the right).
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from temper.learner.batches.packing import BatchPlan, MicroBatchPlan, cheapest_plan
from temper.learner.batches.pass_experts import PassExperts, build_passes
from temper.learner.batches.samples import TrainingSample
from temper.learner.batches.shared_prefixes import Prompts, shared_prefixes
from temper.learner.losses.config import Aggregation
from temper.rollout.trajectory import WeightVersion


@dataclass(frozen=True, slots=True, kw_only=True)
class MicroBatch:
    """Arrays of one forward pass, of shape (B, T) or (B,).

    `weights_BT` is the loss weight of a token, 0 if untrained. `temperatures_B` are the sampling temperatures, None if all
    are 1. `places_B` are `TrainingSample.place`, -1 without a trajectory, or None if no row counts.

    With `prompts` a row begins with the last token of its prompt, otherwise with its first token. `experts` belong to the
    forward passes, the prompts' pass first. In passes beyond them the routers decide, and nothing is counted.
    """

    ids_BT: NDArray[np.int64]
    weights_BT: NDArray[np.float32]
    advantages_BT: NDArray[np.float32]
    behaviour_BT: NDArray[np.float32]
    temperatures_B: NDArray[np.float32] | None = None
    places_B: NDArray[np.int32] | None = None
    prompts: Prompts | None = None
    experts: tuple[PassExperts, ...] = ()

    def __post_init__(self) -> None:
        shapes = {a.shape for a in (self.ids_BT, self.weights_BT, self.advantages_BT, self.behaviour_BT)}
        if len(shapes) != 1:
            raise ValueError(f"the arrays of a micro-batch differ in shape: {sorted(shapes)}")


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchShare:
    """One rank's micro-batches of an optimiser step, and the numbers of the whole batch."""

    micro_batches: tuple[MicroBatch, ...]
    denominator: float
    tokens: int
    trained_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainBatch:
    """One optimiser step: `micro_batches[rank]` has the same length for each rank, or group of ranks that share sequences.

    The sum of the loss over all ranks is divided by `denominator`. `samples` counts trained samples, `tokens` their tokens
    without padding, `trained_tokens` the tokens with loss. If there are none, there are no micro-batches.
    """

    micro_batches: tuple[tuple[MicroBatch, ...], ...]
    denominator: float
    samples: int
    tokens: int
    trained_tokens: int
    oldest: WeightVersion | None = None
    newest: WeightVersion | None = None

    def __post_init__(self) -> None:
        counts = {len(micro_batches) for micro_batches in self.micro_batches}
        if len(counts) != 1:
            raise ValueError(f"ranks must have the same number of micro-batches, not {sorted(counts)}")

    def share(self, rank: int) -> BatchShare:
        return BatchShare(
            micro_batches=self.micro_batches[rank],
            denominator=self.denominator,
            tokens=self.tokens,
            trained_tokens=self.trained_tokens,
        )


def build_batch(
    samples: Sequence[TrainingSample],
    *,
    ranks: int,
    micro_batch_tokens: int,
    pad_id: int,
    aggregation: Aggregation = "token",
    constant_length: int = 0,
    shared_prompts: bool = False,
) -> TrainBatch:
    """Build one step's batch of at most `micro_batch_tokens` tokens, padding included, per micro-batch.

    Samples of similar length run together. Samples without a trained token are dropped. If none remains, ranks have no
    micro-batch. A sample over the budget runs alone. A rank with too few micro-batches gets some of weight 0, because every
    rank takes part in each collective. With `shared_prompts` the prompt of a group runs once if that is cheaper
    (`learner/batches/packing.py`).

    aggregation: token (mean over the trained tokens of the batch; Yu et al., "DAPO", 2025), sequence (mean over the tokens
    of each sample, then over samples; Shao et al., "DeepSeekMath", 2024) or constant (sum over tokens, divided by
    `constant_length` times the number of all samples; Liu et al., "Understanding R1-Zero-Like Training: A Critical
    Perspective", 2025).
    """
    trained = [sample for sample in samples if sample.trained_tokens]
    ids = [sample.ids for sample in trained]
    prefixes = shared_prefixes([s.group for s in trained], ids, [s.first_trained for s in trained])
    plan = cheapest_plan(
        [len(own) for own in ids], prefixes if shared_prompts else [], ranks=ranks, budget=micro_batch_tokens
    )
    denominators = {
        "token": sum(sample.trained_tokens for sample in trained),
        "sequence": len(trained),
        "constant": len(samples) * constant_length,
    }
    return build_planned_batch(
        plan, trained, denominator=denominators[aggregation], pad_id=pad_id, by_sample=aggregation == "sequence"
    )


def build_planned_batch(
    plan: BatchPlan,
    samples: Sequence[TrainingSample],
    *,
    denominator: float,
    pad_id: int,
    by_sample: bool = False,
    dummy_rows: int = 1,
) -> TrainBatch:
    """Build the batch of a plan. `by_sample`: see `build_micro_batch`. `dummy_rows`: see `equalise_counts`."""
    shares = [
        [build_micro_batch(packed, samples, pad_id=pad_id, by_sample=by_sample) for packed in share] for share in plan
    ]
    return TrainBatch(
        micro_batches=equalise_counts(shares, rows=dummy_rows),
        denominator=float(denominator),
        samples=len(samples),
        tokens=sum(len(sample.ids) for sample in samples),
        trained_tokens=sum(sample.trained_tokens for sample in samples),
        oldest=min((s.oldest for s in samples if s.oldest is not None), default=None),
        newest=max((s.newest for s in samples if s.newest is not None), default=None),
    )


def build_micro_batch(
    plan: MicroBatchPlan, samples: Sequence[TrainingSample], *, pad_id: int, by_sample: bool = False
) -> MicroBatch:
    """Build the arrays of the samples in a plan, padded with `pad_id`.

    With `by_sample` the weights of a sample's tokens sum to 1. Otherwise each weight is 1.
    """
    used = {row: samples[row] for item in plan for row in item.rows}
    rows = [(used[row], item.prompt) for item in plan for row in item.rows]
    shape = (len(rows), max(item.length for item in plan))
    ids_BT = np.full(shape, pad_id, dtype=np.int64)
    weights_BT = np.zeros(shape, dtype=np.float32)
    advantages_BT = np.zeros(shape, dtype=np.float32)
    behaviour_BT = np.full(shape, np.nan, dtype=np.float32)
    for row, (sample, prompt) in enumerate(rows):
        length = len(sample.ids) - prompt
        scale = 1.0 / max(1, sample.trained_tokens) if by_sample else 1.0
        ids_BT[row, :length] = sample.ids[prompt:]
        weights_BT[row, :length] = sample.trained_T[prompt:] * np.float32(scale)
        advantages_BT[row, :length] = sample.advantages_T[prompt:]
        behaviour_BT[row, :length] = sample.behaviour_T[prompt:]
    temperatures_B = np.array([sample.temperature for sample, _ in rows], dtype=np.float32)
    prompts = None
    if plan[0].prompt:
        ids_P = [samples[item.rows[0]].ids[: item.prompt] for item in plan]
        prompts = Prompts.padded(ids_P, rows_P=[len(item.rows) for item in plan], pad_id=pad_id)
    return MicroBatch(
        ids_BT=ids_BT,
        weights_BT=weights_BT,
        advantages_BT=advantages_BT,
        behaviour_BT=behaviour_BT,
        temperatures_B=None if (temperatures_B == 1).all() else temperatures_B,
        places_B=np.array([-1 if sample.place is None else sample.place for sample, _ in rows], dtype=np.int32),
        prompts=prompts,
        experts=build_passes(
            plan, {row: len(own.ids) for row, own in used.items()}, {row: own.experts for row, own in used.items()}
        ),
    )


def equalise_counts(shares: list[list[MicroBatch]], *, rows: int = 1) -> tuple[tuple[MicroBatch, ...], ...]:
    """Give each rank the same number of micro-batches with prompts, followed by the same number without.

    Added micro-batches have `rows` rows of weight 0. Ranks must call the model's modules in the same order, because under
    ZeRO-3 each call gathers parameters from all ranks.
    """
    equal: list[list[MicroBatch]] = [[] for _ in shares]
    like = next((m for share in shares for m in share), None)
    if like is None:
        return tuple(() for _ in shares)
    for shared in (True, False):
        kinds = [[m for m in share if (m.prompts is not None) == shared] for share in shares]
        rounds = max(len(kind) for kind in kinds)
        for share, kind in zip(equal, kinds, strict=True):
            share += [*kind, *[dummy_micro_batch(like, rows=rows, shared=shared)] * (rounds - len(kind))]
    return tuple(tuple(share) for share in equal)


def dummy_micro_batch(like: MicroBatch, *, rows: int, shared: bool) -> MicroBatch:
    """Return two tokens of each of the first rows with weight 0, with `shared` after a prompt of one token."""
    return MicroBatch(
        ids_BT=like.ids_BT[:rows, :2],
        weights_BT=np.zeros_like(like.weights_BT[:rows, :2]),
        advantages_BT=like.advantages_BT[:rows, :2],
        behaviour_BT=like.behaviour_BT[:rows, :2],
        prompts=Prompts.padded([like.ids_BT[0, :1]], rows_P=[rows], pad_id=0) if shared else None,
    )
