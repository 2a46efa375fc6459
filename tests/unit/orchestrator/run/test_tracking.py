"""The metrics file and the tracker: a real SQLite store, a server that is away, a process that is killed."""

import contextlib
import json
import math
import os
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from time import monotonic, sleep

import psutil
import pytest
from mlflow.entities import Run, ViewType
from mlflow.tracking import MlflowClient

from temper.orchestrator.run.metrics_log import MetricsLog, MetricsRow, read_metrics
from temper.orchestrator.tools.preflight.doctor.store import check_store
from temper.orchestrator.tracking import sending
from temper.orchestrator.tracking.mlflow.tracker import mlflow_tracker
from temper.orchestrator.tracking.sending import SendingTracker
from temper.orchestrator.tracking.tracker import Ended
from temper.orchestrator.tracking.unsent_rows import UnsentRows

TOLD_BY_MLFLOW = (
    *(
        "MLFLOW_DISABLE_TELEMETRY",
        "DO_NOT_TRACK",
        "PYTEST_CURRENT_TEST",
        "CI",
        "GITHUB_ACTIONS",
        "CIRCLECI",
        "GITLAB_CI",
    ),
    *(
        "JENKINS_URL",
        "TRAVIS",
        "TF_BUILD",
        "BITBUCKET_BUILD_NUMBER",
        "CODEBUILD_BUILD_ARN",
        "BUILDKITE",
        "TEAMCITY_VERSION",
    ),
    *("CLOUD_RUN_EXECUTION", "RUNBOT_HOST_URL", "RUNBOT_BUILD_NAME", "RUNBOT_WORKER_ID"),
)
"""The variables by which MLflow tells nobody of its use: it is told so, or takes it for a test."""


def test_metrics_come_back_as_they_were_written(tmp_path: Path) -> None:
    log = MetricsLog(tmp_path / "metrics.jsonl")
    log.append("sft", 1, {"train/loss": 2.5, "train/grad_norm": math.nan})
    (row,) = read_metrics(tmp_path / "metrics.jsonl")
    assert (row.stage, row.step, row.values["train/loss"]) == ("sft", 1, 2.5)
    assert math.isnan(row.values["train/grad_norm"])
    assert set(json.loads((tmp_path / "metrics.jsonl").read_text())) >= {"stage", "step", "time", "train/loss"}


