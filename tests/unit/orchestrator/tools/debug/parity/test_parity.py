"""Parity for real: engines of vLLM against the trainer, in float32, and with a cause that was planted."""

import json
import math
from argparse import Namespace
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
import torch
from support import tiny_models

from temper.learner.config import LearnerConfig
from temper.learner.models.fresh import byte_tokenizer, make_model
from temper.learner.models.loading import read_model
from temper.orchestrator.__main__ import main
from temper.orchestrator.cli.run_parity import config_of, sampling_of
from temper.orchestrator.cluster.this_machine import ROOT
from temper.orchestrator.pipeline.config import load_config, save_config
from temper.orchestrator.run.folder import RunDir, RunState
from temper.orchestrator.tools.debug.parity.answers import Answered, ScoredAnswer, Stream, Watched
from temper.orchestrator.tools.debug.parity.causes import engine_causes, free_causes, with_all
from temper.orchestrator.tools.debug.parity.gap import between, gap_of
from temper.orchestrator.tools.debug.parity.layers import compare_layers
from temper.orchestrator.tools.debug.parity.prompts import file_prompts, own_prompts
from temper.orchestrator.tools.debug.parity.report import to_json, verdict
from temper.orchestrator.tools.debug.parity.search import EXACT, EngineComparison, GapDiagnosis
from temper.orchestrator.tools.debug.parity.setup import Facts, Setup, facts_of
from temper.orchestrator.tools.debug.parity.trainer import Trainer
from temper.rollout.engines.config import EngineConfig
from temper.rollout.engines.runners.layer_recorder import EMBEDDING
from temper.rollout.sampling import PLAIN, Sampling

EXACT_SETUP = Setup(engine=EngineConfig(max_model_len=512, max_sequences=64), learner=LearnerConfig())
SHARP = replace(tiny_models.SMALL, initializer_range=0.2)
"""A fresh model that is sure of some tokens, so that what is rounded shows."""


@dataclass(frozen=True)
class Subject:
    """A model under comparison."""

    folder: Path
    comparison: EngineComparison

    def found(self, setup: Setup) -> GapDiagnosis:
        return self.comparison.diagnose(setup)


def subject(folder: Path, *, tokens: int = 40) -> Subject:
    tokenizer = byte_tokenizer()
    prompts = own_prompts(tokenizer)[:3]
    assert isinstance(tokenizer.eos_token_id, int)
    facts = facts_of(folder, gpu=False)
    return Subject(folder, EngineComparison(folder, facts, prompts, tokens=tokens, end=tokenizer.eos_token_id))


@pytest.fixture(scope="module")
def hybrid(tmp_path_factory: pytest.TempPathFactory) -> Subject:
    folder = tmp_path_factory.mktemp("parity") / "model"
    make_model(folder, SHARP, seed=0)
    return subject(folder)


def with_extra(setup: Setup, **extra: str) -> Setup:
    return replace(setup, engine=replace(setup.engine, extra=extra))


def with_learner(setup: Setup) -> Setup:
    return replace(setup, learner=replace(setup.learner, bf16=True, zero_stage=1))


def engine_in_bfloat16(setup: Setup) -> Setup:
    return replace(setup, engine=replace(setup.engine, dtype="bfloat16"))


def named(found: GapDiagnosis) -> str:
    assert found.cause is not None, verdict(found)
    return found.cause.setting


def most_added(found: GapDiagnosis, way: str) -> str:
    """The type of layers that moves log-probabilities most."""
    assert found.layers is not None, found.why_no_layers
    return max((one for one in found.layers.types if way in one.added), key=lambda one: one.added[way].nats).name


