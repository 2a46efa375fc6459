"""One run whose driver is killed repeatedly, compared with undisturbed runs."""

import contextlib
import random
import re
import shutil
import signal
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest
from support.clock_shim import Clock
from support.event_rows import read_event_log
from support.fault_job import SYNCHRONOUS, Job, Runs, rows, runs, wait_a_moment
from support.fault_report import saw
from support.healing import audited
from support.same_trajectories import compare_runs, largest_loss_gap

from temper.orchestrator.loop.deadline import STOPPED

STEPS = 36
ARGUMENTS = [*SYNCHRONOUS, "sft.steps=60", f"rl.steps={STEPS}"]
DAY_S = 86_400
SEED = 15
OF_TIME = ("time/", "episode/", "engine/", "buffer/", "rollout/tokens_per_s", "train/", "push/")
"""Metrics that differ between runs: seconds, and floating-point sums over the same tokens."""
GCS = "gcs_server"
"""The process name of a Ray cluster's head."""
PATIENCE = {"RAY_gcs_rpc_server_reconnect_timeout_s": "5"}
"""Seconds that Ray processes search for a lost head. The default is 60."""
REPORT_S = 30.0
"""Time limit for a run to end after the loss of its cluster's head."""
Wait = Callable[[Job, random.Random], float]
"""Waits for a moment and returns the random delay at its end."""


def during_init(job: Job, rng: random.Random) -> float:
    job.wait_until(job.said("init: begins"), "init begins")
    return wait_a_moment(rng, 0.2)


def during_the_first_start(job: Job, rng: random.Random) -> float:
    job.wait_until(job.said("sft: begins"), "sft begins")
    return wait_a_moment(rng, 6.0)


def during_sft(job: Job, rng: random.Random) -> float:
    job.wait_until(job.reached("sft", 1), "a step of sft")
    return wait_a_moment(rng, 0.3)


def during_a_checkpoint(stage: str) -> Wait:
    def wait(job: Job, rng: random.Random) -> float:
        folder = job.run / "checkpoints" / stage
        left_over = {path.stat().st_ino for path in folder.glob("*.unfinished")}

        def begins() -> bool:
            return any(one.stat().st_ino not in left_over for one in folder.glob("*.unfinished") if one.exists())

        job.wait_until(begins, f"a checkpoint of {stage}", every_s=0.002)
        return wait_a_moment(rng, 0.1)

    return wait


def during_the_start_of_the_engines(job: Job, rng: random.Random) -> float:
    job.wait_until(job.said("starting 1 rollout engine"), "the engines start")
    return wait_a_moment(rng, 6.0)


def during_an_evaluation(job: Job, rng: random.Random) -> float:
    job.wait_until(job.reached("start", 0), "the engines have started")
    return wait_a_moment(rng, 1.0)


def during_a_step(job: Job, rng: random.Random) -> float:
    newest = _newest_step(job)
    return wait_a_moment(rng, _seconds(job, newest, "step"))


def during_a_push(job: Job, rng: random.Random) -> float:
    """Wait for a step, then for the seconds that its phases took before its push. The next push is due then."""
    newest = _newest_step(job)
    time.sleep(sum(_seconds(job, newest, phase) for phase in ("save", "wait", "batch", "learn")))
    return wait_a_moment(rng, _seconds(job, newest, "publish") + _seconds(job, newest, "load"))


def _newest_step(job: Job) -> int:
    """Return the newest rl step, after this start has made three. One of them has a checkpoint."""

    def made() -> list[int]:
        return [row.step for row in rows(job.run, "rl") if row.time >= job.began]

    job.wait_until(lambda: len(made()) >= 3, "three steps of rl")
    return made()[-1]


def _seconds(job: Job, step: int, phase: str) -> float:
    return next(row.values[f"time/{phase}_s"] for row in rows(job.run, "rl") if row.step == step)


def kill(job: Job) -> None:
    """Kill the driver. Another process reports it."""
    before = _reports(job)
    job.kill()
    assert _reports(job) == before + 1, job.output


def _reports(job: Job) -> int:
    """Return the number of reports on drivers that ended without their own."""
    return len(list(job.run.glob("faults/*-driver.txt")))


def terminate(job: Job) -> None:
    """Send SIGTERM to the driver alone."""
    began = time.monotonic()
    job.process.terminate()
    status = job.end()
    assert (status, _reports(job)) == (STOPPED, 0), job.output
    saw("terminated-early", f"exit status {status} after {time.monotonic() - began:.1f} s, none left")


def terminate_all(job: Job) -> None:
    """Send SIGTERM to every process of the run, as a scheduler does."""
    everyone = [*job.tree(), psutil.Process(job.process.pid)]
    began = time.monotonic()
    for one in everyone:
        with contextlib.suppress(psutil.NoSuchProcess):
            one.terminate()
    status = job.end()
    assert status in (1, 130), (status, job.output)
    saw(
        "all-terminated",
        f"{len(everyone)} processes: exit status {status} after {time.monotonic() - began:.1f} s, none left",
    )


