"""Staleness in a step's metrics, on answers of known versions."""

from dataclasses import replace

from support.metric_names import unexplained
from support.turns import report_of, turn_of

from temper.envs.core.task import EnvRef, Task
from temper.orchestrator.stages.step_metrics import step_metrics
from temper.rewards.score import Score
from temper.rollout.trajectory import Group, Stop, Ticket, Trajectory, WeightVersion

TASK = Task(env=EnvRef(name="math"), key="0", messages=({"role": "user", "content": "?"},), spec={})


def answer(*turns: tuple[int, ...]) -> Trajectory:
    said = (turn_of(versions, versions=versions) for versions in turns)
    return Trajectory(task=TASK, turns=tuple(said), stop=Stop.ENV, reward=0.0)


def group(number: int, admitted: int, *answers: Trajectory) -> Group:
    return Group(
        ticket=Ticket(number=number, task=TASK, admitted=WeightVersion(step=admitted)), trajectories=tuple(answers)
    )


def measured(*groups: Group) -> dict[str, float]:
    return step_metrics(report_of(list(groups), version=8, left_over=3))


def test_groups_are_behind_their_admission_and_tokens_behind_what_sampled_them() -> None:
    found = measured(group(0, 5, answer((5, 6), (), (7, 7)), answer((6,))), group(1, 8, answer((8,)), answer(())))
    assert (found["train/lag_max"], found["train/lag_mean"]) == (3.0, 1.5)
    assert found["train/lag_tokens"] == (3 + 2 + 1 + 1 + 2 + 0) / 6
    assert found["rollout/partial"] == 1 / 3  # of the answers with a token
    assert found["buffer/left_over"] == 3.0


def test_answers_without_tokens_have_no_versions() -> None:
    found = measured(group(0, 8, answer(), answer(())))
    assert found["train/lag_mean"] == 0.0
    assert not {"train/lag_tokens", "rollout/partial"} & set(found)


def test_a_part_that_some_answers_lack_has_the_share_of_those_that_have_it() -> None:
    judged = [replace(answer((5,)), score=Score(parts=parts)) for parts in ({"a": 1.0, "b": 0.5}, {"a": 0.0})]
    found = measured(group(0, 5, *judged))
    assert {name: value for name, value in found.items() if "/parts/" in name} == {
        "env/math/parts/a": 0.5,
        "env/math/parts/b": 0.5,
        "env/math/parts/b/share": 0.5,
    }
    assert unexplained(found) == []


def test_the_cost_of_a_judge_is_a_mean_over_answers_with_their_forced_ones() -> None:
    first, second = (
        replace(answer((5,)), score=Score(evidence={"judge_requests": 1.0, "judge_tokens": tokens}))
        for tokens in (60.0, 20.0)
    )
    found = measured(group(0, 5, replace(first, forced_answers=(second,)), answer((5,))))
    assert (found["env/math/judge_requests"], found["env/math/judge_tokens"]) == (1.0, 40.0)
    assert unexplained(found) == []
    assert "env/math/judge_tokens" not in measured(group(0, 5, answer((5,))))
