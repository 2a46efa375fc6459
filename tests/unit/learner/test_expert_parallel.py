"""Experts spread over ranks, against one rank with all: gradients, metrics, weights, checkpoints and pushes."""

import json
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from support import tiny_models
from support.pushes import HERE
from support.refusals import refuses
from transformers import Qwen3MoeConfig
from transformers.models.qwen3_moe.modeling_qwen3_moe import Qwen3MoeExperts
from unit.learner.models.test_experts import CHOSEN, EXPERTS
from unit.learner.models.test_shared_prompt import batch
from unit.learner.test_sequence_parallel import find_refusals
from unit.learner.test_worker import broken_batch, in_processes, weights_of
from unit.learner.test_worker_experts import sequences
from unit.learner.test_worker_resume import optimizer_state

from temper.learner.batches.samples import TrainingSample
from temper.learner.config import LearnerConfig, LoraConfig, OptimConfig, ZeroStage, require_together
from temper.learner.engine import deepspeed_engine
from temper.learner.losses.config import LossConfig
from temper.learner.models.expert_parallel import ExpertGroup, exchange_tokens, own_experts
from temper.learner.weight_sender import BucketSender
from temper.learner.worker import TrainerWorker
from temper.rollout.weights.buckets import BucketReceiver, Named

RATE, CLIP, STEPS = 0.1, 0.05, 2
OPTIM = OptimConfig(
    learning_rate=RATE, warmup_steps=0, eps=0.01, beta1=0.0, beta2=0.0, grad_clip=CLIP, weight_decay=0.01
)
"""A step is rate * g / (|g| + 0.01), g the clipped gradient, so that near weights mean near gradients."""
POLICY = LossConfig(error_guard=0.0)
NEAR = replace(POLICY, kl_coefficient=0.05)
NLL = LossConfig(objective="nll")
REPLAY = LearnerConfig(router_replay=True, zero_stage=2)
CASES: dict[str, tuple[str, LearnerConfig, LossConfig]] = {
    "replay": ("nemotron_h_moe", REPLAY, POLICY),
    "replay, qwen3": ("qwen3_moe", REPLAY, POLICY),
    "frozen router": ("nemotron_h_moe", replace(REPLAY, zero_stage=1, train_router=False), NEAR),
    "own choices": ("qwen3_moe", LearnerConfig(zero_stage=1, recompute="full"), NLL),
    "recomputed": ("nemotron_h_moe", replace(REPLAY, recompute="full"), POLICY),
    "frozen experts": ("nemotron_h_moe", replace(REPLAY, frozen=[r"\.experts\."]), POLICY),
    "one owner": ("qwen3_moe", REPLAY, POLICY),
    "bfloat16": ("nemotron_h_moe", replace(REPLAY, bf16=True), POLICY),
    "bfloat16, stage 1": ("qwen3_moe", replace(REPLAY, bf16=True, zero_stage=1), POLICY),
}
ON_FOUR = ("replay", "own choices", "bfloat16, stage 1")
TOKENS = 250
"""Of a micro-batch: unlike numbers and kinds on the ranks."""


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models")
    for family in ("nemotron_h_moe", "qwen3_moe"):
        getattr(tiny_models, family)(folder / family)
    return folder


def rows_of(name: str, model: str) -> list[TrainingSample]:
    rows = sequences(model)
    for row in rows if name == "one owner" else ():
        assert row.experts is not None
        row.experts[:] = range(CHOSEN)  # of the first rank: the others get no token
    return rows


