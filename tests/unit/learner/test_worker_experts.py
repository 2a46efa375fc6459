"""Expert layers trained by real ranks: load metrics over ranks and micro-batches, replay under ZeRO, frozen routers."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from support import tiny_models
from transformers import AutoModelForCausalLM
from unit.learner.models.test_experts import CHOSEN, EXPERTS, LAYERS, MAKERS, answers, perturbed
from unit.learner.models.test_shared_prompt import LONGEST, OPTIM, assert_trained_alike, batch
from unit.learner.test_worker import in_processes, weights_of

from temper.learner.batches.samples import TrainingSample
from temper.learner.config import LearnerConfig, OptimConfig
from temper.learner.engine.saved_state import RANKS, SHARDS
from temper.learner.losses.config import LossConfig
from temper.learner.training_state import STATE_FOLDER
from temper.learner.worker import TrainerWorker

POLICY = LossConfig(error_guard=0.0)
NEAR = LossConfig(error_guard=0.0, kl_coefficient=0.1)
NLL = LossConfig(objective="nll")
STEPS = 3
LEARNING_STEPS = 8


def sequences(model_dir: str) -> list[TrainingSample]:
    """Answers with the experts of other weights. The last token has experts too, so that none is missing."""
    found = answers(perturbed(AutoModelForCausalLM.from_pretrained(model_dir), scale=0.3))
    for sequence in found:
        assert sequence.experts is not None
        sequence.experts[-1] = 0, 1
    return found


def trained(learner: TrainerWorker, model: str, *, shared: bool, tokens: int = LONGEST) -> dict[str, Any]:
    rows = sequences(model)
    learner.load(model, optim=OPTIM, total_steps=STEPS)
    step = batch(rows, shared=shared, ranks=learner.config.ranks, tokens=tokens)
    metrics = [learner.train_step(step.share(learner.rank), loss=POLICY) for _ in range(STEPS)]
    weights = weights_of(learner)
    learner.close()
    return {"metrics": metrics, "weights": weights}


def learns(learner: TrainerWorker, model: str) -> dict[str, Any]:
    """Supervised steps without recorded choices, and the checkpoint after them."""
    learner.load(model, optim=OPTIM, total_steps=LEARNING_STEPS)
    rows = [TrainingSample.supervised(ids=s.ids, trained_T=s.trained_T) for s in sequences(model)]
    step = batch(rows, shared=False)
    metrics = [learner.train_step(step.share(learner.rank), loss=NLL) for _ in range(LEARNING_STEPS)]
    learner.save(f"{model}-{learner.config.train_router}")
    weights = weights_of(learner)
    learner.close()
    return {"metrics": metrics, "weights": weights}


def near_itself(learner: TrainerWorker, model: str) -> dict[str, float]:
    """The first step that pays for the divergence from the weights that it begins with."""
    learner.load(model, optim=OPTIM, total_steps=STEPS)
    metrics = learner.train_step(batch(sequences(model), shared=True).share(learner.rank), loss=NEAR)
    learner.close()
    return metrics


def one_rank(rank: int, port: int, model: str) -> dict[str, Any]:
    free = TrainerWorker(rank, 1, "127.0.0.1", port, LearnerConfig())
    replaying = TrainerWorker(rank, 1, "127.0.0.1", port, LearnerConfig(router_replay=True))
    frozen = TrainerWorker(rank, 1, "127.0.0.1", port, LearnerConfig(train_router=False, router_replay=True))
    third = TrainerWorker(rank, 1, "127.0.0.1", port, LearnerConfig(zero_stage=3, router_replay=True))
    return {
        "free": trained(free, model, shared=False),
        "whole": trained(replaying, model, shared=False),
        "shared": trained(replaying, model, shared=True),
        "small": trained(replaying, model, shared=True, tokens=250),
        "zero-3": trained(third, model, shared=True, tokens=250),
        "near": near_itself(replaying, model),
        "learns": learns(free, model),
        "frozen": learns(frozen, model),
    }


def two_ranks(rank: int, port: int, model: str) -> list[dict[str, Any]]:
    """Micro-batches of unlike number and kind on the two ranks: some of a rank's run only to take part."""
    learner = TrainerWorker(rank, 2, "127.0.0.1", port, LearnerConfig(ranks=2, zero_stage=3, router_replay=True))
    cuts = ((True, 250), (False, 170))
    return [trained(learner, model, shared=shared, tokens=tokens) for shared, tokens in cuts]


@pytest.fixture(
    scope="module",
    params=[MAKERS[0], *(pytest.param(make, marks=pytest.mark.slow) for make in MAKERS[1:])],
    ids=lambda make: make.__name__,
)
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> str:
    torch.manual_seed(0)
    return str(request.param(tmp_path_factory.mktemp("models") / "model"))


@pytest.fixture(scope="module")
def alone(model: str) -> dict[str, Any]:
    return in_processes(one_rank, ranks=1, arguments=(model,))[0]


@pytest.fixture(scope="module")
def pair(model: str) -> list[dict[str, Any]]:
    return in_processes(two_ranks, ranks=2, arguments=(model,))[0]


def test_the_load_of_a_step_is_that_of_its_real_tokens(alone, model):
    rows = [s.experts for s in sequences(model) if s.experts is not None]
    counts_LE = [
        np.bincount(np.concatenate([row[:, layer].ravel() for row in rows]), minlength=EXPERTS)
        for layer in range(LAYERS)
    ]
    shares_LE = np.array(counts_LE) / (CHOSEN * sum(len(row) for row in rows))
    logs = np.log(shares_LE, out=np.zeros_like(shares_LE), where=shares_LE > 0)
    first = alone["whole"]["metrics"][0]
    assert first["experts/load_max"] == pytest.approx(EXPERTS * shares_LE.max())
    assert first["experts/unused"] == pytest.approx((shares_LE == 0).mean())
    assert first["experts/load_entropy"] == pytest.approx(-(shares_LE * logs).sum(1).mean() / np.log(EXPERTS))


