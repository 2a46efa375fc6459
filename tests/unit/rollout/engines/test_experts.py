"""vLLM's expert choices, recorded during sampling and replayed in the trainer. The CPU build has Qwen3's experts."""

import asyncio
from pathlib import Path

import numpy as np
import pytest
from support import tiny_models
from support.plain_rank import rank_logprobs
from support.pushes import loaded
from unit.rollout.engines.test_vllm import CONFIG, TOLERANCE, Setup, largest_gap

from temper.learner.batches.samples import TrainingSample
from temper.learner.config import LearnerConfig, OptimConfig
from temper.learner.models.fresh import byte_tokenizer
from temper.learner.worker import TrainerWorker
from temper.orchestrator.cluster.this_machine import free_port
from temper.rollout.engines.protocol import Completion
from temper.rollout.engines.vllm_engine import VllmEngine
from temper.rollout.token_arrays import as_floats, as_ids, as_marks
from temper.rollout.trajectory import WeightVersion

ENDS = (byte_tokenizer().eos_token_id,)
SAMPLES = 12


def sequence(prompt: tuple[int, ...], said: Completion) -> TrainingSample:
    ids = (*prompt, *said.token_ids)
    nothing = (0.0,) * len(ids)
    return TrainingSample(
        ids=as_ids(ids),
        trained_T=as_marks((False,) * len(ids)),
        advantages_T=as_floats(nothing),
        behaviour_T=as_floats(nothing),
        experts=said.experts,
    )


def gap(rank: TrainerWorker, samples: list[tuple[tuple[int, ...], Completion]]) -> float:
    """Largest log-probability difference between the engine and the trainer with replayed experts."""
    expected = rank_logprobs(rank, [sequence(prompt, said) for prompt, said in samples])
    return largest_gap(samples, expected)


async def story(model_dir: Path) -> None:
    """Sample many at once and compare. Train, push and compare again."""
    engine = VllmEngine(model_dir, CONFIG, version=WeightVersion(step=0), ends=ENDS, record_experts=True)
    await engine.start()
    rank = TrainerWorker(0, 1, "127.0.0.1", free_port(), LearnerConfig(router_replay=True))
    rank.load(str(model_dir), optim=OptimConfig(learning_rate=1e-2, warmup_steps=0), total_steps=10)
    setup = Setup(engine=engine, rank=rank, prompts=[tuple(range(5, 40)), (9, 8, 7), tuple(range(60, 200, 3))])
    try:
        before = await setup.sample(SAMPLES, tokens=24)
        for prompt, said in before:
            assert said.experts is not None
            assert said.experts.shape == (len(prompt) + len(said.token_ids), 2, 2)
            assert (said.experts[-1] == -1).all()  # the last id was sampled, and not processed
            assert (said.experts[:-1] >= 0).all()
            assert (np.diff(np.sort(said.experts[:-1])) > 0).all()  # two different experts
        assert gap(rank, before) < TOLERANCE

        setup.train()
        assert gap(rank, before) > 100 * TOLERANCE  # the weights differ, with any experts
        assert await loaded(engine, rank, setup.publish(1)) == WeightVersion(step=1)
        after = await setup.sample(SAMPLES, tokens=24)
        assert gap(rank, after) < TOLERANCE
        wrong = [(prompt, swapped(said)) for prompt, said in after]
        assert gap(rank, wrong) > 100 * TOLERANCE  # the trainer does use the given experts
    finally:
        rank.close()
        await engine.close()


def swapped(said: Completion) -> Completion:
    """The completion with other experts."""
    assert said.experts is not None
    others = np.where(said.experts < 0, said.experts, (said.experts + 1) % 8)
    return Completion(
        token_ids=said.token_ids,
        logprobs_T=said.logprobs_T,
        versions_T=said.versions_T,
        finished=said.finished,
        experts=others,
    )


def test_trainer_and_engine_agree_with_replayed_experts(tmp_path: Path) -> None:
    asyncio.run(story(tiny_models.qwen3_moe(tmp_path / "model")))


async def refused(model_dir: Path) -> None:
    engine = VllmEngine(model_dir, CONFIG, version=WeightVersion(step=0), ends=ENDS, record_experts=True)
    try:
        with pytest.raises(ValueError, match="can't record this model's experts.*no expert layers"):
            await engine.start()
    finally:
        await engine.close()


@pytest.mark.slow
def test_an_engine_that_can_not_record_says_so(tmp_path: Path) -> None:
    asyncio.run(refused(tiny_models.qwen3(tmp_path / "model")))
