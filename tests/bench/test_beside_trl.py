"""The bench beside TRL: both sides have the same prompts, and a ratio is of samples a second."""

import asyncio
from pathlib import Path

import numpy as np
import pytest
from bench.beside_trl.bench import ANSWERS, WORKS, figures_of, mixture_of, trl_work
from bench.beside_trl.loop_side import SKIPPED, LoopSide
from bench.beside_trl.trl_side import Part, TrlSide, TrlWork, trl_is_there
from support.plain_pool import Worker, pool_of
from support.pushes import empty_push

from temper.envs.core.member import MemberNow
from temper.envs.task_env import last_user_text
from temper.learner.batches.builder import BatchBuilder
from temper.learner.batches.micro_batches import TrainBatch
from temper.learner.config import LearnerConfig
from temper.learner.models.fresh import FreshModelConfig, make_model
from temper.orchestrator.config.loop import RlConfig
from temper.orchestrator.loop.mixture import Draw
from temper.rollout.episodes.resume import BegunGroup
from temper.rollout.token_arrays import as_floats, as_ids, as_marks
from temper.rollout.tokenizer import load_tokenizer
from temper.rollout.trajectory import Group, Stop, Ticket, Trajectory, Turn, WeightVersion
from temper.rollout.weights.delivery import Push

SHORT, LONG = WORKS
TINY = FreshModelConfig(pattern="M*", hidden_size=32, intermediate_size=32, attention_heads=2, mamba_heads=2)


def part(*, seconds: float, cpu_s: float) -> Part:
    return Part(seconds=seconds, cpu_s=cpu_s, answers=64, tokens=640)


def test_a_ratio_is_samples_a_second_over_those_of_trl_before_and_after() -> None:
    before, after = part(seconds=3.0, cpu_s=6.0), part(seconds=5.0, cpu_s=10.0)
    figures = figures_of(before, after, {1: part(seconds=2.0, cpu_s=3.2)})
    assert figures["trl_samples_per_s"] == pytest.approx(16.0)
    assert figures["lag_1_samples_per_s"] == pytest.approx(32.0)
    assert figures["lag_1_times_trl"] == pytest.approx(2.0)
    assert figures["lag_1_trl_cpu_over_ours"] == pytest.approx(2.5)
    assert figures["trl_answer_tokens"] == figures["lag_1_answer_tokens"] == pytest.approx(10.0)


def test_long_prompts_are_long_and_end_with_the_question() -> None:
    short, long = (mixture_of(work).task(Draw(env="math", index=3)) for work in (SHORT, LONG))
    assert len(last_user_text(short)) < 100
    assert 500 <= len(last_user_text(long)) < 650
    assert last_user_text(long).endswith(last_user_text(short))
    assert long.spec == short.spec


def test_trl_is_given_the_same_ids_as_text(tmp_path: Path) -> None:
    make_model(tmp_path / "model", TINY, seed=1)
    work = trl_work(tmp_path / "model", SHORT, mixture_of(SHORT), threads=1, recompute=False)
    assert TrlWork.read(work.store(tmp_path / "work.json")) == work
    ids = load_tokenizer(tmp_path / "model")(work.prompts[0], add_special_tokens=True)["input_ids"]
    assert len(ids) < len(work.prompts[0]), "tags are tokens of their own"


class Sampling(Worker):
    """A rollout worker whose answers have five tokens each."""

    async def run_group(self, ticket: Ticket, samples: int, attempt: int, begun: BegunGroup | None) -> Group:
        await asyncio.sleep(0.001)
        turn = Turn(
            context_ids=as_ids((1, 2)),
            sampled_ids=as_ids((3,) * 5),
            logprobs_T=as_floats((-1.0,) * 5),
            versions_T=as_ids((0,) * 5),
            forced_T=as_marks((False,) * 5),
            text="",
        )
        wrong = Trajectory(task=ticket.task, turns=(turn,), stop=Stop.LENGTH, reward=0.0)
        return Group(ticket=ticket, trajectories=(wrong,) * samples)


class Learner:
    """Keeps the batches that it is given, and the threads that it is told to use."""

    def __init__(self) -> None:
        self.batches: list[TrainBatch] = []
        self.threads: list[int] = []

    async def use_threads(self, threads: int) -> None:
        self.threads.append(threads)

    async def step(self, *batches: TrainBatch, epochs: int = 1) -> dict[str, float]:
        self.batches += batches
        return {"skipped": 0.0}

    async def publish(self, version: WeightVersion) -> Push:
        return empty_push(version.step, nbytes=64)

    def members(self) -> list[MemberNow]:
        return []


@pytest.mark.parametrize("lag", [0, 1])
def test_a_part_of_the_loop_counts_its_steps_without_those_that_fill_the_pipeline(lag: int) -> None:
    learner = Learner()
    config = LearnerConfig(threads=2, threads_beside=1)

    async def part_of_the_loop() -> Part:
        pool = await pool_of([Sampling()])
        rl = RlConfig(groups_per_step=4, group_size=16)
        side = LoopSide(pool, learner, mixture_of(LONG), rl, BatchBuilder(config=config, pad_id=0), steps=3)  # type: ignore[arg-type]
        try:
            return await side.steps(lag)
        finally:
            await pool.close()

    part = asyncio.run(part_of_the_loop())
    assert (part.answers, part.tokens) == (3 * 64, 3 * 64 * 5)
    assert part.seconds > 0
    assert learner.threads == [1 if lag else 2]
    assert len(learner.batches) == SKIPPED + 3
    advantages = np.concatenate([micro.advantages_BT.ravel() for micro in learner.batches[-1].micro_batches[0]])
    assert len(set(advantages.tolist())) > 32, "rewards are random, so every answer has an advantage of its own"


@pytest.mark.slow
@pytest.mark.skipif(not trl_is_there(), reason="TRL is not installed; requirements/dev.txt has it")
def test_trls_process_makes_the_steps_that_it_is_asked_for(tmp_path: Path) -> None:
    make_model(tmp_path / "model", TINY, seed=1)
    work = trl_work(tmp_path / "model", SHORT, mixture_of(SHORT), threads=1, recompute=False).store(
        tmp_path / "work.json"
    )

    async def two_parts() -> list[Part]:
        trl = await TrlSide.start(work)
        try:
            return [await trl.steps(1), await trl.steps(2)]
        finally:
            await trl.close()

    one, two = asyncio.run(two_parts())
    assert (one.answers, two.answers) == (ANSWERS, 2 * ANSWERS)
    assert 0 < two.tokens <= 2 * ANSWERS * 64
