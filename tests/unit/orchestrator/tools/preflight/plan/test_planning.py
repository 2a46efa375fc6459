"""`temper doctor --plan`: counts against real classes and published figures, and limits with useful remedies."""

import json
from pathlib import Path

import pytest
import torch
from support.plans import EIGHT, NANO_9B, NANO_30B, demo_on, hit, known, plan_on
from support.public_models import PUBLIC
from transformers import (
    AutoModelForCausalLM,
    LlamaConfig,
    PretrainedConfig,
    Qwen3Config,
    Qwen3MoeConfig,
    Qwen3NextConfig,
)

from temper.learner.config import LearnerConfig, LoraConfig
from temper.learner.engine.optimizer import freeze
from temper.learner.models import mamba_scan
from temper.learner.models.adapters import add_adapters
from temper.learner.models.config import FreshModelConfig
from temper.learner.models.fresh import byte_tokenizer, hybrid_config, make_model
from temper.learner.models.loading import read_model
from temper.learner.saving import HEADERS_BYTES, checkpoint_bytes
from temper.orchestrator.__main__ import main
from temper.orchestrator.pipeline.estimate.assumptions import Assumptions
from temper.orchestrator.pipeline.estimate.cards import named_site
from temper.orchestrator.pipeline.estimate.layers import layers_of
from temper.orchestrator.pipeline.estimate.limits import advised_limits, run_limits
from temper.orchestrator.pipeline.estimate.model import count_model, read_config
from temper.orchestrator.pipeline.estimate.run_plan import Plan
from temper.orchestrator.pipeline.finding import Level
from temper.orchestrator.pipeline.start_checks import checkpoint_size
from temper.orchestrator.tools.preflight.doctor.memory import check_shm
from temper.orchestrator.tools.preflight.plan.page import page

BF16 = LearnerConfig(zero_stage=1, bf16=True)


@pytest.mark.parametrize("name", PUBLIC)
def test_parameters_and_bytes_are_those_that_the_publishers_count(name: str, models: Path) -> None:
    published = PUBLIC[name][1]
    model = count_model(read_config(models / name), BF16, name=name)
    assert model.parameters == model.trained == sum(model.parts.values()) == published
    assert model.push_bytes["bfloat16"] - 64 == 2 * published  # tensors are multiples of 64 bytes, plus a footer
    biases = 23 * 128 * 4 if name == NANO_30B else 0  # router biases, which the published size of the files includes
    assert model.saved_bytes == 2 * published + biases


@pytest.mark.parametrize("bf16", [False, True])
@pytest.mark.parametrize("part", ["all", "frozen", "adapters"])
def test_start_plan_learner_and_files_agree_on_the_bytes_of_a_checkpoint(part: str, bf16: bool, tmp_path: Path) -> None:
    make_model(tmp_path, FreshModelConfig(), seed=1)
    frozen, lora = ["embed"] if part == "frozen" else [], LoraConfig(rank=4 if part == "adapters" else 0)
    learner = LearnerConfig(zero_stage=1, bf16=bf16, frozen=frozen, lora=lora)
    ema = part != "frozen"
    planned = count_model(read_config(tmp_path), learner, name="fresh", ema=ema)
    whole = read_model(tmp_path, device="cpu")
    assert planned.parameters == sum(p.numel() for p in whole.parameters())
    if not bf16:  # apart from the file's header
        assert 0 <= (tmp_path / "model.safetensors").stat().st_size - planned.saved_bytes < 10_000
    if part == "adapters":
        matrices = [p.shape for name, p in whole.named_parameters() if p.ndim == 2 and "out_proj" not in name]
        inside = matrices[1:-1]  # between the embedding and the output layer
        assert planned.trained == sum(4 * (rows + columns) for rows, columns in inside)
        add_adapters(whole, rank=lora.rank, alpha=lora.alpha)
    freeze(whole, learner.frozen)
    needed = checkpoint_bytes(whole, bf16=bf16, ema=ema) - HEADERS_BYTES
    assert planned.checkpoint_bytes == needed
    size = checkpoint_size(learner, planned.parameters, ema=ema)
    assert size == (needed if part == "all" else planned.saved_bytes)


def test_a_gated_delta_net_has_the_state_of_its_heads() -> None:
    sizes = {
        "linear_num_value_heads": 4,
        "linear_num_key_heads": 2,
        "linear_key_head_dim": 16,
        "linear_value_head_dim": 8,
    }
    config = Qwen3NextConfig(num_experts=4, moe_intermediate_size=8, intermediate_size=64, **SHAPE | sizes)
    assert count_model(config, BF16, name="delta").layers[0].state == 4 * 16 * 8