def test_a_resumed_stage_leaves_each_step_once(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    log = MetricsLog(path)
    for stage, step in (("sft", 1), ("sft", 2), ("sft", 3), ("rl", 5)):
        log.append(stage, step, {"x": 0.0})
    log.truncate("sft", 1)
    log.append("sft", 2, {"x": 1.0})
    assert [(r.stage, r.step, r.values["x"]) for r in read_metrics(path)] == [
        ("sft", 1, 0.0),
        ("rl", 5, 0.0),
        ("sft", 2, 1.0),
    ]


def test_what_is_measured_again_stands_once_and_an_event_stays_beside_it(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    for start_s in (10.0, 20.0):  # two starts of one run: each opens the file anew
        log = MetricsLog(path)
        log.append_next("start", {"engine/start_s": start_s})
        log.append("eval-rl", 0, {"math/avg_at_k": start_s})
        log.event("rl", 3, "changed", {"rl.steps": ["5", "9"]})
        log.append("rl", 3, {"x": 1.0})
        log.truncate("rl", 2)
    rows = read_metrics(path)
    assert [(r.stage, r.step) for r in rows if r.is_measured] == [("start", 0), ("start", 1), ("eval-rl", 0)]
    assert [list(r.values.values()) for r in rows if r.is_measured] == [[10.0], [20.0], [20.0]]
    assert [(r.key, r.values, r.event) for r in rows if r.event] == [
        (("rl", 3), {}, {"kind": "changed", "what": {"rl.steps": ["5", "9"]}})
    ] * 2


def test_a_torn_last_line_is_left_out_and_does_not_spoil_the_next(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    MetricsLog(path).append("rl", 1, {"x": 1.0})
    with path.open("a") as file:
        file.write('{"stage": "rl", "st')
    assert [row.step for row in read_metrics(path)] == [1]
    MetricsLog(path).append("rl", 2, {"x": 2.0})
    assert [row.step for row in read_metrics(path)] == [1, 2]


def test_a_broken_line_is_named_by_file_and_number(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"stage": "rl", "step": 1, "time": 0}\n[]\n')
    with pytest.raises(ValueError, match=r"metrics.jsonl, line 2"):
        read_metrics(path)


def test_a_metric_can_not_take_the_name_of_a_head_field(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="'time'"):
        MetricsLog(tmp_path / "metrics.jsonl").append("rl", 1, {"time": 1.0})


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A local store, which takes seconds to make: shared, with an experiment for each test."""
    return f"sqlite:///{tmp_path_factory.mktemp('store')}/mlflow.db"


def tracker(folder: Path, uri: str, *, say: Callable[[str], None] = print, local: Path | None = None) -> SendingTracker:
    """The tracker of the run in a folder, in an experiment of the folder's name."""
    return mlflow_tracker(
        "demo",
        experiment=folder.name,
        metrics=folder / "metrics.jsonl",
        memory=folder / "tracking",
        uri=uri,
        local_dir=local or folder,
        say=say,
    )


def tracked(folder: Path, uri: str, view: int = ViewType.ACTIVE_ONLY) -> Run:
    """The one run of the experiment, by default the one that was not deleted."""
    client = MlflowClient(uri)
    found = client.get_experiment_by_name(folder.name)
    assert found is not None
    (run,) = client.search_runs([found.experiment_id], run_view_type=view)
    return run


def sent(folder: Path, uri: str, name: str) -> dict[int, float]:
    """The value of each step, of which none may have two."""
    history = MlflowClient(uri).get_metric_history(tracked(folder, uri).info.run_id, name)
    assert len({metric.step for metric in history}) == len(history)
    return {metric.step: metric.value for metric in history}


@pytest.fixture(autouse=True)
def _often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sending, "POLL_S", 0.5)


def sent_rows(folder: Path) -> int:
    """How many rows are known to have arrived."""
    return sum(json.loads(path.read_text())["sent"] for path in folder.glob("tracking/*.sent"))


def wait_for(what: Callable[[], object]) -> None:
    deadline = monotonic() + 60
    while not what():
        assert monotonic() < deadline
        sleep(0.05)


def test_a_run_reaches_a_local_store_with_all_that_it_has(tmp_path: Path, store: str) -> None:
    artifact = tmp_path / "report.json"
    artifact.write_text("{}")
    said: list[str] = []
    log, first = MetricsLog(tmp_path / "metrics.jsonl"), tracker(tmp_path, store, say=said.append)
    first.params({f"key{i}": "v" for i in range(120)})
    for step in (1, 2, 3):
        log.append("rl", step, {"loss": float(step), "not a=name": 1.0, "unknown": math.nan})
    evaluation = tmp_path / "eval" / "steps" / "rl-2.json"
    evaluation.parent.mkdir(parents=True)
    evaluation.write_text("{}")
    first.artifact(artifact)
    first.artifact(evaluation)
    first.close(Ended.KILLED, timeout_s=120)
    run = tracked(tmp_path, store)
    assert run.info.status == "KILLED"
    assert (len(run.data.params), run.data.metrics) == (120, {"rl/loss": 3.0, "rl/not a_name": 1.0})
    assert said == []
    stored = tmp_path / "mlartifacts" / run.info.run_id / "artifacts"
    assert sorted(str(path.relative_to(stored)) for path in stored.rglob("*.json")) == [
        *("eval/steps/rl-2.json", "report.json")
    ]

    second = tracker(tmp_path, store)
    second.params({"key0": "w", "key1": "v", "new": "n"})
    log.event("rl", 3, "changed", {"key0": ["v", "w"]})
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("temper.orchestrator.run.metrics_log.time.time", lambda: 1e9)
        for key in ("key2", "key3"):  # two of one millisecond are two
            log.event("rl", 3, "changed", {key: ["v", "w"]})
    log.append("rl", 4, {"loss": 4.0})
    second.close(Ended.FINISHED, timeout_s=120)
    run = tracked(tmp_path, store)
    assert run.info.status == "FINISHED"
    assert sent(tmp_path, store, "rl/loss") == {1: 1.0, 2: 2.0, 3: 3.0, 4: 4.0}
    assert {"v", "n"} == {run.data.params["key0"], run.data.params["new"]}
    tags = {value for name, value in run.data.tags.items() if name.startswith(("now.", "event."))}
    assert tags == {"w", *(f"rl after step 3: changed key{number} v -> w" for number in (0, 2, 3))}


KILLED = """
import sys
from pathlib import Path
from time import sleep
from temper.orchestrator.run.metrics_log import MetricsLog
from temper.orchestrator.tracking import sending
from temper.orchestrator.tracking.mlflow.tracker import mlflow_tracker

folder = Path(sys.argv[1])
sending.POLL_S = 0.1
mlflow_tracker(
    "demo", experiment=folder.name, metrics=folder / "metrics.jsonl", memory=folder / "tracking", uri=sys.argv[2]
)
log = MetricsLog(folder / "metrics.jsonl")
for step in range(1, 100_000):
    log.append("rl", step, {"loss": float(step)})
    sleep(0.001)  # faster than rows can be sent, so that some are always on their way
"""


def test_a_killed_process_loses_nothing_and_what_it_sent_in_vain_stands_nowhere(tmp_path: Path, store: str) -> None:
    child = subprocess.Popen([sys.executable, "-c", KILLED, str(tmp_path), store])
    wait_for(lambda: sent_rows(tmp_path))
    child.kill()
    child.wait()
    log = MetricsLog(tmp_path / "metrics.jsonl")
    reached = read_metrics(tmp_path / "metrics.jsonl")[-1].step
    arrived = max(sent(tmp_path, store, "rl/loss"))
    assert 0 < arrived < reached  # killed while rows were on their way
    before = tracked(tmp_path, store)
    assert before.info.status == "RUNNING"
    checkpoint = arrived - 2
    log.truncate("rl", checkpoint)
    for step in range(checkpoint + 1, reached + 2):
        log.append("rl", step, {"loss": -float(step)})
    tracker(tmp_path, store).close(Ended.FINISHED, timeout_s=120)
    survived = {row.step: row.values["loss"] for row in read_metrics(tmp_path / "metrics.jsonl")}
    assert len(survived) == reached + 1
    assert sent(tmp_path, store, "rl/loss") == survived
    assert tracked(tmp_path, store).info.status == "FINISHED"
    replaced = tracked(tmp_path, store, ViewType.DELETED_ONLY)
    assert replaced.info.run_id == before.info.run_id
    assert replaced.data.tags["temper.replaced_by"] == tracked(tmp_path, store).info.run_id
    assert [path.name for path in (tmp_path / "tracking").glob("*.sent")] == [
        f"{tracked(tmp_path, store).info.run_id}.sent"
    ]


def test_a_file_that_is_cut_back_while_the_tracker_lives_leaves_each_step_once(tmp_path: Path, store: str) -> None:
    artifact = tmp_path / "eval.json"
    artifact.write_text("{}")
    log, one = MetricsLog(tmp_path / "metrics.jsonl"), tracker(tmp_path, store)
    one.params({"seed": "7"})
    one.artifact(artifact)
    for step in (1, 2, 3):
        log.append("rl", step, {"x": 1.0})
    wait_for(lambda: sent_rows(tmp_path) == 3 and list(tmp_path.glob("mlartifacts/*/artifacts/eval.json")))
    first = tracked(tmp_path, store)
    MlflowClient(store).set_tag(first.info.run_id, "mlflow.note.content", "look at this one")
    log.truncate("rl", 1)
    log.append("rl", 2, {"x": 2.0})
    wait_for(lambda: not list((tmp_path / "tracking").glob(f"{first.info.run_id}.sent")))
    log.append("rl", 3, {"x": 2.0})
    one.close(Ended.FINISHED, timeout_s=120)
    run = tracked(tmp_path, store)
    assert sent(tmp_path, store, "rl/x") == {1: 1.0, 2: 2.0, 3: 2.0}
    assert (run.info.status, run.info.start_time) == ("FINISHED", first.info.start_time)
    assert (run.data.params, run.data.tags["mlflow.note.content"]) == ({"seed": "7"}, "look at this one")
    assert (tmp_path / "mlartifacts" / run.info.run_id / "artifacts" / "eval.json").exists()


def test_a_process_that_is_killed_between_two_runs_leaves_one_to_the_next(tmp_path: Path, store: str) -> None:
    log, one = MetricsLog(tmp_path / "metrics.jsonl"), tracker(tmp_path, store)
    for step in (1, 2):
        log.append("rl", step, {"x": 1.0})
    one.close(Ended.FAILED, timeout_s=120)
    memory = tmp_path / "tracking" / "run.json"
    old = json.loads(memory.read_text())
    log.truncate("rl", 1)
    for run_id in (
        None,
        "of the first attempt",
    ):  # killed before the new run was made, then before the old one was deleted
        known = json.loads(memory.read_text())
        if run_id is None:
            memory.write_text(json.dumps({"mark": "new", "run_id": None, "replaced": [old["run_id"]]}))
        else:
            memory.write_text(json.dumps(known | {"replaced": [old["run_id"]]}))
            MlflowClient(store).restore_run(old["run_id"])
        tracker(tmp_path, store).close(Ended.FINISHED, timeout_s=120)
        assert sent(tmp_path, store, "rl/x") == {1: 1.0}
        assert tracked(tmp_path, store, ViewType.DELETED_ONLY).info.run_id == old["run_id"]
        assert json.loads(memory.read_text())["replaced"] == []


def test_a_row_that_was_offered_and_then_cut_off_counts_as_sent_in_vain(tmp_path: Path) -> None:
    log, record = MetricsLog(tmp_path / "metrics.jsonl"), tmp_path / "run.sent"
    for step in (1, 2):
        log.append("rl", step, {"x": 0.0})

    def killed(rows: list[MetricsRow]) -> None:
        raise OSError("the process dies here")

    def found() -> UnsentRows:
        return UnsentRows(tmp_path / "metrics.jsonl", record)

    rows, steps = found(), list[int]()
    with pytest.raises(OSError, match="dies"):
        rows.send(killed, say=print)
    assert not rows.is_cut()
    assert (found().count(), found().is_cut()) == (2, False)
    found().send(lambda got: steps.extend(row.step for row in got), say=print)
    log.event("rl", 2, "changed", {})
    assert not found().is_cut()
    log.truncate("rl", 1)
    assert rows.is_cut()
    assert found().is_cut()
    assert steps == [1, 2]
    record.write_text("\nab12\n~cd34")  # of an earlier release
    assert found().is_cut()


def test_a_run_whose_process_was_killed_just_when_it_was_created_is_found_again(tmp_path: Path, store: str) -> None:
    tracker(tmp_path, store).close(Ended.KILLED, timeout_s=120)
    memory = tmp_path / "tracking" / "run.json"
    raw = json.loads(memory.read_text())
    assert raw["run_id"] == tracked(tmp_path, store).info.run_id
    memory.write_text(json.dumps(raw | {"run_id": None}))
    tracker(tmp_path, store).close(Ended.FINISHED, timeout_s=120)
    assert tracked(tmp_path, store).info.run_id == raw["run_id"]


def test_a_server_that_is_away_delays_nothing_and_is_made_up_for_by_a_later_process(tmp_path: Path, store: str) -> None:
    said: list[str] = []
    away = tmp_path / "away"
    away.write_text("a file where the store's folder should be")
    uri = f"sqlite:///{away}/mlflow.db"
    began = monotonic()
    log, first = MetricsLog(tmp_path / "metrics.jsonl"), tracker(tmp_path, uri, say=said.append)
    for step in (1, 2):
        log.append("rl", step, {"x": float(step)})
    assert monotonic() - began < 5
    wait_for(lambda: said)
    first.close(Ended.FINISHED, timeout_s=20)
    assert len(said) == 2
    assert all(uri in line for line in said)

    second = tracker(tmp_path, uri, say=said.append)
    wait_for(lambda: len(said) == 3)
    away.unlink()
    away.symlink_to(Path(store.removeprefix("sqlite:///")).parent)
    log.append("rl", 3, {"x": 3.0})
    second.close(Ended.FINISHED, timeout_s=120)
    assert len(said) == 4  # away, and back
    assert sent(tmp_path, store, "rl/x") == {1: 1.0, 2: 2.0, 3: 3.0}


def test_a_store_that_is_locked_delays_neither_rows_nor_the_end_and_gets_all_later(tmp_path: Path, store: str) -> None:
    said: list[str] = []
    log, one = MetricsLog(tmp_path / "metrics.jsonl"), tracker(tmp_path, store, say=said.append)
    log.append("rl", 1, {"x": 1.0})
    wait_for(lambda: sent_rows(tmp_path))
    with contextlib.closing(sqlite3.connect(store.removeprefix("sqlite:///"), timeout=60)) as other:
        other.execute("BEGIN EXCLUSIVE")
        began = monotonic()
        log.append("rl", 2, {"x": 2.0})
        assert monotonic() - began < 3  # the store's own wait is 20 s
        one.close(Ended.FINISHED, timeout_s=3)
        assert monotonic() - began < 10
    assert "1 rows of metrics.jsonl" in said[-1]
    one._thread.join(60)  # in a run the process ends here
    log.append("rl", 3, {"x": 3.0})
    tracker(tmp_path, store, say=said.append).close(Ended.FINISHED, timeout_s=120)
    assert sent(tmp_path, store, "rl/x") == {1: 1.0, 2: 2.0, 3: 3.0}


def test_a_store_that_fails_is_told_of_without_the_stack_of_its_library(
    tmp_path: Path, store: str, capfd: pytest.CaptureFixture[str]
) -> None:
    MlflowClient(store).search_experiments()
    shutil.copyfile(store.removeprefix("sqlite:///"), tmp_path / "mlflow.db")
    with contextlib.closing(sqlite3.connect(tmp_path / "mlflow.db")) as broken:
        broken.execute("ALTER TABLE experiments DROP COLUMN last_update_time")
    found = check_store(f"sqlite:///{tmp_path}/mlflow.db")
    assert "does not answer ((sqlite3.OperationalError) no such column: experiments.last_update_time" in found.what
    assert "Traceback" not in capfd.readouterr().err


def test_neither_driver_nor_ranks_tell_anybody_that_mlflow_is_used() -> None:
    kept = {name: value for name, value in os.environ.items() if name not in TOLD_BY_MLFLOW}
    program = (
        "import importlib, sys; importlib.import_module(sys.argv[1]); from mlflow.telemetry import utils, get_telemetry_client;"
        "print(utils._is_ci_env_or_testing(), utils.is_telemetry_disabled(), get_telemetry_client())"
    )
    for module in ("temper.orchestrator.tracking.mlflow.run", "temper.learner.engine.deepspeed_engine"):
        command = [sys.executable, "-c", program, module]
        found = subprocess.run(command, env=kept, capture_output=True, text=True, timeout=120, check=True)
        assert found.stdout.splitlines()[-1] == "False True None", module  # off, and not because this is a test


def test_files_that_can_not_be_stored_hold_up_no_metrics_and_are_named(tmp_path: Path, store: str) -> None:
    said: list[str] = []
    (tmp_path / "mlartifacts").write_text("a file where the artifacts' folder should be")
    log, one = MetricsLog(tmp_path / "metrics.jsonl"), tracker(tmp_path, store, say=said.append)
    (tmp_path / "report.json").write_text("{}")
    for path in (tmp_path / "gone.json", tmp_path / "report.json"):  # of the former nothing is said: it was cut off
        one.artifact(path)
    wait_for(lambda: said)
    log.append("rl", 1, {"x": 1.0})
    wait_for(lambda: sent(tmp_path, store, "rl/x"))  # long before it ends
    one.close(Ended.FINISHED, timeout_s=120)
    assert ["report.json" in line for line in said] == [True]
    assert tracked(tmp_path, store).info.status == "FINISHED"


def test_a_run_that_was_deleted_is_said_once_and_goes_on_when_it_is_restored(tmp_path: Path, store: str) -> None:
    said: list[str] = []
    log, one = MetricsLog(tmp_path / "metrics.jsonl"), tracker(tmp_path, store, say=said.append)
    log.append("rl", 1, {"x": 1.0})
    wait_for(lambda: sent_rows(tmp_path))
    run_id, client = tracked(tmp_path, store).info.run_id, MlflowClient(store)
    client.delete_run(run_id)
    for step in (2, 3):
        log.append("rl", step, {"x": float(step)})
    one.close(Ended.FINISHED, timeout_s=120)
    tracker(tmp_path, store, say=said.append).close(Ended.FINISHED, timeout_s=120)
    assert str(tmp_path / "metrics.jsonl") not in [file.path for file in psutil.Process().open_files()]
    assert len(said) == 2  # once by each process
    assert all(line.startswith(f"tracking: the run {run_id} was deleted at {store}") for line in said)
    client.restore_run(run_id)
    tracker(tmp_path, store, say=said.append).close(Ended.FINISHED, timeout_s=120)
    assert sent(tmp_path, store, "rl/x") == {1: 1.0, 2: 2.0, 3: 3.0}
    assert len(said) == 2


def test_a_run_at_another_server_is_a_new_one_there_with_all_rows(tmp_path: Path, store: str) -> None:
    said: list[str] = []
    memory = tmp_path / "tracking"
    memory.mkdir()
    (memory / "run.json").write_text(json.dumps({"mark": "m", "run_id": "0" * 32}))
    (memory / f"{'0' * 32}.sent").write_text("of the other server")
    MetricsLog(tmp_path / "metrics.jsonl").append("rl", 1, {"x": 1.0})
    tracker(tmp_path, store, say=said.append).close(Ended.FINISHED, timeout_s=120)
    assert sent(tmp_path, store, "rl/x") == {1: 1.0}
    assert ["0" * 32 in line for line in said] == [True]
