"""The group of ranks, driven with plain objects."""

import asyncio
from collections.abc import Sequence

from learner.batches.micro_batches import BatchShare, make_batch
from learner.batches.samples import TrainingSample
from learner.losses.config import LossConfig
from learner.trainer_group import TrainerGroup


class Listening:
    """A rank that keeps what it is given."""

    def __init__(self) -> None:
        self.given: list[BatchShare] = []

    async def train(self, shares: Sequence[BatchShare], *, loss: LossConfig, epochs: int) -> dict[str, float]:
        self.given += shares
        return {"skipped": 0.0}


def test_each_rank_is_given_its_own_share_of_a_batch_and_the_numbers_of_the_whole():
    samples = [TrainingSample.supervised(ids=range(n), trained_T=[False] + [True] * (n - 1)) for n in (9, 8, 5, 4)]
    batches = [make_batch(samples, ranks=2, micro_batch_tokens=9, pad_id=0) for _ in range(2)]
    ranks = [Listening(), Listening()]
    asyncio.run(TrainerGroup(ranks).step(*batches))  # type: ignore[arg-type]
    for number, rank in enumerate(ranks):
        assert [share.micro_batches for share in rank.given] == [batch.micro_batches[number] for batch in batches]
        assert {(share.denominator, share.tokens, share.trained_tokens) for share in rank.given} == {(22.0, 26, 22)}
