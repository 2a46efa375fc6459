"""Builds the batches of every stage and benchmark from the learner's settings."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from temper.learner.batches.micro_batches import BatchShare, TrainBatch, build_batch
from temper.learner.batches.packing import ON_CPU, PassCosts
from temper.learner.batches.pairs import Pair, build_pair_batch
from temper.learner.batches.samples import TrainingSample, mini_batches, samples_from_groups
from temper.learner.config import LearnerConfig
from temper.learner.losses.config import LossConfig
from temper.rollout.stored_turns import read_groups
from temper.rollout.trajectory import Group

BuildBatches = Callable[[list[Group]], list[TrainBatch]]
"""Returns the batches of a step's groups, the same in each process."""
SUPERVISED = LossConfig(objective="nll")
"""The default loss: the mean over tokens, all computed."""


def build_shares(
    groups: Sequence[Group], build_batches: BuildBatches, *, number: int
) -> tuple[list[BatchShare], set[int]]:
    """Read the turns of groups. Return share `number` of each of their batches, or none and the tickets of lost groups."""
    opened, lost = asyncio.run(read_groups(groups))
    return ([] if lost else [batch.share(number) for batch in build_batches(opened)]), lost


def build_samples(loss: LossConfig, groups: Sequence[Group]) -> list[TrainingSample]:
    """Return the training samples of `groups` for this loss, see `samples_from_groups`."""
    return samples_from_groups(
        groups,
        advantage=loss.advantage,
        advantage_clip=loss.advantage_clip,
        mask_truncated=loss.mask_truncated,
        overrides=loss.overrides,
        normalise=not loss.normalises_divergence,
        nested_weights=loss.nested_weights,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchBuilder:
    """Builds the batches of a step. `pad_id` is the pad token of the model's tokenizer."""

    config: LearnerConfig
    pad_id: int
    costs: PassCosts = ON_CPU

    def build_from_samples(self, samples: Sequence[TrainingSample], loss: LossConfig = SUPERVISED) -> TrainBatch:
        return build_batch(
            samples,
            ranks=self.config.data_parallel,
            micro_batch_tokens=self.config.micro_batch_tokens * self.config.sequence_parallel,
            pad_id=self.pad_id,
            aggregation=loss.aggregation,
            constant_length=loss.constant_length,
            shared_prompts=self.config.shared_prompts,
            costs=self.costs,
            needs_all=loss.needs_all_tokens,
        )

    def build_from_groups(
        self, groups: Sequence[Group], loss: LossConfig, *, updates: int, epochs: int = 1
    ) -> list[TrainBatch]:
        """Return the batches of a step: `updates` batches per epoch. Each epoch splits the samples anew."""
        samples = build_samples(loss, groups)
        splits = epochs if updates > 1 else 1  # a single batch is the same in each epoch
        batches = [
            self.build_from_samples(part, loss)
            for epoch in range(splits)
            for part in mini_batches(samples, count=updates, epoch=epoch)
        ]
        return batches * (epochs // splits)

    def build_from_pairs(self, pairs: Sequence[Pair]) -> TrainBatch:
        return build_pair_batch(
            pairs,
            ranks=self.config.data_parallel,
            micro_batch_tokens=self.config.micro_batch_tokens * self.config.sequence_parallel,
            pad_id=self.pad_id,
            shared_prompts=self.config.shared_prompts,
            costs=self.costs,
        )
