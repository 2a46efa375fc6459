"""A run on a cluster of two nodes loses one with a rollout worker, and another one joins."""

import time
from collections.abc import Iterator

import psutil
import pytest
from support.fault_job import Job, Runs, rows, runs
from support.fault_report import saw
from support.healing import audited, faults, steps_done, workers
from support.two_nodes import Nodes

from temper.orchestrator.session.status import read_status

STEPS = 80
SLOW_S = 3.0
ARGUMENTS = [
    f"rl.steps={STEPS}",
    "rl.groups_per_step=8",
    "stages=[init,rl]",
    "rollout.workers=2",
    "supervision.heartbeat_s=0.5",
    "supervision.silent_s=10",
    "supervision.restarts=10",
]


@pytest.fixture
def found() -> Iterator[Runs]:
    with runs() as made:
        yield made


def serving(job: Job) -> set[int]:
    """The processes of the rollout workers that serve."""
    status = read_status(job.run)
    processes = status.processes if status else ()
    return {one.pid for one in processes if one.name.startswith("rollout") and one.state == "serving" and one.pid}


def heals_on_the_other_node(job: Job) -> str:
    """Stop the worker on the other node and return its diagnosis and its replacement."""
    (other,) = [one for one in workers(job) if one.node is not None]
    assert other.pid is not None
    assert other.node is not None
    began = time.monotonic()
    psutil.Process(other.pid).suspend()
    job.wait_until(lambda: bool(faults(job)), "the diagnosis", every_s=0.1)
    noticed = time.monotonic() - began
    event = faults(job)[0].event
    assert event is not None
    text = (job.run / event["what"]["evidence"]).read_text(encoding="utf-8")
    assert f"(process {other.pid} on {other.host}, node {other.node[:8]}) hung: no heartbeat for" in text
    assert f"== process {other.pid} ray::RolloutWorker" in text
    assert ": stopped," in text
    assert "Thread" in text or "no stacks:" in text
    job.wait_until(
        lambda: other.pid not in serving(job) and len(serving(job)) == 2 and not psutil.pid_exists(other.pid or 0),
        "another worker in its place",
        every_s=0.1,
    )
    return f"diagnosed there after {noticed:.0f} s, another one serves after {time.monotonic() - began:.0f} s"


@pytest.mark.faults
@pytest.mark.timeout(900)
def test_a_node_that_is_lost_costs_its_worker_and_one_that_joins_gets_it(found: Runs) -> None:
    nodes = Nodes()
    try:
        pace = found.folder / "pace"
        pace.write_text(str(SLOW_S), encoding="ascii")
        options = f"envs.coin.options={{pace: {pace}}}"
        job = found.start("job", *ARGUMENTS, options, environment={"RAY_ADDRESS": nodes.address})
        job.wait_until(job.said("rl: starting"), "the engines start")
        job.wait_until(lambda: len(serving(job)) == 2, "two workers serve", every_s=0.1)
        job.wait_until(lambda: steps_done(job) >= 2, "their steps", every_s=0.1)
        stopped = heals_on_the_other_node(job)
        before, done, began = serving(job), steps_done(job), time.monotonic()
        nodes.tell("lose")
        job.wait_until(lambda: len(serving(job) & before) == 1, "its worker is gone", every_s=0.1)
        noticed = time.monotonic() - began
        job.wait_until(lambda: steps_done(job) >= done + 3, "steps on the other node", every_s=0.1)
        nodes.tell("join")
        began = time.monotonic()
        job.wait_until(lambda: len(serving(job)) == 2, "a worker serves on the new node", every_s=0.1)
        joined = time.monotonic() - began
        pace.write_text("0", encoding="ascii")
        assert job.end() == 0, job.output
        assert [row.step for row in rows(job.run, "rl")] == list(range(1, STEPS + 1))
        saw(
            "node-gone",
            f"a worker on it that is stopped: {stopped}. The node gone: noticed after {noticed:.1f} s, steps went on on the "
            f"other node, a worker served on a node that joined {joined:.0f} s after it; exit status 0; "
            f"audit: {audited(job.run)}",
        )
    finally:
        nodes.close()
