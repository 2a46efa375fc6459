"""A run on two hosts, each with a rank and an engine, trains as on one. It survives the loss and return of a host."""

import time

import pytest
from support.fault_job import Job, rows, runs
from support.fault_report import saw
from support.healing import audited, steps_done
from support.hosts import NoHostsError, hosts

from temper.orchestrator.session.status import ProcessStatus, read_status

TOLERANCE = 1e-4
SFT, STEPS = 6, 20
SLOW_S, SLOWER_S = 2.0, 15.0
"""Seconds of an answer before a host is lost, and then until both are back, so that the run does not end earlier."""
ON_BOTH = [
    f"rl.steps={STEPS}",
    "rl.max_lag=0",
    "rl.loss.entropy_bonus=1.0e-6",  # so that every token is computed and compared with the engine
    "stages=[init,sft,rl]",
    "learner.ranks=2",
    "learner.zero_stage=2",
    "rollout.workers=2",
    "supervision.heartbeat_s=0.5",
    "supervision.restarts=10",
]


def processes(job: Job, name: str) -> list[ProcessStatus]:
    """Return the processes of this name that serve."""
    status = read_status(job.run)
    found = status.processes if status else ()
    return [one for one in found if one.name.startswith(name) and one.state == "serving" and one.pid]


def on_both(job: Job) -> bool:
    """Return whether two ranks and two engines serve, one of each on either host."""
    ranks, engines = processes(job, "the learner"), processes(job, "rollout")
    return all(len({one.node for one in found}) == len(found) == 2 for found in (ranks, engines))


@pytest.mark.faults
@pytest.mark.timeout(1500)
def test_a_run_on_two_hosts_trains_as_on_one_and_outlives_the_loss_of_one() -> None:
    with runs() as found:
        pace = found.folder / "pace"
        pace.write_text(str(SLOW_S), encoding="ascii")
        slowed = f"envs.coin.options={{pace: {pace}}}"
        alone = found.start("alone", "stages=[init,sft]", slowed)
        try:
            with hosts() as both:
                assert alone.end() == 0, alone.output
                job = found.start("job", *ON_BOTH, slowed, before=both.before(), environment=both.environment)
                job.wait_until(job.reached("sft", SFT), "two ranks' steps", every_s=0.1)
                job.wait_until(lambda: on_both(job), "an engine on each host", every_s=0.1)
                job.wait_until(lambda: steps_done(job) >= 3, "steps on two hosts", every_s=0.1)
                for name in ("train/loss", "train/grad_norm"):
                    expected = [row.values[name] for row in rows(alone.run, "sft")]
                    assert [row.values[name] for row in rows(job.run, "sft")] == pytest.approx(expected, rel=TOLERANCE)
                assert len(expected) == SFT
                done, began = steps_done(job), time.monotonic()
                pace.write_text(str(SLOWER_S), encoding="ascii")
                both.lose()
                job.wait_until(lambda: len(processes(job, "rollout")) == 1, "the loss is known", every_s=0.1)
                noticed = time.monotonic() - began
                both.join()
                began = time.monotonic()
                job.wait_until(lambda: on_both(job), "both hosts again", every_s=0.1)
                job.wait_until(lambda: on_both(job) and steps_done(job) > done, "a step on both again", every_s=0.1)
                again = time.monotonic() - began
                pace.write_text("0", encoding="ascii")
                assert job.end() == 0, job.output
                measured = rows(job.run, "rl")
                verdict = audited(job.run)
        except NoHostsError as error:
            saw("host-gone", str(error), skipped=True)
            pytest.skip(str(error))
    assert [row.step for row in measured] == list(range(1, STEPS + 1))
    assert max(row.values["train/mismatch_abs"] for row in measured) < TOLERANCE  # each push has reached both engines
    saw(
        "host-gone",
        f"two network namespaces: {SFT} steps as those of one rank to {TOLERANCE:g}; the other host gone: noticed after "
        f"{noticed:.1f} s, {again:.0f} s after it had joined again a step on both; exit status 0; audit: {verdict}",
    )
