"""The main job on two ranks of a learner, whose driver is killed."""

from pathlib import Path

import pytest
from support.main_job import command, finish, open_ports, rows, start, wait_for_step


@pytest.mark.timeout(1300)
def test_two_ranks_with_partitioned_parameters_train_in_step_and_one_goes_on_after_a_killed_driver(
    tmp_path: Path,
) -> None:
    two = [
        "learner.ranks=2",
        "learner.zero_stage=3",
        "learner.transport=broadcast",
        "sft.optim.kind=adamw",
        "rl.max_lag=0",
        "stages=[init,sft,rl]",
        "sft.steps=2",
        "rl.steps=5",
    ]
    run = tmp_path / "job"
    first = start(command(tmp_path, *two))
    wait_for_step(first, run, "rl", 3)
    for actor, count in (("ray::TrainerWorker", 2), ("ray::RolloutWorker", 1)):
        ports = open_ports(first, actor)
        assert [len(one) for one in ports] == [1] * count, (actor, ports)  # Ray's own, which asks for a token
    assert open_ports(first, "VLLM::EngineCore") == [[]]
    first.kill()
    finish(first)
    status, output = finish(start(command(tmp_path, *two, "learner.ranks=1", "learner.zero_stage=2")))
    assert status == 0, output
    assert "rl: continuing after step" in output
    steps = rows(run, "rl")
    assert [row.step for row in steps] == [1, 2, 3, 4, 5]
    assert all(row.values["train/lag_max"] == 0 for row in steps)
    assert all(row.values["train/logprob_gap"] < 1e-4 for row in steps)