def test_tied_weights_are_counted_once_in_a_checkpoint() -> None:
    config = Qwen3Config(intermediate_size=64, head_dim=16, tie_word_embeddings=True, **SHAPE)
    asked = checkpoint_bytes(AutoModelForCausalLM.from_config(config), bf16=False)
    assert asked - HEADERS_BYTES == count_model(config, LearnerConfig(), name="tied").checkpoint_bytes


SHAPE = {
    "hidden_size": 256,
    "num_hidden_layers": 3,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "vocab_size": 320,
}


def kept_by_autograd(config: PretrainedConfig, dtype: torch.dtype, tokens: int) -> float:
    """Return the bytes that autograd saves for the backward pass, per token."""
    model = AutoModelForCausalLM.from_config(config, dtype=dtype).train()
    own = {tensor.untyped_storage().data_ptr() for tensor in (*model.parameters(), *model.buffers())}
    saved: dict[int, torch.UntypedStorage] = {}

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            saved[storage.data_ptr()] = storage
        return tensor

    ids = torch.randint(0, config.vocab_size, (1, tokens))
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        _ = model.base_model(input_ids=ids, use_cache=False)[0]
    return sum(storage.nbytes() for storage in saved.values()) / tokens


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(
    "config",
    [
        Qwen3Config(intermediate_size=768, head_dim=32, **SHAPE),
        LlamaConfig(intermediate_size=768, **SHAPE),
        Qwen3MoeConfig(moe_intermediate_size=96, num_experts=16, num_experts_per_tok=4, head_dim=32, **SHAPE),
        hybrid_config(FreshModelConfig(), byte_tokenizer()),
        hybrid_config(FreshModelConfig(pattern="ME*E"), byte_tokenizer()),
    ],
    ids=["qwen3", "llama", "qwen3_moe", "demo", "experts"],
)
def test_activations_are_what_autograd_keeps(config: PretrainedConfig, dtype: torch.dtype) -> None:
    mamba_scan.install(device="cpu")
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    layers = layers_of(model, config)
    planned = sum(layer.kept_bytes(width=dtype.itemsize, gpu=False) for layer in layers)
    assert planned == pytest.approx(kept_by_autograd(config, dtype, 256), rel=0.15)


