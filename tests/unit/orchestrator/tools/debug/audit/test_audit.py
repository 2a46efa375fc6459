"""The audit of a run: what agrees is left alone, and each inconsistency that is planted is found where it is."""

import json
import math
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.accounted_run import EVERY, Past, accounted_run

from temper.orchestrator.__main__ import main
from temper.orchestrator.pipeline.finding import Finding
from temper.orchestrator.run.checkpoint import MANIFEST, file_sha256
from temper.orchestrator.run.folder import RunDir, RunState, write_json
from temper.orchestrator.run.metrics_log import MetricsLog
from temper.orchestrator.tools.debug.audit.audit import audit, failures


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return accounted_run(tmp_path_factory.mktemp("sound") / "run").root


@pytest.fixture
def folder(sound: Path, tmp_path: Path) -> RunDir:
    """A run in which everything agrees, to plant something in."""
    return RunDir(Path(shutil.copytree(sound, tmp_path / "run")))


def findings(folder: RunDir) -> list[Finding]:
    return failures(folder)


def rows(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def first(path: Path, **wanted: Any) -> int:
    """The number of the first line with these values."""
    return next(n for n, row in enumerate(rows(path), 1) if all(row.get(k) == v for k, v in wanted.items()))


def change(path: Path, line: int, *new: dict[str, Any] | str) -> None:
    """Put other lines in the place of one."""
    lines = path.read_text().splitlines()
    lines[line - 1 : line] = [one if isinstance(one, str) else json.dumps(one) for one in new]
    path.write_text("".join(one + "\n" for one in lines))


def test_a_run_that_was_killed_and_continued_is_sound(folder: RunDir) -> None:
    (rl,) = audit(folder)
    assert (rl.level.value, rl.where) == ("ok", "rl")
    for part in ("20 steps", "60 trained", "4 files", "checkpoints 15, 20"):
        assert part in rl.what


@pytest.mark.parametrize("until", [3, 5, 7, 10])
def test_a_run_that_was_killed_or_works_is_sound_at_every_point(tmp_path: Path, until: int) -> None:
    folder = RunDir(tmp_path)
    folder.store(RunState(model="model"))
    Past(tmp_path).steps(until)
    assert findings(folder) == []
    with folder.ledger.open("a") as ledger:
        ledger.write('{"stage": "rl", "ev')
    if until % EVERY:  # the last step is not measured yet
        lines = folder.metrics.read_text().splitlines(keepends=True)
        folder.metrics.write_text("".join(lines[:-1]) + lines[-1][:20])
    assert findings(folder) == []


def ledger_line(event: str) -> Callable[[RunDir], int]:
    """The line of an event in step 18 or later, when nothing that follows is cut back."""

    def find(folder: RunDir) -> int:
        lines = rows(folder.ledger)
        start = first(folder.ledger, event="step", step=17)
        found = [n for n, row in enumerate(lines, 1) if n > start and row["event"] == event]
        return found[0]

    return find


Planted = tuple[str, dict[str, Any]]
"""The file, and the line, step and ticket that the finding names."""


def lose_a_trained_row(folder: RunDir) -> Planted:
    line = ledger_line("trained")(folder)
    change(folder.ledger, line)
    step = first(folder.ledger, event="step", step=18)
    return "ledger.jsonl", {"line": step, "step": 18, "stage": "rl"}


def train_twice(folder: RunDir) -> Planted:
    line = ledger_line("trained")(folder)
    row = rows(folder.ledger)[line - 1]
    change(folder.ledger, line, row, row)
    return "ledger.jsonl", {"line": line + 1, "ticket": row["ticket"]}


def train_again_in_a_later_step(folder: RunDir) -> Planted:
    old, line = rows(folder.ledger)[first(folder.ledger, event="trained") - 1], ledger_line("trained")(folder)
    row = rows(folder.ledger)[line - 1]
    change(folder.ledger, line, row | {"ticket": old["ticket"]})
    return "ledger.jsonl", {"line": line, "ticket": old["ticket"]}


def admit_twice(folder: RunDir) -> Planted:
    line = ledger_line("admitted")(folder)
    row = rows(folder.ledger)[line - 1]
    change(folder.ledger, line, row, row)
    return "ledger.jsonl", {"line": line + 1, "ticket": row["ticket"]}


def forget_an_admission(folder: RunDir) -> Planted:
    line = ledger_line("admitted")(folder)
    row = rows(folder.ledger)[line - 1]
    change(folder.ledger, line)
    return "ledger.jsonl", {"ticket": row["ticket"]}


def consume_a_task_twice(folder: RunDir) -> Planted:
    line = ledger_line("admitted")(folder)
    row = rows(folder.ledger)[line - 1]
    change(folder.ledger, line, row | {"index": row["index"] - 1})
    return "ledger.jsonl", {"line": line, "ticket": row["ticket"]}


def skip_a_task(folder: RunDir) -> Planted:
    line = ledger_line("admitted")(folder)
    row = rows(folder.ledger)[line - 1]
    change(folder.ledger, line, row | {"index": row["index"] + 1})
    return "ledger.jsonl", {"line": line, "ticket": row["ticket"]}


def finish_after_the_end(folder: RunDir) -> Planted:
    line = ledger_line("trained")(folder)
    row = rows(folder.ledger)[line - 1]
    finished = rows(folder.ledger)[first(folder.ledger, event="finished", ticket=row["ticket"]) - 1]
    change(folder.ledger, line, row, finished)
    return "ledger.jsonl", {"line": line + 1, "ticket": row["ticket"]}


def finish_twice(folder: RunDir) -> Planted:
    line = ledger_line("finished")(folder)
    row = rows(folder.ledger)[line - 1]
    change(folder.ledger, line, row, row)
    return "ledger.jsonl", {"line": line + 1, "ticket": row["ticket"]}


def train_what_is_not_finished(folder: RunDir) -> Planted:
    row = rows(folder.ledger)[ledger_line("trained")(folder) - 1]
    change(folder.ledger, first(folder.ledger, event="finished", ticket=row["ticket"]))
    line = first(folder.ledger, event="trained", ticket=row["ticket"])
    return "ledger.jsonl", {"line": line, "ticket": row["ticket"]}


def train_in_another_step(folder: RunDir) -> Planted:
    line = ledger_line("trained")(folder)
    row = rows(folder.ledger)[line - 1]
    change(folder.ledger, line, row | {"step": row["step"] + 1})
    return "ledger.jsonl", {"line": line, "ticket": row["ticket"], "step": row["step"] + 1}


def tell_wrong_totals(folder: RunDir) -> Planted:
    line = first(folder.ledger, event="step", step=18)
    row = rows(folder.ledger)[line - 1]
    change(folder.ledger, line, row | {"dropped": row["dropped"] + 1})
    return "ledger.jsonl", {"line": line, "step": 18}


def lose_a_ticket(folder: RunDir) -> Planted:
    line = first(folder.ledger, event="step", step=18)
    row = rows(folder.ledger)[line - 1]
    change(folder.ledger, line, row | {"in_flight": row["in_flight"] - 1, "issued": row["issued"] - 1})
    return "ledger.jsonl", {"line": line, "step": 18}


def skip_a_step_of_the_ledger(folder: RunDir) -> Planted:
    line = first(folder.ledger, event="step", step=18)
    change(folder.ledger, line)
    return "ledger.jsonl", {"step": 19, "line": first(folder.ledger, event="step", step=19)}


def break_a_line_of_the_ledger(folder: RunDir) -> Planted:
    change(folder.ledger, 7, '{"stage": "rl"')
    return "ledger.jsonl", {"line": 7}


def lose_the_ledger(folder: RunDir) -> Planted:
    folder.ledger.unlink()
    return "ledger.jsonl", {"stage": "rl"}


def measure_a_step_twice(folder: RunDir) -> Planted:
    line = first(folder.metrics, step=18)
    row = rows(folder.metrics)[line - 1]
    change(folder.metrics, line, row, row)
    return "metrics.jsonl", {"line": line + 1, "step": 18}


def skip_a_step_of_the_metrics(folder: RunDir) -> Planted:
    change(folder.metrics, first(folder.metrics, step=18))
    return "metrics.jsonl", {"line": first(folder.metrics, step=19), "step": 19}


def lose_the_last_step_of_the_metrics(folder: RunDir) -> Planted:
    change(folder.metrics, first(folder.metrics, step=20))
    return "metrics.jsonl", {"step": 20}


def break_a_line_of_the_metrics(folder: RunDir) -> Planted:
    change(folder.metrics, 3, "half a line")
    return "metrics.jsonl", {"line": 3}


def measure_other_groups(folder: RunDir) -> Planted:
    line = first(folder.metrics, step=18)
    row = rows(folder.metrics)[line - 1]
    change(folder.metrics, line, row | {"env/math/groups_trained": row["env/math/groups_trained"] + 1})
    return "metrics.jsonl", {"line": line, "step": 18}


def measure_other_drops(folder: RunDir) -> Planted:
    line = first(folder.metrics, step=18)
    row = rows(folder.metrics)[line - 1]
    change(folder.metrics, line, row | {"rollout/dropped_no_signal": 7})
    return "metrics.jsonl", {"line": line, "step": 18}


def lose_a_file_of_trajectories(folder: RunDir) -> Planted:
    folder.trajectory_file("rl", 10).unlink()
    return "trajectories/rl-10.jsonl", {"step": 10}


def lose_a_group_of_trajectories(folder: RunDir) -> Planted:
    path = folder.trajectory_file("rl", 10)
    ticket = rows(path)[0]["ticket"]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows(path) if row["ticket"] != ticket))
    return "trajectories/rl-10.jsonl", {"step": 10, "ticket": ticket}


