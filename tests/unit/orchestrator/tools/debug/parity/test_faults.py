"""Parity where something goes wrong: prompts without room, brackets in faults, recorders, and rounded weights."""

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
from temper.orchestrator.tools.debug.parity import comparison
from temper.orchestrator.tools.debug.parity.answers import Answered, ScoredAnswer
from temper.orchestrator.tools.debug.parity.comparison import Comparison, GapRow, compare, variants
from temper.orchestrator.tools.debug.parity.gap import gap_of
from temper.orchestrator.tools.debug.parity.prompts import require_room
from temper.orchestrator.tools.debug.parity.report import tables
from temper.orchestrator.tools.debug.parity.setup import Setup
from temper.rollout.engines.config import EngineConfig
from temper.rollout.engines.runners.layer_recorder import LayerRecorder
from temper.rollout.engines.vllm_worker import WorkerExtension
from temper.rollout.sampling import PLAIN
from temper.rollout.weights.manifest import wire_dtype


def test_brackets_of_names_are_shown_whole() -> None:
    gap = gap_of(np.full(10, 0.1))
    row = GapRow(setting="learner.[/b]=1", decoding=gap, prefill=gap)
    found = Comparison(rows=(row,), engine=gap, layers=None, why_no_layers="none [seen]", seconds=1.0)
    console = Console(width=200, highlight=False)
    with console.capture() as said:
        console.print(tables(found, model="models/[/x]"))
    for text in ("learner.[/b]=1", "models/[/x]: log-probabilities", "none [seen]"):
        assert text in said.get()


@pytest.mark.parametrize(
    ("learner", "engine", "settings"),
    [
        (LearnerConfig(shared_prompts=False), "float32", []),
        (LearnerConfig(bf16=True, zero_stage=1), "float32", ["learner.bf16=false", "learner.shared_prompts=false"]),
        (LearnerConfig(shared_prompts=False), "bfloat16", ["learner.bf16=true learner.zero_stage=1"]),
    ],
)
def test_settings_of_the_learner_are_tried(learner: LearnerConfig, engine: str, settings: list[str]) -> None:
    setup = Setup(engine=EngineConfig(dtype=engine), learner=learner)  # type: ignore[arg-type]
    assert [setting for setting, _ in variants(setup)] == settings


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


def test_an_engine_gets_the_weights_as_they_travel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tiny_models.qwen3(tmp_path / "model")
    own, given = load_file(folder / "model.safetensors"), dict[str, Path]()

    def ask(model: Path, setup: Setup, *_prompts: object, **_how: object) -> Answered:
        given[setup.learner.wire_dtype] = model
        dtype = wire_dtype(setup.learner.wire_dtype)
        weights = load_file(model / "model.safetensors")
        assert weights.keys() == own.keys()
        assert all(torch.equal(weights[name], own[name].to(dtype).float()) for name in own)
        assert (model / "config.json").read_bytes() == (folder / "config.json").read_bytes()
        one = ScoredAnswer(group=0, prompt_ids=(5, 6), sampled_ids=(7, 8), decoded_T=(-1.0, -1.0), sampling=PLAIN)
        answers = [replace(one, prefill_T=one.decoded_T)]
        return Answered(answers=answers, plain=answers, watched=None, why_not="no layers")

    monkeypatch.setattr(comparison, "ask", ask)
    for wire in ("bfloat16", "float32"):
        learner = LearnerConfig(wire_dtype=wire, shared_prompts=False)
        setup = Setup(engine=EngineConfig(max_model_len=512), learner=learner)
        assert len(compare(folder, setup, [(5, 6)], tokens=2, end=0).rows) == 1
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