def test_prefill_decoding_and_trainer_agree_in_float32(hybrid: Subject) -> None:
    found = hybrid.found(EXACT_SETUP)
    for gap in (found.gaps.decoding, found.gaps.prefill, found.gaps.engine):
        assert gap.tokens > 60
        assert 0 < gap.largest <= EXACT
    assert found.nothing_to_explain
    assert found.cause is None
    assert found.tried == []
    assert found.layers is not None
    assert [point.type for point in found.layers.points] == [EMBEDDING, "mamba", "mlp", "attention", "mlp"]
    assert found.layers.departs == {"prefill": None, "decoding": None}
    assert all(max(point.errors.values()) < 1e-5 for point in found.layers.points)
    assert "no gap" in verdict(found)


def test_a_learner_in_bfloat16_is_named_without_another_engine(hybrid: Subject) -> None:
    started = hybrid.comparison.starts
    found = hybrid.found(with_learner(EXACT_SETUP))
    assert found.gaps.decoding.mean > 100 * EXACT
    assert named(found) == "learner.bf16=false"
    assert hybrid.comparison.starts == max(1, started)
    assert found.layers is not None
    added = {point.name: point.added for point in found.layers.points}
    assert all(own["learner"] > 100 * own["decoding"] for own in added.values())


def test_states_of_mamba_layers_in_bfloat16_are_named_with_the_setting(hybrid: Subject) -> None:
    found = hybrid.found(with_extra(EXACT_SETUP, mamba_ssm_cache_dtype="bfloat16"))
    assert found.gaps.prefill.largest <= EXACT < found.gaps.decoding.mean * 10
    assert named(found) == "rollout.engine.extra.mamba_ssm_cache_dtype=float32"
    assert found.tried[0 if found.tried[0].causes[0].side == "engine" else -1].setting == named(found)
    assert most_added(found, "decoding") == "mamba"
    data = json.loads(json.dumps(to_json(found, EXACT_SETUP, model="tiny")))
    assert data["cause"]["setting"] == named(found)
    assert data["cause"]["explained"] > 0.9
    assert data["layers"]["departs"]["prefill"] is None
    assert data["layers"]["departs"]["decoding"] == "0"


def wire_in_bfloat16(setup: Setup) -> Setup:
    return replace(setup, learner=replace(setup.learner, wire_dtype="bfloat16"))


PLANTED = {
    "engine": (engine_in_bfloat16, "rollout.engine.dtype=float32"),
    "learner": (with_learner, "learner.bf16=false"),
    "wire": (wire_in_bfloat16, "learner.wire_dtype=float32"),
}
FAMILIES = {"hybrid": lambda folder: make_model(folder, SHARP, seed=0), "qwen3": tiny_models.qwen3}


@pytest.fixture(scope="module", params=FAMILIES)
def family(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Subject]:
    folder = tmp_path_factory.mktemp(request.param) / "model"
    FAMILIES[request.param](folder)
    return request.param, subject(folder)


@pytest.mark.slow
@pytest.mark.parametrize("planted", PLANTED)
def test_a_planted_precision_is_named_first(family: tuple[str, Subject], planted: str) -> None:
    plant, setting = PLANTED[planted]
    found = family[1].found(plant(EXACT_SETUP))
    assert named(found) == setting
    assert found.gaps.decoding.mean > 10 * EXACT  # a fresh Qwen 3 hardly prefers any token, so that little shows
    assert found.cause is not None
    assert found.cause.gap is not None
    assert found.cause.gap.largest <= EXACT


@pytest.mark.slow
def test_keys_and_values_in_a_type_that_the_cpu_build_computes_wrongly_with_are_refused(
    family: tuple[str, Subject],
) -> None:
    with pytest.raises(ValueError, match="kv_cache_dtype=bfloat16 beside a model in float32"):
        family[1].found(with_extra(EXACT_SETUP, kv_cache_dtype="bfloat16"))


@pytest.mark.slow
def test_two_causes_are_named_together(family: tuple[str, Subject]) -> None:
    found = family[1].found(with_learner(engine_in_bfloat16(EXACT_SETUP)))
    assert set(named(found).split()) == {"learner.bf16=false", "rollout.engine.dtype=float32"}
    assert found.cause is not None
    assert found.cause.gap is not None
    assert found.cause.gap.largest <= EXACT