@pytest.mark.parametrize("case", ["shared", "small", "zero-3"])
def test_replay_trains_alike_however_the_batch_is_cut(alone, case):
    assert_trained_alike(alone[case], alone["whole"])


def test_replay_under_zero_stage_3_on_two_ranks_trains_alike(alone, pair):
    for result in pair:
        assert_trained_alike(result, alone["whole"])


def test_replay_differs_from_free_routing(alone):
    free, replayed = alone["free"]["metrics"][0], alone["whole"]["metrics"][0]
    assert "experts/rerouted" not in free
    assert 0.1 < replayed["experts/rerouted"] < 0.9
    assert abs(free["loss"] - replayed["loss"]) > 1e-4


def test_a_reference_takes_the_experts_that_its_policy_replays(alone):
    assert alone["near"]["kl"] == 0.0
    assert alone["near"]["experts/rerouted"] > 0.1


def test_experts_learn_and_are_saved_as_pushed(alone, model):
    result = alone["learns"]
    assert result["metrics"][-1]["loss"] < result["metrics"][0]["loss"] - 0.05
    saved = load_file(f"{model}-True/model.safetensors")
    for tensor_name, tensor in result["weights"].items():
        assert torch.equal(tensor, saved[tensor_name]), tensor_name
    untrained = {tensor_name for tensor_name in saved if tensor_name.endswith("e_score_correction_bias")}
    assert set(saved) == set(result["weights"]) | untrained


def test_a_frozen_router_stays_while_all_else_learns(alone, model):
    loaded = load_file(f"{model}/model.safetensors")
    routers = {n for n in loaded if n.endswith(".gate.weight")}
    assert len(routers) == LAYERS
    learnt, frozen = (
        {n for n, tensor in alone[case]["weights"].items() if not torch.equal(tensor, loaded[n])}
        for case in ("learns", "frozen")
    )
    assert routers <= learnt
    assert frozen == learnt - routers
    losses = [step["loss"] for step in alone["frozen"]["metrics"]]
    assert losses[-1] < losses[0] - 0.05


MUON = OptimConfig(kind="muon", learning_rate=1e-6, muon_learning_rate=0.01, warmup_steps=0)


def by_muon(rank: int, port: int, models: list[str]) -> list[list[Any]]:
    """The weights of models with experts after steps of Muon, at each ZeRO stage. AdamW would hardly move them."""
    found: list[list[Any]] = []
    for stage in (0, 1, 2, 3):
        learner = TrainerWorker(rank, 2, "127.0.0.1", port, LearnerConfig(ranks=2, zero_stage=stage))
        found.append([])
        for model in models:
            learner.load(model, optim=MUON, total_steps=STEPS)
            step = batch(sequences(model), shared=False, ranks=2)
            for _ in range(STEPS):
                learner.train_step(step.share(rank), loss=POLICY)
            found[-1].append(weights_of(learner))
        learner.close()
    return found


def continued_by_muon(rank: int, port: int, model: str) -> list[set[str]]:
    """The kinds of state of the experts, saved after a step from a checkpoint in which AdamW trained them, at each stage."""
    found = []
    for stage in (0, 2, 3):
        learner = TrainerWorker(rank, 1, "127.0.0.1", port, LearnerConfig(zero_stage=stage))
        learner.load(model, optim=MUON, total_steps=STEPS)
        step = batch(sequences(model), shared=False).share(rank)
        learner.train_step(step, loss=POLICY)
        learner.save(f"{model}-{stage}")
        (path,) = Path(f"{model}-{stage}").glob(f"{STATE_FOLDER}/{SHARDS}")
        state = load_file(path)
        for name in [one for one in state if one.startswith("momentum_buffer/") and ".experts." in one]:
            state[name.replace("momentum_buffer", "exp_avg_sq")] = state[name].square()
            state[name.replace("momentum_buffer", "exp_avg")] = state.pop(name)
        save_file(state, path, metadata={"format": "pt", RANKS: "1"})
        learner.restore(f"{model}-{stage}")
        learner.train_step(step, loss=POLICY)
        learner.save(f"{model}-{stage}-end")
        (path,) = Path(f"{model}-{stage}-end").glob(f"{STATE_FOLDER}/{SHARDS}")
        found.append({name.partition("/")[0] for name in load_file(path) if ".experts." in name})
        learner.close()
    return found


def test_muon_continues_from_experts_that_adamw_trained(tmp_path: Path) -> None:
    model = str(tiny_models.qwen3_moe(tmp_path / "model"))
    (kinds,) = in_processes(continued_by_muon, ranks=1, arguments=(model,))
    assert kinds == [{"momentum_buffer"}] * 3


def test_muon_moves_experts_on_partitions_as_at_stage_0(tmp_path):
    torch.manual_seed(0)
    models = [str(make(tmp_path / make.__name__)) for make in (tiny_models.nemotron_h_moe, tiny_models.qwen3_moe)]
    plain, *parted = in_processes(by_muon, ranks=2, arguments=(models,))[0]
    for number, model in enumerate(models):
        start = load_file(f"{model}/model.safetensors")
        for name in (one for one in plain[number] if ".experts." in one):
            moved = plain[number][name] - start[name]
            assert moved.norm() > 0.01, name
            for weights in parted:
                assert (weights[number][name] - start[name] - moved).norm() < 1e-3 * moved.norm(), name