def interrupt_twice(job: Job) -> None:
    job.process.send_signal(signal.SIGINT)
    job.wait_until(job.said("SIGINT: stopping at the next safe point"), "the first SIGINT is noted")
    began = time.monotonic()
    job.process.send_signal(signal.SIGINT)
    status = job.end()
    assert status == STOPPED, (status, job.output)
    saw("interrupted-twice", f"ended {time.monotonic() - began:.1f} s after the second one, no process left")


def lose_the_head(job: Job) -> None:
    (head,) = job.actors(GCS)
    before, began = _reports(job), time.monotonic()
    head.kill()
    status = job.end(limit_s=REPORT_S)
    seconds = time.monotonic() - began
    assert status not in (0, None), job.output
    assert _reports(job) == before + 1, job.output
    saw("head-gone", f"exit status {status} after {seconds:.0f} s with a report, no process left")


@dataclass(frozen=True, slots=True, kw_only=True)
class Interruption:
    """An early end of a start of the run: `wait` for the moment, then `end` it."""

    during: str
    wait: Wait
    end: Callable[[Job], None] = kill
    damage: str | None = None
    """Damage to the newest checkpoint of rl after the end: "corrupted" or "truncated"."""


def kills(rounds: int) -> list[Interruption]:
    """Return ten moments for each round, in the order of the run."""
    start = Interruption(during="first stage", wait=during_the_first_start)
    sft = [
        start,
        Interruption(during="first stage", wait=during_sft),
        Interruption(during="checkpoint", wait=during_a_checkpoint("sft")),
    ]
    evaluation = [
        Interruption(during="start of the engines", wait=during_the_start_of_the_engines),
        Interruption(during="evaluation", wait=during_an_evaluation),
    ]
    rl = [
        Interruption(during="checkpoint", wait=during_a_checkpoint("rl")),
        Interruption(during="push", wait=during_a_push),
        Interruption(during="step", wait=during_a_step, damage="corrupted"),
        Interruption(during="step", wait=during_a_step, damage="truncated"),
    ]
    first = [Interruption(during="first stage", wait=during_init), *[start] * (rounds - 1)]
    return [*first, *sft * rounds, *evaluation * rounds, *rl * rounds]


OTHERS = [
    Interruption(during="step", wait=during_a_step, end=end) for end in (terminate_all, interrupt_twice, lose_the_head)
]


def checkpoints(run: Path) -> list[Path]:
    """Return the whole checkpoints of rl, the oldest first."""
    return sorted(path for path in (run / "checkpoints" / "rl").glob("*") if path.name.isdecimal())


