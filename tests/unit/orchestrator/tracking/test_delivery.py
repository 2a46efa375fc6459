"""Rows, settings and files of a run reach a real SQLite store, even after an outage, a kill or a resume."""

import contextlib
import json
import math
import os
import shutil
import sqlite3
import subprocess
import sys
from pathlib import Path
from time import monotonic

import psutil
import pytest
from mlflow.entities import Run, ViewType
from mlflow.tracking import MlflowClient
from support.tracked_runs import history, runs, tracker, wait_for
from support.tracked_runs import sent_rows as rows_of

from temper.orchestrator.run.metrics_log import MetricsLog, MetricsRow, read_metrics
from temper.orchestrator.tools.preflight.doctor.store import check_store
from temper.orchestrator.tracking.backend import Backend, RunStatus
from temper.orchestrator.tracking.sending import Sender
from temper.orchestrator.tracking.unsent_rows import UnsentRows

TOLD_BY_MLFLOW = (
    *("MLFLOW_DISABLE_TELEMETRY", "DO_NOT_TRACK", "PYTEST_CURRENT_TEST", "CI", "GITHUB_ACTIONS", "CIRCLECI"),
    *("GITLAB_CI", "JENKINS_URL", "TRAVIS", "TF_BUILD", "BITBUCKET_BUILD_NUMBER", "CODEBUILD_BUILD_ARN", "BUILDKITE"),
    *("TEAMCITY_VERSION", "CLOUD_RUN_EXECUTION", "RUNBOT_HOST_URL", "RUNBOT_BUILD_NAME", "RUNBOT_WORKER_ID"),
)
"""Variables that disable MLflow's telemetry, by request or because MLflow detects a test."""


def tracked(folder: Path, uri: str, view: int = ViewType.ACTIVE_ONLY) -> Run:
    """Return the one run of the experiment, by default one that is not deleted."""
    (run,) = runs(folder, uri, view).values()
    return run


def sent(folder: Path, uri: str, name: str = "rl/x") -> dict[int, float]:
    return history(uri, tracked(folder, uri), name)


def sent_rows(folder: Path) -> int:
    return rows_of(folder / "tracking")


def log_of(folder: Path, *steps: int) -> MetricsLog:
    """Return the metrics file of a run with a value at each of these steps."""
    log = MetricsLog(folder / "metrics.jsonl")
    for step in steps:
        log.append("rl", step, {"x": float(step)})
    return log


def send(folder: Path, uri: str, said: list[str] | None = None) -> None:
    """Send the rest, like the end of the next process."""
    tracker(folder, uri, notify=print if said is None else said.append).close(RunStatus.FINISHED, timeout_s=120)


def test_a_run_reaches_a_local_store_with_all_that_it_has(tmp_path: Path, store: str) -> None:
    (tmp_path / "eval" / "steps").mkdir(parents=True)
    files = [tmp_path / name for name in ("eval/steps/rl-2.json", "report.json")]
    said: list[str] = []
    log, first = MetricsLog(tmp_path / "metrics.jsonl"), tracker(tmp_path, store, notify=said.append)
    first.params({f"key{i}": "v" for i in range(120)})
    for step in (1, 2, 3):
        log.append("rl", step, {"x": float(step), "not a=name": 1.0, "unknown": math.nan})
    for file in files:
        file.write_text("{}")
        first.artifact(file)
    first.close(RunStatus.KILLED, timeout_s=120)
    run = tracked(tmp_path, store)
    assert run.info.status == "KILLED"
    assert (len(run.data.params), run.data.metrics) == (120, {"rl/x": 3.0, "rl/not a_name": 1.0})
    assert said == []
    stored = tmp_path / "mlartifacts" / run.info.run_id / "artifacts"
    assert sorted(stored.rglob("*.json")) == [stored / file.relative_to(tmp_path) for file in files]

    second = tracker(tmp_path, store)
    second.params({"key0": "w", "key1": "v", "new": "n"})
    log.event("rl", 3, "changed", {"key0": ["v", "w"]})
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("temper.orchestrator.run.metrics_log.time.time", lambda: 1e9)
        for key in ("key2", "key3"):  # two events in one millisecond stay two
            log.event("rl", 3, "changed", {key: ["v", "w"]})
    log.append("rl", 4, {"x": 4.0})
    second.close(RunStatus.FINISHED, timeout_s=120)
    run = tracked(tmp_path, store)
    assert run.info.status == "FINISHED"
    assert sent(tmp_path, store) == {1: 1.0, 2: 2.0, 3: 3.0, 4: 4.0}
    assert {"v", "n"} == {run.data.params["key0"], run.data.params["new"]}
    tags = {value for name, value in run.data.tags.items() if name.startswith(("now.", "event."))}
    assert tags == {"w", *(f"rl after step 3: changed key{number} v -> w" for number in (0, 2, 3))}


