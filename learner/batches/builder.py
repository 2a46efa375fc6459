"""The batches of one learner: what it runs at once, said in one place for every stage and benchmark."""

from collections.abc import Sequence
from dataclasses import dataclass

from learner.batches.micro_batches import TrainBatch, make_batch
from learner.batches.pairs import Pair, make_pair_batch
from learner.batches.samples import TrainingSample
from learner.config import LearnerConfig
from learner.losses.config import Aggregation


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchBuilder:
    """Builds the batch of a step as the learner's settings have it; `pad_id` is that of the model's tokenizer."""

    config: LearnerConfig
    pad_id: int

    def of_samples(
        self, samples: Sequence[TrainingSample], *, aggregation: Aggregation = "token", constant_length: int = 0
    ) -> TrainBatch:
        """Return the batch of one update; see `make_batch`."""
        return make_batch(
            samples,
            ranks=self.config.ranks,
            micro_batch_tokens=self.config.micro_batch_tokens,
            pad_id=self.pad_id,
            aggregation=aggregation,
            constant_length=constant_length,
            shared_prompts=self.config.shared_prompts,
        )

    def of_pairs(self, pairs: Sequence[Pair]) -> TrainBatch:
        """Return the batch of one update on preferences; see `make_pair_batch`."""
        return make_pair_batch(
            pairs,
            ranks=self.config.ranks,
            micro_batch_tokens=self.config.micro_batch_tokens,
            pad_id=self.pad_id,
            shared_prompts=self.config.shared_prompts,
        )
