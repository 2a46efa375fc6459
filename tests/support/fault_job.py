"""Fault injection for a run process: start, observe, kill, and check for leftovers."""

import contextlib
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from temper.orchestrator.run.metrics_log import MetricsRow, read_metrics, step_rows

TINY = """
stages: [init, sft, eval, rl]
seed: 7
envs:
  coin: {kind: support.faulty_env, thinking: false}
model: {fresh: {pattern: M-*-, hidden_size: 64, intermediate_size: 128, attention_heads: 2, key_value_heads: 1}}
learner: {threads: 1, threads_during_generation: 1, micro_batch_tokens: 2048}
sft: {steps: 6, batch_size: 16, checkpoint_every: 2}
rl: {groups_per_step: 4, group_size: 4, max_replaced_groups: 0, checkpoint_every: 2}
eval: {tasks: 4, samples: 2}
rollout:
  limits: {turn_tokens: 32, total_tokens: 512}
  engine: {max_model_len: 512, max_sequences: 64}
"""
"""A tiny model and an environment without a sandbox, so that a start takes as long as the imports of its processes."""
DEMO = Path(__file__).resolve().parents[2] / "configs" / "demo.yaml"
SMALL = [
    "model.fresh={pattern: M-*-, hidden_size: 64, intermediate_size: 128, attention_heads: 2, key_value_heads: 1}",
    *("sft.batch_size=16", "sft.optim.kind=adamw", "eval.tasks=4", "eval.samples=2"),
    *("rl.groups_per_step=4", "rl.group_size=4", "rl.max_replaced_groups=2", "rl.checkpoint_every=2"),
    *("rollout.limits.turn_tokens=32", "rollout.engine.max_sequences=64"),
]
"""Settings that make the demo small."""
SYNCHRONOUS = ["rl.max_lag=0", "rollout.workers=1"]
START_S = 1200.0
"""Time limit of any one observation, also on a busy machine."""
GONE_S = 180.0
"""Time limit for the processes of a killed run to exit: Ray's agents search for their head for a minute."""
AGENTS = ("ray::DashboardAgent", "ray::RuntimeEnvAgent")
"""They disturb no other run, so that it does not wait for them."""
POLL_S = 0.02


@dataclass(kw_only=True)
class Job:
    """One start of a run. `known` are all processes ever seen in its tree."""

    process: "subprocess.Popen[bytes]"
    run: Path
    log: Path
    began: float = field(default_factory=time.time)
    known: dict[int, psutil.Process] = field(default_factory=dict)

    @property
    def output(self) -> str:
        return self.log.read_text(errors="replace")

    def tree(self) -> list[psutil.Process]:
        """Return and record the processes below the driver."""
        with contextlib.suppress(psutil.NoSuchProcess):
            below = psutil.Process(self.process.pid).children(recursive=True)
            self.known.update({one.pid: one for one in below})
            return below
        return []

    def actors(self, name: str) -> list[psutil.Process]:
        """Return the living processes of this name, such as `ray::TrainerWorker` or `VLLM::EngineCore`, the oldest first."""
        found = []
        for one in self.tree():
            with contextlib.suppress(psutil.NoSuchProcess, psutil.ZombieProcess):
                if title(one).startswith(name) or one.name() == name:
                    found.append((one.create_time(), one))
        return [one for _, one in sorted(found, key=lambda pair: pair[0])]

    def wait_until(
        self, seen: Callable[[], bool], what: str, *, limit_s: float = START_S, every_s: float = POLL_S
    ) -> None:
        """Wait until `seen` is true. The job must live until then."""
        deadline = time.monotonic() + limit_s
        while not seen():
            assert self.process.poll() is None, f"ended with {self.process.returncode} before {what}:\n{self.output}"
            assert time.monotonic() < deadline, f"not seen in {limit_s:.0f} s: {what}\n{self.output}"
            time.sleep(every_s)

    def said(self, text: str) -> Callable[[], bool]:
        return lambda: text in self.output

    def reached(self, stage: str, step: int) -> Callable[[], bool]:
        """Return whether this start has measured that step, or a later one."""
        return lambda: any(row.step >= step and row.time >= self.began for row in rows(self.run, stage))

    def end(self, *, limit_s: float = START_S) -> int:
        """Return the exit status, once the job and all its processes have ended by themselves."""
        deadline = time.monotonic() + limit_s
        while self.process.poll() is None:
            assert time.monotonic() < deadline, f"did not end in {limit_s:.0f} s:\n{self.output}"
            self.tree()
            time.sleep(0.1)
        self.require_gone()
        return self.process.returncode

    def kill(self) -> None:
        """Kill the driver, and wait until all its processes exit by themselves."""
        self.tree()
        self.process.kill()
        self.process.wait()
        self.require_gone()

    def require_gone(self, *, agents: bool = False) -> None:
        """Fail if a process of the run long outlives its driver. Ray's `agents` are the slowest to exit."""
        deadline = time.monotonic() + GONE_S
        while left := [f"{one.pid} {name}" for one in self.known.values() if (name := _awaited(one, agents=agents))]:
            if time.monotonic() > deadline:
                for one in self.known.values():  # nothing of a failed test may disturb the next one
                    kill_if_running(one)
                raise AssertionError(f"left behind: {left}\n{self.output}")
            time.sleep(0.1)