@pytest.mark.slow
def test_sampling_that_cuts_the_distribution_is_named(family: tuple[str, Subject]) -> None:
    found = family[1].found(replace(EXACT_SETUP, sampling=Sampling(top_p=0.9)))
    assert found.gaps.prefill.largest <= EXACT < found.gaps.decoding.mean
    assert named(found) == "rl.sampling.top_p=1.0"


@pytest.mark.slow
def test_the_experts_of_a_mixture_are_compared(tmp_path: Path) -> None:
    one = subject(tiny_models.qwen3_moe(tmp_path / "model"))
    found = one.found(EXACT_SETUP)
    assert found.nothing_to_explain, verdict(found)
    assert found.layers is not None
    assert "expert" in {point.type for point in found.layers.points}


@pytest.mark.slow
def test_the_command_tells_what_it_finds(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make_model(tmp_path / "model", SHARP, seed=0)
    out = tmp_path / "parity.json"
    settings = ["rollout.engine.dtype=bfloat16", "rollout.engine.max_model_len=512", "rollout.limits.total_tokens=512"]
    given = ["parity", str(tmp_path / "model"), *settings, "--env", "math", "--tokens", "24", "--out", str(out)]
    assert main([*given, "--at-most", "1e-5"]) == 1
    said = capsys.readouterr().out
    assert "set rollout.engine.dtype=float32: the gap falls from" in said
    assert "what each type of layer adds" in said
    assert json.loads(out.read_text())["cause"]["setting"] == "rollout.engine.dtype=float32"


def test_a_gap_is_what_its_definition_says() -> None:
    ours, theirs = [[-1.0, -2.0], [-0.5]], [[-1.1, -2.0], [-1.5]]
    gap = between(ours, theirs)
    assert gap.tokens == 3
    assert gap.mean == pytest.approx((0.1 + 0.0 + 1.0) / 3)
    assert gap.largest == pytest.approx(1.0)
    assert gap.outside == pytest.approx(1 / 3)  # e > 2
    assert gap.k3 == pytest.approx(((math.exp(0.1) - 1.1) + 0.0 + (math.e - 2)) / 3)
    with pytest.raises(ValueError, match="1 of 2 log-probabilities are no finite numbers"):
        gap_of(np.array([0.0, math.nan]))
    with pytest.raises(ValueError, match="no tokens to compare"):
        between([], [])


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
        """Let the MLP of the first layer be wrong; all behind it goes on from there."""
        changed_1PD = hidden_1PD.clone()
        if point == "0":
            changed_1PD[0, :-1] += torch.from_numpy(error_PD)
        wrong[point] = changed_1PD[0, :-1].numpy()
        return changed_1PD

    scores = trainer.run(answer, spoil, bf16=False, points=points)
    answer = replace(answer, prefill_T=tuple(map(float, scores[prompt - 1 :])))
    found = compare_layers(trainer, Watched(answer=answer, prefill=wrong, decoding=None), bf16=False)
    added = {point.name: point.added["prefill"] for point in found.points}
    behind_P = slice(prompt - 1, None)
    size_P = np.linalg.norm(error_PD[behind_P], axis=-1) / np.linalg.norm(wrong["0"][behind_P], axis=-1)
    assert added["0"] == pytest.approx(size_P.mean(), rel=1e-3)
    assert max(value for name, value in added.items() if name != "0") < 1e-5
    assert found.departs == {"prefill": "0"}
    assert [point.errors["prefill"] > 1e-3 for point in found.points] == [False, False, True, True, True]
    nats = {kind.name: kind.added["prefill"].nats for kind in found.types}
    assert found.types[0].name == "mlp"
    assert nats["mlp"] > 1e-3
    assert max(value for name, value in nats.items() if name != "mlp") < EXACT


def test_each_setting_has_a_form_that_causes_no_gap() -> None:
    engine = EngineConfig(
        dtype="bfloat16",
        prefix_caching="on",
        speculation="ngram",
        extra={"kv_cache_dtype": "fp8", "mamba_cache_dtype": "bfloat16", "quantization": "fp8"},
    )
    given = Setup(engine=engine, learner=LearnerConfig(bf16=True, zero_stage=1))
    facts = Facts(mamba=True, experts=True, gpu=True)
    causes = [*free_causes(given), *engine_causes(given, facts, decoding_alone=False)]
    settings = [cause.setting for cause in causes]
    assert settings[:3] == ["learner.bf16=false", "learner.shared_prompts=false", "rollout.engine.dtype=float32"]
    assert len(set(settings)) == len(settings)
    assert engine_causes(given, facts, decoding_alone=True)[0].setting == "rollout.engine.extra.kv_cache_dtype=auto"
    changed = with_all(given, causes)
    assert (changed.engine.dtype, changed.engine.prefix_caching, changed.engine.speculation) == (
        "float32",
        "off",
        "off",
    )
    assert changed.engine.extra == {"kv_cache_dtype": "auto", "mamba_cache_dtype": "float32", "enforce_eager": True}
    assert (changed.learner.bf16, changed.learner.router_replay) == (False, True)
    assert free_causes(changed) == []
    assert engine_causes(changed, facts, decoding_alone=False) == []


def test_a_mistake_in_the_input_is_told_with_its_remedy(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["parity", str(tmp_path / "none")]) == 2
    assert "no model directory" in capsys.readouterr().err
    asked = tmp_path / "asked.jsonl"
    asked.write_text('{"prompt": "What is 2 + 2?"}\n{"question": 3}\n')
    with pytest.raises(ValueError, match=r"asked.jsonl:2: give .*prompt.* or .*messages"):
        file_prompts(asked, byte_tokenizer())
    asked.write_text('{"prompt": "What is 2 + 2?"}\n')
    plain = tmp_path / "asked.txt"
    plain.write_text("What is 2 + 2?\n\n")
    assert file_prompts(asked, byte_tokenizer()) == file_prompts(plain, byte_tokenizer())


def test_a_run_is_compared_with_the_settings_of_its_own_configuration(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    make_model(folder / "rl" / "model", SHARP, seed=0)
    given = ["name=run", f"runs_dir={tmp_path}", "rl.sampling.temperature=0.7", "rollout.engine.threads=2"]
    save_config(load_config(ROOT / "configs" / "demo.yaml", given), folder / "config.yaml")
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


class Rounding(EngineComparison):
    """A comparison whose engine is the trainer's own model, with noise on its log-probabilities in bfloat16."""

    def _ask(self, setup: Setup, what: str) -> Answered:
        noise = np.random.default_rng(0)
        ids = [(group, tuple(noise.integers(5, 200, 30).tolist())) for group in (0, 0, 1, 1)]
        made = [
            ScoredAnswer(group=n, prompt_ids=i[:10], sampled_ids=i[10:], decoded_T=(), sampling=PLAIN) for n, i in ids
        ]
        scores = self._trainer.scores(made, LearnerConfig())
        wide = 0.002 if setup.engine.dtype == "bfloat16" else 0.0
        said = [tuple(map(float, own + wide * noise.normal(size=len(own)))) for own in scores]
        answers = [replace(one, decoded_T=own, prefill_T=own) for one, own in zip(made, said, strict=True)]
        return Answered(answers=answers, plain=answers, watched=None, why_not="no layers", seconds=0.0)


def test_where_both_sides_round_the_two_settings_are_named_and_no_other(tmp_path: Path) -> None:
    torch.manual_seed(0)
    folder = tiny_models.qwen3(tmp_path / "model")
    one = Rounding(folder, facts_of(folder, gpu=False), [(5, 6)], tokens=20, end=0)
    found = one.diagnose(with_learner(engine_in_bfloat16(EXACT_SETUP)))
    assert named(found).split() == ["learner.bf16=false", "rollout.engine.dtype=float32"]
    assert found.cause is not None
    assert found.cause.gap is not None
    assert found.cause.gap.largest <= EXACT
