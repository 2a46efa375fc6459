"""Stages that sample a fixed set of answers: settings, deadlines, and cancellation after a failure."""

import asyncio
import time
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest
from unit.orchestrator.evaluation.test_budget_curve import EVALUATION, RolloutPool, done

from temper.orchestrator.config.evaluation import EvalConfig
from temper.orchestrator.config.supervised import RftConfig
from temper.orchestrator.loop.deadline import StuckError
from temper.orchestrator.pipeline.config import Config
from temper.orchestrator.pipeline.plan import single_instance
from temper.orchestrator.session.run import Run
from temper.orchestrator.stages.eval import evaluate
from temper.orchestrator.stages.registry import RFT
from temper.orchestrator.stages.supervised_loop import sample_once
from temper.rollout.sampling import Sampling
from temper.rollout.trajectory import Group, Ticket

Sampled = Callable[[Run, Config], Coroutine[Any, Any, Path]]


class Slow(RolloutPool):
    """Answers after twice the deadline and reports when a worker was replaced."""

    def __init__(self, last_restart_at: Callable[[], float]) -> None:
        super().__init__()
        self.last_restart_at = last_restart_at

    async def run_group(self, ticket: Ticket, samples: int) -> Group:
        await asyncio.sleep(1.0)
        return await super().run_group(ticket, samples)


async def evaluation(run: Run, config: Config) -> Path:
    return await evaluate(run, config.section(EvalConfig), EVALUATION)


async def own_answers(run: Run, config: Config) -> Path:
    return await sample_once(
        run,
        config.section(RftConfig),
        single_instance(RFT).mixture(config, {}),
        instance=single_instance(RFT),
        lines=lambda draw, group: ["an answer"],
        wanted="right answers",
    )


@pytest.mark.parametrize("sampling", [evaluation, own_answers])
def test_answers_are_waited_for_anew_while_workers_are_replaced(tmp_path: Path, sampling: Sampled) -> None:
    settings = ["eval.timeout_s=0.5", "rft.timeout_s=0.5", "rft.tasks=2"]

    def ended(place: Path, last_restart_at: Callable[[], float]) -> Path:
        pool = Slow(last_restart_at)

        async def stage(run: Run, config: Config) -> Path:
            run.engines.pool = pool  # type: ignore[assignment]
            return await sampling(run, config)

        return done(place, stage, *settings, pool=pool)[0]

    with pytest.raises(StuckError, match=r"(eval|rft)\.timeout_s"):
        ended(tmp_path / "dead", lambda: 0.0)
    assert ended(tmp_path / "healed", time.monotonic).exists()


class OneByOne(RolloutPool):
    """Answers one group after the other, the last one long after the deadline."""

    def __init__(self) -> None:
        super().__init__()
        self.place = asyncio.Lock()

    async def run_group(self, ticket: Ticket, samples: int) -> Group:
        async with self.place:
            await asyncio.sleep(0.3)
            return await super().run_group(ticket, samples)


def test_an_evaluation_waits_as_long_as_answers_come(tmp_path: Path) -> None:
    pool = OneByOne()
    path, _ = done(tmp_path, evaluation, "eval.timeout_s=1.0", "eval.tasks=4", pool=pool)
    assert (path.exists(), len(pool.tickets) >= 8) == (True, True)


def test_the_answers_that_a_stage_trains_on_are_drawn_as_it_says(tmp_path: Path) -> None:
    pool = RolloutPool()

    async def stage(run: Run, config: Config) -> Path:
        return await own_answers(run, config)

    done(tmp_path, stage, "rft.tasks=3", "rft.sampling.top_p=0.9", pool=pool)
    assert [ticket.sampling for ticket in pool.tickets] == [Sampling(top_p=0.9)] * 3


class Broken(RolloutPool):
    """Fails at its second group while the others never end. Counts the cancelled groups."""

    given_up = 0

    async def run_group(self, ticket: Ticket, samples: int) -> Group:
        await super().run_group(ticket, samples)
        if len(self.tickets) == 2:
            raise RuntimeError("no worker is left")
        try:
            await asyncio.sleep(1000)
        except asyncio.CancelledError:
            self.given_up += 1
            raise
        raise AssertionError


@pytest.mark.parametrize("sampling", [evaluation, own_answers])
def test_where_one_group_raises_the_others_are_given_up_first(tmp_path: Path, sampling: Sampled) -> None:
    pool = Broken()

    async def stage(run: Run, config: Config) -> Path:
        with pytest.raises(RuntimeError, match="no worker is left"):
            await sampling(run, config)
        assert pool.given_up == len(pool.tickets) - 1 >= 2
        assert run.supervision.status().evaluation is None
        return tmp_path

    done(tmp_path, stage, "rft.tasks=4", pool=pool)


class Watched(RolloutPool):
    """Answers the nth request once the status of the evaluation counts n answered tasks before it."""

    def __init__(self) -> None:
        super().__init__()
        self.run: Run | None = None
        self.asked = 0
        self.seen: list[tuple[str, int, int]] = []

    async def run_group(self, ticket: Ticket, samples: int) -> Group:
        assert self.run is not None
        before = self.asked
        self.asked += 1
        async with asyncio.timeout(20):
            while (shown := self.run.supervision.status().evaluation) is None or shown.answered < before:
                await asyncio.sleep(0.001)
        self.seen.append((shown.name, shown.answered, shown.tasks))
        return await super().run_group(ticket, samples)


def test_the_status_says_how_far_an_evaluation_is(tmp_path: Path) -> None:
    pool = Watched()

    async def stage(run: Run, config: Config) -> Path:
        pool.run = run
        return await evaluation(run, config)

    done(tmp_path, stage, pool=pool)
    assert pool.seen == [("rl", n, 6) for n in range(6)]