KILLED = """
import sys
from pathlib import Path
from time import sleep
from temper.orchestrator.run.metrics_log import MetricsLog
from temper.orchestrator.tracking import sending
from temper.orchestrator.pipeline.tracking import make_mlflow_sender
from temper.orchestrator.tracking.mlflow.stored_run import StoredRun

folder = Path(sys.argv[1])
sending.POLL_S = 0.1
places = {"metrics": folder / "metrics.jsonl", "state_dir": folder / "tracking", "artifacts": folder / "mlartifacts"}
make_mlflow_sender(StoredRun(name="demo", uri=sys.argv[2], experiment=folder.name, **places))
log = MetricsLog(folder / "metrics.jsonl")
for step in range(1, 100_000):
    log.append("rl", step, {"x": float(step)})
    sleep(0.001)  # faster than rows can be sent, so that some are always on their way
"""


def test_a_killed_process_loses_nothing_and_what_it_sent_in_vain_stands_nowhere(tmp_path: Path, store: str) -> None:
    child = subprocess.Popen([sys.executable, "-c", KILLED, str(tmp_path), store])
    wait_for(lambda: sent_rows(tmp_path))
    child.kill()
    child.wait()
    log = MetricsLog(tmp_path / "metrics.jsonl")
    reached = read_metrics(tmp_path / "metrics.jsonl")[-1].step
    arrived = max(sent(tmp_path, store))
    assert 0 < arrived < reached  # killed while rows were in transit
    before = tracked(tmp_path, store)
    assert before.info.status == "RUNNING"
    checkpoint = arrived - 2
    log.truncate("rl", checkpoint)
    for step in range(checkpoint + 1, reached + 2):
        log.append("rl", step, {"x": -float(step)})
    send(tmp_path, store)
    survived = {row.step: row.values["x"] for row in read_metrics(tmp_path / "metrics.jsonl")}
    assert len(survived) == reached + 1
    assert sent(tmp_path, store) == survived
    after, replaced = tracked(tmp_path, store), tracked(tmp_path, store, ViewType.DELETED_ONLY)
    assert after.info.status == "FINISHED"
    assert replaced.info.run_id == before.info.run_id
    assert replaced.data.tags["temper.replaced_by"] == after.info.run_id
    assert [path.stem for path in (tmp_path / "tracking").glob("*.sent")] == [after.info.run_id]


def test_a_file_that_is_cut_back_while_the_tracker_lives_leaves_each_step_once(tmp_path: Path, store: str) -> None:
    artifact = tmp_path / "eval.json"
    artifact.write_text("{}")
    log, one = log_of(tmp_path, 1, 2, 3), tracker(tmp_path, store)
    one.params({"seed": "7"})
    one.artifact(artifact)
    wait_for(lambda: sent_rows(tmp_path) == 3 and list(tmp_path.glob("mlartifacts/*/artifacts/eval.json")))
    first = tracked(tmp_path, store)
    MlflowClient(store).set_tag(first.info.run_id, "mlflow.note.content", "look at this one")
    log.truncate("rl", 1)
    log.append("rl", 2, {"x": -2.0})
    wait_for(lambda: not list((tmp_path / "tracking").glob(f"{first.info.run_id}.sent")))
    log.append("rl", 3, {"x": -3.0})
    one.close(RunStatus.FINISHED, timeout_s=120)
    run = tracked(tmp_path, store)
    assert sent(tmp_path, store) == {1: 1.0, 2: -2.0, 3: -3.0}
    assert (run.info.status, run.info.start_time) == ("FINISHED", first.info.start_time)
    assert (run.data.params, run.data.tags["mlflow.note.content"]) == ({"seed": "7"}, "look at this one")
    assert (tmp_path / "mlartifacts" / run.info.run_id / "artifacts" / "eval.json").exists()


def test_a_process_killed_while_it_makes_a_run_leaves_one_run_to_the_next(tmp_path: Path, store: str) -> None:
    log = log_of(tmp_path, 1, 2)
    send(tmp_path, store)
    state_dir = tmp_path / "tracking" / "run.json"
    old = json.loads(state_dir.read_text())
    state_dir.write_text(json.dumps(old | {"run_id": None}))  # killed before it stored the id
    send(tmp_path, store)
    assert tracked(tmp_path, store).info.run_id == old["run_id"]
    log.truncate("rl", 1)
    for killed in ("before the new run was made", "before the old one was deleted"):
        if killed == "before the new run was made":
            state_dir.write_text(json.dumps({"mark": "new", "run_id": None, "replaced": [old["run_id"]]}))
        else:
            state_dir.write_text(json.dumps(json.loads(state_dir.read_text()) | {"replaced": [old["run_id"]]}))
            MlflowClient(store).restore_run(old["run_id"])
        send(tmp_path, store)
        assert sent(tmp_path, store) == {1: 1.0}
        assert tracked(tmp_path, store, ViewType.DELETED_ONLY).info.run_id == old["run_id"]
        assert json.loads(state_dir.read_text())["replaced"] == []


