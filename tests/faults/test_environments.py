"""One run with a working environment, environments that fail in every way, and one NaN loss."""

from collections.abc import Iterator

import pytest
from support.fault_job import Runs, rows, runs
from support.fault_report import saw
from support.faulty_env import WAYS
from support.faulty_loss import VARIABLE

STEPS = 10
TIMEOUT_S = 3.0
FAILURES = {"raises": "environment", "hangs": "timeout", "rubbish": "environment", "exits": "environment"}
"""The name of each environment's failures."""
ARGUMENTS = [
    f"rl.steps={STEPS}",
    "stages=[init,rl]",
    "envs.coin.share=4",
    *[
        f"envs.{how}={{kind: support.faulty_env, thinking: false, options: {{how: {how}}}}}"
        for how in WAYS
        if how != "judges"
    ],
    f"rollout.limits.timeout_s={TIMEOUT_S}",
    "rollout.retries=0",
    "rl.max_failures=1.0",
    "rl.loss.surrogate=support.faulty_loss.nan_once",
]


@pytest.fixture
def found() -> Iterator[Runs]:
    with runs() as made:
        yield made


@pytest.mark.faults
@pytest.mark.timeout(600)
def test_environments_that_fail_and_a_loss_that_is_nan_cost_their_own_groups_and_one_update(found: Runs) -> None:
    nan = found.folder / "nan"
    job = found.start("job", *ARGUMENTS, environment={VARIABLE: str(nan)})
    job.wait_until(job.reached("rl", 3), "three steps")
    nan.touch()
    assert job.end() == 0, job.output
    assert not nan.exists()
    steps = rows(job.run, "rl")
    assert [row.step for row in steps] == list(range(1, STEPS + 1))
    for env, kind in FAILURES.items():
        counts = [row.values.get(f"env/{env}/failures/{kind}", 0.0) for row in steps]
        assert sum(counts) >= 4, (env, counts)
        waited = f", each after {TIMEOUT_S:.0f} s" if kind == "timeout" else ""
        saw(
            f"env-{env}",
            f"{sum(counts):.0f} failures of kind {kind}{waited}; all {STEPS} steps trained, exit status 0",
        )
    skipped = [row.step for row in steps if row.values["train/skipped"]]
    assert len(skipped) == 1
    after = next(row for row in steps if row.step == skipped[0] + 1)
    assert after.values["train/skipped"] == 0.0
    saw("nan-gradient", f"step {skipped[0]} of {STEPS} skipped and counted, the next one trained, exit status 0")
