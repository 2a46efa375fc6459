"""Train-inference mismatch of vLLM engines and the trainer: exact, with planted causes, and parts without an engine."""

import json
import math
from argparse import Namespace
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from support import tiny_models

from temper.learner.config import LearnerConfig
from temper.learner.models.fresh import byte_tokenizer, make_model
from temper.learner.models.loading import read_model
from temper.orchestrator.__main__ import main
from temper.orchestrator.cli.debug_commands import config_of, sampling_of
from temper.orchestrator.cluster.this_machine import PACKAGE
from temper.orchestrator.pipeline.config import load_config, save_config
from temper.orchestrator.run.folder import RunDir, RunState
from temper.orchestrator.tools.debug.parity.answers import ScoredAnswer, Setup, Stream, TracedAnswer, as_pushed
from temper.orchestrator.tools.debug.parity.comparison import (
    EXACT,
    Comparison,
    compare,
    compare_logprobs,
    variants,
)
from temper.orchestrator.tools.debug.parity.layers import compare_layers
from temper.orchestrator.tools.debug.parity.prompts import builtin_prompts, require_context
from temper.orchestrator.tools.debug.parity.trainer import Trainer
from temper.rollout.engines.config import EngineConfig
from temper.rollout.engines.runners.layer_recorder import EMBEDDING, LayerRecorder
from temper.rollout.engines.vllm_worker import WorkerExtension
from temper.rollout.sampling import PLAIN, Sampling
from temper.rollout.weights.manifest import wire_dtype

SETUP = Setup(engine=EngineConfig(max_model_len=512, max_sequences=64), learner=LearnerConfig())
SHARP = replace(tiny_models.SMALL, initializer_range=0.2)
"""A fresh model with confident tokens, so that rounding errors show."""
IN_BFLOAT16: dict[str, Any] = {"bf16": True, "zero_stage": 1}
FAMILIES = {"hybrid": lambda folder: make_model(folder, SHARP, seed=0), "qwen3": tiny_models.qwen3}


def found(folder: Path, setup: Setup) -> Comparison:
    tokenizer = byte_tokenizer()
    assert isinstance(tokenizer.eos_token_id, int)
    return compare(folder, setup, builtin_prompts(tokenizer)[:3], tokens=40, end=tokenizer.eos_token_id)


