"""The audit of a run: a consistent run passes, and each planted inconsistency is located."""

import json
import math
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.accounted_run import EVERY, Past, accounted_run
from support.audit import failures

from temper.orchestrator.run.checkpoint import MANIFEST, file_sha256
from temper.orchestrator.run.folder import RunDir, RunState, write_json
from temper.orchestrator.run.metrics_log import MetricsLog


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return accounted_run(tmp_path_factory.mktemp("sound") / "run").root


@pytest.fixture
def folder(sound: Path, tmp_path: Path) -> RunDir:
    """A consistent run in which a test plants a fault."""
    return RunDir(Path(shutil.copytree(sound, tmp_path / "run")))


Row = dict[str, Any]


def rows(path: Path) -> list[Row]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def first(path: Path, **wanted: Any) -> int:
    """Return the number of the first line with these values."""
    return next(n for n, row in enumerate(rows(path), 1) if all(row.get(k) == v for k, v in wanted.items()))


def change(path: Path, line: int, *new: Row | str) -> None:
    lines = path.read_text().splitlines()
    lines[line - 1 : line] = [one if isinstance(one, str) else json.dumps(one) for one in new]
    path.write_text("".join(one + "\n" for one in lines))


def test_a_run_that_was_killed_and_continued_is_sound(folder: RunDir) -> None:
    assert failures(folder) == []
    with pytest.raises(FileNotFoundError, match="nowhere"):
        failures(RunDir(folder.root / "nowhere"))


@pytest.mark.parametrize("until", [3, 5, 7, 10])
def test_a_run_that_was_killed_or_works_is_sound_at_every_point(tmp_path: Path, until: int) -> None:
    folder = RunDir(tmp_path)
    folder.store(RunState(model="model"))
    Past(tmp_path).steps(until)
    assert failures(folder) == []
    with folder.event_log.open("a") as event_log:
        event_log.write('{"stage": "rl", "ev')
    if until % EVERY:  # no metrics of the last step yet
        lines = folder.metrics.read_text().splitlines(keepends=True)
        folder.metrics.write_text("".join(lines[:-1]) + lines[-1][:20])
    assert failures(folder) == []


def require_found(folder: RunDir, where: str, ticket: int | None = None) -> None:
    """Require a finding at this place that names the ticket."""
    about, found = "" if ticket is None else f"ticket {ticket} ", failures(folder)
    assert any(one.where.startswith(where) and about in one.what for one in found), "\n".join(map(str, found))


def row_of(folder: RunDir, event: str) -> tuple[int, Row]:
    """Return the line number and the first row of an event after step 17. No later resume truncates it."""
    start = first(folder.event_log, event="step", step=17)
    numbered = enumerate(rows(folder.event_log), 1)
    return next((line, row) for line, row in numbered if line > start and row["event"] == event)


Change = Callable[[Row], list[Any]]
WRONG_ROWS: dict[str, tuple[str, Change, int | None, bool]] = {
    "trained_twice": ("trained", lambda row: [row, row], 1, True),
    "admitted_twice": ("admitted", lambda row: [row, row], 1, True),
    "finished_twice": ("finished", lambda row: [row, row], 1, True),
    "never_admitted": ("admitted", lambda row: [], None, True),
    "task_used_twice": ("admitted", lambda row: [row | {"index": row["index"] - 1}], 0, True),
    "task_skipped": ("admitted", lambda row: [row | {"index": row["index"] + 1}], 0, True),
    "trained_in_another_step": ("trained", lambda row: [row | {"step": row["step"] + 1}], 0, True),
    "wrong_totals": ("step", lambda row: [row | {"dropped": row["dropped"] + 1}], 0, False),
    "lost_ticket": ("step", lambda row: [row | {name: row[name] - 1 for name in ("in_flight", "issued")}], 0, False),
    "broken_line": ("admitted", lambda row: ['{"stage": "rl"'], 0, False),
}
"""By name: event, replacement rows, line offset of the finding, and whether it names the ticket."""


@pytest.mark.parametrize("fault", WRONG_ROWS)
def test_a_wrong_row_of_the_event_log_is_found(folder: RunDir, fault: str) -> None:
    event, changed, offset, names_ticket = WRONG_ROWS[fault]
    line, row = row_of(folder, event)
    change(folder.event_log, line, *changed(row))
    where = "event_log.jsonl" if offset is None else f"event_log.jsonl:{line + offset}"
    require_found(folder, where, row["ticket"] if names_ticket else None)


WRONG_METRICS: dict[str, tuple[int, Change, int | None]] = {
    "measured_twice": (18, lambda row: [row, row], 1),
    "skipped": (18, lambda row: [], 0),
    "last_lost": (20, lambda row: [], None),
    "broken_line": (18, lambda row: ["half a line"], 0),
    "other_groups": (18, lambda row: [row | {"env/math/groups_trained": row["env/math/groups_trained"] + 1}], 0),
    "other_drops": (18, lambda row: [row | {"rollout/dropped_zero_advantage": 7}], 0),
}
"""By name: step, replacement rows, and line offset of the finding."""


@pytest.mark.parametrize("fault", WRONG_METRICS)
def test_a_wrong_row_of_the_metrics_is_found(folder: RunDir, fault: str) -> None:
    step, changed, offset = WRONG_METRICS[fault]
    line = first(folder.metrics, step=step)
    change(folder.metrics, line, *changed(rows(folder.metrics)[line - 1]))
    require_found(folder, "metrics.jsonl" if offset is None else f"metrics.jsonl:{line + offset}")


