"""Trained parameters: frozen ones, adapters, and optimiser state in main memory."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from deepspeed.ops.op_builder import AsyncIOBuilder
from peft.tuners.lora import Linear as LoraLinear
from safetensors.torch import load_file
from support import tiny_models
from support.plain_rank import rank_logprobs
from support.refusals import refuses
from transformers import AutoModelForCausalLM
from unit.learner.test_worker import POLICY, STEPS, batch, in_processes, policy_sequences, tiny_nemotron, weights_of
from unit.learner.test_worker_resume import optimizer_state

from temper.learner.config import LearnerConfig, LoraConfig, OptimConfig
from temper.learner.engine.deepspeed_engine import split_buckets
from temper.learner.engine.optimizer import freeze
from temper.learner.engine.saved_state import write_averaged_model
from temper.learner.losses.config import LossConfig
from temper.learner.models.adapters import ADAPTER, add_adapters, merge_adapters
from temper.learner.models.loading import map_file_names
from temper.learner.models.logprobs import token_logprobs
from temper.learner.models.mamba_scan import match_engine
from temper.learner.saving import HEADERS_BYTES
from temper.learner.training_state import STATE_FOLDER
from temper.learner.worker import TrainerWorker
from temper.orchestrator.run.checkpoint import size_of

OPTIM = OptimConfig(learning_rate=2e-3, warmup_steps=2, weight_decay=0.01, ema_decay=0.5)
WITHOUT_EMA = replace(OPTIM, ema_decay=0.0)
FROZEN = LearnerConfig(zero_stage=1, frozen=["embeddings", r"mixer\.A_log$"])
LORA = LearnerConfig(lora=LoraConfig(rank=4, alpha=8))
WITH_ADAPTERS = ("lora", "lora, stage 2", "lora, stage 3")


def scenarios(rank: int, port: int, folder: str) -> dict[str, Any]:
    """Weights after training with each configuration, and of LoRA also after continuing from its middle."""
    found: dict[str, Any] = {}
    kinds = {
        "plain": LearnerConfig(zero_stage=2),
        "offload": LearnerConfig(zero_stage=2, offload="cpu"),
        "plain, stage 3": LearnerConfig(zero_stage=3),
        "offload, stage 3": LearnerConfig(zero_stage=3, offload="cpu"),
        "recompute, stage 3": LearnerConfig(zero_stage=3, recompute="full", logit_tokens=9),
        "bf16": LearnerConfig(zero_stage=1, bf16=True),
        "frozen": FROZEN,
        "lora": LORA,
        "lora, stage 2": LearnerConfig(zero_stage=2, lora=LoraConfig(rank=4, alpha=8)),
        "lora, stage 3": LearnerConfig(zero_stage=3, lora=LoraConfig(rank=4, alpha=8)),
    }
    for name, config in kinds.items():
        learner = TrainerWorker(rank, 1, "127.0.0.1", port, config)
        learner.load(f"{folder}/model", optim=OPTIM, total_steps=STEPS)
        losses = []
        for step in range(STEPS):
            if step == 2:
                learner.save(f"{folder}/{name}", beside=True)
            losses.append(learner.train_step(batch(ranks=1, seed=step).share(learner.rank), loss=POLICY)["loss"])
        learner.write()  # of what was copied before those steps
        sizes = size_of(Path(folder) / name), learner.checkpoint_bytes()
        found[name] = {"losses": losses, "weights": weights_of(learner), "sizes": sizes}
        if config.lora.rank:
            found[name]["logprobs"] = rank_logprobs(learner, policy_sequences(seed=5))
            learner.save(f"{folder}/{name}-final")
            learner.load(f"{folder}/{name}", optim=OPTIM, total_steps=STEPS)
            learner.restore(f"{folder}/{name}")
            for step in range(2, STEPS):
                learner.train_step(batch(ranks=1, seed=step).share(learner.rank), loss=POLICY)
            found[name]["resumed"] = weights_of(learner)
        if config.lora.rank or config.zero_stage == 3:
            found[name]["near"] = near_the_start(learner, f"{folder}/model")
        learner.close()
    return found


def near_the_start(learner: TrainerWorker, model: str) -> tuple[list[float], int]:
    """The divergence from the beginning in each step, and the bytes that the reference takes."""
    learner.load(model, optim=OPTIM, total_steps=STEPS)
    loss = LossConfig(kl_coefficient=0.1)
    steps = [learner.train_step(batch(ranks=1, seed=step).share(learner.rank), loss=loss)["kl"] for step in range(3)]
    assert learner.reference is not None
    return steps, learner.reference.nbytes()


def from_files(rank: int, port: int, folder: str) -> dict[str, list[float]]:
    """Losses with optimiser state and parameters in main memory and in files, and of the latter's second half again."""
    place = Path(folder) / "nvme"
    place.mkdir()
    kinds = {
        "plain": LearnerConfig(zero_stage=3),
        "nvme": LearnerConfig(zero_stage=3, offload="nvme", offload_dir=str(place)),
    }
    found: dict[str, list[float]] = {}
    for name, config in kinds.items():
        learner = TrainerWorker(rank, 1, "127.0.0.1", port, config)
        learner.load(f"{folder}/model", optim=WITHOUT_EMA, total_steps=STEPS)
        found[name] = []
        for step in range(STEPS):
            if step == 2:
                learner.save(f"{folder}/{name}")
            found[name].append(learner.train_step(batch(ranks=1, seed=step).share(learner.rank), loss=POLICY)["loss"])
        learner.load(f"{folder}/{name}", optim=WITHOUT_EMA, total_steps=STEPS)
        learner.restore(f"{folder}/{name}")
        steps = range(2, STEPS)
        found[f"{name}, again"] = [
            learner.train_step(batch(ranks=1, seed=s).share(learner.rank), loss=POLICY)["loss"] for s in steps
        ]
        learner.close()
    found["bytes"] = [float(sum(path.stat().st_size for path in place.rglob("*") if path.is_file()))]
    return found


