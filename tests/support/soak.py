"""`make soak MINUTES=30 SEED=1`: the demo's loop under random faults, and its leftovers.

Kills and stops workers, engines and ranks at random moments, each time waiting until the run has recovered. At the end the
resident memory of the driver and of each process that lived long enough is flat within 5 % after its warm-up. No process,
file, segment of shared memory or listening port is left, and the event log balances. Otherwise the exit status is 1.
The printed report, the samples of memory and the run's records stay in `runs/soak/`.

Ray session logs and compiler caches outlive a run by design, so they have separate folders.
Every other file under the temporary folder counts as a leak.
"""

import argparse
import contextlib
import json
import random
import shutil
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
from support.fault_job import Job, Runs, rows, runs, stop
from support.healing import ENGINE, RANK, WORKER, audited, heal, steps_done
from support.process_memory import MB, SAMPLE_S, MemoryWatch

DEMO = Path("configs/demo.yaml")
ARGUMENTS = [
    "stages=[init,sft,rl]",
    "sft.steps=40",
    "rl.steps=1000000",
    "rl.checkpoint_every=20",
    "rollout.workers=2",
    "supervision.heartbeat_s=1",
    "supervision.silent_s=15",
    "supervision.stalled_s=30",
    "supervision.restarts=1000000",
]
FAULTS: list[tuple[str, Callable[[psutil.Process], None]]] = [
    (name, hurt) for name in (WORKER, ENGINE, RANK) for hurt in (psutil.Process.kill, stop)
]
PAUSE_S = (20.0, 90.0)
TELL_S = 60.0
SHARED = Path("/dev/shm")
RESULTS = Path("runs/soak")
KEPT = ("metrics.jsonl", "event_log.jsonl", "status.json", "faults")
"""Files of the run's folder that the report keeps."""


class Report:
    """The printed report, stored in a folder with the measurements."""

    def __init__(self, seed: int) -> None:
        self.folder = RESULTS / f"{time.strftime('%Y%m%d-%H%M%S')}-seed{seed}"
        self.folder.mkdir(parents=True)
        self._began = time.monotonic()

    def say(self, text: str) -> None:
        """Print a line with the minute, and append it to the file at once."""
        minutes = (time.monotonic() - self._began) / 60
        line = f"{minutes:5.1f} min  {text}"
        print(line, flush=True)
        with (self.folder / "soak.txt").open("a", encoding="utf-8") as file:
            file.write(line + "\n")

    def keep(self, job: Job, memory: MemoryWatch) -> None:
        """Store the measurements and the status of the run."""
        (self.folder / "memory.json").write_text(json.dumps(memory.to_json()), encoding="utf-8")
        for path in [job.log, *(job.run / name for name in KEPT)]:
            if path.is_dir():
                shutil.copytree(path, self.folder / path.name, dirs_exist_ok=True)
            elif path.exists():
                shutil.copy(path, self.folder)


class Watch:
    """The memory, ports and segments of a job's processes while it runs."""

    def __init__(self, job: Job, report: Report) -> None:
        self._job = job
        self._report = report
        self._next = self._tells = 0.0
        self.memory = MemoryWatch(job.process.pid)
        self.ports: set[int] = set()
        self.segments: set[str] = set()

    def look(self) -> None:
        """Take a sample if the last one is old enough, and report progress at long intervals."""
        now = time.monotonic()
        if now < self._next:
            return
        self._next = now + SAMPLE_S
        processes = [psutil.Process(self._job.process.pid), *self._job.tree()]
        self.memory.sample(processes)
        for one in processes:
            with contextlib.suppress(OSError, psutil.Error):
                self.segments |= mapped(one.pid)
                listening = (c for c in one.net_connections("tcp") if c.status == psutil.CONN_LISTEN)
                self.ports |= {c.laddr.port for c in listening}
        if now >= self._tells:
            self._tells = now + TELL_S
            size = self.memory.driver_bytes() / MB
            self._report.say(f"step {steps_done(self._job)}, {len(processes)} processes, driver {size:.0f} MB")
            self._report.keep(self._job, self.memory)


def mapped(pid: int) -> set[str]:
    """Return the named shared memory files that a process maps."""
    lines = Path(f"/proc/{pid}/maps").read_text().splitlines()
    paths = (line.split(maxsplit=5)[-1] for line in lines if f"{SHARED}/" in line)
    return {path for path in paths if not path.endswith("(deleted)")}


def hurt_again_and_again(job: Job, watch: Watch, rng: random.Random, until: float) -> Iterator[str]:
    """Inject faults at random times until the deadline. Yield the effect of each."""
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
    """Return the leftovers that the run should have removed."""
    listening = {c.laddr.port for c in psutil.net_connections("tcp") if c.status == psutil.CONN_LISTEN}
    ports = [f"port {port}" for port in sorted(watch.ports & listening)]
    segments = [path for path in sorted(watch.segments) if Path(path).exists()]
    files = [str(path) for path in temporary.iterdir()]
    files += [str(path) for pattern in ("*.tmp", "*.unfinished") for path in run.rglob(pattern)]
    return [*ports, *segments, *files]


def ended(found: Runs, job: Job, watch: Watch, report: Report) -> list[str]:
    """Stop the run and return the problems of its end and its leftovers."""
    problems = []
    job.process.send_signal(signal.SIGTERM)
    if (status := job.end()) != 130:
        problems.append(f"exit status {status}, not 130:\n{job.output}")
    report.say(f"{len(rows(job.run, 'rl'))} steps; audit: {audited(job.run)}")
    found.require_gone()  # Ray's agents as well, which take longest
    return problems + [f"left behind: {what}" for what in left_over(watch, found.folder / "tmp", job.run)]


def soak(minutes: float, seed: int) -> int:
    """Run, inject faults, measure. Return the exit status."""
    rng, report, problems, faults = random.Random(seed), Report(seed), [], 0
    with runs(DEMO) as found:
        folders = {"TMPDIR": "tmp", "RAY_TMPDIR": "ray", "TORCHINDUCTOR_CACHE_DIR": "compiled"}
        environment = {name: str(found.folder / folder) for name, folder in folders.items()}
        for folder in environment.values():
            Path(folder).mkdir()
        job = found.start("soak", *ARGUMENTS, f"seed={seed}", environment=environment)
        watch = Watch(job, report)
        try:
            job.wait_until(lambda: bool(rows(job.run, "rl")), "the first step", limit_s=600.0, every_s=1.0)
            for text in hurt_again_and_again(job, watch, rng, time.monotonic() + 60 * minutes):
                faults += 1
                report.say(text)
            problems += ended(found, job, watch, report)
        except AssertionError as error:  # of what was waited for: the rest is told all the same
            problems.append(str(error))
        finally:
            report.keep(job, watch.memory)
    for line in [f"{faults} faults healed", *(problems or ["nothing is left behind"]), *watch.memory.table()]:
        report.say(line)
    grown = watch.memory.problems()
    for line in grown or ["the memory is flat"]:
        report.say(line)
    return 1 if problems or grown else 0


def main() -> int:
    parser = argparse.ArgumentParser(prog="tests/support/soak.py", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--minutes", type=float, default=30.0, help="how long the faults go on")
    parser.add_argument("--seed", type=int, default=1, help="of the faults and of the run")
    given = parser.parse_args()
    return soak(given.minutes, given.seed)


if __name__ == "__main__":
    sys.exit(main())
