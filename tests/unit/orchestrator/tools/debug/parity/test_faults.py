"""Parity where something goes wrong, or nothing does: faults of engines and of passes, chance, and starts that are bounded."""

import math
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from rich.console import Console
from safetensors.torch import load_file
from support import tiny_models

from temper.learner.config import LearnerConfig
from temper.orchestrator.tools.debug.parity import search
from temper.orchestrator.tools.debug.parity.answers import Answered, ScoredAnswer
from temper.orchestrator.tools.debug.parity.causes import Cause
from temper.orchestrator.tools.debug.parity.gap import Gap, gap_of
from temper.orchestrator.tools.debug.parity.prompts import require_room
from temper.orchestrator.tools.debug.parity.report import tables, verdict
from temper.orchestrator.tools.debug.parity.search import EngineComparison, GapDiagnosis, Gaps, Tried
from temper.orchestrator.tools.debug.parity.setup import Facts, Setup
from temper.rollout.engines.config import EngineConfig
from temper.rollout.engines.runners.layer_recorder import LayerRecorder
from temper.rollout.engines.vllm_worker import WorkerExtension
from temper.rollout.sampling import PLAIN
from temper.rollout.weights.manifest import wire_dtype

SETUP = Setup(engine=EngineConfig(max_model_len=512, dtype="bfloat16"), learner=LearnerConfig(bf16=True, zero_stage=1))
FACTS = Facts(mamba=True, experts=True, gpu=True)
WIDE = 0.11
"""Deviation of the mean gap over its mean, from one engine's answers to another's."""


def change(name: str) -> Cause:
    return Cause(name=name, setting=f"rollout.engine.{name}=1", side="engine", change=lambda setup: setup)


def diagnosis(gap: Gap, tried: list[Tried]) -> GapDiagnosis:
    gaps = Gaps(decoding=gap, prefill=gap, engine=gap)
    return GapDiagnosis(gaps=gaps, layers=None, why_no_layers="none [seen]", tried=tried)


def sampled_gap(noise: np.random.Generator) -> Gap:
    """The gap of one engine's answers, which nothing but chance tells from another's: heavy-tailed, 12 answers of 64 tokens."""
    return gap_of(noise.lognormal(mean=-5.0, sigma=1.5, size=(12, 64)).ravel())


def test_changes_that_do_nothing_are_named_in_one_diagnosis_of_twenty_at_the_most() -> None:
    noise = np.random.default_rng(0)
    means = [sampled_gap(noise).mean for _ in range(400)]
    assert np.std(means) / np.mean(means) == pytest.approx(WIDE, rel=0.2)
    idle = [change(name) for name in "abcd"]
    named = 0
    for _ in range(400):
        tried = [Tried(causes=(cause,), gap=sampled_gap(noise)) for cause in idle]
        named += diagnosis(sampled_gap(noise), tried).cause is not None
    assert named <= 20


def test_a_fall_that_chance_may_be_is_told_as_such_and_a_clear_one_is_named() -> None:
    base = gap_of(np.full(10, 0.1))
    slight, clear = (
        Tried(causes=(change(name),), gap=gap_of(np.full(10, size))) for name, size in (("a", 0.08), ("b", 0.04))
    )
    said = verdict(diagnosis(base, [slight]))
    assert said.startswith("no setting that was tried explains the gap")
    assert "at the most 20%, by rollout.engine.a=1, which chance may be" in said
    assert diagnosis(base, [slight, clear]).cause is clear


def test_a_fault_with_brackets_is_told_whole() -> None:
    fault = "OSError: no file in [/models/x] [type=value_error]"
    found = diagnosis(gap_of(np.full(10, 0.1)), [Tried(causes=(change("a"),), gap=None, fault=fault)])
    console = Console(width=200, highlight=False)
    with console.capture() as said:
        console.print(tables(replace(found, untried=[change("[/b]")]), model="models/[/x]"))
    for text in (fault, "rollout.engine.[/b]=1", "models/[/x]: log-probabilities", "none [seen]"):
        assert text in said.get()


