"""A run with colocated engine and learner samples as with separate devices, even after an engine failure."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.fault_job import SYNCHRONOUS, Job, Runs, rows, runs
from support.fault_report import saw
from support.healing import ENGINE, audited, faults
from support.same_trajectories import compare_files

from temper.orchestrator.session.colocated_phases import PHASES_FILE

STEPS = 8
ARGUMENTS = [
    *SYNCHRONOUS,
    f"rl.steps={STEPS}",
    "rl.groups_per_step=8",
    "rl.updates_per_step=8",  # so that the learner's phase takes a while
    "rl.checkpoint_every=4",
    "supervision.heartbeat_s=0.5",
]


@pytest.fixture
def found() -> Iterator[Runs]:
    with runs() as made:
        yield made


def phases(run: Path) -> list[str]:
    """The phases of rl so far."""
    file = run / PHASES_FILE
    lines = file.read_text(encoding="utf-8").splitlines(keepends=True) if file.exists() else []
    told = [json.loads(line) for line in lines if line.endswith("\n")]
    return [one["phase"] for one in told if one["stage"] == "rl"]


def killed_asleep(job: Job) -> str:
    """Kill the engine in a phase of the learner. Return the phase in which the run detects the failure."""
    job.wait_until(lambda: len(rows(job.run, "rl")) >= 2, "two steps")
    job.wait_until(lambda: phases(job.run)[-1] == "learning", "the learner's phase", every_s=0.005)
    before = len(faults(job))
    job.actors(ENGINE)[0].kill()
    job.wait_until(lambda: len(faults(job)) > before, "its death", every_s=0.005)
    return phases(job.run)[-1]


@pytest.mark.faults
def test_a_run_on_a_shared_device_samples_what_it_would_on_devices_of_its_own_though_an_engine_dies(
    found: Runs,
) -> None:
    own = found.start("own", *ARGUMENTS)
    assert own.end() == 0, own.output
    shared = found.start("colocated", *ARGUMENTS, "placement=colocated")
    phase = killed_asleep(shared)
    assert shared.end() == 0, shared.output
    assert [row.step for row in rows(shared.run, "rl")] == list(range(1, STEPS + 1))
    last = f"trajectories/rl-{STEPS}.jsonl"
    compared = compare_files(own.run / last, shared.run / last)
    assert compared.same, compared
    assert not compared.only_one
    (death,) = faults(shared)
    assert death.event_text["how"] == "died"
    verdict = audited(shared.run)
    saw(
        "engine-killed-asleep",
        f"noticed in the phase of {phase}; {compared.both} answers of step {STEPS} have the tokens and rewards of a "
        f"run with placement=dedicated; audit: {verdict}",
    )