def test_the_host_of_a_hybrid_is_planned_by_part(usual: Plan) -> None:
    rank, engine, count = known(usual.rank), known(usual.engine), 8_888_227_328
    assert (usual.wanted.ranks, usual.wanted.engines, usual.gpus) == (4, 4, 8)
    assert (rank.weights, rank.gradients, rank.optimiser) == (2 * count // 4, 4 * count // 4, 12 * count // 4)
    assert engine.weights == 2 * count
    assert engine.token_bytes == 4 * 2 * 8 * 128 * 2  # four layers with keys and values of eight heads
    assert engine.state_bytes == 27 * (128 * 80 * 128 * 4 + (10240 + 2 * 8 * 128) * 3 * 2)
    assert usual.push.transport == "broadcast"
    assert usual.push.nbytes == 2 * count + 64
    assert all(limit.holds for limit in run_limits(usual))
    assert rank.peak < usual.rank_free_memory


def test_a_rank_fits_with_its_remedy() -> None:
    greedy = ("learner.zero_stage=1", "learner.recompute=none", "learner.shared_prompts=true")
    remedy = hit(plan_on("8xH100-80G", NANO_9B, *greedy)).remedy
    mended = plan_on("8xH100-80G", NANO_9B, *greedy, *remedy.split())
    assert all(limit.holds for limit in run_limits(mended))


@pytest.mark.parametrize(
    ("what", "given", "remedy"),
    [
        ("GPUs", ("learner.ranks=4", "rollout.workers=7"), "rollout.workers"),
        ("main memory of a machine", ("learner.transport=shared_memory",), "learner.ranks"),
        ("a push by cuda_ipc", ("learner.transport=cuda_ipc",), "learner.transport=auto"),
        ("an engine's cache for a sequence of 12,288 tokens", ("rollout.engine.gpu_memory_utilization=0.2",), "=0.9"),
        (
            "positions of the model",
            ("rollout.limits.total_tokens=200000", "rollout.engine.max_model_len=200000"),
            "total_tokens=131072",
        ),
    ],
)
def test_a_limit_that_is_hit_names_a_setting(what: str, given: tuple[str, ...], remedy: str) -> None:
    plan = plan_on("8xH100-80G", NANO_9B, *given, assumed=["host_gib_per_gpu=5"])
    assert remedy in hit(plan, what).remedy


def test_a_rank_too_large_for_all_settings_fits_the_gpus_that_its_remedy_names() -> None:
    def remedies(gib: float, *settings: str) -> list[str]:
        found = demo_on(64.0, "learner.ranks=1", "rollout.workers=1", "profile=cpu", *settings, gpu_gib=gib)
        return [one.remedy for one in run_limits(found) if one.what == "a rank's memory" and not one.holds]

    (remedy,) = remedies(2.5)  # if CUDA's own memory does not fit
    size, _, settings = remedy.removeprefix("GPUs of ").partition(" GiB")
    gib, settings = int(size), settings.removeprefix(" with ")
    assert remedies(gib, *settings.split()) == []
    assert len(remedies(gib - 1, *settings.split())) == 1


def test_little_of_dev_shm_is_advised_against_as_the_doctor_does_and_fails_no_plan() -> None:
    found = plan_on("8xH100-80G", NANO_9B, assumed=())
    (small,) = advised_limits(found)
    assert (small.has, small.holds) == ("64.0 MiB", False)
    assert small.remedy == check_shm(2**26).remedy
    assert any(line.startswith("warn") and line.endswith(small.remedy) for line in page(found))
    assert check_shm(2**30).level is Level.OK


@pytest.mark.parametrize(
    ("gpus", "settings", "needed"),
    [
        ("8xMI300X", (), ["CUDA 13"]),
        ("8xV100", (), ["CUDA 13"]),
        ("8xT4", (), ["bfloat16"]),
        ("8xT4", ("learner.bf16=false", "learner.wire_dtype=float32", "rollout.engine.dtype=float32"), []),
        ("8xH100", (), []),
        ("8x80G", (), []),
    ],
)
def test_a_card_that_the_setup_can_not_serve_is_advised_against(
    gpus: str, settings: tuple[str, ...], needed: list[str]
) -> None:
    advised = [one for one in advised_limits(plan_on(gpus, NANO_9B, *settings, assumed=())) if not one.holds]
    assert [one.needed for one in advised if "shm" not in one.what] == needed


@pytest.mark.parametrize(
    ("text", "gib", "name"),
    [("1x12G", 12, None), ("2x8x40G", 40, None), ("1xT4", 15, "T4-16G"), ("1xrtx3060-12g", 12, "RTX3060-12G")],
)
def test_any_card_is_named_by_its_memory_and_a_known_one_by_its_name(text: str, gib: int, name: str | None) -> None:
    site = named_site(text, host_gib_per_gpu=1.0, shm_gib=1.0)
    assert (site.hardware.gpu_gib, site.card.name if site.card else None) == (gib, name)


def test_hardware_or_an_assumption_that_is_none_is_refused() -> None:
    for gpus in ("8xH101", "H100-80G", "0xH100-80G", "1x0", "1xG"):
        with pytest.raises(ValueError, match=gpus):
            named_site(gpus, host_gib_per_gpu=1.0, shm_gib=1.0)
    for pair in ("speed=2", "ray_gbs=fast", "ray_gbs=0", "ray_gbs=nan", "ray_gbs=inf", "ray_gbs=-1"):
        with pytest.raises(ValueError, match=f"--assume {pair}: "):
            Assumptions().with_overrides([pair])
    assert Assumptions().with_overrides(["pass_ms=0"]).pass_ms == 0


def test_a_model_of_no_known_class_is_refused_and_its_code_is_not_run(tmp_path: Path) -> None:
    strange = {"model_type": "strange", "auto_map": {"AutoConfig": "configuration_strange.StrangeConfig"}}
    (tmp_path / "config.json").write_text(json.dumps(strange))
    with pytest.raises(ValueError, match="config.json"):
        read_config(tmp_path)


def test_the_command_prints_a_page_or_json_and_fails_where_a_limit_would_be_hit(
    models: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = ["doctor", "--plan", str(EIGHT), f"model.path={models / NANO_9B}", "--gpus", "8xH100-80G"]
    assert main(given) == 0
    assert "8,888,227,328" in capsys.readouterr().out
    assert main([*given, "--json"]) == 0
    time = json.loads(capsys.readouterr().out)["time"]
    assert time["tokens"] == pytest.approx(time["sampled_per_s"] * time["hours"][1] / 2 * 3600)
    assert time["limited_by"] == "learning"
    assert main([*given, "--json", "rollout.engine.gpu_memory_utilization=0.2"]) == 1
    found = json.loads(capsys.readouterr().out)
    assert found["model"]["parameters"] == 8_888_227_328
    rank = found["rank"]
    parts = ("weights", "gradients", "optimiser", "buckets", "gathered", "reference", "activations", "logits", "push")
    assert rank["peak"] == sum(rank[part] for part in (*parts, "overhead"))
    assert found["time"] is None  # the engine does not fit
    assert min(found["engine"]["peak"], found["host"]["peak"], found["model"]["checkpoint_bytes"]) > 0
    remedies = [one["remedy"] for one in found["limits"] if not one["holds"]]
    assert remedies == ["rollout.engine.gpu_memory_utilization=0.9"]
