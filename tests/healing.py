"""How a process of a run is hurt, how the run is seen to heal, and what an audit says in the end."""

import random
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil
from fault_job import Job, rows

WORKER, ENGINE, RANK = "ray::RolloutWorker", "VLLM::EngineCore", "ray::TrainerWorker"
HEALED_S = 150.0
"""How long it may take on a busy machine until all are there again."""


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
) -> str:
    """Hurt one `of` so many processes of a name; wait for another in its place and for two steps; say what was seen.

    `look` is called again and again meanwhile.
    """
    job.wait_until(lambda: len(job.actors(name)) == of, f"{of} processes {name}", limit_s=HEALED_S)
    before = {one.pid for one in job.actors(name)}
    victim = rng.choice(job.actors(name))
    done, began = len(rows(job.run, "rl")), time.monotonic()
    hurt(victim)

    def replaced() -> bool:
        look()
        now = {one.pid for one in job.actors(name)}
        return victim.pid not in now and len(now) == of and bool(now - before)

    job.wait_until(replaced, f"{name} replaced", limit_s=HEALED_S)
    there, meanwhile = time.monotonic() - began, len(rows(job.run, "rl")) - done
    after = steps_done(job)
    job.wait_until(lambda: steps_done(job) >= after + 2, "two steps after it", limit_s=HEALED_S)
    return f"another process after {there:.0f} s, {max(0, meanwhile)} steps meanwhile"


def audited(run: Path) -> str:
    """Return the last line of an audit that found nothing; fail with its table where it found something."""
    command = [sys.executable, "-m", "orchestrator", "audit", str(run)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout.strip().splitlines()[-1]