def test_a_lost_event_log_is_found(folder: RunDir) -> None:
    folder.event_log.unlink()
    require_found(folder, "event_log.jsonl")


def test_a_ticket_that_was_trained_steps_ago_is_found(folder: RunDir) -> None:
    old, (line, row) = first(folder.event_log, event="trained"), row_of(folder, "trained")
    ticket = rows(folder.event_log)[old - 1]["ticket"]
    change(folder.event_log, line, row | {"ticket": ticket})
    require_found(folder, f"event_log.jsonl:{line}", ticket)


def test_a_ticket_that_is_trained_before_it_is_finished_is_found(folder: RunDir) -> None:
    ticket = row_of(folder, "trained")[1]["ticket"]
    change(folder.event_log, first(folder.event_log, event="finished", ticket=ticket))
    line = first(folder.event_log, event="trained", ticket=ticket)
    require_found(folder, f"event_log.jsonl:{line}", ticket)


def test_wrong_files_of_trajectories_are_found(folder: RunDir) -> None:
    path, other = folder.trajectory_file("rl", 10), rows(folder.trajectory_file("rl", 5))[0]
    own = rows(path)
    ticket = own[0]["ticket"]
    for kept, where, named in (
        (own[1:], "", ticket),
        ([row for row in own if row["ticket"] != ticket], "", ticket),
        ([own[0], other, *own[1:]], ":2", other["ticket"]),
        ([{}, *own], ":1", None),
    ):
        path.write_text("".join(json.dumps(row) + "\n" for row in kept))
        require_found(folder, f"trajectories/rl-10.jsonl{where}", named)
    path.unlink()
    require_found(folder, "trajectories/rl-10.jsonl")
    shutil.copy(folder.trajectory_file("rl", 20), folder.trajectory_file("rl", 30))
    require_found(folder, "trajectories/rl-30.jsonl")


def sealed(directory: Path, name: str, text: str) -> None:
    """Write a file of a checkpoint and update its manifest."""
    file = directory / name
    file.write_text(text)
    manifest = json.loads((directory / MANIFEST).read_text())
    manifest["files"][name] = {"bytes": file.stat().st_size, "sha256": file_sha256(file)}
    (directory / MANIFEST).write_text(json.dumps(manifest))


WRONG_STATES: dict[str, Callable[[RunDir, Row], Any]] = {
    "ticket_lost": lambda folder, state: state["buffer"]["tickets"].pop(0)["number"],
    "ticket_trained": lambda folder, state: (
        state["buffer"]["tickets"].append(state["buffer"]["tickets"][0] | {"number": 0}) or 0
    ),
    "too_many_rows": lambda folder, state: state.update(event_rows=10**6),
    "rows_of_another_step": lambda folder, state: state.update(
        event_rows=first(folder.event_log, event="step", step=12)
    ),
    "another_format": lambda folder, state: state.pop("format") and None,
}
"""Changes of the loop's state in a checkpoint by name. Each returns the ticket that the finding names."""


@pytest.mark.parametrize("fault", WRONG_STATES)
def test_a_wrong_state_of_a_checkpoint_is_found(folder: RunDir, fault: str) -> None:
    directory = folder.checkpoints("rl") / "000015"
    state = json.loads((directory / "loop.json").read_text())
    ticket = WRONG_STATES[fault](folder, state)
    sealed(directory, "loop.json", json.dumps(state))
    require_found(folder, "checkpoints/rl/000015/loop.json", ticket)


def test_wrong_files_of_a_checkpoint_are_found(folder: RunDir) -> None:
    directory = folder.checkpoints("rl") / "000015"
    unfinished = json.loads((directory / "loop.json").read_text())["buffer"]["tickets"][0]["number"]
    for name, ticket in (("groups.jsonl", unfinished), ("episodes.jsonl", 0)):
        sealed(directory, name, json.dumps({"ticket": {"number": ticket}}) + "\n")
        require_found(folder, f"checkpoints/rl/000015/{name}:1", ticket)
    (directory / "model.safetensors").write_bytes(b"WEIGHTS")
    require_found(folder, "checkpoints/rl/000015")
    shutil.copytree(folder.checkpoints("rl") / "000020", folder.checkpoints("rl") / "000025")
    require_found(folder, "checkpoints/rl/000025")


def test_trajectories_that_are_told_to_be_unwritten_or_came_before_a_restart_are_no_fault(folder: RunDir) -> None:
    folder.trajectory_file("rl", 10).unlink()
    event = {"kind": "unwritten", "what": {"rl-10.jsonl": "No space left on device"}}
    change(folder.metrics, 10, rows(folder.metrics)[9], {"stage": "rl", "step": 10, "time": 1.0, "event": event})
    assert failures(folder) == []


def test_an_evaluation_has_one_row_that_says_what_its_file_says(folder: RunDir) -> None:
    log, path = MetricsLog(folder.metrics), folder.evals / "rl.json"
    log.append("eval-rl", 0, {"math/avg_at_k": 0.5, "math/stderr": math.nan})
    write_json(path, {"envs": {"math": {"avg_at_k": 0.5, "stderr": math.nan}}})
    state = folder.state()
    folder.store(replace(state, done=state.done | {"eval-rl": 0}, stages=state.stages | {"eval-rl": "eval"}))
    assert failures(folder) == []
    write_json(path, {"envs": {"math": {"avg_at_k": 0.75, "stderr": math.nan}}})
    (found,) = failures(folder)
    assert found.where == "metrics.jsonl:21"
    path.unlink()
    (found,) = failures(folder)
    assert found.where == "eval/rl.json"
