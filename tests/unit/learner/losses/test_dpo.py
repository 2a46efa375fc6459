"""Pairs on real ranks with a tiny hybrid: however they are spread the same, and continued against the same reference."""

import math
import random
from pathlib import Path
from typing import Any

import pytest
from support import tiny_models
from unit.learner.batches.test_pairs import LENGTHS, pair, pairs
from unit.learner.test_worker import in_processes

from temper.learner.batches.micro_batches import TrainBatch
from temper.learner.batches.pairs import build_pair_batch
from temper.learner.config import LearnerConfig, OptimConfig
from temper.learner.losses.config import LossConfig
from temper.learner.worker import TrainerWorker

OPTIM = OptimConfig(learning_rate=1e-3, warmup_steps=0, eps=1e-4)
DPO = LossConfig(objective="dpo", beta=0.3)
STEPS = 3


def batch(*, ranks: int, tokens: int) -> TrainBatch:
    return build_pair_batch(pairs(), ranks=ranks, micro_batch_tokens=tokens, pad_id=0)


def long_batch(*, shared: bool) -> TrainBatch:
    """Pairs with prompts of different lengths, far longer than their answers. A pass holds two or three of them."""
    rng = random.Random(2)
    made = [pair(rng, 150 + 10 * number, *lengths) for number, lengths in enumerate(LENGTHS)]
    return build_pair_batch(made, ranks=1, micro_batch_tokens=800, pad_id=0, shared_prompts=shared)


def training(rank: int, port: int, folder: str, config: LearnerConfig, tokens: int) -> dict[str, Any]:
    """Steps with a checkpoint before the last one, and that step again from there."""
    learner = TrainerWorker(rank, config.ranks, "127.0.0.1", port, config)
    given, saved = batch(ranks=config.ranks, tokens=tokens), f"{folder}/{config.ranks}/2"
    learner.load(f"{folder}/model", optim=OPTIM, total_steps=STEPS)
    steps = [learner.train_step(given.share(learner.rank), loss=DPO) for _ in range(STEPS - 1)]
    learner.save(saved)
    steps.append(learner.train_step(given.share(learner.rank), loss=DPO))
    learner.load(saved, optim=OPTIM, total_steps=STEPS)
    learner.restore(saved)
    again = learner.train_step(given.share(learner.rank), loss=DPO)
    learner.close()
    return {"steps": steps, "again": again}


def with_long_prompts(rank: int, port: int, folder: str) -> dict[str, Any]:
    """Steps on the same pairs, in full and with prompts that run once."""
    learner = TrainerWorker(rank, 1, "127.0.0.1", port, LearnerConfig())
    found = {}
    for name, given in (("in full", long_batch(shared=False)), ("shared", long_batch(shared=True))):
        learner.load(f"{folder}/model", optim=OPTIM, total_steps=STEPS)
        found[name] = [learner.train_step(given.share(learner.rank), loss=DPO) for _ in range(STEPS)]
    learner.close()
    return found


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("dpo")
    tiny_models.nemotron_h(Path(folder) / "model")
    return str(folder)


@pytest.fixture(scope="module")
def alone(folder: str) -> dict[str, Any]:
    """One rank, all pairs at once."""
    return in_processes(training, ranks=1, arguments=(folder, LearnerConfig(), 10**6))[0]


@pytest.fixture(scope="module")
def shared(folder: str) -> dict[str, Any]:
    """Two ranks, ZeRO stage 2, every pair alone: one rank has a pair fewer and gets one of weight 0."""
    return in_processes(training, ranks=2, arguments=(folder, LearnerConfig(ranks=2, zero_stage=2), 1))[0]


def test_a_stage_begins_undecided_and_learns_what_is_preferred(alone: dict[str, Any]) -> None:
    first, *_, last = alone["steps"]
    assert first["loss"] == pytest.approx(math.log(2), abs=1e-6)
    assert (first["margin"], first["accuracy"]) == (0.0, 0.0)
    assert last["loss"] < first["loss"]
    assert last["margin"] > 0
    assert last["accuracy"] > 0.5


def test_pairs_one_by_one_on_two_ranks_equal_all_at_once(alone: dict[str, Any], shared: dict[str, Any]) -> None:
    for one, two in zip(alone["steps"], shared["steps"], strict=True):
        for name in ("loss", "margin", "accuracy", "grad_norm"):
            assert two[name] == pytest.approx(one[name], rel=1e-3, abs=1e-5), name


def test_a_continued_stage_keeps_the_reference_of_its_beginning(alone: dict[str, Any], shared: dict[str, Any]) -> None:
    for result in (alone, shared):
        for name in ("loss", "margin", "accuracy"):
            assert result["again"][name] == result["steps"][-1][name]
        assert result["again"]["margin"] > 0


def test_prompts_that_run_once_for_both_answers_change_nothing(folder: str) -> None:
    assert all(micro_batch.prompts is not None for micro_batch in long_batch(shared=True).micro_batches[0])
    (found,) = in_processes(with_long_prompts, ranks=1, arguments=(folder,))
    for shared, in_full in zip(found["shared"], found["in full"], strict=True):
        for name in ("loss", "margin", "accuracy", "grad_norm"):
            assert shared[name] == pytest.approx(in_full[name], rel=1e-4, abs=1e-5), name
    assert found["shared"][-1]["margin"] > 0.01


def test_prompts_of_pairs_run_once_only_where_that_is_cheaper() -> None:
    short = build_pair_batch(pairs(), ranks=2, micro_batch_tokens=10**6, pad_id=0, shared_prompts=True)
    assert all(micro_batch.prompts is None for share in short.micro_batches for micro_batch in share)
