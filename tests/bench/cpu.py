"""CPU seconds of a step by process, in a real run: 64 answers of at most 64 tokens to short sums, at lag 1.

`python -m bench.cpu [--steps 60]`, a part of `make bench`. The run is `temper run` with its event log, metrics, trajectories
and MLflow. The first steps are not counted: the pipeline fills.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import psutil
from rich.console import Console
from rich.table import Table

SKIPPED = 2
START_S, STEP_S = 300.0, 60.0
"""Deadlines of the run's start and of a step."""
SETTINGS = {
    "name": "cpu",
    "stages": ["init", "rl"],
    "envs": {"math": {"share": 1}},
    "rollout": {
        "limits": {"turn_tokens": 64, "total_tokens": 1024, "turns": 1},
        "engine": {"max_model_len": 1024},
    },
    "learner": {"threads": 2, "threads_during_generation": 1, "micro_batch_tokens": 8192},
    "rl": {"groups_per_step": 8, "group_size": 8, "max_replaced_groups": 0, "max_lag": 1},
}
PARTS = {"ray::TrainerWorker": "learner", "ray::RolloutWorker": "rollout worker", "VLLM::EngineCore": "engine"}
"""Processes by the beginning of their title. Others are Ray's own."""


def bench_cpu(steps: int) -> dict[str, float]:
    """Return CPU seconds a step of each part, and the step's wall-clock seconds."""
    with tempfile.TemporaryDirectory(prefix="temper-bench-") as folder:
        path, log = Path(folder) / "cpu.yaml", Path(folder) / "log"
        rl = {"rl": {**SETTINGS["rl"], "steps": SKIPPED + steps}}  # type: ignore[dict-item]
        path.write_text(json.dumps(SETTINGS | rl | {"runs_dir": folder}), encoding="utf-8")
        with log.open("w", encoding="utf-8") as out:
            command = [sys.executable, "-m", "temper.orchestrator", "run", str(path)]
            run = subprocess.Popen(command, stdout=out, stderr=subprocess.STDOUT)
            try:
                metrics = Path(folder) / "cpu" / "metrics.jsonl"

                def wait(step: int, limit_s: float) -> None:
                    _wait(lambda: _steps(metrics) >= step or run.poll() is not None, limit_s)
                    if _steps(metrics) < step:
                        raise RuntimeError(f"the run ended before step {step}:\n{log.read_text(encoding='utf-8')}")

                wait(SKIPPED, START_S)
                began, before, first = time.monotonic(), cpu_by_part(run.pid), _steps(metrics)
                wait(SKIPPED + steps - 1, STEP_S * steps)  # the last step overlaps the run's end
                after, last, seconds = cpu_by_part(run.pid), _steps(metrics), time.monotonic() - began
            finally:
                run.terminate()
                run.wait(START_S)
    made = last - first
    used = {part: (after[part] - before.get(part, 0.0)) / made for part in after}
    return {f"cpu/{part}_s": value for part, value in used.items()} | {"cpu/step_s": seconds / made}


def cpu_by_part(driver: int) -> Mapping[str, float]:
    """Return the CPU seconds so far of a run's driver and its descendants, summed by part."""
    top = psutil.Process(driver)
    used: dict[str, float] = {}
    for process in (top, *top.children(recursive=True)):
        try:
            title, times = (process.cmdline() or [""])[0], process.cpu_times()
        except psutil.NoSuchProcess:
            continue
        part = "driver" if process.pid == driver else part_of(title)
        used[part] = used.get(part, 0.0) + times.user + times.system
    return used


def part_of(title: str) -> str:
    """Return the part of a run to which a process with this title belongs."""
    return next((part for beginning, part in PARTS.items() if title.startswith(beginning)), "Ray")


def _steps(metrics: Path) -> int:
    """Return the number of reported steps of the stage."""
    return metrics.read_text(encoding="utf-8").count('"train/loss"') if metrics.exists() else 0


def _wait(is_done: Callable[[], bool], limit_s: float) -> None:
    deadline = time.monotonic() + limit_s
    while not is_done():
        if time.monotonic() > deadline:
            raise TimeoutError(f"the run did not reach the awaited step in {limit_s:.0f} s")
        time.sleep(0.05)


def main() -> None:
    """Measure, print a table on standard error and one JSON object on standard output."""
    parser = argparse.ArgumentParser(prog="python -m bench.cpu", description=__doc__)
    parser.add_argument("--steps", type=int, default=60, help="steps that count (default: 60)")
    figures = bench_cpu(parser.parse_args().steps)
    table = Table("process", "CPU s a step", title=f"CPU of a step by process, {os.cpu_count()} cores")
    for name, value in sorted(figures.items(), key=lambda item: -item[1]):
        table.add_row(name, f"{value:.3f}")
    Console(stderr=True).print(table)
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
