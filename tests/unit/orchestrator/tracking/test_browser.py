"""MLflow's pages of a run in a real browser, served by `temper ui`. Skips without Chromium."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from mlflow.tracking import MlflowClient
from support.browsing import CHROMIUM, NONE_HERE, launched
from support.tracked_runs import episode_row, tracker

from temper.orchestrator.__main__ import main
from temper.orchestrator.pipeline.tracking import run_note
from temper.orchestrator.run.folder import RunDir, RunState
from temper.orchestrator.run.metrics_log import MetricsLog
from temper.orchestrator.tracking.backend import RunStatus
from temper.orchestrator.tracking.mlflow.dashboard import runs_page

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason=NONE_HERE)
PATIENCE_MS = 30_000
PICTURE = '<svg xmlns="http://www.w3.org/2000/svg" width="40" height="20"/>'
SEEN = "localStorage.setItem('mlflow.assistant.fab.autoOpenedOnFirstLoad_v1', 'true')"
"""Closes the panel of MLflow's assistant, which opens at the first visit."""


@dataclass(frozen=True, kw_only=True)
class Served:
    """A tracked run, its address on the server, and the address that the command printed."""

    runs: Path
    server: str
    printed: str
    experiment: str
    run_id: str
    trace_id: str

    @property
    def run(self) -> str:
        return f"{self.server}/#/experiments/{self.experiment}/runs/{self.run_id}"


def tracked_run(runs: Path) -> str:
    """Write a run's files and send them to the store next to it. Return its id in the store."""
    folder = RunDir(runs / "tiny")
    folder.open()
    folder.config.write_text("name: tiny\nseed: 7\nenvs: {shop: {share: 1}}\nrl: {group_size: 4}\n")
    folder.store(RunState(done={"rl": 3}, stages={"rl": "rl"}, seconds={"rl": 12.0}))
    log = MetricsLog(folder.metrics)
    for step in (1, 2, 3):
        log.append("rl", step, {"env/shop/reward": step / 4, "train/loss": 1.0 / step})
    result = {
        "tasks": 5,
        "tasks_asked": 5,
        "samples": 20,
        "failures": 0,
        "complete": 5,
        "avg_at_k_failures_as_zero": 0.5,
    }
    result |= {"pass_at_k": 0.9, "stderr": 0.1}
    tasks = {"shop": [{"key": "shop-key", "content": "c", "right": 3, "scored": 4, "failed": 0}]}
    for order, (label, accuracy) in enumerate((("init", 0.25), ("rl", 0.75))):
        head = {"label": label, "order": order, "k": 4, "seconds": 1.0, "model": "m", "version": order}
        envs = {"shop": result | {"avg_at_k": accuracy}}
        (folder.evals / f"{label}.json").write_text(json.dumps(head | {"envs": envs, "tasks": tasks}))
    for name in ("rl-3", "eval-rl"):
        path = folder.trajectories / f"{name}.jsonl"
        path.write_text(json.dumps(episode_row("shop", reward=1.0, calls=2)) + "\n")
    (folder.root / "report.html").write_text("<p>the report</p>")
    (folder.root / "result.svg").write_text(PICTURE)
    one = tracker(folder.root, f"sqlite:///{runs}/mlflow.db", name="tiny", experiment="temper", traces=4)
    one.params({"seed": "7"})
    one.stage("rl", {"rl.group_size": "4"}, 12.0)
    one.describe(run_note(folder))
    for path in folder.artifacts:
        one.artifact(path)
    one.episodes(folder.trajectories / "rl-3.jsonl")
    one.close(RunStatus.FINISHED, timeout_s=120)
    folder.close()
    return str(json.loads((folder.tracking / "run.json").read_text())["run_id"])


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    runs = tmp_path_factory.mktemp("runs")
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("MLFLOW_TRACKING_URI", raising=False)
        run_id = tracked_run(runs)
        client = MlflowClient(f"sqlite:///{runs}/mlflow.db")
        trace_id = client.search_traces(locations=[client.get_run(run_id).info.experiment_id])[0].info.trace_id
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    environment = {name: value for name, value in os.environ.items() if name != "MLFLOW_TRACKING_URI"}
    command = [sys.executable, "-m", "temper.orchestrator", "ui", "--runs-dir", str(runs), "--port", str(port)]
    command.append("--no-browser")
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parents[4], env=environment
    )
    try:
        assert process.stdout is not None
        found = re.match(r"(http://127\.0\.0\.1:\d+)(/#/experiments/(\d+)/runs\S+) ", process.stdout.readline())
        assert found is not None, (runs / "mlflow-ui.log").read_text()
        yield Served(
            runs=runs,
            server=found[1],
            printed=found[1] + found[2],
            experiment=found[3],
            run_id=run_id,
            trace_id=trace_id,
        )
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=30) == 0
        with pytest.raises(OSError, match="refused"):
            urllib.request.urlopen(found[1], timeout=10)
    finally:
        process.kill()
        process.communicate()