@pytest.fixture(scope="module")
def found(folder: Path) -> dict[str, Any]:
    result: dict[str, Any] = in_processes(scenarios, ranks=1, arguments=(str(folder),))[0]
    return result


@pytest.mark.parametrize(
    ("one", "other"),
    [("offload", "plain"), ("offload, stage 3", "plain, stage 3"), ("recompute, stage 3", "plain, stage 3")],
)
def test_offload_and_recomputation_change_nothing(found, one, other):
    assert found[one]["losses"] == pytest.approx(found[other]["losses"], abs=1e-6)
    for name, tensor in found[other]["weights"].items():
        assert torch.allclose(found[one]["weights"][name], tensor, atol=1e-6), name


@pytest.mark.slow  # DeepSpeed compiles its file access first
@pytest.mark.timeout(1800)
@pytest.mark.skipif(not AsyncIOBuilder().is_compatible(verbose=False), reason="needs libaio and its headers")
def test_state_and_parameters_in_files_change_nothing(folder):
    (found,) = in_processes(from_files, ranks=1, arguments=(str(folder),), seconds=1500.0)
    assert found["bytes"][0] > 10**6
    assert found["nvme"] == pytest.approx(found["plain"], abs=1e-6)
    for name in ("plain", "nvme"):
        assert found[f"{name}, again"] == found[name][2:]


@pytest.mark.parametrize("name", ["plain", "plain, stage 3", "bf16", "frozen", *WITH_ADAPTERS])
def test_a_checkpoint_asks_for_the_space_that_it_takes(found, name):
    written, asked = found[name]["sizes"]
    assert written <= asked < 1.05 * written + HEADERS_BYTES


@pytest.mark.parametrize("name", ["plain", "offload", "offload, stage 3", "bf16", "frozen", *WITH_ADAPTERS])
def test_the_averaged_model_has_averages_of_weights_or_adapters(folder, tmp_path, found, name):
    state, names = optimizer_state(f"{folder}/{name}"), map_file_names(folder / "model")
    write_averaged_model(folder / name, tmp_path)
    model, last = load_file(tmp_path / "model.safetensors"), load_file(folder / name / "model.safetensors")
    base = load_file(folder / "model" / "model.safetensors")
    assert model.keys() == last.keys()
    assert any(not torch.equal(tensor, last[key]) for key, tensor in model.items())
    for key, tensor in model.items():
        adapters = [f"ema/{names[key].removesuffix('weight')}lora_{part}.{ADAPTER}.weight" for part in "BA"]
        expected = state.get(f"ema/{names[key]}", last[key]).double()
        if adapters[0] in state:
            up, down = (state[adapter].double() for adapter in adapters)
            expected = base[key].double() + 2.0 * (up @ down)
        assert torch.allclose(tensor, expected.to(tensor.dtype), atol=1e-6), key


def test_frozen_parameters_stay_and_the_others_move(folder, found):
    before, after = load_file(folder / "model" / "model.safetensors"), found["frozen"]["weights"]
    frozen = {name for name in before if "embeddings" in name or name.endswith("A_log")}
    assert len(frozen) == 2
    assert {name for name in before if torch.equal(before[name], after[name])} == frozen


def test_adapters_are_pushed_as_one_model_with_the_weights(folder, found):
    base = load_file(folder / "model" / "model.safetensors")
    for name in WITH_ADAPTERS:
        pushed = found[name]["weights"]
        assert pushed.keys() == base.keys()
        moved = {key for key in base if not torch.equal(base[key], pushed[key])}
        assert moved == {
            key for key in base if key.endswith("_proj.weight") and not key.startswith("backbone.layers.0.mixer.out")
        }
        for key in moved:
            assert torch.linalg.matrix_rank(pushed[key] - base[key], rtol=1e-3) <= 4, key
        saved = load_file(folder / f"{name}-final" / "model.safetensors")
        assert all(torch.equal(tensor, pushed[key]) for key, tensor in saved.items())


