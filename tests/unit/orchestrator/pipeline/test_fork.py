"""A fork: a new run that begins at a checkpoint of another run."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from support import tiny_models
from support.event_rows import read_event_log
from support.run_folders import write_forkable_run

from temper.orchestrator.__main__ import main
from temper.orchestrator.config.supervised import SftConfig
from temper.orchestrator.evaluation.record import read_run
from temper.orchestrator.loop.buffer import BufferState
from temper.orchestrator.loop.ticket_log import Totals
from temper.orchestrator.pipeline.config import load_config, save_config
from temper.orchestrator.pipeline.continuation import check_continuation
from temper.orchestrator.pipeline.fork import fork
from temper.orchestrator.pipeline.plan import plan
from temper.orchestrator.pipeline.preview import preview, preview_of_fork
from temper.orchestrator.run.checkpoint import DamagedCheckpointError, begin, commit, verify
from temper.orchestrator.run.event_log import EventLog
from temper.orchestrator.run.folder import RunDir
from temper.orchestrator.run.loop_state import GROUPS_FILE, STATE_FILE, LoopState
from temper.orchestrator.tools.inspect.report.report import summary

DEMO = Path("configs/demo.yaml")


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return write_forkable_run(tmp_path)


def left(run: Path) -> list[str]:
    config = load_config(run / "config.yaml", [])
    steps = {one.name: config.steps(one) for one in config.instances if one.stage.trains}
    return [stage.name for stage in plan(config.instances, RunDir(run).state(), steps=steps).ahead]


def test_a_fork_goes_on_with_its_stage_and_says_where_it_comes_from(source: Path) -> None:
    config = fork(source, "rl/150", ["name=new", "rl.optim.learning_rate=1e-6", "rl.loss.advantage=grpo"])
    run = source.parent / "new"
    state = RunDir(run).state()
    assert left(run) == ["rl", "eval-rl"]
    assert (state.model, state.label, state.version) == ("checkpoints/rl/000150", "rl", 151)
    assert (state.origin["run"], state.origin["from"]) == (str(source), "rl/150")
    copy = run / "checkpoints/rl/000150"
    verify(copy)
    facts = json.loads((copy / "learner/facts.json").read_text())
    assert (
        (copy.parent / facts["start"]) / "model.safetensors"
    ).read_bytes() == f"sft {config.section(SftConfig).steps}".encode()
    assert not (run / "checkpoints/rl/000100").exists()
    (event,) = summary(read_run(run))["events"]
    assert (event["stage"], event["step"], event["kind"]) == ("rl", 150, "forked")
    assert event["what"]["from"] == "rl/150"
    assert event["what"]["rl.optim.learning_rate"] == "0.00015 -> 1e-06"
    assert event["what"]["rl.loss.advantage"] == "rloo -> grpo"
    folder = RunDir(run)
    folder.open()
    check_continuation(load_config(run / "config.yaml", []), folder)  # as in a rerun of the same command
    folder.close()


@pytest.mark.parametrize("more", [["rl.optim.learning_rate=1e-6"], ["rl.steps=150", "stages=[init,sft,eval,rl,dpo]"]])
def test_a_dry_run_of_a_fork_tells_what_the_fork_would_run_and_makes_nothing(source: Path, more: list[str]) -> None:
    checkpoint = source / "checkpoints" / "rl" / "000150"
    shutil.rmtree(checkpoint)
    begun = begin(checkpoint.parent, 150, needed_bytes=0)
    tiny_models.nemotron_h(begun)
    (begun / "learner").mkdir()
    facts = {"steps": 150, "bf16": False, "start": "../sft/000540"}
    (begun / "learner" / "facts.json").write_text(json.dumps(facts))
    commit(begun)
    given = ["name=new", *more]
    before = sorted(path for path in source.parent.rglob("*"))
    found = preview_of_fork(source, "rl/150", given)
    assert sorted(path for path in source.parent.rglob("*")) == before
    assert "rl.optim.learning_rate" in found.changed or "rl.steps" in found.changed
    fork(source, "rl/150", given)
    made = preview(load_config(source.parent / "new" / "config.yaml", []))
    assert found.stages == made.stages
    assert (found.run, found.exists, made.exists) == (made.run, False, True)
    assert (found.ranks, found.engines, found.notes) == (made.ranks, made.engines, made.notes)


def test_a_fork_with_as_many_steps_as_its_checkpoint_begins_the_next_stage(source: Path) -> None:
    fork(source, "rl", ["name=new", "rl.steps=150", "stages=[init,sft,eval,rl,dpo,eval]", "rl.optim.kind=muon"])
    assert left(source.parent / "new") == ["dpo", "eval-dpo"]
    fork(source, "sft", ["name=other", "stages=[init,sft,dpo]"])
    assert left(source.parent / "other") == ["dpo"]
    assert RunDir(source.parent / "other").state().began == {"sft": "checkpoints/init/000000"}
    (event,) = summary(read_run(source.parent / "other"))["events"]
    assert set(event["what"]) == {"run", "from", "manifest", "stages"}


@pytest.mark.parametrize(
    ("at", "overrides", "said"),
    [
        ("rl/120", [], "rl/120.* sft/.*, rl/100, rl/150"),
        ("dpo", [], "dpo"),
        ("rl/150", ["rl.steps=120"], "rl.steps=120 .*150 "),
        ("rl/150", ["stages=[init,sft]"], "stages .*rl"),
        (
            "rl/150",
            ["model.fresh.hidden_size=64"],
            "model.fresh.hidden_size: 128 -> 64",
        ),
        (
            "rl/150",
            ["rl.optim.kind=muon"],
            "rl.optim.kind: adamw -> muon.* rl.steps=150",
        ),
        ("rl/150", ["learner.lora.rank=8"], "learner.lora.rank"),
        ("rl/150", ["name=old"], "old"),
    ],
)
def test_a_fork_that_can_not_be_is_refused_with_the_reason(
    source: Path, at: str, overrides: list[str], said: str
) -> None:
    with pytest.raises(ValueError, match=said):
        fork(source, at, ["name=new", *overrides])
    assert not (source.parent / "new").exists()


@pytest.mark.parametrize(
    ("override", "kept"),
    [("rl.timeout_s=9", True), ("rl.optim.learning_rate=1e-6", True), ("rl.shares.math=3", False)]
    + [("envs.math.level=2", False), ("rollout.limits.turn_tokens=90", False)],
)
def test_a_fork_keeps_the_answers_that_its_stage_trains_on_unless_they_are_sampled_with_other_settings(
    source: Path, override: str, kept: bool
) -> None:
    RunDir(source).answers_file("rl").write_text("{}\n")
    fork(source, "rl/150", ["name=new", override])
    assert RunDir(source.parent / "new").answers_file("rl").exists() == kept


def test_a_fork_needs_no_model_directory_that_its_source_began_with(source: Path, tmp_path: Path) -> None:
    folder = RunDir(source)
    state = folder.state()
    folder.store(
        replace(state, fingerprint=state.fingerprint | {"model.path": "9 bytes, SHA-256 of the list of files 00"})
    )
    config = load_config(source / "config.yaml", [f"model.path={tmp_path}/gone"])
    save_config(config, folder.config)
    fork(source, "rl/150", ["name=new"])
    assert left(source.parent / "new") == ["rl", "eval-rl"]


def test_a_fork_of_a_damaged_checkpoint_is_refused(source: Path) -> None:
    (source / "checkpoints/rl/000150/model.safetensors").write_bytes(b"rl 151")
    with pytest.raises(DamagedCheckpointError, match="model.safetensors"):
        fork(source, "rl/150", ["name=new"])
    assert not (source.parent / "new").exists()


def test_the_command_line_names_what_a_fork_lacks(source: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["fork", str(source), "--from", "rl/150", "rl.steps=200"]) == 2
    assert "name=" in capsys.readouterr().err
    assert main(["fork", str(source.parent), "--from", "rl/150", "name=new"]) == 2
    assert str(source.parent) in capsys.readouterr().err


@pytest.mark.parametrize(
    ("changed", "kept"), [("rl.optim.learning_rate=1e-6", "a group"), ("rollout.limits.turn_tokens=64", "")]
)
def test_a_fork_takes_the_event_log_of_its_stages_along_and_groups_that_its_settings_would_make_too(
    source: Path, changed: str, kept: str
) -> None:
    folder = RunDir(source)
    for name, rows in (("distill", 1), ("rl", 5)):
        event_log = EventLog(folder.event_log, name)
        for number in range(rows):
            event_log.add("dropped", {"ticket": number, "why": "zero_advantage"})
    directory = begin(folder.checkpoints("rl"), 150, needed_bytes=0)
    shutil.copytree(folder.checkpoints("rl") / "000150", directory, dirs_exist_ok=True)
    state = LoopState(
        buffer=BufferState(next_ticket=0, totals=Totals(), tickets=()),
        mixture={},
        failures={},
        version=150,
        event_rows=3,
    )
    (directory / STATE_FILE).write_text(state.to_text())
    (directory / GROUPS_FILE).write_text("a group")
    commit(directory)
    fork(source, "rl/150", ["name=new", changed])
    new = RunDir(source.parent / "new")
    assert [(row.stage, row.ticket) for row in read_event_log(new.event_log)] == [("rl", 0), ("rl", 1), ("rl", 2)]
    assert (new.checkpoints("rl") / "000150" / GROUPS_FILE).read_text() == kept