def lose_one_trajectory(folder: RunDir) -> Planted:
    path = folder.trajectory_file("rl", 10)
    ticket = rows(path)[1]["ticket"]
    change(path, 2)
    return "trajectories/rl-10.jsonl", {"step": 10, "ticket": ticket}


def write_trajectories_of_another_group(folder: RunDir) -> Planted:
    path = folder.trajectory_file("rl", 10)
    other = rows(folder.trajectory_file("rl", 5))[0]
    change(path, 1, rows(path)[0], other)
    return "trajectories/rl-10.jsonl", {"line": 2, "step": 10, "ticket": other["ticket"]}


def break_a_line_of_trajectories(folder: RunDir) -> Planted:
    path = folder.trajectory_file("rl", 10)
    change(path, 1, "{}", rows(path)[0])
    return "trajectories/rl-10.jsonl", {"line": 1, "step": 10}


def leave_trajectories_of_no_step(folder: RunDir) -> Planted:
    shutil.copy(folder.trajectory_file("rl", 20), folder.trajectory_file("rl", 30))
    return "trajectories/rl-30.jsonl", {"step": 30}


def damage_a_checkpoint(folder: RunDir) -> Planted:
    (folder.checkpoints("rl") / "000015" / "model.safetensors").write_bytes(b"WEIGHTS")
    return "checkpoints/rl/000015", {"step": 15}


