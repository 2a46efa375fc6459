"""The penalty for turns that come near their limit, by hand."""

from pathlib import Path

import pytest

from temper.envs.core.task import EnvRef, Task
from temper.envs.core.thinking_mode import UNLIMITED, Thinking, up_to
from temper.orchestrator.loop.shaping import ShapingConfig, earned_rewards, shaped
from temper.orchestrator.pipeline.config import load_config
from temper.orchestrator.stages.rl import teaches
from temper.rewards.length_shaping import overlong_penalty
from temper.rollout.token_arrays import as_floats, as_ids, as_marks
from temper.rollout.trajectory import Group, Stop, Ticket, Trajectory, Turn, WeightVersion


@pytest.mark.parametrize(("length", "penalty"), [(0, 0.0), (80, 0.0), (81, -0.1), (85, -0.5), (90, -1.0), (95, -1.0)])
def test_the_penalty_falls_over_the_buffer_to_minus_the_factor(length: int, penalty: float) -> None:
    assert overlong_penalty(length, limit=90, buffer=10, factor=1.0) == pytest.approx(penalty)
    assert overlong_penalty(length, limit=90, buffer=10, factor=0.5) == pytest.approx(penalty / 2)


def turn(tokens: int) -> Turn:
    return Turn(
        context_ids=as_ids((1,)),
        sampled_ids=as_ids((5,) * tokens),
        logprobs_T=as_floats((-1.0,) * tokens),
        versions_T=as_ids((0,) * tokens),
        forced_T=as_marks((False,) * tokens),
        text="",
    )


def group(*answers: tuple[Turn, ...], thinking: Thinking = UNLIMITED) -> Group:
    task = Task(
        env=EnvRef(name="math"), key="k", messages=({"role": "user", "content": "?"},), spec={}, thinking=thinking
    )
    trajectories = tuple(Trajectory(task=task, turns=turns, stop=Stop.ENV, reward=1.0) for turns in answers)
    return Group(ticket=Ticket(number=0, task=task, admitted=WeightVersion(step=0)), trajectories=trajectories)


def test_an_answer_pays_for_its_longest_turn() -> None:
    config = ShapingConfig(overlong_buffer=10, overlong_factor=2.0)
    after = shaped(group((turn(8), turn(8), turn(8)), (turn(3), turn(15)), ()), config, turn_tokens=20)
    assert after.rewards_G == pytest.approx([1.0, 0.0, 1.0])
    assert [t.verdict.parts["overlong"] for t in after.trajectories] == pytest.approx([0.0, -1.0, 0.0])


def test_a_group_is_filtered_by_what_its_answers_earned_before_the_penalty() -> None:
    right = group(*[(turn(3),)] * 7, (turn(15),))
    after = shaped(right, ShapingConfig(overlong_buffer=10, overlong_factor=0.1), turn_tokens=20)
    assert after.rewards_G == pytest.approx([1.0] * 7 + [0.95])
    assert earned_rewards(after) == [1.0] * 8
    assert not teaches(after, kind="grpo")
    assert teaches(after, kind="reinforce_pp")  # equal rewards teach by it


def test_an_answer_stays_right_when_a_penalty_is_taken_from_its_reward() -> None:
    after = shaped(group((turn(15),), (turn(3),)), ShapingConfig(overlong_buffer=10), turn_tokens=20)
    assert after.rewards_G == pytest.approx([0.5, 1.0])
    assert [t.correct for t in after.trajectories] == [True, True]  # the environment has no part `correct`


def test_a_turn_with_a_thinking_budget_pays_nothing() -> None:
    told = group((turn(20),), (turn(1),), thinking=up_to(8))
    assert shaped(told, ShapingConfig(overlong_buffer=10), turn_tokens=20) == told


def test_a_buffer_longer_than_a_turn_is_refused() -> None:
    with pytest.raises(ValueError, match="rl.shaping.overlong_buffer=97"):
        load_config(Path("configs/demo.yaml"), ["rl.shaping.overlong_buffer=97"])
    with pytest.raises(ValueError, match="rl.shaping.overlong_factor=-1"):
        ShapingConfig(overlong_factor=-1.0)