@pytest.fixture(scope="module")
def browser() -> "Iterator[Browser]":
    with launched() as browser:
        yield browser


@pytest.fixture
def page(browser: "Browser", served: Served) -> "Iterator[Page]":
    """A page that must not request anything outside of this machine."""
    page = browser.new_page(viewport={"width": 1400, "height": 900})
    page.add_init_script(SEEN)
    page.set_default_timeout(PATIENCE_MS)
    last_user_message: list[str] = []
    page.on("request", lambda request: last_user_message.append(request.url))
    yield page
    page.close()
    assert [url for url in last_user_message if not url.startswith((served.server, "data:", "blob:"))] == []


def test_the_printed_address_is_the_page_of_runs_and_charts_with_the_results_first(
    page: "Page", served: Served
) -> None:
    page.goto(served.printed)
    page.get_by_role("link", name="tiny", exact=True).wait_for()
    page.get_by_text("1_accuracy/shop", exact=True).wait_for()
    page.get_by_text("2_reward/rl/shop", exact=True).wait_for()
    page.locator(".js-plotly-plot svg.main-svg").first.wait_for()
    shown = page.inner_text("body")
    assert shown.index("1_accuracy/shop") < shown.index("2_reward/rl/shop")
    assert "Welcome to MLflow" not in shown
    assert page.get_by_role("link", name="rl", exact=True).count() == 0  # of its stage; the run's page has a link


def test_a_runs_page_has_its_result_its_settings_its_report_and_its_stages(page: "Page", served: Served) -> None:
    page.goto(served.run)
    page.get_by_text("Show more").first.click()
    cells = page.locator("table", has_text="after init").locator("tr", has_text="shop").first
    assert cells.inner_text().split() == ["shop", "0.25", "0.75", "+0.50"]
    assert "seed 7" in page.inner_text("body")
    page.get_by_role("link", name="rl", exact=True).wait_for()
    picture = page.locator("img[src*='path=result.svg']")
    picture.wait_for()
    assert picture.evaluate("image => [image.naturalWidth, image.naturalHeight]") == [40, 20]
    report = page.get_by_role("link", name="report.html").get_attribute("href")
    assert report == f"#/experiments/{served.experiment}/runs/{served.run_id}/artifacts/report.html"
    page.goto(f"{served.server}/{report}")
    page.frame_locator("iframe").get_by_text("the report").wait_for()


def test_the_pages_of_traces_show_an_episode_with_its_tool_call(page: "Page", served: Served) -> None:
    traces = f"{served.server}/#/experiments/{served.experiment}/traces"
    page.goto(traces)
    page.get_by_text("6*7=?").first.wait_for()
    page.goto("about:blank")
    page.goto(f"{traces}?selectedEvaluationId={served.trace_id}&traceId={served.trace_id}")
    page.get_by_text("turn 2", exact=True).wait_for()
    page.get_by_text("get", exact=True).nth(1).click()
    page.get_by_text("value 1").first.wait_for()
    page.get_by_text("grading", exact=True).click()
    page.get_by_text("as it should be").first.wait_for()


def test_the_page_of_evaluations_opens_on_the_newest_with_a_line_a_task_and_its_answer(
    page: "Page", served: Served
) -> None:
    page.goto(served.printed.replace("compareRunsMode=CHART", "compareRunsMode=ARTIFACT"))
    page.get_by_text("eval/rl.table.json").first.wait_for()
    page.get_by_text("6*7=?", exact=True).first.wait_for()
    page.get_by_text("42", exact=True).first.wait_for()


def test_the_pages_are_of_the_newest_run_or_of_the_experiment_that_is_named(served: Served) -> None:
    client = MlflowClient(f"sqlite:///{served.runs}/mlflow.db")
    client.create_run(client.create_experiment("of-others"))  # a newer foreign run
    assert runs_page(served.server, None) == served.printed == runs_page(served.server, "temper")
    with pytest.raises(ValueError, match="--experiment night .*temper"):
        runs_page(served.server, "night")


def test_the_pages_are_told_to_report_to_nobody(served: Served) -> None:
    with urllib.request.urlopen(f"{served.server}/ajax-api/3.0/mlflow/ui-telemetry", timeout=10) as answer:
        told = json.load(answer)
    assert (told["disable_ui_telemetry"], told["disable_ui_events"]) == (True, [])


def test_a_port_that_is_taken_is_said_before_anything_starts(
    served: Served, capsys: pytest.CaptureFixture[str]
) -> None:
    port = served.server.rpartition(":")[2]
    began = time.monotonic()
    assert main(["ui", "--runs-dir", str(served.runs), "--port", port]) == 2
    assert f"--port {port}: Address already in use" in capsys.readouterr().err
    assert main(["ui", "--runs-dir", str(served.runs / "none")]) == 2
    assert "--runs-dir" in capsys.readouterr().err
    assert time.monotonic() - began < 5