def test_a_row_that_was_offered_and_then_cut_off_counts_as_sent_in_vain(tmp_path: Path) -> None:
    log, record = log_of(tmp_path, 1, 2), tmp_path / "run.sent"

    def killed(rows: list[MetricsRow]) -> None:
        raise OSError("the process dies here")

    def found() -> UnsentRows:
        return UnsentRows(tmp_path / "metrics.jsonl", record)

    rows, steps = found(), list[int]()
    with pytest.raises(OSError, match="dies"):
        rows.send(killed, notify=print)
    assert not rows.has_lost_rows()
    assert (found().count(), found().has_lost_rows()) == (2, False)
    found().send(lambda got: steps.extend(row.step for row in got), notify=print)
    log.event("rl", 2, "changed", {})
    assert not found().has_lost_rows()
    log.truncate("rl", 1)
    assert rows.has_lost_rows()
    assert found().has_lost_rows()
    assert steps == [1, 2]
    record.write_text("\nab12\n~cd34")  # of an earlier release
    assert found().has_lost_rows()


def test_a_server_that_is_away_delays_nothing_and_is_made_up_for_by_a_later_process(tmp_path: Path, store: str) -> None:
    said: list[str] = []
    away = tmp_path / "away"
    away.write_text("a file in place of the store's folder")
    uri = f"sqlite:///{away}/mlflow.db"
    began = monotonic()
    first, log = tracker(tmp_path, uri, notify=said.append), log_of(tmp_path, 1, 2)
    assert monotonic() - began < 5
    wait_for(lambda: said)
    first.close(RunStatus.FINISHED, timeout_s=20)
    assert len(said) == 2
    assert all(uri in line for line in said)

    second = tracker(tmp_path, uri, notify=said.append)
    wait_for(lambda: len(said) == 3)
    away.unlink()
    away.symlink_to(Path(store.removeprefix("sqlite:///")).parent)
    log.append("rl", 3, {"x": 3.0})
    second.close(RunStatus.FINISHED, timeout_s=120)
    assert len(said) == 4  # lost, and back
    assert sent(tmp_path, store) == {1: 1.0, 2: 2.0, 3: 3.0}


def test_a_store_that_is_locked_delays_neither_rows_nor_the_end_and_gets_all_later(tmp_path: Path, store: str) -> None:
    said: list[str] = []
    log, one = log_of(tmp_path, 1), tracker(tmp_path, store, notify=said.append)
    wait_for(lambda: sent_rows(tmp_path))
    with contextlib.closing(sqlite3.connect(store.removeprefix("sqlite:///"), timeout=60)) as other:
        other.execute("BEGIN EXCLUSIVE")
        began = monotonic()
        log.append("rl", 2, {"x": 2.0})
        assert monotonic() - began < 3  # the store's own timeout is 20 s
        one.close(RunStatus.FINISHED, timeout_s=3)
        assert monotonic() - began < 10
    assert "1 rows of metrics.jsonl" in said[-1]
    one._senders[0]._thread.join(60)  # in a run, the process ends at this point
    log.append("rl", 3, {"x": 3.0})
    send(tmp_path, store, said)
    assert sent(tmp_path, store) == {1: 1.0, 2: 2.0, 3: 3.0}


def test_a_store_that_fails_is_told_of_without_the_stack_of_its_library(
    tmp_path: Path, store: str, capfd: pytest.CaptureFixture[str]
) -> None:
    MlflowClient(store).search_experiments()
    shutil.copyfile(store.removeprefix("sqlite:///"), tmp_path / "mlflow.db")
    with contextlib.closing(sqlite3.connect(tmp_path / "mlflow.db")) as broken:
        broken.execute("ALTER TABLE experiments DROP COLUMN last_update_time")
    found = check_store(f"sqlite:///{tmp_path}/mlflow.db")
    assert "no such column: experiments.last_update_time" in found.what
    assert "Traceback" not in capfd.readouterr().err


TELEMETRY = """
import temper.orchestrator.tracking.mlflow.run
from mlflow.telemetry import utils, get_telemetry_client
print(utils._is_ci_env_or_testing(), utils.is_telemetry_disabled(), get_telemetry_client())
"""
IMPORTED = "import sys; import temper.learner.engine.deepspeed_engine; print('mlflow' in sys.modules)"