@pytest.fixture(scope="module", params=FAMILIES)
def family(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp(request.param) / "model"
    FAMILIES[request.param](folder)
    return folder


def test_a_learner_in_bfloat16_is_the_row_that_leaves_no_gap(tmp_path: Path) -> None:
    """With one engine, prefill and decoding agree in float32. The trainer agrees once it is in float32."""
    make_model(tmp_path / "model", SHARP, seed=0)
    one = found(tmp_path / "model", replace(SETUP, learner=replace(SETUP.learner, **IN_BFLOAT16)))
    configured, exact, unshared = one.rows
    assert (exact.setting, unshared.setting) == ("learner.bf16=false", "learner.shared_prompts=false")
    assert configured.decoding.tokens > 60
    assert configured.decoding.mean > 100 * EXACT
    assert not one.is_exact
    assert max(exact.decoding.largest, exact.prefill.largest, one.engine.largest) <= EXACT
    assert one.layers is not None
    assert [point.type for point in one.layers.points] == [EMBEDDING, "mamba", "mlp", "attention", "mlp"]
    added = {point.name: point.added for point in one.layers.points}
    assert all(own["learner"] > 100 * own["decoding"] for own in added.values())


@pytest.mark.slow
def test_in_float32_only_sampling_that_cuts_the_distribution_leaves_a_gap(family: Path) -> None:
    one = found(family, replace(SETUP, sampling=Sampling(top_p=0.9)))
    assert max(one.configured.prefill.largest, one.engine.largest) <= EXACT < one.configured.decoding.mean
    assert one.layers is not None
    assert one.layers.diverges_at == {"prefill": None, "decoding": None}


@pytest.mark.slow
def test_states_of_mamba_layers_in_bfloat16_show_in_decoding_alone(tmp_path: Path) -> None:
    make_model(tmp_path / "model", SHARP, seed=0)
    engine = replace(SETUP.engine, extra={"mamba_ssm_cache_dtype": "bfloat16"})
    one = found(tmp_path / "model", replace(SETUP, engine=engine))
    assert one.configured.prefill.largest <= EXACT < one.configured.decoding.mean * 10
    assert one.layers is not None
    by_decoding = [kind for kind in one.layers.types if "decoding" in kind.added]
    assert max(by_decoding, key=lambda kind: kind.added["decoding"].nats).name == "mamba"
    assert (one.layers.diverges_at["prefill"], one.layers.diverges_at["decoding"]) == (None, "0")


@pytest.mark.slow
def test_keys_and_values_in_a_type_that_the_cpu_build_computes_wrongly_with_are_refused(family: Path) -> None:
    with pytest.raises(ValueError, match="kv_cache_dtype=bfloat16"):
        found(family, replace(SETUP, engine=replace(SETUP.engine, extra={"kv_cache_dtype": "bfloat16"})))


@pytest.mark.slow
def test_the_experts_of_a_mixture_are_compared(tmp_path: Path) -> None:
    one = found(tiny_models.qwen3_moe(tmp_path / "model"), SETUP)
    assert one.is_exact
    assert one.layers is not None
    assert "expert" in {point.type for point in one.layers.points}


@pytest.mark.slow
def test_the_command_shows_the_gaps(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make_model(tmp_path / "model", SHARP, seed=0)
    out = tmp_path / "parity.json"
    settings = ["rollout.engine.dtype=bfloat16", "rollout.engine.max_model_len=512", "rollout.limits.total_tokens=512"]
    given = [
        "debug",
        "parity",
        str(tmp_path / "model"),
        *settings,
        "--env",
        "math",
        "--tokens",
        "24",
        "--out",
        str(out),
    ]
    assert main([*given, "--at-most", "1e-5"]) == 1
    assert "trainer - decoding" in capsys.readouterr().out
    assert json.loads(out.read_text())["gaps"][0]["setting"] == ""


def test_a_gap_is_what_its_definition_says() -> None:
    gap = compare_logprobs([[-1.0, -2.0], [-0.5]], [[-1.1, -2.0], [-1.5]])
    assert gap.tokens == 3
    assert gap.mean == pytest.approx((0.1 + 0.0 + 1.0) / 3)
    assert gap.largest == pytest.approx(1.0)
    assert gap.outside == pytest.approx(1 / 3)  # e > 2
    assert gap.k3 == pytest.approx(((math.exp(0.1) - 1.1) + 0.0 + (math.e - 2)) / 3)
    with pytest.raises(ValueError, match="1 of 2 "):
        compare_logprobs([[0.0, math.nan]], [[0.0, 0.0]])
    with pytest.raises(ValueError, match="--tokens"):
        compare_logprobs([], [])


def test_a_trainer_in_bfloat16_keeps_buffers_exact(tmp_path: Path) -> None:
    directory = tiny_models.qwen3(tmp_path / "model")
    held = dict(Trainer(directory).model(bf16=True).named_buffers())
    exact = dict(read_model(directory).named_buffers())
    assert "model.rotary_emb.inv_freq" in exact
    assert all(torch.equal(held[name], buffer) for name, buffer in exact.items())


def test_an_error_in_one_layer_is_found_in_that_layer_alone(tmp_path: Path) -> None:
    trainer = Trainer(tiny_models.qwen3(tmp_path / "model"))
    ids, prompt = tuple(range(5, 45)), 20
    answer = ScoredAnswer(group=0, prompt_ids=ids[:prompt], sampled_ids=ids[prompt:], decoded_T=(), sampling=PLAIN)
    points = [EMBEDDING, "0.inside", "0", "1.inside", "1"]
    shape = trainer.stream(answer, bf16=False, points=points)["0"].shape
    error_PD = np.random.default_rng(0).normal(scale=0.01, size=shape).astype(np.float32)
    wrong: Stream = {}

    def spoil(point: str, hidden_1PD: torch.Tensor) -> torch.Tensor:
        """Corrupt the MLP of the first layer. All later layers continue from the corrupted values."""
        changed_1PD = hidden_1PD.clone()
        if point == "0":
            changed_1PD[0, :-1] += torch.from_numpy(error_PD)
        wrong[point] = changed_1PD[0, :-1].numpy()
        return changed_1PD

    scores = trainer.run(answer, spoil, bf16=False, points=points)
    answer = replace(answer, prefill_T=tuple(map(float, scores[prompt - 1 :])))
    found = compare_layers(trainer, TracedAnswer(answer=answer, prefill=wrong, decoding=None), bf16=False)
    added = {point.name: point.added["prefill"] for point in found.points}
    behind_P = slice(prompt - 1, None)
    size_P = np.linalg.norm(error_PD[behind_P], axis=-1) / np.linalg.norm(wrong["0"][behind_P], axis=-1)
    assert added["0"] == pytest.approx(size_P.mean(), rel=1e-3)
    assert max(value for name, value in added.items() if name != "0") < 1e-5
    assert found.diverges_at == {"prefill": "0"}
    assert [point.errors["prefill"] > 1e-3 for point in found.points] == [False, False, True, True, True]
    nats = {kind.name: kind.added["prefill"].nats for kind in found.types}
    assert found.types[0].name == "mlp"
    assert nats["mlp"] > 1e-3
    assert max(value for name, value in nats.items() if name != "mlp") < EXACT


def test_mistakes_in_the_input_are_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["debug", "parity", str(tmp_path / "none")]) == 2
    assert str(tmp_path / "none") in capsys.readouterr().err
    require_context([(5,) * 447], tokens=64, longest=512)
    with pytest.raises(ValueError, match=r"448 .*--tokens 64"):
        require_context([(5,) * 448], tokens=64, longest=512)


def test_a_run_is_compared_with_the_settings_of_its_own_configuration(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    make_model(folder / "rl" / "model", SHARP, seed=0)
    given = ["name=run", f"runs_dir={tmp_path}", "rl.sampling.temperature=0.7", "rollout.engine.threads=2"]
    save_config(load_config(PACKAGE / "configs" / "demo.yaml", given), folder / "config.yaml")
    RunDir(folder).store(RunState(model="rl/model", label="rl"))
    asked = Namespace(model=str(folder), env=None, overrides=["rollout.engine.dtype=bfloat16"])
    config = config_of(asked)
    assert config.model.source is not None
    assert config.model.source.folder == (folder / "rl" / "model").resolve()
    assert (config.rollout.engine.threads, config.rollout.engine.dtype) == (2, "bfloat16")
    assert sampling_of(config) == Sampling(temperature=0.7)
    alone = config_of(Namespace(model=str(folder / "rl" / "model"), env="code", overrides=["profile=cpu"]))
    assert list(alone.envs) == ["code"]
    assert (alone.rollout.engine.dtype, sampling_of(alone)) == ("float32", PLAIN)


@pytest.mark.parametrize(
    ("learner", "engine", "settings"),
    [
        (LearnerConfig(shared_prompts=False), "float32", []),
        (LearnerConfig(**IN_BFLOAT16), "float32", ["learner.bf16=false", "learner.shared_prompts=false"]),
        (LearnerConfig(shared_prompts=False), "bfloat16", ["learner.bf16=true learner.zero_stage=1"]),
    ],
)
def test_settings_of_the_learner_are_tried(learner: LearnerConfig, engine: str, settings: list[str]) -> None:
    setup = Setup(engine=EngineConfig(dtype=engine), learner=learner)  # type: ignore[arg-type]
    assert [setting for setting, _ in variants(setup)] == settings


@pytest.mark.parametrize("rank", [0, 1])
def test_recording_ends_in_every_process_of_an_engine_and_the_first_writes_it(tmp_path: Path, rank: int) -> None:
    model = torch.nn.Module()
    model.layers = torch.nn.ModuleList([torch.nn.Linear(4, 4), torch.nn.Linear(4, 4)])
    recorder = LayerRecorder(model, eager=True, layers=2)
    hidden_TD = torch.ones(3, 4)
    for layer in model.layers:
        hidden_TD = layer(hidden_TD)
    worker = SimpleNamespace(rank=rank, layer_recorder=recorder)
    file = tmp_path / "layers.safetensors"
    assert WorkerExtension.take_layers(worker, str(file)) == (3 if rank == 0 else 0)  # type: ignore[arg-type]
    assert file.exists() == (rank == 0)
    assert not any(layer._forward_hooks or layer._forward_pre_hooks for layer in model.layers)


@pytest.mark.parametrize(
    ("learner", "engine", "rounds"),
    [
        (LearnerConfig(), "float32", False),
        (LearnerConfig(wire_dtype="bfloat16"), "float32", True),
        (LearnerConfig(wire_dtype="bfloat16"), "bfloat16", False),
        (LearnerConfig(wire_dtype="bfloat16", **IN_BFLOAT16), "float32", False),
        (LearnerConfig(wire_dtype="float16", **IN_BFLOAT16), "bfloat16", True),
    ],
)
def test_an_engine_gets_rounded_weights_if_a_push_rounds(
    tmp_path: Path, learner: LearnerConfig, engine: str, rounds: bool
) -> None:
    folder = tiny_models.qwen3(tmp_path / "model")
    setup = Setup(engine=EngineConfig(max_model_len=512, dtype=engine), learner=learner)  # type: ignore[arg-type]
    own, dtype = load_file(folder / "model.safetensors"), wire_dtype(learner.wire_dtype)
    with as_pushed(folder, setup) as pushed:
        assert (pushed != folder) == rounds
        weights = load_file(pushed / "model.safetensors")
        assert weights.keys() == own.keys()
        assert not rounds or all(torch.equal(weights[name], own[name].to(dtype).float()) for name in own)
        assert (pushed / "config.json").read_bytes() == (folder / "config.json").read_bytes()
    assert pushed.exists() != rounds
