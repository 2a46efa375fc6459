"""W&B and trackio records of a run, read by their native readers, and the expected values."""

import json
import math
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from temper.orchestrator.run.metrics_log import read_metrics
from temper.orchestrator.tracking.metric_names import display_name

Points = dict[str, dict[int, float]]
"""By the name of a metric, its value at each step."""
READ_TRACKIO = """
import json, sys
from trackio.sqlite_storage import SQLiteStorage
project = sys.argv[1]
runs = SQLiteStorage.get_run_records(project)
print(json.dumps([
    run | {"logs": SQLiteStorage.get_logs(project, run["name"], run_id=run["id"]),
           "config": SQLiteStorage.get_run_config(project, run["name"], run_id=run["id"])}
    for run in runs
] + [SQLiteStorage.list_artifacts(project)], default=str))
"""


def wandb_records(folder: Path) -> list[list[dict[str, Any]]]:
    """The records of each of a run's files of W&B, in order, as `wandb leet inspect` reads them."""
    found, env = [], os.environ | {"WANDB_ERROR_REPORTING": "false"}
    for record in sorted(folder.glob("tracking/wandb/wandb/*run-*/*.wandb")):
        command = [sys.executable, "-m", "wandb", "leet", "inspect", "--json", str(record)]
        text = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60, env=env).stdout
        found.append([json.loads(line) for line in text.splitlines()])
    return found


def wandb_points(folder: Path) -> Points:
    """Return a run's points in W&B over all of its records. No metric may have a step twice."""
    rows = [
        one["history"]["item"] | {"_step": one["history"].get("step", one["history"]["item"].get("_step"))}
        for records in wandb_records(folder)
        for one in records
        if one["type"] == "history"
    ]
    axes = {
        one["metric"]["name"]: one["metric"]["step_metric"]
        for records in wandb_records(folder)
        for one in records
        if one["type"] == "metric" and "step_metric" in one["metric"]
    }
    points: Points = {}
    for row in rows:
        for name in row.keys() & axes.keys():
            step = row[axes[name]]
            assert step not in points.setdefault(name, {}), (name, step)
            points[name][step] = row[name]
    return points


def trackio_store(folder: Path) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """The runs of trackio's store with their rows, and its artifacts, as its own functions read them."""
    store = next(place / "trackio" for place in (folder, folder.parent) if (place / "trackio").exists())
    env = os.environ | {"TRACKIO_DIR": str(store), "HF_HUB_OFFLINE": "1"}
    command = [sys.executable, "-c", READ_TRACKIO, "temper"]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60, env=env)
    *runs, artifacts = json.loads(done.stdout.splitlines()[-1])
    return runs, artifacts


def trackio_points(folder: Path) -> Points:
    """Return the points of the one run in trackio's store. No metric may have a step twice."""
    ((run,), _) = trackio_store(folder)
    points: Points = {}
    for row in run["logs"]:
        for name, value in row.items():
            if isinstance(value, int | float) and name != "step":
                assert row["step"] not in points.setdefault(name, {}), (name, row["step"])
                points[name][row["step"]] = value
    return points


POINTS: dict[str, Callable[[Path], Points]] = {"wandb": wandb_points, "trackio": trackio_points}


def expected(folder: Path) -> Points:
    """Return the points of the metrics file under their displayed names."""
    points: Points = {}
    for row in read_metrics(folder / "metrics.jsonl"):
        for name, value in row.values.items():
            if math.isfinite(value):
                points.setdefault(display_name(row.stage, name), {})[row.step] = value
    return points