def sealed(directory: Path, name: str, text: str) -> None:
    """Write a file of a checkpoint so that its manifest agrees."""
    file = directory / name
    file.write_text(text)
    manifest = json.loads((directory / MANIFEST).read_text())
    manifest["files"][name] = {"bytes": file.stat().st_size, "sha256": file_sha256(file)}
    (directory / MANIFEST).write_text(json.dumps(manifest))


def with_state(folder: RunDir, change_it: Callable[[dict[str, Any]], None]) -> None:
    """Change what the checkpoint of step 15 says of the loop."""
    directory = folder.checkpoints("rl") / "000015"
    state = json.loads((directory / "loop.json").read_text())
    change_it(state)
    sealed(directory, "loop.json", json.dumps(state))


def put_a_group_that_is_not_finished_into_a_checkpoint(folder: RunDir) -> Planted:
    state = json.loads((folder.checkpoints("rl") / "000015" / "loop.json").read_text())
    open_ticket = state["buffer"]["tickets"][0]["number"]
    sealed(folder.checkpoints("rl") / "000015", "groups.jsonl", json.dumps({"ticket": open_ticket}) + "\n")
    return "checkpoints/rl/000015/groups.jsonl", {"line": 1, "step": 15, "ticket": open_ticket}


def put_episodes_of_a_trained_ticket_into_a_checkpoint(folder: RunDir) -> Planted:
    sealed(folder.checkpoints("rl") / "000015", "episodes.jsonl", json.dumps({"ticket": 0}) + "\n")
    return "checkpoints/rl/000015/episodes.jsonl", {"line": 1, "step": 15, "ticket": 0}


