"""One device shared by an engine and a rank: two steps of a run in which they take phases, and the memory in each phase."""

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from gpu.measure import Report

from temper.orchestrator.cluster.this_machine import PACKAGE

SETTINGS = (
    *(
        "name=sharing",
        "stages=[init,rl]",
        "placement=colocated",
        "rl.max_lag=0",
        "rl.steps=2",
        "rl.max_replaced_groups=0",
    ),
    *("rl.groups_per_step=4", "rl.group_size=4", "rl.optim.warmup_steps=0", "rl.loss.advantage=reinforce_pp"),
    "rl.loss.malformed_thinking=-1.0",
)
"""A fresh model's rewards are mostly equal, so that it learns from its malformed thinking."""

GAP = 1e-3
"""Largest mean difference of log-probabilities in nats, in float32: on a CPU it is about 1e-7."""

HELD = {"weights": "weights", "states": "states", "cache": "cache", "device": "taken of the GPU"}
"""Labels of the memory columns in a log row. GPU columns are absent without a GPU."""


def run(report: Report, *, small: bool) -> None:
    """Run the user command. `learner.transport` selects the push."""
    with tempfile.TemporaryDirectory(prefix="temper-gpu-") as folder:
        command = [
            sys.executable,
            "-m",
            "temper.orchestrator",
            "run",
            str(PACKAGE / "configs" / "demo.yaml"),
            *SETTINGS,
        ]
        ran = subprocess.run(
            [*command, f"runs_dir={folder}", f"tracking.uri=sqlite:///{folder}/mlflow.db"],
            capture_output=True,
            text=True,
            check=False,
        )
        if ran.returncode:
            raise RuntimeError(f"the run ended with status {ran.returncode}:\n{ran.stdout[-3000:]}{ran.stderr[-3000:]}")
        place = Path(folder) / "sharing"
        metrics, phases = _rows(place / "metrics.jsonl"), _rows(place / "phases.jsonl")
    _figures(report, metrics, phases)


def _figures(report: Report, metrics: list[dict[str, Any]], phases: list[dict[str, Any]]) -> None:
    """Report whether the second step sampled with the weights pushed after the first."""
    trained = [row for row in metrics if row["stage"] == "rl" and "train/mismatch_abs" in row]
    report.figure("steps that were trained", len(trained), at_least=2)
    gap = trained[-1]["train/mismatch_abs"]
    report.figure("engine against trainer after a push, mean difference", gap, "nats", at_most=GAP)
    for name in sorted({row["phase"] for row in phases}):
        rows = [row for row in phases if row["phase"] == name]
        report.figure(f"{name}: the change to it, the longest", max(row["seconds"] for row in rows), "s")
        held = [one for row in rows for one in row["memory_usage"].values()]
        for what, words in HELD.items():
            known = [one[what] for one in held if one[what] is not None]
            if known:
                report.figure(f"{name}: {words}", max(known) / 2**20, "MiB")


def _rows(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