def damage(run: Path, how: str) -> None:
    """Damage the largest file of the newest checkpoint of rl, and remove one that the end interrupted.

    The next start would rename an interrupted whole one into place, and never read the damaged one.
    """
    for unfinished in (run / "checkpoints" / "rl").glob("*.unfinished"):
        shutil.rmtree(unfinished)
    newest = checkpoints(run)[-1]
    file = max(newest.rglob("*"), key=lambda path: path.stat().st_size if path.is_file() else 0)
    data = bytearray(file.read_bytes())
    if how == "corrupted":
        data[len(data) // 2] ^= 0xFF
    file.write_bytes(data if how == "corrupted" else data[: len(data) // 2])


def exact(run: Path, stage: str) -> list[tuple[int, dict[str, float]]]:
    """Return all token and reward metrics of each step, which must be equal in every run."""
    return [
        (row.step, {k: v for k, v in row.values.items() if not k.startswith(OF_TIME) and not k.endswith("/step_s")})
        for row in rows(run, stage)
    ]


def lives(run: Path) -> list[tuple[int | None, ...]]:
    """Return the tickets of a run's event log in the order of training, each with its step, its task and its tokens."""
    event_log = read_event_log(run / "event_log.jsonl")
    tasks = {row.ticket: row.index for row in event_log if row.event == "admitted"}
    tokens = {row.ticket: row.tokens for row in event_log if row.event == "finished"}
    trained = [(row.ticket, row.step) for row in event_log if row.event == "trained"]
    return [(ticket, step, tasks[ticket], tokens[ticket]) for ticket, step in trained]


def require_same(one: Path, other: Path) -> float:
    """Fail if two runs sampled or scored anything differently. Return the largest loss difference."""
    assert [row.key for row in rows(one, "sft")] == [row.key for row in rows(other, "sft")]
    assert [step for step, _ in exact(one, "rl")] == list(range(1, STEPS + 1))
    assert exact(one, "rl") == exact(other, "rl")
    assert exact(one, "eval-sft") == exact(other, "eval-sft")
    assert lives(one) == lives(other)
    comparisons = list(compare_runs(one, other))
    assert all(comparison.same and not comparison.only_one for comparison in comparisons), comparisons
    return largest_loss_gap(one, other)[1]


def undisturbed(found: Runs) -> Path:
    """Return a run whose only disturbance is an attempt to start it a second time."""
    job = found.start("plain", *ARGUMENTS)
    job.wait_until(lambda: (job.run / "driver.lock").exists(), "the run has its lock")
    second = found.start("plain", *ARGUMENTS)
    began = time.monotonic()
    assert second.end() == 2, second.output
    assert "another process holds" in second.output, second.output
    seconds = time.monotonic() - began
    assert job.end() == 0, job.output
    saw("same-name", f"exit status 2 after {seconds:.0f} s: another process is working on it; the first ended with 0")
    return job.run


def terminated_early(found: Runs) -> None:
    """Send SIGTERM to starts of a run in their imports, and while Ray starts."""
    for name, text in (("imports", ""), ("ray", "what libraries print")):
        job = found.start(name, *ARGUMENTS)
        job.wait_until(lambda job=job: _handles_sigterm(job), "its command line is read")  # type: ignore[misc]
        job.wait_until(job.said(text), text)
        wait_a_moment(random.Random(name), 3.0)
        terminate(job)


def _handles_sigterm(job: Job) -> bool:
    (caught,) = re.findall(r"SigCgt:\s*(\w+)", Path(f"/proc/{job.process.pid}/status").read_text())
    return bool(int(caught, 16) >> signal.SIGTERM - 1 & 1)


def under_another_clock(found: Runs, plain: Path) -> float:
    """Run once more while the clock jumps. Return the largest difference of a loss to the plain run."""
    clock = Clock(found.folder)
    job = found.start("clock", *ARGUMENTS, environment=clock.environment)
    for steps, seconds in ((STEPS // 4, DAY_S), (STEPS // 2, -DAY_S)):
        job.wait_until(lambda steps=steps: len(rows(job.run, "rl")) >= steps, f"{steps} steps")  # type: ignore[misc]
        clock.set(seconds)
    assert job.end() == 0, job.output
    times = [row.time for row in rows(job.run, "rl")]
    assert max(times) - min(times) > DAY_S  # it did jump
    gap = require_same(plain, job.run)
    saw(
        "clock-jumps",
        f"time.time() of every process jumped by +1 day after step {STEPS // 4} and -2 days after step {STEPS // 2}: exit "
        f"status 0, tickets, tokens and rewards equal to a run without jumps",
    )
    return gap


def interrupted(found: Runs, one: Interruption, seed: int, *, after: str | None) -> None:
    """Start the run, interrupt it and damage its newest checkpoint. `after` is the previous damage, if any."""
    job = found.start("job", *ARGUMENTS, environment=PATIENCE)
    if one.damage:
        job.wait_until(lambda: len(checkpoints(job.run)) >= 2, "one to damage and one before it")
    delay = one.wait(job, random.Random(seed))
    one.end(job)
    print(f"{seed}: {one.during}, {one.end.__name__} {delay:.2f} s into it, {time.time() - job.began:.0f} s in all")
    if after:
        said = [line for line in job.output.splitlines() if "is damaged" in line]
        assert said, job.output
    if one.damage:
        damage(job.run, one.damage)


@pytest.mark.timeout(2400)
@pytest.mark.parametrize(
    "moments", [pytest.param(10, marks=pytest.mark.faults), pytest.param(20, marks=pytest.mark.slow)]
)
def test_a_run_whose_driver_is_killed_again_and_again_ends_as_one_that_nobody_disturbed(moments: int) -> None:
    killed = kills(moments // 10)
    assert len(killed) == moments
    with runs() as found:
        plain = undisturbed(found)
        terminated_early(found)
        usual_gap = under_another_clock(found, plain)
        after = None
        for number, one in enumerate([*killed, *OTHERS]):
            interrupted(found, one, SEED + number, after=after)
            after = one.damage
        last = found.start("job", *ARGUMENTS)
        assert last.end() == 0, last.output
        found.require_gone()
        gap = require_same(plain, last.run)
        verdict = audited(last.run)
        assert gap <= max(10 * usual_gap, 1e-6)
    kinds = Counter(one.during for one in killed)
    saw(
        "driver-killed",
        f"{moments} kills ({', '.join(f'{kind} {count}' for kind, count in kinds.items())}), {STEPS} steps: tickets, "
        f"their order, tokens and rewards equal; largest difference of a loss {gap:.1g} (of two undisturbed runs "
        f"{usual_gap:.1g}); no process left after any of them; audit: {verdict}",
    )