def lose_a_ticket_of_a_checkpoint(folder: RunDir) -> Planted:
    lost: list[int] = []
    with_state(folder, lambda state: lost.append(state["buffer"]["tickets"].pop(0)["number"]))
    return "checkpoints/rl/000015/loop.json", {"step": 15, "ticket": lost[0]}


def put_a_trained_ticket_into_a_checkpoint(folder: RunDir) -> Planted:
    with_state(folder, lambda state: state["buffer"]["tickets"].append({"number": 0}))
    return "checkpoints/rl/000015/loop.json", {"step": 15, "ticket": 0}


def give_a_checkpoint_more_rows_than_there_are(folder: RunDir) -> Planted:
    with_state(folder, lambda state: state.update(ledger_rows=10**6))
    return "checkpoints/rl/000015/loop.json", {"step": 15}


def give_a_checkpoint_the_rows_of_another_step(folder: RunDir) -> Planted:
    row = first(folder.ledger, event="step", step=12)
    with_state(folder, lambda state: state.update(ledger_rows=row))
    return "checkpoints/rl/000015/loop.json", {"step": 15}


def give_a_checkpoint_another_format(folder: RunDir) -> Planted:
    with_state(folder, lambda state: state.pop("format"))
    return "checkpoints/rl/000015/loop.json", {"step": 15}


def leave_a_checkpoint_of_no_step(folder: RunDir) -> Planted:
    shutil.copytree(folder.checkpoints("rl") / "000020", folder.checkpoints("rl") / "000025")
    return "checkpoints/rl/000025", {"step": 25}


PLANTS = [
    lose_a_trained_row,
    train_twice,
    train_again_in_a_later_step,
    admit_twice,
    forget_an_admission,
    consume_a_task_twice,
    skip_a_task,
    finish_after_the_end,
    finish_twice,
    train_what_is_not_finished,
    train_in_another_step,
    tell_wrong_totals,
    lose_a_ticket,
    skip_a_step_of_the_ledger,
    break_a_line_of_the_ledger,
    lose_the_ledger,
    measure_a_step_twice,
    skip_a_step_of_the_metrics,
    lose_the_last_step_of_the_metrics,
    break_a_line_of_the_metrics,
    measure_other_groups,
    measure_other_drops,
    lose_a_file_of_trajectories,
    lose_a_group_of_trajectories,
    lose_one_trajectory,
    write_trajectories_of_another_group,
    break_a_line_of_trajectories,
    leave_trajectories_of_no_step,
    damage_a_checkpoint,
    lose_a_ticket_of_a_checkpoint,
    put_a_trained_ticket_into_a_checkpoint,
    give_a_checkpoint_more_rows_than_there_are,
    give_a_checkpoint_the_rows_of_another_step,
    give_a_checkpoint_another_format,
    leave_a_checkpoint_of_no_step,
    put_a_group_that_is_not_finished_into_a_checkpoint,
    put_episodes_of_a_trained_ticket_into_a_checkpoint,
]


@pytest.mark.parametrize("plant", PLANTS, ids=lambda plant: plant.__name__)
def test_what_is_planted_is_found_where_it_is(folder: RunDir, plant: Callable[[RunDir], Planted]) -> None:
    file, told = plant(folder)
    found = findings(folder)
    line = f":{told['line']}" if "line" in told else ""
    about = {f"ticket {told['ticket']} "} if "ticket" in told else set()
    matching = [one for one in found if one.where.startswith(file + line) and all(text in one.what for text in about)]
    assert matching, "\n".join(map(str, found))


