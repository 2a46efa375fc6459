"""One step's batch: samples padded to micro-batches, and the share of each rank, which alone builds its arrays.

Suffixes: `_B` one entry per sample of a micro-batch, `_BT` per sample and token (padded on the right), `_P` per prompt, `_PS`
per prompt and token (padded on the left).
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from temper.learner.batches.packing import ON_CPU, BatchPlan, MicroBatchPlan, PassCosts, cheapest_plan, find_prefixes
from temper.learner.batches.pass_experts import PassExperts, build_passes
from temper.learner.batches.samples import TrainingSample, episodes_of
from temper.learner.losses.config import Aggregation
from temper.rollout.token_arrays import Integers
from temper.rollout.trajectory import WeightVersion


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
    def pad(cls, ids_P: Sequence[Integers], *, rows_P: Sequence[int], pad_id: int) -> "Prompts":
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
class UncomputedRows:
    """The samples of a batch that no pass computes, because all of their advantages are 0 and nothing else trains them.

    `weight` is the sum of their loss weights, and `surprise` of their weights times -log mu. `places` are as in `MicroBatch`.
    """

    weight: float = 0.0
    surprise: float = 0.0
    tokens: int = 0
    places: tuple[int, ...] = ()

    @classmethod
    def of(cls, weighed: Sequence[tuple[TrainingSample, float]]) -> "UncomputedRows":
        sums = [
            (weight * row.trained_tokens, -weight * float(row.behaviour_T[row.trained_T].sum(dtype=np.float64)))
            for row, weight in weighed
        ]
        return cls(
            weight=sum(total for total, _ in sums),
            surprise=sum(surprise for _, surprise in sums),
            tokens=sum(row.trained_tokens for row, _ in weighed),
            places=tuple(row.place for row, _ in weighed if row.place is not None),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchShare:
    """One rank's micro-batches of an optimiser step, and the numbers of the whole batch.

    `tokens` are those that passes compute. `trained_tokens` also counts `uncomputed`.
    """

    micro_batches: tuple[MicroBatch, ...]
    denominator: float
    tokens: int
    trained_tokens: int
    uncomputed: UncomputedRows = UncomputedRows()


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TrainBatch:
    """One optimiser step: a plan over the computed sequences, `rows`. The arrays of a rank are built when it needs them.

    A rank here is also a group of ranks that share sequences. The sum of the loss over all ranks is divided by `denominator`.
    If no token is trained, there are no micro-batches. `row_weights` are the loss weights of a row's tokens, 1 if there are
    none. A filler has `filler_rows` rows.
    """

    plan: BatchPlan
    rows: Sequence[TrainingSample]
    denominator: float
    pad_id: int
    row_weights: Sequence[float] = ()
    filler_rows: int = 1
    uncomputed: UncomputedRows = UncomputedRows()
    _built: dict[int, BatchShare] = field(default_factory=dict, init=False, repr=False)

    @property
    def samples(self) -> int:
        return len(self.rows)

    @property
    def tokens(self) -> int:
        """Tokens of the rows, without padding."""
        return sum(len(row.ids) for row in self.rows)

    @property
    def trained_tokens(self) -> int:
        return sum(row.trained_tokens for row in self.rows) + self.uncomputed.tokens

    @property
    def oldest(self) -> WeightVersion | None:
        return min((row.oldest for row in self.rows if row.oldest is not None), default=None)

    @property
    def newest(self) -> WeightVersion | None:
        return max((row.newest for row in self.rows if row.newest is not None), default=None)

    @property
    def micro_batches(self) -> tuple[tuple[MicroBatch, ...], ...]:
        """The micro-batches of all ranks."""
        return tuple(self.share(rank).micro_batches for rank in range(len(self.plan)))

    def build_all(self) -> "TrainBatch":
        """Build the arrays of all ranks now. Return the batch."""
        for rank in range(len(self.plan)):
            self.share(rank)
        return self

    def share(self, rank: int) -> BatchShare:
        """Return a rank's share. Only its own arrays are built, once.

        Each rank has the same number of micro-batches with prompts, then the same number without. Fillers of weight 0 replace
        missing ones. Ranks must call the model's modules in the same order, because under ZeRO-3 each call gathers parameters
        from all ranks. If no row is computed, a filler gives the gradient of 0 that the optimiser's step still needs.
        """
        if rank not in self._built:
            micro_batches = list[MicroBatch]()
            for shared in (True, False):
                counts = [sum(bool(items[0].prompt) == shared for items in share) for share in self.plan]
                own = [items for items in self.plan[rank] if bool(items[0].prompt) == shared]
                micro_batches += [
                    build_micro_batch(items, self.rows, pad_id=self.pad_id, row_weights=self.row_weights)
                    for items in own
                ]
                filler = build_filler(rows=self.filler_rows, pad_id=self.pad_id, shared=shared)
                fewest = int(not shared and not self.rows and self.trained_tokens > 0)
                micro_batches += [filler] * (max(fewest, *counts) - len(own))
            self._built[rank] = BatchShare(
                micro_batches=tuple(micro_batches),
                denominator=self.denominator,
                tokens=self.tokens,
                trained_tokens=self.trained_tokens,
                uncomputed=self.uncomputed,
            )
        return self._built[rank]


def build_batch(
    samples: Sequence[TrainingSample],
    *,
    ranks: int,
    micro_batch_tokens: int,
    pad_id: int,
    aggregation: Aggregation = "token",
    constant_length: int = 0,
    shared_prompts: bool = False,
    costs: PassCosts = ON_CPU,
    needs_all: bool = True,
) -> TrainBatch:
    """Build one step's batch of at most `micro_batch_tokens` tokens, padding included, per micro-batch.

    Samples of similar length run together. Samples without a trained token are dropped. If none remains, ranks have no
    micro-batch. Unless the loss `needs_all`, samples without an advantage count in the denominator but are not computed.
    A sample over the budget runs alone. A rank with too few micro-batches gets some of weight 0, because every rank takes
    part in each collective. With `shared_prompts` the prompt of a group, or the common beginning of samples without a
    group, runs once if that is cheaper (`learner/batches/packing.py`).

    aggregation: token (mean over the trained tokens of the batch; Yu et al., "DAPO", 2025), sequence (mean over the tokens
    of each episode, then over episodes; Shao et al., "DeepSeekMath", 2024) or constant (sum over tokens, divided by
    `constant_length` times the number of all episodes; Liu et al., "Understanding R1-Zero-Like Training: A Critical
    Perspective", 2025).
    """
    trained = [sample for sample in samples if sample.trained_tokens]
    episodes, tokens = episodes_of(trained), Counter[int]()
    for episode, sample in zip(episodes, trained, strict=True):
        tokens[episode] += sample.trained_tokens
    denominators = {
        "token": tokens.total(),
        "sequence": len(tokens),
        "constant": len(set(episodes_of(samples))) * constant_length,
    }
    weighed = [
        (sample, 1 / tokens[episode] if aggregation == "sequence" else 1.0)
        for episode, sample in zip(episodes, trained, strict=True)
    ]
    computed = [(sample, weight) for sample, weight in weighed if needs_all or sample.has_advantage]
    others = [(sample, weight) for sample, weight in weighed if not (needs_all or sample.has_advantage)]
    rows = [sample for sample, _ in computed]
    ids = [sample.ids for sample in rows]
    groups, starts = [sample.group for sample in rows], [sample.first_trained for sample in rows]
    prefixes = find_prefixes(groups, ids, starts) if shared_prompts else []
    return TrainBatch(
        plan=cheapest_plan([len(own) for own in ids], prefixes, ranks=ranks, budget=micro_batch_tokens, costs=costs),
        rows=rows,
        denominator=float(denominators[aggregation]),
        pad_id=pad_id,
        row_weights=[weight for _, weight in computed] if aggregation == "sequence" else (),
        uncomputed=UncomputedRows.of(others),
    )


def build_micro_batch(
    plan: MicroBatchPlan, samples: Sequence[TrainingSample], *, pad_id: int, row_weights: Sequence[float] = ()
) -> MicroBatch:
    """Build the arrays of the samples in a plan, padded with `pad_id`. `row_weights` are as in `TrainBatch`."""
    used = {row: samples[row] for item in plan for row in item.rows}
    rows = [(used[row], item.prompt, row_weights[row] if row_weights else 1.0) for item in plan for row in item.rows]
    shape = (len(rows), max(item.length for item in plan))
    ids_BT = np.full(shape, pad_id, dtype=np.int64)
    weights_BT = np.zeros(shape, dtype=np.float32)
    advantages_BT = np.zeros(shape, dtype=np.float32)
    behaviour_BT = np.full(shape, np.nan, dtype=np.float32)
    for row, (sample, prompt, weight) in enumerate(rows):
        length = len(sample.ids) - prompt
        ids_BT[row, :length] = sample.ids[prompt:]
        weights_BT[row, :length] = sample.trained_T[prompt:] * np.float32(weight)
        advantages_BT[row, :length] = sample.advantages_T[prompt:]
        behaviour_BT[row, :length] = sample.behaviour_T[prompt:]
    temperatures_B = np.array([sample.temperature for sample, _, _ in rows], dtype=np.float32)
    prompts = None
    if plan[0].prompt:
        ids_P = [samples[item.rows[0]].ids[: item.prompt] for item in plan]
        prompts = Prompts.pad(ids_P, rows_P=[len(item.rows) for item in plan], pad_id=pad_id)
    return MicroBatch(
        ids_BT=ids_BT,
        weights_BT=weights_BT,
        advantages_BT=advantages_BT,
        behaviour_BT=behaviour_BT,
        temperatures_B=None if (temperatures_B == 1).all() else temperatures_B,
        places_B=np.array([-1 if sample.place is None else sample.place for sample, _, _ in rows], dtype=np.int32),
        prompts=prompts,
        experts=build_passes(
            plan, {row: len(own.ids) for row, own in used.items()}, {row: own.experts for row, own in used.items()}
        ),
    )


def build_filler(*, rows: int, pad_id: int, shared: bool) -> MicroBatch:
    """Return a micro-batch of weight 0: two tokens in each row, with `shared` after a prompt of one token."""
    shape = (rows, 2)
    return MicroBatch(
        ids_BT=np.full(shape, pad_id, dtype=np.int64),
        weights_BT=np.zeros(shape, dtype=np.float32),
        advantages_BT=np.zeros(shape, dtype=np.float32),
        behaviour_BT=np.full(shape, np.nan, dtype=np.float32),
        prompts=Prompts.pad([[pad_id]], rows_P=[rows], pad_id=pad_id) if shared else None,
    )