def test_a_merged_model_computes_like_its_adapters(folder, found):
    model = AutoModelForCausalLM.from_pretrained(folder / "lora-final")
    match_engine(model)
    for sequence, expected in zip(policy_sequences(seed=5), found["lora"]["logprobs"], strict=True):
        ids_BT = torch.tensor([sequence.ids.tolist()])
        with torch.no_grad():
            assert token_logprobs(model(input_ids=ids_BT).logits, ids_BT)[0].tolist() == pytest.approx(
                expected, abs=1e-5
            )


def test_training_of_adapters_continues_bit_for_bit(folder, found):
    for name in WITH_ADAPTERS:
        assert all(torch.equal(tensor, found[name]["resumed"][key]) for key, tensor in found[name]["weights"].items())
    size = sum(path.stat().st_size for path in (folder / "lora" / STATE_FOLDER).iterdir())
    assert size < 0.5 * (folder / "lora" / "model.safetensors").stat().st_size  # of the adapters alone


def test_a_pattern_that_freezes_nothing_or_everything_is_refused():
    for pattern in ("rooter", "."):
        with refuses("learner.frozen", f"'{pattern}'"):
            freeze(tiny_nemotron(), [pattern])


def test_adapters_that_no_checkpoint_would_hold_are_refused(tmp_path):
    model = AutoModelForCausalLM.from_pretrained(tiny_models.qwen3_moe(tmp_path), dtype=torch.float32)
    with refuses("learner.lora.rank", "model.layers.1.mlp.experts", "qwen3_moe"):
        add_adapters(model, rank=2, alpha=4)


def test_only_adapters_are_trained_and_begin_alike():
    models = [tiny_nemotron(), tiny_nemotron()]
    for model in models:
        add_adapters(model, rank=2, alpha=4)
    trained, other = ({name: p for name, p in model.named_parameters() if p.requires_grad} for model in models)
    assert trained.keys() == {name for name, _ in models[0].named_parameters() if ".lora_" in name}
    assert all(torch.equal(p, other[name]) for name, p in trained.items())


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"offload": "cpu"}, ["learner.offload=cpu", "learner.zero_stage=0"]),
        ({"offload": "nvme", "zero_stage": 3}, ["learner.offload_dir=None"]),
        ({"frozen": ["embed"], "lora": LoraConfig(rank=2)}, ["learner.lora.rank=2"]),
    ],
)
def test_settings_that_do_not_go_together_are_refused(settings, named):
    with refuses(*named):
        LearnerConfig(**settings)


@pytest.mark.parametrize("name", WITH_ADAPTERS)
def test_the_reference_of_adapters_is_their_base(found: dict[str, Any], name: str) -> None:
    steps, nbytes = found[name]["near"]
    assert nbytes == 0
    assert steps[0] == 0.0
    assert steps[1:] == pytest.approx(found["lora"]["near"][0][1:], rel=1e-3)
    assert min(steps[1:]) > 0


def test_an_offloaded_reference_gives_the_same_divergence(found: dict[str, Any]) -> None:
    steps, _ = found["offload, stage 3"]["near"]
    assert steps[0] == 0.0
    assert steps == pytest.approx(found["plain, stage 3"]["near"][0], rel=1e-3)


def test_adapters_are_merged_with_one_rounding(folder: Path) -> None:
    model = AutoModelForCausalLM.from_pretrained(folder / "model", dtype=torch.float32)
    add_adapters(model, rank=4, alpha=8)
    model.to(torch.bfloat16)
    layer: Any
    name, layer = next((name, module) for name, module in model.named_modules() if isinstance(module, LoraLinear))
    torch.nn.init.normal_(layer.lora_B[ADAPTER].weight, std=0.01)
    up, down = (side[ADAPTER].weight.double() for side in (layer.lora_B, layer.lora_A))
    exact = layer.weight.double() + 2.0 * (up @ down)
    found = merge_adapters(model, dict(model.named_parameters()))[f"{name}.weight"]
    assert torch.equal(found, exact.float().bfloat16())


def test_a_bucket_is_limited_and_keeps_layers_whole():
    first, second = "layers.0.a", "layers.0.b"
    sizes = {f"{first}.base_layer.weight": 30, f"{first}.lora_A.default.weight": 20, f"{second}.weight": 10}
    sizes |= {"layers.1.weight": 30, "layers.2.weight": 20, "norm.weight": 60}
    parameters = {name: torch.nn.Parameter(torch.zeros(size)) for name, size in sizes.items()}
    names = [list(bucket) for bucket in split_buckets(parameters, most_bytes=4 * 50)]
    assert [len(bucket) for bucket in names] == [3, 2, 1]
    assert [name for bucket in names for name in bucket] == list(sizes)
