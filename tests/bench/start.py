"""`bench`, the start: CPU seconds of each process until a run samples.

`python -m bench.start CONFIG [key=value ...]`, a part of `make bench`. The run is stopped then.
"""

import argparse
import json
import signal
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

import psutil
from rich.console import Console
from rich.table import Table

from temper.orchestrator.session.status import read_status

KINDS = {
    "EngineCore": "engine core",
    "spawn_main": "engine core",
    "RolloutWorker": "engine front end",
    "TrainerWorker": "learner rank",
    "ray::IDLE": "idle worker of Ray",
    "worker.py": "idle worker of Ray",
    "site-packages/ray/": "Ray itself",
}
"""Kinds of processes by a part of their command, the first that is found."""
ENDED = "ended children"
START_S, STOP_S, LOOK_S = 600.0, 120.0, 0.2


def main(config: str, overrides: list[str]) -> dict[str, float]:
    """Return the CPU seconds by process, their sum, and the seconds until a worker samples."""
    with tempfile.TemporaryDirectory(prefix="temper-bench-") as folder, Path(folder, "log").open("wb") as log:
        command = [sys.executable, "-m", "temper.orchestrator", "run", config, "name=start", f"runs_dir={folder}"]
        began = time.monotonic()
        driver = psutil.Popen([*command, *overrides], stdout=log, stderr=log)
        try:
            while not _samples(Path(folder)):
                if driver.poll() is not None or time.monotonic() > began + START_S:
                    raise RuntimeError(f"the run did not sample: {Path(log.name).read_text()[-2000:]}")
                time.sleep(LOOK_S)
            figures, _ = use_by_kind(driver)
            return figures | {"sum": sum(figures.values()), "seconds": time.monotonic() - began}
        finally:
            _stop(driver)


def _samples(runs: Path) -> bool:
    statuses = [read_status(file.parent) for file in runs.glob("*/status.json")]
    return any(one.doing.startswith("group") for status in statuses if status for one in status.processes)


def use_by_kind(driver: psutil.Process) -> tuple[dict[str, float], dict[str, float]]:
    """Return the CPU seconds and the resident MiB of a process and its descendants. The seconds of ended ones count apart."""
    used, mib = Counter[str](), Counter[str]()
    for process in [driver, *driver.children(recursive=True)]:
        try:
            with process.oneshot():
                times, line, held = process.cpu_times(), " ".join(process.cmdline()), process.memory_info().rss
        except psutil.Error:
            continue
        kind = next((kind for part, kind in KINDS.items() if part in line), process.name())
        kind = "driver" if process == driver else kind
        used[kind] += times.user + times.system
        used[ENDED] += times.children_user + times.children_system
        mib[kind] += held / 2**20
    return dict(used), dict(mib)


def _stop(driver: psutil.Popen) -> None:
    if driver.poll() is not None:
        return
    left = driver.children(recursive=True)
    driver.send_signal(signal.SIGINT)
    try:
        driver.wait(STOP_S)
    except psutil.TimeoutExpired:
        driver.kill()
    for process in psutil.wait_procs(left, timeout=5)[1]:
        process.kill()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m bench.start", description=__doc__)
    parser.add_argument("config", help="a YAML file")
    parser.add_argument("overrides", nargs="*", metavar="key=value", help="more settings")
    given = parser.parse_args()
    seen = main(given.config, given.overrides)
    table = Table("process", "CPU seconds", title="bench, the start")
    for name, value in seen.items():
        table.add_row(name, f"{value:.1f}")
    Console(stderr=True).print(table)
    print(json.dumps(seen))
