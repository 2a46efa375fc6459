"""A run in W&B: the real library, offline, read back by its own reader."""

import glob
import json
import math
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from time import monotonic
from typing import Any

import pytest
from support.sink_records import expected, wandb_points, wandb_records
from support.tracked_runs import sent_rows, wait_for

from temper.orchestrator.config.run_config import TrackingConfig
from temper.orchestrator.pipeline.config import load_config
from temper.orchestrator.pipeline.start_checks import check_before
from temper.orchestrator.pipeline.tracking import make_wandb_sender
from temper.orchestrator.run.folder import RunDir, write_json
from temper.orchestrator.run.metrics_log import MetricsLog
from temper.orchestrator.tracking.backend import RunStatus
from temper.orchestrator.tracking.sinks.config import WandbConfig, is_installed
from temper.orchestrator.tracking.tracker import Tracker
from temper.orchestrator.tracking.unsent_rows import RunIdentity, load_identity, save_identity

needs_wandb = pytest.mark.skipif(not is_installed("wandb"), reason="W&B is not installed; `make setup` installs it")
NOTE = "Accuracy 0.5 - [report.html](RUN_PAGE/artifacts/report.html)"


@pytest.fixture
def quiet_network(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A proxy for all processes that must receive no request."""
    with socket.create_server(("127.0.0.1", 0)) as proxy:
        for name in ("HTTP_PROXY", "HTTPS_PROXY", "http_proxy", "https_proxy"):
            monkeypatch.setenv(name, f"http://127.0.0.1:{proxy.getsockname()[1]}")
        yield
        proxy.setblocking(False)
        with pytest.raises(BlockingIOError):
            proxy.accept()


def wandb_tracker(folder: Path, said: list[str]) -> Tracker:
    return Tracker(make_wandb_sender(WandbConfig(), name="demo", folder=RunDir(folder), notify=said.append))


def of_type(records: list[dict[str, Any]], kind: str) -> list[dict[str, Any]]:
    return [record[kind] for record in records if record["type"] == kind]


@needs_wandb
@pytest.mark.timeout(600)
def test_a_run_reaches_w_and_b_with_all_that_it_has_and_goes_on_there(tmp_path: Path, quiet_network: None) -> None:
    said: list[str] = []
    log, first = MetricsLog(tmp_path / "metrics.jsonl"), wandb_tracker(tmp_path, said)
    first.params({"rl.steps": "5", "rl.group_size": "4"})
    first.describe(NOTE)
    for step in (1, 2, 3):
        log.append("rl", step, {"train/loss": step / 8, "unknown": math.nan})
        log.append("rl.eval", step, {"coin/avg_at_k": step / 4})
    log.event("rl", 3, "changed", {"rl.steps": ["5", "9"]})
    (tmp_path / "eval").mkdir()
    tasks = {"coin": [{"key": "k", "right": 1, "scored": 2, "failed": 0}]}
    write_json(tmp_path / "eval" / "rl.json", {"order": 1, "envs": {"coin": {"avg_at_k": 0.5}}, "tasks": tasks})
    log.append("eval-rl", 0, {"coin/avg_at_k": 0.5})
    (tmp_path / "report.html").write_text("<p>report</p>")
    for file in ("report.html", "eval/rl.json"):
        first.artifact(tmp_path / file)
    wait_for(lambda: sent_rows(tmp_path / "tracking" / "wandb") == 8)
    log.truncate("rl", 2)  # during the send
    log.append("rl", 3, {"train/loss": -1.0})
    first.close(RunStatus.KILLED, timeout_s=120)
    accuracy = {"1_accuracy/coin": {1: 0.5}}
    assert wandb_points(tmp_path) == expected(tmp_path) | accuracy
    assert said
    assert all(str(tmp_path) in line for line in said)

    second = wandb_tracker(tmp_path, said)
    second.params({"rl.steps": "9"})
    second.describe(NOTE)
    for file in ("report.html", "eval/rl.json"):
        second.artifact(tmp_path / file)
    log.append("rl", 4, {"train/loss": 1.0})
    log.truncate("rl", 2)
    log.append("rl", 3, {"train/loss": -2.0})
    second.close(RunStatus.FINISHED, timeout_s=120)
    assert wandb_points(tmp_path) == expected(tmp_path) | accuracy
    assert wandb_points(tmp_path)["4_train/rl/loss"] == {1: 0.125, 2: 0.25, 3: -2.0}


@needs_wandb
@pytest.mark.timeout(600)
def test_w_and_b_has_configuration_description_files_and_tables_and_goes_on_after_an_upload(
    tmp_path: Path, quiet_network: None
) -> None:
    said: list[str] = []
    log, first = MetricsLog(tmp_path / "metrics.jsonl"), wandb_tracker(tmp_path, said)
    first.params({"rl.steps": "5"})
    first.describe(NOTE)
    log.append("rl", 1, {"x": 1.0})
    log.event("rl", 1, "changed", {"rl.steps": ["5", "9"]})
    (tmp_path / "eval").mkdir()
    tasks = {"coin": [{"key": "k", "right": 1, "scored": 2, "failed": 0}]}
    write_json(tmp_path / "eval" / "rl.json", {"order": 1, "envs": {}, "tasks": tasks})
    first.artifact(tmp_path / "eval" / "rl.json")
    first.close(RunStatus.FINISHED, timeout_s=120)
    (records,) = wandb_records(tmp_path)
    runs = of_type(records, "run")
    assert (runs[-1]["notes"], runs[0]["display_name"], runs[0]["project"]) == ("Accuracy 0.5", "demo", "temper")
    assert [one["update"] for one in of_type(records, "config")] == [{"rl.steps": "5"}]
    assert "rl after step 1: changed rl.steps 5 -> 9" in str(of_type(records, "summary"))
    assert of_type(records, "exit")[0].get("exit_code", 0) == 0
    (folder,) = (tmp_path / "tracking" / "wandb" / "wandb").glob("offline-run-*")
    pattern = said[0].partition("`wandb sync ")[2].partition("`")[0]
    assert [Path(found) for found in glob.glob(pattern)] == [folder]
    table = json.loads((folder / "files" / "eval" / "rl.table.json").read_text())
    assert table["data"] == [["k", 0.5, "coin", 1, 2, 0]]
    assert {"eval/rl.json", "eval/rl.table.json"} <= set(_paths(records))

    (record,) = folder.glob("*.wandb")
    record.with_suffix(".wandb.synced").touch()  # `wandb sync` marks an uploaded record like this
    log.append("rl", 2, {"x": 2.0})
    wandb_tracker(tmp_path, said).close(RunStatus.FINISHED, timeout_s=120)
    before, after = wandb_records(tmp_path)
    assert [of_type(part, "run")[0]["run_id"] for part in (before, after)] == [runs[0]["run_id"]] * 2
    assert [[row["item"]["x"] for row in _shown(part)] for part in (before, after)] == [[1.0], [2.0]]
    steps = [row["item"]["_step"] for part in (before, after) for row in of_type(part, "history")]
    assert steps == sorted(set(steps))

    log.truncate("rl", 0)
    log.append("rl", 1, {"x": 3.0})
    wandb_tracker(tmp_path, said).close(RunStatus.FINISHED, timeout_s=120)
    assert any(str(runs[0]["run_id"]) in line for line in said)
    newest = max(wandb_records(tmp_path), key=lambda part: of_type(part, "run")[0]["start_time"])
    assert of_type(newest, "run")[0]["run_id"] != runs[0]["run_id"]
    assert [row["item"]["x"] for row in _shown(newest)] == [3.0]


@needs_wandb
def test_the_record_of_a_killed_process_is_written_again(tmp_path: Path) -> None:
    from temper.orchestrator.tracking.sinks.wandb_sink import WandbSink

    state_dir = tmp_path / "tracking" / "wandb"
    state_dir.mkdir(parents=True)
    save_identity(state_dir, RunIdentity(mark="m", run_id="r"))
    records = [state_dir / "wandb" / f"offline-run-{number}-r" for number in (1, 2)]
    for record in records:
        record.mkdir(parents=True)
    sent = {"sent": 2, "offered": 2, "digest": "d"}
    write_json(state_dir / "r.sent", sent | {"sent": 9})
    write_json(state_dir / "r.begun", {"records": [records[0].name], "sent": sent})
    sink = WandbSink(WandbConfig(), name="demo", folder=RunDir(tmp_path), notify=print)
    sink._known = load_identity(state_dir)
    sink._discard_unfinished()
    assert [record.exists() for record in records] == [True, False]
    assert sent_rows(state_dir) == 2
    assert not list(state_dir.glob("*.begun"))


def _shown(records: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the rows of a record with the metric named `x`."""
    rows = of_type(records, "history")
    return [{"item": {"x": row["item"]["rl/x"]}} for row in rows if "rl/x" in row["item"]]


def _paths(records: list[dict[str, Any]]) -> list[str]:
    return [file["path"] for one in of_type(records, "files") for file in one["files"]]


SILENT = """
import sys
from pathlib import Path
from time import monotonic, sleep
from temper.orchestrator.pipeline.tracking import make_wandb_sender
from temper.orchestrator.run.folder import RunDir
from temper.orchestrator.tracking.backend import RunStatus
from temper.orchestrator.tracking.sinks.config import WandbConfig

settings = WandbConfig(mode="online")
sender = make_wandb_sender(settings, name="demo", folder=RunDir(Path(sys.argv[1])), notify=print)
sender.add("the configuration", lambda place: place.send_params({"rl.steps": "5"}))
sys.stdin.readline()
began = monotonic()
sender.close(RunStatus.FINISHED, timeout_s=2)
assert monotonic() - began < 10
"""


@needs_wandb
@pytest.mark.timeout(600)
def test_a_server_that_never_answers_holds_up_no_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither the run nor its process waits for it."""
    MetricsLog(tmp_path / "metrics.jsonl").append("rl", 1, {"x": 1.0})
    with socket.create_server(("127.0.0.1", 0)) as silent:
        monkeypatch.setenv("WANDB_BASE_URL", f"http://127.0.0.1:{silent.getsockname()[1]}")
        monkeypatch.setenv("WANDB_API_KEY", "0" * 40)
        command = [sys.executable, "-X", "faulthandler", "-c", SILENT, str(tmp_path)]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as child:
            last_user_message, _ = silent.accept()
            began = monotonic()
            printed, _ = child.communicate("\n", timeout=120)
            assert monotonic() - began < 60
            last_user_message.close()
    assert child.returncode == 0
    assert "1 rows of metrics.jsonl" in printed or "no connection" in printed


def test_a_package_that_lacks_is_told_before_a_run_begins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "wandb", None)  # as if it is not installed
    config = load_config(Path("configs/demo.yaml"), ["tracking.also=[wandb]", f"runs_dir={tmp_path}"])
    with pytest.raises(ValueError, match=r"tracking.also=.*wandb"):
        check_before(config, config.instances, tmp_path / "demo")
    assert list(tmp_path.iterdir()) == []


def test_who_has_no_key_records_and_one_who_asks_for_uploads_needs_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("WANDB_API_KEY", raising=False)
    assert [WandbConfig(mode=mode).uploads for mode in ("auto", "offline", "online")] == [False, False, True]
    monkeypatch.setenv("WANDB_API_KEY", "0" * 40)
    assert [WandbConfig(mode=mode).uploads for mode in ("auto", "offline", "online")] == [True, False, True]


@pytest.mark.parametrize("also", [["wandbb"], ["wandb"] * 2])
def test_a_place_that_is_none_or_named_twice_is_refused(also: list[str]) -> None:
    with pytest.raises(ValueError, match="wandb"):
        TrackingConfig(also=also)


@needs_wandb
def test_links_to_pages_of_mlflow_s_are_left_out_of_a_note() -> None:
    from temper.orchestrator.tracking.sinks.wandb_sink import strip_links

    links = "[report.html](RUN_PAGE/artifacts/report.html) - [traces](RUN_PAGE/traces)"
    note = f"| a |\n\n{links}\n\nFolder: `runs/a`\n\n![p](RUN_FILE/p.svg)"
    assert strip_links(note).split() == ["|", "a", "|", "Folder:", "`runs/a`"]
