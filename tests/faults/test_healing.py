"""One run loses workers, engines and ranks by kills and by hangs, and ends like an undisturbed run."""

import random
import re
from collections.abc import Callable, Iterator

import psutil
import pytest
from support.event_rows import read_event_log
from support.fault_job import Job, Runs, rows, runs, stop
from support.fault_report import saw
from support.healing import ENGINE, RANK, WORKER, audited, faults, heal, scale, steps_done, workers

from temper.orchestrator.session.status import read_status

STEPS = 100
SLOW, FAST = "8", "0.2"
"""Seconds of an episode before and after the last recovery, so that the run does not end too early."""
SILENT_S, STALLED_S = 10.0, 20.0
ARGUMENTS = [
    f"rl.steps={STEPS}",
    "rl.max_lag=1",
    "rl.groups_per_step=8",
    "rollout.workers=2",
    "learner.ranks=2",
    "stages=[init,sft,rl]",
    "sft.steps=100",
    "supervision.heartbeat_s=0.5",
    f"supervision.silent_s={SILENT_S}",
    f"supervision.stalled_s={STALLED_S}",
    "supervision.restarts=10",
]


@pytest.fixture
def found() -> Iterator[Runs]:
    with runs() as made:
        yield made


def scaled(job: Job, *, replaced: Callable[[], None]) -> str:
    """Add a third worker, remove it, and return the observations."""
    before = read_status(job.run)
    assert before is not None
    old = {one.name for one in workers(job)}
    up = scale(job, 3)
    (newcomer,) = {one.name for one in workers(job)} - old
    said = re.findall(rf"{newcomer} serves version (\d+) after", job.output)
    assert int(said[-1]) >= before.version, said
    job.wait_until(lambda: any(one.tickets for one in workers(job) if one.name == newcomer), "its first group")
    down = scale(job, 2)
    replaced()
    done = steps_done(job)
    job.wait_until(lambda: steps_done(job) >= done + 2, "two steps after it")
    return (
        f"the third serves version {said[-1]} (the run had {before.version} when asked) after {up:.0f} s and is given groups; "
        f"two again, and no third process, after {down:.0f} s"
    )


@pytest.mark.faults
@pytest.mark.timeout(900)
def test_a_run_heals_from_the_kill_and_the_hang_of_each_kind_of_process(found: Runs) -> None:
    rng = random.Random(8)
    pace = found.folder / "pace"

    def go(seconds: str) -> None:
        pace.write_text(seconds, encoding="ascii")

    go(FAST)
    job = found.start("job", *ARGUMENTS, f"envs.coin.options={{pace: {pace}}}")
    job.wait_until(job.reached("sft", 3), "three steps of sft")
    job.actors(RANK)[1].kill()
    job.wait_until(lambda: steps_done(job) >= 2, "two steps of rl")
    assert [row.step for row in rows(job.run, "sft")] == list(range(1, 101))
    seen = {}
    for name, kind in (("worker", WORKER), ("engine", ENGINE), ("rank", RANK)):
        for how, hurt in (("killed", psutil.Process.kill), ("stopped", stop)):

            def at_full_speed(one: psutil.Process, hurt: Callable[[psutil.Process], None] = hurt) -> None:
                hurt(one)  # the next push, too, comes to one that hangs
                go(SLOW)

            seen[f"{name}-{how}"] = heal(job, kind, at_full_speed, rng, of=2, replaced=lambda: go(FAST))
            print(name, how, seen[f"{name}-{how}"], flush=True)
    go(SLOW)
    seen["scaled"] = scaled(job, replaced=lambda: go(FAST))
    assert job.end() == 0, job.output
    assert [row.step for row in rows(job.run, "rl")] == list(range(1, STEPS + 1))
    assert sum(fault.event_text["how"] == "hung" for fault in faults(job)) >= 3, job.output
    verdict = audited(job.run)
    totals = next(row for row in reversed(read_event_log(job.run / "event_log.jsonl")) if row.event == "step").totals
    sums = (
        f"{totals.issued} tickets = {totals.trained} trained + {totals.dropped} dropped + {totals.failed} failed "
        f"+ {totals.in_flight} in flight"
    )
    seen["rank-killed"] += " (and one in sft)"
    for name, text in seen.items():
        saw(name, f"{text}; exit status 0, {sums}; audit: {verdict}")