def test_trajectories_that_are_told_to_be_unwritten_or_came_before_a_restart_are_no_fault(folder: RunDir) -> None:
    folder.trajectory_file("rl", 10).unlink()
    event = {"kind": "unwritten", "what": {"rl-10.jsonl": "No space left on device"}}
    change(folder.metrics, 10, rows(folder.metrics)[9], {"stage": "rl", "step": 10, "time": 1.0, "event": event})
    assert findings(folder) == []


def test_how_often_answers_are_kept_may_change_and_counts_from_there_on(folder: RunDir) -> None:
    """Every 10 steps up to step 10, as runs that do not say it; every 4 from there on."""
    event = {"kind": "changed", "what": {"checkpoints.trajectories_every": ["10", "4"]}}
    change(folder.metrics, 10, rows(folder.metrics)[9], {"stage": "rl", "step": 10, "time": 1.0, "event": event})
    folder.store(replace(folder.state(), fingerprint={"checkpoints.trajectories_every": "4"}))
    assert [one.where for one in findings(folder)] == [f"trajectories/rl-{step}.jsonl" for step in (12, 16)]


def test_a_fork_answers_for_its_own_steps(folder: RunDir) -> None:
    """It has the ledger up to the checkpoint, and rows of metrics from there on."""
    for line in range(15, 0, -1):
        change(folder.metrics, line)
    for step in (5, 10, 15):
        folder.trajectory_file("rl", step).unlink()
    folder.store(replace(folder.state(), done={"sft": 9, "rl": 20}, origin={"from": "rl/15"}))
    assert findings(folder) == []
    change(folder.metrics, 1)
    assert [one.where for one in findings(folder)] == ["metrics.jsonl:1", "ledger.jsonl"]


def test_a_fork_has_the_ledger_of_the_stages_before_and_none_of_their_rows(folder: RunDir) -> None:
    folder.metrics.unlink()
    shutil.rmtree(folder.trajectories)
    shutil.rmtree(folder.root / "checkpoints")
    folder.trajectories.mkdir()
    folder.store(replace(folder.state(), done={"rl": 20}, origin={"from": "rl-2/5"}))
    assert findings(folder) == []
    folder.store(replace(folder.state(), done={"rl": 20}, origin={}))
    assert len(findings(folder)) == 1 + 20


def test_the_steps_of_a_supervised_stage_stand_once_each(folder: RunDir) -> None:
    log = MetricsLog(folder.metrics)
    for step in (1, 2, 4):
        log.append("sft", step, {"train/loss": 1.0})
    folder.store(replace(folder.state(), done={"sft": 5, "rl": 20}))
    assert [one.where for one in findings(folder)] == ["metrics.jsonl:23", "metrics.jsonl"]


def test_an_evaluation_has_one_row_that_says_what_its_file_says(folder: RunDir) -> None:
    log, path = MetricsLog(folder.metrics), folder.evals / "rl.json"
    log.append("eval-rl", 0, {"math/avg_at_k": 0.5, "math/stderr": math.nan})
    write_json(path, {"envs": {"math": {"avg_at_k": 0.5, "stderr": math.nan}}})
    state = folder.state()
    folder.store(replace(state, done=state.done | {"eval-rl": 0}, stages=state.stages | {"eval-rl": "eval"}))
    assert findings(folder) == []
    write_json(path, {"envs": {"math": {"avg_at_k": 0.75, "stderr": math.nan}}})
    (found,) = findings(folder)
    assert found.where == "metrics.jsonl:21"
    path.unlink()
    (found,) = findings(folder)
    assert found.where == "eval/rl.json"


def test_the_command_tells_what_it_found_and_ends_with_one(folder: RunDir, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["debug", "audit", str(folder.root)]) == 0
    assert "everything agrees" in capsys.readouterr().out
    file, rest = train_twice(folder)
    assert main(["debug", "audit", str(folder.root)]) == 1
    assert f"{file}:{rest['line']}" in capsys.readouterr().out
    assert main(["debug", "audit", str(folder.root), "--json"]) == 1
    told = json.loads(capsys.readouterr().out)
    assert told["failures"] >= 1
    assert any(f"ticket {rest['ticket']} " in one["what"] for one in told["findings"])
    assert main(["debug", "audit", str(folder.root / "nowhere")]) == 2
