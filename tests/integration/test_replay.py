"""A real run, on two ranks and with answers of older weights, whose steps the command replays."""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.fault_job import DEMO, SMALL, runs

PATIENCE_S = 400


@pytest.fixture(scope="module")
def run() -> Iterator[Path]:
    """Five asynchronous steps by two ranks, with checkpoints after steps 2, 4 and 5."""
    arguments = [
        *("stages=[init,rl]", "rl.steps=5", "rl.max_lag=1", "learner.ranks=2", "learner.zero_stage=1"),
        *("rl.loss.malformed_thinking=-1.0", "rl.loss.advantage=reinforce_pp", "rl.optim.warmup_steps=0"),
        *("rl.thinking={budget: 0.9, budgets: [4, 8]}", "checkpoints.keep=3"),
    ]
    with runs(DEMO) as found:
        job = found.start("job", *SMALL, *arguments)
        assert job.end() == 0, job.output
        yield job.run


def replay(run: Path, *arguments: str) -> tuple[int, dict[str, Any]]:
    """The exit status and output of the command."""
    program = [sys.executable, "-m", "temper.orchestrator", "debug", "replay", str(run), *arguments, "--json"]
    done = subprocess.run(program, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    assert done.stdout, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return done.returncode, found


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_a_step_of_a_real_run_is_trained_again_to_the_last_bit(run: Path) -> None:
    before = {path: path.stat().st_mtime_ns for path in run.rglob("*") if path.is_file()}
    status, found = replay(run, "--step", "4", "--set", "rl.optim.learning_rate=1e-5")
    assert status == 0, found
    assert {path: path.stat().st_mtime_ns for path in run.rglob("*") if path.is_file()} == before
    assert [one["step"] for one in found["steps"]] == [3, 4]
    for one in found["steps"]:
        assert one["metrics"] == {}
        assert one["tokens"]["tokens"] > 100
        assert one["tokens"]["unequal"] == 0
    assert found["weights"]["tensors"] > 40
    assert found["weights"]["unequal"] == []
    moved = found["changed"]["effects"]["weights"]
    assert all(one["recorded"] > 0 for one in moved.values())
    assert sum(one["changed"] for one in moved.values()) < sum(one["recorded"] for one in moved.values())


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_from_the_beginning_and_by_one_rank(run: Path) -> None:
    """Another number of ranks sums in another order, so that only the last digits differ."""
    status, found = replay(run, "--step", "1", "--set", "learner.ranks=1", "learner.zero_stage=0")
    assert status == 0, found
    assert found["from"]["step"] == 0
    assert found["changed"]["tokens"]["largest"]["logprob"] < 1e-5
    gradients = found["changed"]["effects"]["gradients"]
    assert set(gradients) == {"embedding", "mamba", "attention", "mlp", "norm"}
    assert all(0 <= one["relative"] < 1e-3 for one in gradients.values())