def train_cases(
    rank: int, port: int, folder: str, ranks: int, size: int, names: tuple[str, ...]
) -> dict[str, dict[str, Any]]:
    """Metrics and weights of each case after some steps."""
    found: dict[str, dict[str, Any]] = {}
    for name in names:
        model, plain, loss = CASES[name]
        worker = TrainerWorker(rank, ranks, "127.0.0.1", port, replace(plain, ranks=ranks, expert_parallel=size))
        worker.load(f"{folder}/{model}", optim=OPTIM, total_steps=9)
        step = batch(rows_of(name, f"{folder}/{model}"), shared=True, ranks=ranks, tokens=TOKENS)
        if name in ON_FOUR:  # one rank's gradient is not finite: no rank updates
            assert worker.train_step(broken_batch(ranks=ranks).share(rank), loss=POLICY)["skipped"] == 1.0
        metrics = [worker.train_step(step.share(rank), loss=loss) for _ in range(STEPS)]
        stacks = [one for one in worker._engine().model.parameters() if one.ndim == 3 and own_experts(one)]
        assert len(stacks) == (0 if size == 1 else 4)
        assert all(len(stack) == EXPERTS // size for stack in stacks)
        found[name] = {"metrics": metrics, "weights": weights_of(worker)}
        worker.close()
    return found


@pytest.fixture(scope="module")
def alone(models: Path) -> dict[str, dict[str, Any]]:
    return in_processes(train_cases, ranks=1, arguments=(str(models), 1, 1, tuple(CASES)), seconds=800.0)[0]


@pytest.mark.parametrize(
    ("ranks", "size", "names"),
    [(2, 2, tuple(CASES)), (4, 2, ON_FOUR), pytest.param(4, 4, ON_FOUR, marks=pytest.mark.slow)],
)
def test_spread_experts_train_like_whole_stacks(
    models: Path, alone: dict[str, dict[str, Any]], ranks: int, size: int, names: tuple[str, ...]
) -> None:
    result = in_processes(train_cases, ranks=ranks, arguments=(str(models), ranks, size, names), seconds=800.0)[0]
    for name in names:
        near = 0.03 if "bfloat16" in name else 1e-4
        for found, want in zip(result[name]["metrics"], alone[name]["metrics"], strict=True):
            assert want["grad_norm"] > 2 * CLIP
            assert want["skipped"] == 0.0
            for key in want:
                assert found[key] == pytest.approx(want[key], abs=near, rel=near), (name, key)
        for key, weight in alone[name]["weights"].items():
            difference = (result[name]["weights"][key].float() - weight.float()).abs()
            assert float(difference.max() if near < 0.01 else difference.mean()) <= near * RATE, (name, key)
        assert result[name]["weights"].keys() == alone[name]["weights"].keys()


def gradients_without_tokens(rank: int, port: int, implementation: str) -> list[float]:
    """The largest gradient of each stack of an owner that gets no token."""
    TrainerWorker(rank, 1, "127.0.0.1", port, LearnerConfig())  # joins the ranks
    config = Qwen3MoeConfig(hidden_size=8, num_experts=EXPERTS, moe_intermediate_size=4)
    config._experts_implementation = implementation
    experts: Any = Qwen3MoeExperts(config)
    for stack in experts.parameters():
        torch.nn.init.normal_(stack)  # transformers leaves it uninitialised
    exchange_tokens(experts, ExpertGroup(process_group=torch.distributed.group.WORLD, rank=0, size=1))
    nothing = torch.zeros(0, CHOSEN)
    experts(torch.zeros(0, 8, requires_grad=True), nothing.long(), nothing).sum().backward()
    return [float(stack.grad.abs().max()) for stack in experts.parameters()]


@pytest.mark.parametrize("implementation", ["grouped_mm", "eager"])
def test_an_owner_without_tokens_has_a_gradient_of_zeros(implementation: str) -> None:
    """Otherwise it would miss the next all-to-all, or the reduction of the stack."""
    assert in_processes(gradients_without_tokens, ranks=1, arguments=(implementation,)) == [[0.0, 0.0]]


KINDS = {"nemotron_h_moe": False, "qwen3_moe": True}
"""Models, and whether they train in bfloat16."""
Part = dict[str, tuple[list[float], dict[str, torch.Tensor] | None]]


def part(rank: int, port: int, folder: str, learner: LearnerConfig, source: str, target: str, steps: int) -> Part:
    """The losses and the weights of steps from a model or from a checkpoint, which is saved again as `target` first."""
    found: Part = {}
    for family, bf16 in KINDS.items():
        worker = TrainerWorker(rank, learner.ranks, "127.0.0.1", port, replace(learner, bf16=bf16))
        worker.load(f"{folder}/{source}{family}", optim=replace(OPTIM, ema_decay=0.5), total_steps=9)
        step = batch(sequences(f"{folder}/{family}"), shared=True, ranks=learner.ranks, tokens=TOKENS).share(rank)
        if source:
            worker.restore(f"{folder}/{source}{family}")
        else:
            worker.train_step(step, loss=POLICY)
        worker.save(f"{folder}/{target}{family}", beside=True)
        worker.set_onloaded(weights=False, states=False)
        worker.set_onloaded(weights=True, states=True)
        losses = [worker.train_step(step, loss=POLICY)["loss"] for _ in range(steps)]
        worker.write()
        found[family] = losses, weights_of(worker)
        worker.close()
    return found


def saved_model(checkpoint: Path) -> dict[str, torch.Tensor]:
    return {name: one for file in checkpoint.glob("model*.safetensors") for name, one in load_file(file).items()}


def test_a_run_moves_between_spread_and_whole_experts(models: Path) -> None:
    """From two ranks with half of the experts each to one rank, and back, bit for bit."""
    two = replace(REPLAY, ranks=2, expert_parallel=2)
    straight = in_processes(part, ranks=2, arguments=(str(models), two, "", "a-", 2), seconds=800.0)
    in_processes(part, ranks=1, arguments=(str(models), replace(REPLAY, zero_stage=1), "a-", "b-", 0), seconds=800.0)
    back = in_processes(part, ranks=2, arguments=(str(models), two, "b-", "c-", 2), seconds=800.0)
    for family in KINDS:
        assert [rank[family][0] for rank in straight] == [rank[family][0] for rank in back]
        weights, same = straight[0][family][1], back[0][family][1]
        assert weights is not None
        assert all(torch.equal(tensor, same[key]) for key, tensor in weights.items())
        first, *others = (optimizer_state(f"{models}/{place}-{family}") for place in "abc")
        assert any(name.startswith("ema/") and ".experts." in name for name in first)
        for state in others:
            assert state.keys() == first.keys()
            assert all(torch.equal(tensor, state[key]) for key, tensor in first.items())
        shared, whole = (saved_model(models / f"{place}-{family}") for place in "ab")
        assert shared.keys() == whole.keys() >= weights.keys()
        assert all(torch.equal(tensor, whole[key]) for key, tensor in shared.items())
        places = json.loads((models / f"a-{family}" / "model.safetensors.index.json").read_text())["weight_map"]
        halves = [{places[name] for name in places if f".experts.{expert}." in name} for expert in (0, EXPERTS - 1)]
        assert halves[0].isdisjoint(halves[1])  # each owner writes its experts into its own files


def push(
    rank: int, port: int, folder: str, family: str, expert_parallel: int, zero_stage: ZeroStage
) -> tuple[list[str], list[str]] | None:
    """Push many buckets from two ranks to an engine in a thread of the first.

    Returns the expert tensors that each sender sent. The whole push equals a checkpoint.
    """
    deepspeed_engine.GATHER_BYTES = 2**12
    BucketSender.__init__.__kwdefaults__["bucket_bytes"] = 2**14  # type: ignore[index]
    learner = LearnerConfig(ranks=2, expert_parallel=expert_parallel, zero_stage=zero_stage, transport="broadcast")
    learner = replace(learner, collective_timeout_s=60.0)
    worker = TrainerWorker(rank, 2, "127.0.0.1", port, learner)
    worker.load(f"{folder}/{family}", optim=OPTIM, total_steps=9)
    step = batch(sequences(f"{folder}/{family}"), shared=False, ranks=2, tokens=TOKENS)
    worker.train_step(step.share(rank), loss=NLL)
    worker.save(f"{folder}/pushed-{family}")
    manifest = worker.publish(1)
    if manifest is None:
        worker.send(1)
        torch.distributed.barrier()
        worker.close()
        return None
    bucket_group: Any = worker.offer(1, with_base=True, receivers=HERE)
    receiver, arrived = BucketReceiver(), dict[str, torch.Tensor]()

    def load(named: Named) -> None:
        arrived.update({name: tensor.clone() for name, tensor in named})

    engine = threading.Thread(
        target=receiver.receive,
        args=(manifest, bucket_group, load),
        kwargs={"member": 1, "device": torch.device("cpu")},
        daemon=True,
    )
    engine.start()
    worker.send(1)
    engine.join(60.0)
    assert not engine.is_alive()
    torch.distributed.barrier()
    saved = saved_model(Path(folder) / f"pushed-{family}")
    assert arrived.keys() == {name for name in saved if "e_score_correction_bias" not in name}
    assert all(torch.equal(tensor, saved[name]) for name, tensor in arrived.items())
    sent: tuple[list[str], list[str]] = [], []
    for bucket in bucket_group.buckets(manifest):
        sent[bucket.sender].extend(name for name in bucket.manifest.names if ".experts." in name)
    receiver.close()
    worker.close()
    return sent


@pytest.mark.parametrize("family", KINDS)
def test_owners_send_their_experts_in_a_complete_push(models: Path, family: str) -> None:
    sent, _ = in_processes(push, ranks=2, arguments=(str(models), family, 2, 2))
    for place, names in enumerate(sent):
        own = range(EXPERTS // 2 * place, EXPERTS // 2 * (place + 1))
        assert {name.split(".experts.")[1].split(".")[0] for name in names} == {str(expert) for expert in own}


@pytest.mark.parametrize("family", KINDS)
def test_gathered_experts_arrive_from_alternating_senders(models: Path, family: str) -> None:
    """Stage 3 gathers few weights at once, so no rank may send before it has gathered the earlier buckets."""
    sent, _ = in_processes(push, ranks=2, arguments=(str(models), family, 1, 3))
    assert all(sent)


def test_a_model_without_experts_for_all_ranks_is_refused(models: Path) -> None:
    tiny_models.qwen3(models / "qwen3")
    spread, names = LearnerConfig(ranks=3, expert_parallel=3, zero_stage=2), ("qwen3_moe", "qwen3")
    for uneven, dense in in_processes(find_refusals, ranks=3, arguments=(str(models), spread, names)):
        assert "learner.expert_parallel=3 with a model of 8 experts" in uneven
        assert "learner.expert_parallel=3 with a model of type qwen3" in dense


@pytest.mark.parametrize(
    ("changed", "setting"),
    [
        ({"ranks": 3}, "learner.ranks=3"),
        ({"zero_stage": 0}, "learner.zero_stage=0"),
        ({"zero_stage": 3}, "learner.zero_stage=3"),
        ({"offload": "cpu"}, "learner.offload=cpu"),
        ({"lora": LoraConfig(rank=2)}, "learner.lora.rank=2"),
        ({"sequence_parallel": 2, "shared_prompts": False}, "learner.sequence_parallel=2"),
    ],
)
def test_settings_that_do_not_spread_experts_are_refused(changed: dict[str, Any], setting: str) -> None:
    with refuses(setting, "learner.expert_parallel"):
        LearnerConfig(**({"ranks": 2, "expert_parallel": 2, "zero_stage": 2} | changed))


def test_muon_does_not_spread_experts() -> None:
    muon = replace(OPTIM, kind="muon")
    with refuses("optim.kind=muon", "learner.expert_parallel=2"):
        require_together(muon, LearnerConfig(ranks=2, expert_parallel=2, zero_stage=1, bf16=True))