@pytest.mark.parametrize(("program", "printed"), [(TELEMETRY, "False True None"), (IMPORTED, "False")])
def test_neither_driver_nor_ranks_tell_anybody_that_mlflow_is_used(program: str, printed: str) -> None:
    """The driver turns telemetry off, also outside tests. A rank does not import MLflow."""
    kept = {name: value for name, value in os.environ.items() if name not in TOLD_BY_MLFLOW}
    command = [sys.executable, "-c", program]
    found = subprocess.run(command, env=kept, capture_output=True, text=True, timeout=120, check=True)
    assert found.stdout.splitlines()[-1] == printed


def test_files_that_can_not_be_stored_hold_up_no_metrics_and_are_named(tmp_path: Path, store: str) -> None:
    said: list[str] = []
    (tmp_path / "mlartifacts").write_text("a file in place of the artifacts' folder")
    one = tracker(tmp_path, store, notify=said.append)
    (tmp_path / "report.json").write_text("{}")
    for path in (tmp_path / "gone.json", tmp_path / "report.json"):  # a missing file gives no note
        one.artifact(path)
    wait_for(lambda: said)
    log_of(tmp_path, 1)
    wait_for(lambda: sent(tmp_path, store))  # long before the tracker ends
    one.close(RunStatus.FINISHED, timeout_s=120)
    assert ["report.json" in line for line in said] == [True]
    assert tracked(tmp_path, store).info.status == "FINISHED"


class CountedBackend(Backend):
    """A backend that begins a new run at each connection."""

    def __init__(self, metrics: Path) -> None:
        self.metrics, self.connected = metrics, 0

    def connect(self) -> UnsentRows:
        self.connected += 1
        return UnsentRows(self.metrics, self.metrics.parent / f"{self.connected}.sent")

    def send_rows(self, rows: object) -> None: ...

    def end(self, ended: RunStatus) -> None: ...


def test_a_call_that_failed_is_not_lost_to_an_older_one_of_its_key_when_a_run_is_replaced(tmp_path: Path) -> None:
    backend, log, made, broken = CountedBackend(tmp_path / "metrics.jsonl"), log_of(tmp_path, 1, 2), list[str](), True

    def call(text: str) -> None:
        if broken and text != "old":
            raise OSError("no room")
        made.append(text)

    sender = Sender("a place", lambda: backend, notify=print, close_s=60)
    sender.add("note", lambda _: call("old"))
    wait_for(lambda: made == ["old"])
    sender.add("file", lambda _: call("file"))  # retries start with the oldest failure
    sender.add("note", lambda _: call("new"))
    wait_for(lambda: list(sender._failed) == ["file", "note"])
    log.truncate("rl", 1)
    wait_for(lambda: backend.connected == 2 and not sender._waiting)
    broken = False
    sender.close(RunStatus.FINISHED)
    assert sorted(set(made)) == ["file", "new", "old"]
    assert [text for text in made if text != "file"][-1] == "new"


def test_a_run_that_was_deleted_is_said_once_and_goes_on_when_it_is_restored(tmp_path: Path, store: str) -> None:
    said: list[str] = []
    log, one = log_of(tmp_path, 1), tracker(tmp_path, store, notify=said.append)
    wait_for(lambda: sent_rows(tmp_path))
    run_id, client = tracked(tmp_path, store).info.run_id, MlflowClient(store)
    client.delete_run(run_id)
    for step in (2, 3):
        log.append("rl", step, {"x": float(step)})
    one.close(RunStatus.FINISHED, timeout_s=120)
    send(tmp_path, store, said)
    assert str(tmp_path / "metrics.jsonl") not in [file.path for file in psutil.Process().open_files()]
    assert [run_id in line and store in line for line in said] == [True] * 2  # once by each process
    client.restore_run(run_id)
    send(tmp_path, store, said)
    assert sent(tmp_path, store) == {1: 1.0, 2: 2.0, 3: 3.0}
    assert len(said) == 2


def test_a_run_at_another_server_is_a_new_one_there_with_all_rows(tmp_path: Path, store: str) -> None:
    said: list[str] = []
    state_dir = tmp_path / "tracking"
    state_dir.mkdir()
    (state_dir / "run.json").write_text(json.dumps({"mark": "m", "run_id": "0" * 32}))
    (state_dir / f"{'0' * 32}.sent").write_text("of the other server")
    log_of(tmp_path, 1)
    send(tmp_path, store, said)
    assert sent(tmp_path, store) == {1: 1.0}
    assert ["0" * 32 in line for line in said] == [True]
