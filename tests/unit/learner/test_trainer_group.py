"""The group of the learner's ranks, driven with plain objects."""

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from support.in_loop import in_loop
from support.plain_process import PlainProcess

from temper.envs.core.process import LearnerDied, MemoryUsage, Place
from temper.learner.batches.micro_batches import TrainBatch, build_batch
from temper.learner.batches.samples import TrainingSample
from temper.learner.config import OptimConfig
from temper.learner.losses.config import LossConfig
from temper.learner.trainer_group import RankHandle, TrainerGroup

NOTHING = MemoryUsage()


def group_of(ranks: Sequence[PlainProcess]) -> TrainerGroup:
    return TrainerGroup([RankHandle(rank, number=number) for number, rank in enumerate(ranks)], engine_processes=1)


class Rank(PlainProcess):
    """A rank that keeps its calls, and answers only once all the ranks were called: as a collective does."""

    def __init__(
        self,
        number: int,
        *,
        meeting: asyncio.Barrier,
        breaks: str = "",
        node: str = "a",
        memory_usage: MemoryUsage = NOTHING,
    ) -> None:
        self.place = Place(pid=number, host="h", node=node)
        self.held = memory_usage
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

    async def train(self, shares: Any = None, *, loss: LossConfig, epochs: int) -> dict[str, float]:
        await self._called("train", (loss.objective, epochs, shares))
        return {"loss": float(self.number)}

    async def set_onloaded(self, *, weights: bool, states: bool) -> None:
        await self._called("set_onloaded")

    async def memory_usage(self) -> MemoryUsage:
        await self._called("memory_usage")
        return self.held

    async def save(self, directory: str, *, beside: bool, spare: int, together: int) -> bool:
        await self._called("save", (directory, beside, spare, together))
        return self.number == 0

    async def write(self) -> None:
        await self._called("write")


async def led(breaks: str) -> tuple[dict[str, float], list[list[tuple[str, Any]]]]:
    meeting = asyncio.Barrier(2)
    ranks = [Rank(0, meeting=meeting), Rank(1, meeting=meeting, breaks=breaks)]
    group = group_of(ranks)
    async with asyncio.timeout(5):
        await group.load(Path("m"), optim=OptimConfig(), loss=LossConfig(objective="nll"), total_steps=7)
        metrics = await group.step(epochs=2)
        assert not await group.save(Path("c"))  # rank 1 has written at once
        await group.write()
    return metrics, [rank.calls for rank in ranks]


def test_every_call_goes_to_all_ranks_at_once() -> None:
    metrics, calls = asyncio.run(led(breaks=""))
    assert metrics == {"loss": 0.0}
    assert (
        calls
        == [[("load", ("m", 7, None)), ("train", ("nll", 2, None)), ("save", ("c", True, 0, 2)), ("write", None)]] * 2
    )


def test_what_one_rank_raises_ends_the_call() -> None:
    with pytest.raises(RuntimeError, match="rank 1 can't save"):
        asyncio.run(led(breaks="save"))


