"""The builder of batches: what the learner's settings say is what a batch has, for samples and for pairs."""

from temper.learner.batches.builder import BatchBuilder
from temper.learner.batches.pairs import Pair
from temper.learner.batches.samples import TrainingSample
from temper.learner.config import LearnerConfig


def sample(*ids: int) -> TrainingSample:
    return TrainingSample.supervised(ids=ids, trained_T=(False,) + (True,) * (len(ids) - 1))


def test_a_batch_has_the_ranks_and_the_padding_of_its_learner() -> None:
    builder = BatchBuilder(config=LearnerConfig(ranks=2), pad_id=9)
    batch = builder.of_samples([sample(1, 2, 3), sample(1, 2), sample(4, 5, 6), sample(7, 8)])
    assert len(batch.micro_batches) == 2
    assert batch.trained_tokens == batch.denominator == 6
    assert {int(id_) for share in batch.micro_batches for one in share for id_ in one.ids_BT.flat} <= set(range(1, 10))


def test_a_batch_of_pairs_counts_pairs() -> None:
    builder = BatchBuilder(config=LearnerConfig(), pad_id=0)
    batch = builder.of_pairs(
        [Pair(chosen=sample(1, 2, 3), rejected=sample(1, 4)), Pair(chosen=sample(5, 6), rejected=sample(5, 7))]
    )
    assert (batch.denominator, batch.samples) == (2.0, 4)
