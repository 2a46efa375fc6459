"""The group of the learner's ranks, driven with plain objects."""

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from learner.batches.micro_batches import BatchShare, make_batch
from learner.batches.samples import TrainingSample
from learner.config import OptimConfig
from learner.losses.config import LossConfig
from learner.trainer_group import TrainerGroup


class Rank:
    """A rank that keeps its calls, and answers only once all the ranks were called: as a collective does."""

    def __init__(self, number: int, *, meeting: asyncio.Barrier, breaks: str = "") -> None:
        self.number = number
        self.meeting = meeting
        self.breaks = breaks
        self.calls: list[tuple[str, Any]] = []

    async def _called(self, name: str, value: Any = None) -> None:
        self.calls.append((name, value))
        await self.meeting.wait()
        if name == self.breaks:
            raise RuntimeError(f"rank {self.number} can't {name}")

    async def load(self, model_dir: str, *, optim: OptimConfig, total_steps: int, teacher_dir: str | None) -> None:
        await self._called("load", (model_dir, total_steps, teacher_dir))

    async def train(self, shares: Sequence[BatchShare], *, loss: LossConfig, epochs: int) -> dict[str, float]:
        await self._called("train", (loss.objective, epochs, shares))
        return {"loss": float(self.number)}

    async def save(self, directory: str) -> None:
        await self._called("save", directory)


async def led(breaks: str) -> tuple[dict[str, float], list[list[tuple[str, Any]]]]:
    meeting = asyncio.Barrier(2)
    ranks: Any = [Rank(0, meeting=meeting), Rank(1, meeting=meeting, breaks=breaks)]
    group = TrainerGroup(ranks)
    async with asyncio.timeout(5):
        await group.load(Path("m"), optim=OptimConfig(), loss=LossConfig(objective="nll"), total_steps=7)
        metrics = await group.step(epochs=2)
        await group.save(Path("c"))
    return metrics, [rank.calls for rank in ranks]


def test_every_call_goes_to_all_ranks_at_once_and_the_first_ones_metrics_count() -> None:
    metrics, calls = asyncio.run(led(breaks=""))
    assert metrics == {"loss": 0.0}
    assert calls == [[("load", ("m", 7, None)), ("train", ("nll", 2, [])), ("save", "c")]] * 2


def test_what_one_rank_raises_ends_the_call() -> None:
    with pytest.raises(RuntimeError, match="rank 1 can't save"):
        asyncio.run(led(breaks="save"))


def test_each_rank_is_given_its_own_share_of_a_batch_and_the_numbers_of_the_whole() -> None:
    samples = [TrainingSample.supervised(ids=range(n), trained_T=[False] + [True] * (n - 1)) for n in (9, 8, 5, 4)]
    batches = [make_batch(samples, ranks=2, micro_batch_tokens=9, pad_id=0) for _ in range(2)]

    async def step() -> list[Rank]:
        meeting = asyncio.Barrier(2)
        ranks: Any = [Rank(number, meeting=meeting) for number in range(2)]
        async with asyncio.timeout(5):
            await TrainerGroup(ranks).step(*batches)
        return list(ranks)

    for rank in asyncio.run(step()):
        ((_, (_, _, shares)),) = rank.calls
        assert [share.micro_batches for share in shares] == [batch.micro_batches[rank.number] for batch in batches]
        assert {(share.denominator, share.tokens, share.trained_tokens) for share in shares} == {(22.0, 26, 22)}