class Noted(EngineComparison):
    """A comparison whose trainer finds the scores of `scores`."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, FACTS, [(5, 6)], tokens=4, end=0)
        self.scored = SimpleNamespace(scores=self.scores, release=lambda: None)
        self._trainer = self.scored  # type: ignore[assignment]

    def scores(self, answers: list[ScoredAnswer], learner: LearnerConfig) -> list[list[float]]:
        return [[-1.0] * 4 for _ in answers]


def answered() -> Answered:
    one = ScoredAnswer(group=0, prompt_ids=(5, 6), sampled_ids=(7, 8, 9, 9), decoded_T=(-1.1,) * 4, sampling=PLAIN)
    one = replace(one, prefill_T=one.decoded_T)
    return Answered(answers=[one], plain=[one], watched=None, why_not="no layers", seconds=0.0)


def test_engines_that_fail_count_as_starts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Setup] = []

    def ask(_model: Path, setup: Setup, *_prompts: object, **_how: object) -> Answered:
        asked.append(setup)
        if len(asked) > 1:
            raise RuntimeError("an engine failed")
        return answered()

    monkeypatch.setattr(search, "ask", ask)
    found = Noted(tmp_path).diagnose(SETUP, starts=3)
    assert len(asked) == found.starts == 3
    assert [one.fault for one in found.tried if one.gap is None] == ["RuntimeError: an engine failed"] * 2
    assert found.untried


def test_a_pass_that_fails_with_a_changed_setting_is_told_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Overflowing(Noted):
        def scores(self, answers: list[ScoredAnswer], learner: LearnerConfig) -> list[list[float]]:
            return [[-1.0 if learner.bf16 else math.nan] * 4 for _ in answers]

    monkeypatch.setattr(search, "ask", lambda *_args, **_how: answered())
    found = Overflowing(tmp_path).diagnose(SETUP, starts=2)
    assert found.tried[0].setting == "learner.bf16=false"
    assert found.tried[0].gap is None
    assert "no finite numbers" in found.tried[0].fault
    assert len(found.tried) > 1


def test_no_combination_is_measured_twice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Tries(Noted):
        def _try(self, setup: Setup, causes: tuple[Cause, ...], way: str) -> Tried:
            self.tries = [*getattr(self, "tries", []), " ".join(cause.setting for cause in causes)]
            return super()._try(setup, causes, way)

    monkeypatch.setattr(search, "ask", lambda *_args, **_how: answered())
    one = Tries(tmp_path)
    one._facts = Facts(mamba=False, experts=False, gpu=False)
    engine = replace(SETUP.engine, prefix_caching="off", speculation="off")
    found = one.diagnose(replace(SETUP, engine=engine, learner=replace(SETUP.learner, shared_prompts=False)))
    settings = [tried.setting for tried in found.tried]
    assert settings[-1] == "learner.bf16=false rollout.engine.dtype=float32"
    assert len(set(settings)) == len(settings)
    assert len(set(one.tries)) == len(one.tries)


def test_a_prompt_and_its_answer_leave_room_for_the_token_that_scoring_takes() -> None:
    require_room([(5,) * 447], tokens=64, longest=512)
    with pytest.raises(ValueError, match="a prompt of 448 tokens and --tokens 64 leave no token"):
        require_room([(5,) * 448], tokens=64, longest=512)


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


def test_a_gap_to_prefill_alone_is_searched_by_its_own_size_and_not_by_the_noise_of_decoding(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    noise = [3e-6, 1e-7]  # of decoding, as configured and with the learner in float32: float32 explains both

    class Within(Noted):
        def scores(self, answers: list[ScoredAnswer], learner: LearnerConfig) -> list[list[float]]:
            return [[-1.0 + noise[not learner.bf16]] * 4 for _ in answers]

    one = ScoredAnswer(group=0, prompt_ids=(5, 6), sampled_ids=(7, 8, 9, 9), decoded_T=(-1.0,) * 4, sampling=PLAIN)
    one = replace(one, prefill_T=(-1.2,) * 4)
    given = Answered(answers=[one], plain=[one], watched=None, why_not="no layers", seconds=0.0)
    monkeypatch.setattr(search, "ask", lambda *_args, **_how: given)
    found = Within(tmp_path).diagnose(SETUP, starts=4)
    assert found.way == "prefill"
    assert found.tried
    assert all(tried.gap is not None and tried.gap.mean == pytest.approx(0.2, rel=1e-3) for tried in found.tried)
    assert found.cause is None
    assert verdict(found).startswith("no setting that was tried explains the gap to prefill of 2.00e-01 nats")

    class Mended(Noted):
        def scores(self, answers: list[ScoredAnswer], learner: LearnerConfig) -> list[list[float]]:
            return [[-1.0 - 2e-6] * 4 for _ in answers]

    def ask(_model: Path, setup: Setup, *_prompts: object, **_how: object) -> Answered:
        exact = replace(one, prefill_T=one.decoded_T)
        return replace(given, plain=[exact]) if setup.engine.dtype == "float32" else given

    monkeypatch.setattr(search, "ask", ask)
    mended = Mended(tmp_path).diagnose(SETUP, starts=20)
    assert mended.cause is not None
    assert "rollout.engine.dtype=float32" in mended.cause.setting
    assert "the gap to prefill falls from 2.00e-01 to 2.00e-06 nats" in verdict(mended)


def test_no_gap_is_told_with_the_larger_difference_of_both() -> None:
    decoding, prefill = (gap_of(np.full(4, size)) for size in (2e-6, 8e-6))
    found = replace(diagnosis(decoding, []), gaps=Gaps(decoding=decoding, prefill=prefill, engine=prefill))
    assert verdict(found).startswith("no gap: of 4 tokens none differs by more than 8.0e-06 nats")


def test_an_engine_is_asked_with_the_weights_as_they_travel_and_the_type_that_rounds_them_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tiny_models.qwen3(tmp_path / "model")
    own, given = load_file(folder / "model.safetensors"), dict[str, Path]()

    def ask(model: Path, setup: Setup, *_prompts: object, **_how: object) -> Answered:
        given[setup.learner.wire_dtype] = model
        dtype = wire_dtype(setup.learner.wire_dtype)
        weights = load_file(model / "model.safetensors")
        assert weights.keys() == own.keys()
        assert all(torch.equal(weights[name], own[name].to(dtype).float()) for name in own)
        assert (model / "config.json").read_bytes() == (folder / "config.json").read_bytes()
        rounded = any(not torch.equal(weights[name], own[name]) for name in own)
        one = answered().plain[0]
        said = one.decoded_T if rounded else (-1.0,) * 4
        answers = [replace(one, decoded_T=said, prefill_T=said)]
        return replace(answered(), answers=answers, plain=answers)

    monkeypatch.setattr(search, "ask", ask)
    one = Noted(folder)
    one._facts = Facts(mamba=False, experts=False, gpu=False)
    learner = LearnerConfig(wire_dtype="bfloat16", shared_prompts=False)
    found = one.diagnose(Setup(engine=EngineConfig(max_model_len=512), learner=learner))
    assert found.cause is not None
    assert found.cause.setting == "learner.wire_dtype=float32"
    assert found.gap.mean == pytest.approx(0.1)
    assert given["float32"] == folder
    assert not given["bfloat16"].exists()


@pytest.mark.parametrize(
    ("learner", "engine", "rounds"),
    [
        (LearnerConfig(), "float32", False),
        (LearnerConfig(wire_dtype="bfloat16"), "float32", True),
        (LearnerConfig(wire_dtype="bfloat16"), "bfloat16", False),
        (LearnerConfig(wire_dtype="bfloat16", bf16=True, zero_stage=1), "float32", False),
        (LearnerConfig(wire_dtype="float16", bf16=True, zero_stage=1), "bfloat16", True),
    ],
)
def test_a_push_rounds_where_it_is_lower_than_both_ends(learner: LearnerConfig, engine: str, rounds: bool) -> None:
    setup = Setup(engine=EngineConfig(max_model_len=512, dtype=engine), learner=learner)  # type: ignore[arg-type]
    assert setup.wire_rounds is rounds