@pytest.mark.parametrize(("device", "spare"), [(10**6, 2 * (5 + 7)), (None, 0)])
@in_loop
async def test_a_checkpoints_copy_leaves_room_for_offloaded_state(device: int | None, spare: int) -> None:
    held = MemoryUsage(weights=5, states=7, main=10**6, device=device)
    meeting = asyncio.Barrier(3)
    ranks = [Rank(number, meeting=meeting, node=node, memory_usage=held) for number, node in enumerate("aab")]
    group = group_of(ranks)
    async with asyncio.timeout(5):
        await group.save(Path("c"))
        await group.set_onloaded(weights=False, states=False)
        await group.set_onloaded(weights=True, states=True)
        await group.save(Path("c"))
    for rank, together in ((ranks[0], 2), (ranks[2], 1)):
        own = [value for name, value in rank.calls if name == "save"]
        assert own == [("c", True, 0, together), ("c", True, spare * together // 2, together)]


class DyingRank(Rank):
    """A rank that fails in a step after a while, or never answers."""

    def __init__(self, number: int, *, after_s: float, fails: Exception | None) -> None:
        super().__init__(number, meeting=asyncio.Barrier(1))
        self.after_s = after_s
        self.fails = fails
        self.killed = self.closed = False
        self.begun = asyncio.Event()

    async def train(self, shares: Any = None, *, loss: LossConfig, epochs: int) -> dict[str, float]:
        self.begun.set()
        await asyncio.sleep(self.after_s)
        if self.fails is not None:
            raise self.fails
        return await super().train(shares, loss=loss, epochs=epochs)

    async def close(self) -> None:
        self.closed = True

    def kill(self) -> None:
        self.killed = True


async def failed(*ranks: Any) -> tuple[BaseException, list[tuple[bool, bool]]]:
    """The error of a step, and whether the end of the group kills or closes each rank."""
    group = group_of(ranks)
    async with asyncio.timeout(10):
        with pytest.raises(Exception) as caught:  # noqa: PT011
            await group.step()
        await group.close()
    return caught.value, [(rank.killed, rank.closed) for rank in ranks]


def test_a_rank_s_death_is_raised_before_other_errors() -> None:
    lost, death = RuntimeError("connection closed by peer"), LearnerDied("rank 1 died")
    first, second = DyingRank(0, after_s=0.0, fails=lost), DyingRank(1, after_s=0.1, fails=death)
    assert asyncio.run(failed(first, second)) == (death, [(True, False), (True, False)])
    assert death.__cause__ is lost


def test_ranks_that_wait_for_a_dead_one_are_killed() -> None:
    death = LearnerDied("rank 1 died")
    waits, dies = DyingRank(0, after_s=1000.0, fails=None), DyingRank(1, after_s=0.0, fails=death)
    assert asyncio.run(failed(waits, dies)) == (death, [(True, False), (True, False)])


def test_ranks_that_all_refuse_a_step_are_asked_to_close() -> None:
    refusal = ValueError("not finite")
    ranks = [DyingRank(number, after_s=0.0, fails=refusal) for number in range(2)]
    assert asyncio.run(failed(*ranks)) == (refusal, [(False, True), (False, True)])


@in_loop
async def test_a_cancelled_step_kills_its_ranks() -> None:
    ranks = [DyingRank(number, after_s=1000.0, fails=None) for number in range(2)]
    group = group_of(ranks)
    step = asyncio.create_task(group.step())
    for rank in ranks:
        await rank.begun.wait()
    step.cancel()
    await asyncio.wait([step])
    await group.close()
    assert all(rank.killed and not rank.closed for rank in ranks)


class SendingRank(DyingRank):
    """A rank whose part of a push ends like its step."""

    async def send(self, version: int) -> None:
        await self.train((), loss=LossConfig(), epochs=1)


@pytest.mark.parametrize("fails", [None, RuntimeError("an engine is missing")])
def test_sending_ranks_that_nobody_waits_for_are_not_stuck(fails: Exception | None) -> None:
    async def given_up(other: SendingRank, *, within_s: float) -> tuple[BaseException, bool]:
        ranks = [SendingRank(0, after_s=0.0 if fails else 1000.0, fails=fails), other]
        group = group_of(ranks)
        with pytest.raises(Exception) as caught:  # noqa: PT011
            await asyncio.wait_for(group.send(1), within_s)
        return caught.value, group.is_stuck

    cause, is_stuck = asyncio.run(given_up(SendingRank(1, after_s=1000.0, fails=None), within_s=0.1))
    assert isinstance(cause, TimeoutError)
    assert not is_stuck
    death = LearnerDied("rank 1 died")
    assert asyncio.run(given_up(SendingRank(1, after_s=0.01, fails=death), within_s=30.0)) == (death, True)


def batch_of_two() -> TrainBatch:
    samples = [TrainingSample.supervised(ids=range(n), trained_T=[False] + [True] * (n - 1)) for n in (9, 8, 5, 4)]
    return build_batch(samples, ranks=2, micro_batch_tokens=9, pad_id=0)


@pytest.mark.parametrize("ranks_per_share", [1, 2])
@in_loop
async def test_each_rank_gets_its_share_of_a_batch(ranks_per_share: int) -> None:
    batches = [batch_of_two() for _ in range(2)]
    meeting = asyncio.Barrier(2 * ranks_per_share)
    ranks = [Rank(number, meeting=meeting) for number in range(2 * ranks_per_share)]
    async with asyncio.timeout(5):
        await group_of(ranks).step(*batches)
    for rank in ranks:
        ((_, (_, _, shares)),) = rank.calls
        assert [share.micro_batches for share in shares] == [
            batch.micro_batches[rank.number // ranks_per_share] for batch in batches
        ]
        assert {(share.denominator, share.tokens, share.trained_tokens) for share in shares} == {(22.0, 26, 22)}


class SlowToPut(Rank):
    """A rank whose shares arrive once `put_once` is set. `putting` is set while they are on their way."""

    def __init__(self, number: int, *, meeting: asyncio.Barrier, put_once: asyncio.Event) -> None:
        super().__init__(number, meeting=meeting)
        self.put_once = put_once
        self.putting = asyncio.Event()

    async def put(self, data: object) -> object:
        self.putting.set()
        await self.put_once.wait()
        return data

    async def send(self, version: int) -> None:
        await self._called("send")


def test_ranks_send_to_a_newcomer_in_the_same_order() -> None:
    async def orders(*, in_puts: bool) -> list[list[str]]:
        meetings, at_once, later = asyncio.Barrier(2), asyncio.Event(), asyncio.Event()
        at_once.set()
        ranks = [SlowToPut(n, meeting=meetings, put_once=once) for n, once in enumerate((at_once, later))]
        group = group_of(ranks)

        async def join() -> None:
            await ranks[1].putting.wait()
            if not in_puts:
                later.set()
                while not all(rank.calls for rank in ranks):
                    await asyncio.sleep(0)
            await group.send(1)
            later.set()

        async with asyncio.timeout(5):
            await asyncio.gather(group.step(batch_of_two()), join())
        return [[name for name, _ in rank.calls] for rank in ranks]

    assert asyncio.run(orders(in_puts=True)) == [["send", "train"]] * 2
    assert asyncio.run(orders(in_puts=False)) == [["train", "send"]] * 2
