"""`make soak MINUTES=30 SEED=1`: the demo's loop under random faults, and what it leaves.

Kills and stops workers, engines and ranks at random moments, each time waiting until the run has healed. At the end the
resident memory of each process that lived long enough is flat within 5 % after its warm-up, nothing is left (no process, file,
segment of shared memory or listening port), and the ledger balances. Exit status 1 where that is not so.
"""

import argparse
import contextlib
import random
import signal
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

import psutil
from fault_job import Job, rows, runs, stop, title
from healing import ENGINE, RANK, WORKER, audited, heal

DEMO = Path("configs/demo.yaml")
ARGUMENTS = [
    "stages=[init,sft,rl]",
    "sft.steps=40",
    "rl.steps=1000000",
    "rl.checkpoint_every=20",
    "rollout.workers=2",
    "supervision.pulse_s=1",
    "supervision.silent_s=15",
    "supervision.stalled_s=30",
    "supervision.restarts=1000000",
]
FAULTS: list[tuple[str, Callable[[psutil.Process], None]]] = [
    (name, hurt) for name in (WORKER, ENGINE, RANK) for hurt in (psutil.Process.kill, stop)
]
SAMPLE_S = 5.0
WARM_UP_S = 120.0
WINDOW_S = 60.0
GROWTH = 0.05
PAUSE_S = (20.0, 90.0)
SHARED = Path("/dev/shm")


@dataclass(kw_only=True)
class Memory:
    """The resident bytes of one process, by the second since it was first seen."""

    title: str
    began: float
    samples: list[tuple[float, int]] = field(default_factory=list)

    def growth(self) -> float | None:
        """Return by which share it has grown since its warm-up; None where it did not live long enough."""
        after = [(at, size) for at, size in self.samples if at >= WARM_UP_S]
        if not after or after[-1][0] < WARM_UP_S + 2 * WINDOW_S:
            return None
        first = median(size for at, size in after if at < WARM_UP_S + WINDOW_S)
        last = median(size for at, size in after if at > after[-1][0] - WINDOW_S)
        return last / first - 1.0


class Watch:
    """What the processes of a job take while it runs."""

    def __init__(self, job: Job) -> None:
        self._job = job
        self._next = 0.0
        self.memory: dict[int, Memory] = {}
        self.ports: set[int] = set()
        self.segments: set[str] = set()

    def look(self) -> None:
        """Take a sample, where the last one is old enough."""
        now = time.monotonic()
        if now < self._next:
            return
        self._next = now + SAMPLE_S
        for one in [psutil.Process(self._job.process.pid), *self._job.tree()]:
            with contextlib.suppress(psutil.NoSuchProcess, psutil.AccessDenied, psutil.ZombieProcess):
                known = self.memory.setdefault(one.pid, Memory(title=title(one)[:60], began=now))
                known.samples.append((now - known.began, one.memory_info().rss))
                listening = (c for c in one.net_connections("tcp") if c.status == psutil.CONN_LISTEN)
                self.ports |= {c.laddr.port for c in listening}
                self.segments |= {m.path for m in one.memory_maps() if m.path.startswith(f"{SHARED}/")}


def hurt_again_and_again(job: Job, watch: Watch, rng: random.Random, until: float) -> Iterator[str]:
    """Hurt the run at random moments until the time is over; yield what each fault did."""
    while True:
        pause = time.monotonic() + rng.uniform(*PAUSE_S)
        while time.monotonic() < pause:
            assert job.process.poll() is None, job.output
            watch.look()
            if time.monotonic() > until:
                return
            time.sleep(0.5)
        name, hurt = rng.choice(FAULTS)
        yield f"{name}, {hurt.__name__}: {heal(job, name, hurt, rng, of=1 if name == RANK else 2, look=watch.look)}"


def left_over(watch: Watch, temporary: Path, run: Path) -> list[str]:
    """Return what is there that the run should have taken along; logs of Ray's sessions stay, as Ray wants it."""
    listening = {c.laddr.port for c in psutil.net_connections("tcp") if c.status == psutil.CONN_LISTEN}
    ports = [f"port {port}" for port in sorted(watch.ports & listening)]
    segments = [path for path in sorted(watch.segments) if Path(path).exists()]
    files = [str(path) for path in temporary.iterdir() if path.name != "ray"]
    files += [str(path) for pattern in ("*.tmp", "*.unfinished") for path in run.rglob(pattern)]
    return [*ports, *segments, *files]


def soak(minutes: float, seed: int) -> int:
    """Run, hurt, measure; returns the exit status."""
    rng, problems = random.Random(seed), []
    with runs(DEMO) as found:
        temporary = found.folder / "tmp"
        temporary.mkdir()
        environment = {"TMPDIR": str(temporary), "RAY_TMPDIR": str(temporary)}
        job = found.start("soak", *ARGUMENTS, f"seed={seed}", environment=environment)
        job.wait_until(lambda: bool(rows(job.run, "rl")), "the first step", limit_s=600.0)
        watch = Watch(job)
        for text in hurt_again_and_again(job, watch, rng, time.monotonic() + 60 * minutes):
            print(text, flush=True)
        job.process.send_signal(signal.SIGTERM)
        status = job.end()
        if status != 130:
            problems.append(f"exit status {status}, not 130:\n{job.output}")
        print(f"{len(rows(job.run, 'rl'))} steps; audit: {audited(job.run)}")
        problems += [f"left behind: {what}" for what in left_over(watch, temporary, job.run)]
        measured = [(one, growth) for one in watch.memory.values() if (growth := one.growth()) is not None]
        for one, growth in measured:
            print(f"{one.title}: {one.samples[-1][1] / 2**20:.0f} MiB, {100 * growth:+.1f} % since its warm-up")
            if growth > GROWTH:
                problems.append(f"{one.title} has grown by {100 * growth:.1f} %")
        print(f"{len(measured)} processes lived long enough, of {len(watch.memory)}")
    print(*problems, sep="\n")
    return 1 if problems else 0


def main() -> int:
    parser = argparse.ArgumentParser(prog="tests/soak.py", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--minutes", type=float, default=30.0, help="how long the faults go on")
    parser.add_argument("--seed", type=int, default=1, help="of the faults and of the run")
    given = parser.parse_args()
    return soak(given.minutes, given.seed)


if __name__ == "__main__":
    sys.exit(main())
