"""The main job as a process: how the tests start it, wait for it and read what it leaves."""

import contextlib
import subprocess
import sys
import time
from pathlib import Path

import psutil

from temper.orchestrator.run.metrics_log import MetricsRow, read_metrics, step_rows

DEMO = Path("configs/demo.yaml")
SMALL = [
    "model.fresh.pattern=M-*-",
    "model.fresh.hidden_size=64",
    "model.fresh.intermediate_size=128",
    "model.fresh.attention_heads=2",
    "model.fresh.key_value_heads=1",
    "sft.batch_size=16",
    "rl.groups_per_step=4",
    "rl.group_size=4",
    "rl.max_drops=2",
    "rl.checkpoint_every=2",
    "eval.tasks=4",
    "eval.samples=2",
    "rollout.limits.turn_tokens=32",
    "rollout.engine.max_sequences=64",
]
DEADLINE_S = 400.0
"""How long a run may take, also on a busy machine whose files are not cached: most of it is what its processes import."""


def command(runs: Path, *overrides: str) -> list[str]:
    return [
        sys.executable,
        "-m",
        "temper.orchestrator",
        "run",
        str(DEMO),
        f"runs_dir={runs}",
        "name=job",
        *SMALL,
        *overrides,
    ]


def finish(job: "subprocess.Popen[str]") -> tuple[int, str]:
    """Return the exit status and what was printed. A job that does not end in time is ended with all that it started."""
    try:
        output, _ = job.communicate(timeout=DEADLINE_S)
    except subprocess.TimeoutExpired:
        for process in (*psutil.Process(job.pid).children(recursive=True), job):
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        output, _ = job.communicate(timeout=DEADLINE_S)
        raise AssertionError(f"did not end in {DEADLINE_S:.0f} s:\n{output}") from None
    return job.returncode, output


def start(arguments: list[str]) -> "subprocess.Popen[str]":
    return subprocess.Popen(arguments, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def rows(run: Path, stage: str) -> list[MetricsRow]:
    return step_rows(read_metrics(run / "metrics.jsonl"), stage)


def open_ports(job: "subprocess.Popen[str]", actor: str) -> list[list[str]]:
    """For each process of a job's actor, such as `ray::TrainerWorker`, where it listens beyond loopback for TCP."""
    ports = []
    for process in psutil.Process(job.pid).children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):
            if process.name().partition(".")[0] == actor:
                listening = [one for one in process.net_connections("tcp") if one.status == psutil.CONN_LISTEN]
                ports.append([f"{one.laddr.ip}:{one.laddr.port}" for one in listening if one.laddr.ip != "127.0.0.1"])
    return ports


def wait_for_step(job: "subprocess.Popen[str]", run: Path, stage: str, step: int) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not any(row.step >= step for row in rows(run, stage)):
        assert job.poll() is None, finish(job)
        assert time.monotonic() < deadline, f"{stage} did not reach step {step}"
        time.sleep(0.2)