def _awaited(process: psutil.Process, *, agents: bool) -> str:
    """Return the title of a process that must exit, or an empty string if it is gone or may stay."""
    with contextlib.suppress(psutil.NoSuchProcess):
        if process.is_running() and process.status() != psutil.STATUS_ZOMBIE:
            name = title(process)
            return "" if name.startswith(AGENTS) and not agents else name
    return ""


def kill_if_running(process: psutil.Process) -> None:
    """Kill a process that still runs. psutil alone would kill a new process with the number of one it has seen exit."""
    with contextlib.suppress(psutil.NoSuchProcess):
        if process.is_running():
            process.kill()


def title(process: psutil.Process) -> str:
    """Return the process title, or an empty string if the process is gone."""
    with contextlib.suppress(psutil.NoSuchProcess, psutil.ZombieProcess, psutil.AccessDenied):
        return " ".join(process.cmdline()) or process.name()
    return ""


class Runs:
    """A folder of runs on a short path, as Ray's sockets need one, and their jobs."""

    def __init__(self, config: Path | None = None) -> None:
        """`config` is the configuration of the runs, by default a tiny one."""
        self.folder = Path(tempfile.mkdtemp(prefix="tf-", dir="/tmp"))
        self.config = config or self.folder / "tiny.yaml"
        if config is None:
            self.config.write_text(TINY, encoding="utf-8")
        self.jobs: list[Job] = []

    def start(
        self,
        name: str,
        *overrides: str,
        before: list[str] | None = None,
        environment: dict[str, str] | None = None,
    ) -> Job:
        """Start or resume a run. `before` is a command that runs the driver, and `environment` extends the inherited one."""
        log = self.folder / f"{name}-{len(self.jobs)}.log"
        command = [*(before or []), sys.executable, "-m", "temper.orchestrator", "run", str(self.config)]
        command += [f"runs_dir={self.folder}", f"name={name}", *overrides]
        given = os.environ.get("PYTHONPATH")
        path = os.pathsep.join([str(Path(__file__).parents[1]), str(Path.cwd()), *([given] if given else [])])
        env = os.environ | {"PYTHONPATH": path, "PYTHONUNBUFFERED": "1"} | (environment or {})
        with log.open("wb") as output:
            process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT, env=env)
        job = Job(process=process, run=self.folder / name, log=log)
        self.jobs.append(job)
        return job

    def require_gone(self) -> None:
        """Fail if any process of any job remains."""
        for job in self.jobs:
            job.require_gone(agents=True)

    def close(self) -> None:
        """End all remaining processes and remove the folder."""
        for job in self.jobs:
            if job.process.poll() is None:
                job.tree()
            for one in job.known.values():
                kill_if_running(one)
            job.process.kill()
            job.process.wait()
        shutil.rmtree(self.folder, ignore_errors=True)


@contextlib.contextmanager
def runs(config: Path | None = None) -> Iterator[Runs]:
    """A folder of runs for one test, removed afterwards."""
    made = Runs(config)
    try:
        yield made
    finally:
        made.close()


def rows(run: Path, stage: str) -> list[MetricsRow]:
    """Return the rows of measurements of a stage."""
    return step_rows(read_metrics(run / "metrics.jsonl"), stage)


def wait_a_moment(rng: random.Random, most_s: float) -> float:
    """Sleep for a random part of so many seconds, and return it."""
    seconds = rng.uniform(0.0, most_s)
    time.sleep(seconds)
    return seconds


def stop(process: psutil.Process) -> None:
    """Stop a process, so that it hangs: it exists but does not answer."""
    process.send_signal(signal.SIGSTOP)
