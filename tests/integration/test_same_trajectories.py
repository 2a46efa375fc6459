"""The comparison of two runs finds real differences and ignores permitted ones."""

from pathlib import Path

import pytest
from support.same_trajectories import compare_runs, main

from temper.envs.core.task import EnvRef, Task
from temper.orchestrator.run.metrics_log import MetricsLog
from temper.rollout.token_arrays import as_floats, as_ids, as_marks
from temper.rollout.trajectory import Group, Stop, Ticket, Trajectory, Turn, WeightVersion
from temper.rollout.trajectory_json import write_groups

TASK = Task(env=EnvRef(name="math"), key="k", messages=({"role": "user", "content": "?"},), spec={})


def answer(*ids: int, reward: float = 1.0, logprob: float = -1.0) -> Trajectory:
    turn = Turn(
        context_ids=as_ids((1,)),
        sampled_ids=as_ids(ids),
        logprobs_T=as_floats((logprob,) * len(ids)),
        versions_T=as_ids((0,) * len(ids)),
        injected_T=as_marks((False,) * len(ids)),
        text=str(ids),
    )
    return Trajectory(task=TASK, turns=(turn,), stop=Stop.ENV, reward=reward)


def run(root: Path, answers: dict[int, list[Trajectory]], *, loss: float = 1.0) -> Path:
    """A run's folder with the groups of one step, by the numbers of their tickets."""
    (root / "trajectories").mkdir(parents=True)
    groups = [
        Group(ticket=Ticket(number=number, task=TASK, admitted=WeightVersion(step=0)), trajectories=tuple(trajectories))
        for number, trajectories in answers.items()
    ]
    write_groups(root / "trajectories" / "rl-3.jsonl", groups)
    MetricsLog(root / "metrics.jsonl").append("rl", 3, {"train/loss": loss})
    return root


def test_runs_that_sampled_the_same_are_the_same_up_to_the_last_digits_and_the_order_of_groups(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    one = run(tmp_path / "one", {1: [answer(2), answer(3)], 2: [answer(4)]})
    other = run(tmp_path / "other", {3: [answer(5)], 1: [answer(2, logprob=-1.5), answer(3)]}, loss=1.25)
    assert main([str(one), str(other)]) == 0
    said = capsys.readouterr().out
    assert "rl-3: 2 answers in both, 2 in one alone" in said
    assert "largest difference of a log-probability 0.5" in said
    assert "losses of 1 steps: largest difference 0.25" in said


@pytest.mark.parametrize(
    ("changed", "tokens", "rewards"), [(answer(9), 1, 0), (answer(2, reward=0.0), 0, 1)], ids=["tokens", "reward"]
)
def test_another_token_or_reward_is_counted(tmp_path: Path, changed: Trajectory, tokens: int, rewards: int) -> None:
    one, other = run(tmp_path / "one", {1: [answer(2)]}), run(tmp_path / "other", {1: [changed]})
    (found,) = compare_runs(one, other)
    assert (found.other_tokens, found.other_rewards, found.same) == (tokens, rewards, False)
    assert main([str(one), str(other)]) == 1


def test_runs_that_share_no_answer_are_not_the_same(tmp_path: Path) -> None:
    one, other = run(tmp_path / "one", {1: [answer(2)]}), run(tmp_path / "other", {2: [answer(2)]})
    assert main([str(one), str(other)]) == 1
    (other / "trajectories" / "rl-3.jsonl").unlink()
    with pytest.raises(ValueError, match="trajectories"):
        main([str(one), str(other)])
