"""W&B records of a run, read by its native reader, and the expected values."""

import json
import math
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from temper.orchestrator.run.metrics_log import read_metrics
from temper.orchestrator.tracking.metric_names import display_name

Points = dict[str, dict[int, float]]
"""By the name of a metric, its value at each step."""


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


def expected(folder: Path) -> Points:
    """Return the points of the metrics file under their displayed names."""
    points: Points = {}
    for row in read_metrics(folder / "metrics.jsonl"):
        for name, value in row.values.items():
            if math.isfinite(value):
                points.setdefault(display_name(row.stage, name), {})[row.step] = value
    return points
