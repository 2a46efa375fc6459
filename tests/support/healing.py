"""Fault a process of a run, observe the restart, and audit the end."""

import random
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil
from support.audit import failures
from support.fault_job import Job, rows

from temper.orchestrator.run.folder import RunDir
from temper.orchestrator.run.metrics_log import MetricsRow, read_metrics
from temper.orchestrator.session.status import ProcessStatus, read_status

WORKER, ENGINE, RANK = "ray::RolloutWorker", "VLLM::EngineCore", "ray::TrainerWorker"
MEMBERS = {WORKER: "rollout worker", ENGINE: "rollout worker", RANK: "the learner's rank"}
"""Names of these processes in the status."""
HEALED_S = 200.0
"""Time limit for a full recovery on a busy machine."""


def steps_done(job: Job) -> int:
    """Return the last step of rl that the run has written."""
    return max((row.step for row in rows(job.run, "rl")), default=0)


def heal(
    job: Job,
    name: str,
    hurt: Callable[[psutil.Process], None],
    rng: random.Random,
    *,
    of: int,
    look: Callable[[], None] = lambda: None,
    replaced: Callable[[], None] = lambda: None,
) -> str:
    """Fault one `of` so many processes, wait until as many serve again and two steps pass, and return the observations.

    Meanwhile it calls `look` repeatedly, and `replaced` once the replacement serves.
    """

    def serving() -> set[int | None]:
        look()
        status = read_status(job.run)
        processes = status.processes if status else ()
        return {
            one.pid for one in processes if one.name.startswith(MEMBERS[name]) and one.state == "serving" and one.pid
        }

    def waits(seen: Callable[[], bool], what: str) -> None:
        job.wait_until(seen, what, limit_s=HEALED_S, every_s=0.1)

    waits(lambda: len(serving()) == of and len(job.actors(name)) == of, f"{of} processes {name}")
    victim = rng.choice(job.actors(name))
    gone = victim.ppid() if name == ENGINE else victim.pid
    done, began, at = steps_done(job), time.monotonic(), time.time()
    hurt(victim)
    waits(lambda: len(now := serving()) == of and gone not in now, f"{name} replaced")
    seconds, meanwhile = time.monotonic() - began, steps_done(job) - done
    replaced()
    after = steps_done(job)
    waits(lambda: steps_done(job) >= after + 2, "two steps after it")
    noticed = min(fault.time for fault in faults(job) if fault.time >= at) - at
    return (
        f"noticed after {noticed:.0f} s, another one serves after {seconds:.0f} s, {max(0, meanwhile)} steps meanwhile"
    )


def faults(job: Job) -> list[MetricsRow]:
    """Return the detected hangs and failures."""
    rows = read_metrics(job.run / "metrics.jsonl")
    return [row for row in rows if row.event is not None and row.event["kind"] == "fault"]


def workers(job: Job) -> list[ProcessStatus]:
    """Return the rollout workers in the run's status."""
    status = read_status(job.run)
    return [one for one in (status.processes if status else ()) if one.name.startswith(MEMBERS[WORKER])]


def scale(job: Job, number: int) -> float:
    """Ask the run for so many rollout workers. Return the seconds until exactly so many serve."""
    began = time.monotonic()
    command = [sys.executable, "-m", "temper.orchestrator", "scale", str(job.run), "--rollout-workers", str(number)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout + done.stderr

    def there() -> bool:
        states = [one.state for one in workers(job)]
        return states == ["serving"] * number and len(job.actors(ENGINE)) == number

    job.wait_until(there, f"{number} rollout workers", limit_s=HEALED_S, every_s=0.1)
    return time.monotonic() - began


def audited(run: Path) -> str:
    """Return the word for a run without inconsistencies. Fail with their list if there are any."""
    found = failures(RunDir(run))
    assert not found, "\n".join(one.line for one in found)
    return "consistent"
