"""Rewards and advantages of a group by hand: length, effort, faulty turns, and turns near their limit."""

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from support.refusals import refuses
from support.turns import turn_of

from temper.envs.core.task import EnvRef, Task
from temper.envs.core.thinking_mode import LOW_EFFORT, UNLIMITED, Thinking, up_to
from temper.learner.batches.builder import BatchBuilder
from temper.learner.batches.samples import samples_from_groups
from temper.learner.config import LearnerConfig
from temper.learner.losses.config import LossConfig
from temper.orchestrator.loop.buffer import Buffer, VersionCell
from temper.orchestrator.loop.config import ShapingConfig
from temper.orchestrator.loop.length_penalty import EnvPenalty
from temper.orchestrator.loop.mixture import Mixture
from temper.orchestrator.loop.shaping import earned_rewards, shape_rewards
from temper.orchestrator.pipeline.config import load_config
from temper.orchestrator.stages.rl import has_advantage
from temper.rewards.length_shaping import overlong_penalty
from temper.rewards.rounding import has_different_rewards
from temper.rewards.score import CORRECT, Score
from temper.rollout.trajectory import (
    Closed,
    Group,
    Stop,
    ThinkingStats,
    Ticket,
    Trajectory,
    Turn,
    TurnFault,
    WeightVersion,
)

VERSION = WeightVersion(step=0)


def turn(*, thinking: int = 2, answer: int = 1, faults: tuple[TurnFault, ...] = ()) -> Turn:
    own = ThinkingStats(tokens=thinking, answer_tokens=answer, closed=Closed.ITSELF)
    return turn_of((5,) * (thinking + answer), context=(1, 2), thinking=own, faults=faults)


def group(answers: Sequence[tuple[float, Sequence[Turn]]], *, thinking: Thinking = UNLIMITED) -> Group:
    task = Task(
        env=EnvRef(name="math"), key="k", messages=({"role": "user", "content": "?"},), spec={}, thinking=thinking
    )
    trajectories = tuple(
        Trajectory(task=task, turns=tuple(turns), stop=Stop.ENV, reward=reward, score=Score(parts={CORRECT: reward}))
        for reward, turns in answers
    )
    return Group(ticket=Ticket(number=0, task=task, admitted=VERSION), trajectories=trajectories)


def test_nothing_is_added_where_nothing_is_set() -> None:
    plain = group([(1.0, [turn()]), (0.0, [turn(thinking=9)])])
    assert shape_rewards(plain, ShapingConfig()) == plain


def test_thoughts_and_answers_are_rewarded_separately_and_a_group_that_is_all_right_gets_a_signal() -> None:
    before = group([(1.0, [turn(thinking=10, answer=4)]), (1.0, [turn(thinking=20, answer=2)])])
    assert not has_different_rewards(before.rewards_G)
    after = shape_rewards(before, ShapingConfig(thinking_length=0.5, answer_length=0.25))
    # brevity +-0.5 around the mean, in opposite directions for thinking and answer
    assert after.rewards_G == pytest.approx([1 + 0.25 - 0.125, 1 - 0.25 + 0.125])
    assert after.trajectories[0].score.parts == pytest.approx(
        {CORRECT: 1.0, "thinking_length": 0.25, "answer_length": -0.125}
    )
    assert all(t.correct for t in after.trajectories)
    assert has_different_rewards(after.rewards_G)


def test_a_group_that_is_all_wrong_gets_no_reward_for_length() -> None:
    after = shape_rewards(group([(0.0, [turn()]), (0.0, [turn(thinking=9)])]), ShapingConfig(thinking_length=0.5))
    assert after.rewards_G == [0.0, 0.0]


def test_effort_is_rewarded_only_where_the_prompt_asks_for_little() -> None:
    config = ShapingConfig(effort_slope=0.2, effort_tokens=30)
    answers = [(1.0, [turn(thinking=14, answer=1)]), (1.0, [turn(thinking=59, answer=1)])]
    assert shape_rewards(group(answers), config).rewards_G == [1.0, 1.0]
    assert shape_rewards(group(answers, thinking=LOW_EFFORT), config).rewards_G == pytest.approx([1.1, 0.8])


@pytest.mark.parametrize("setting", [{"thinking_length": -0.1}, {"effort_tokens": 0}, {"shortest_bonus": -1.0}])
def test_impossible_settings_name_their_value(setting: dict[str, float]) -> None:
    ((name, value),) = setting.items()
    with refuses(f"rl.shaping.{name}={value}"):
        ShapingConfig(**setting)  # type: ignore[arg-type]


def test_the_advantage_of_a_turn_with_a_fault_is_overwritten_and_that_of_the_others_kept() -> None:
    good, bad = turn(), turn(thinking=1, faults=(TurnFault.THINKING,))
    both = turn(faults=(TurnFault.THINKING, TurnFault.TOOL_CALL))
    told = group([(1.0, [good, bad]), (0.0, [both])])
    first, second = samples_from_groups(
        [told], advantage="dr_grpo", overrides=LossConfig(malformed_thinking=-5.0, invalid_call=-2.0).overrides
    )
    # rewards 1 and 0: advantages 0.5 and -0.5; context ids keep the trajectory's advantage but are not trained
    assert first.advantages_T.tolist() == [*[0.5] * 5, 0.5, 0.5, -5.0, -5.0]
    assert second.advantages_T.tolist() == [-0.5, -0.5, -5.0, -5.0, -5.0]
    plain, _ = samples_from_groups([told], advantage="dr_grpo", overrides=LossConfig().overrides)
    assert set(plain.advantages_T) == {0.5}


def test_the_batches_of_a_step_are_those_of_all_its_epochs() -> None:
    answered = group([(1.0, [turn()]), (0.0, [turn(thinking=3)])])
    groups = [replace(answered, ticket=replace(answered.ticket, number=number)) for number in range(4)]
    builder = BatchBuilder(config=LearnerConfig(), pad_id=0)
    first, second, third = builder.build_from_groups(groups, LossConfig(), updates=1, epochs=3)
    assert first is second is third
    several = builder.build_from_groups(groups, LossConfig(), updates=2, epochs=3)
    assert [batch.samples for batch in several] == [4] * 6


def test_an_override_above_zero_is_refused() -> None:
    with pytest.raises(ValueError, match="loss.malformed_thinking=5.0"):
        LossConfig(malformed_thinking=5.0)


def test_a_group_of_equal_rewards_is_kept_where_one_of_its_turns_has_an_advantage_of_its_own() -> None:
    wrong = [(0.0, [turn(faults=(TurnFault.THINKING,))]), (0.0, [turn()])]
    task = group(wrong).ticket.task

    class Source:
        def task(self, index: int) -> Task:
            return task

    async def dropped(overridden: dict[TurnFault, float]) -> int:
        buffer = Buffer(groups_per_step=1, max_lag=0, max_replaced_groups=9, overridden=overridden)
        await buffer.admit(Mixture({"math": Source()}, {"math": 1.0}), VersionCell(VERSION))
        await buffer.put(group(wrong))
        return buffer.dropped.zero_advantage

    assert asyncio.run(dropped({})) == 1
    assert asyncio.run(dropped(LossConfig(malformed_thinking=-5.0).overrides)) == 0
    assert asyncio.run(dropped(LossConfig(invalid_call=-5.0).overrides)) == 1


@pytest.mark.parametrize(("length", "penalty"), [(0, 0.0), (80, 0.0), (81, -0.1), (85, -0.5), (90, -1.0), (95, -1.0)])
def test_the_penalty_falls_over_the_buffer_to_minus_the_factor(length: int, penalty: float) -> None:
    assert overlong_penalty(length, limit=90, buffer=10, factor=1.0) == pytest.approx(penalty)
    assert overlong_penalty(length, limit=90, buffer=10, factor=0.5) == pytest.approx(penalty / 2)


def long(*answers: tuple[int, ...], thinking: Thinking = UNLIMITED) -> Group:
    """Build correct answers with these turn lengths and no score parts."""
    turned = group([(1.0, [turn_of((5,) * tokens) for tokens in turns]) for turns in answers], thinking=thinking)
    return replace(turned, trajectories=tuple(replace(one, score=Score()) for one in turned.trajectories))


def test_an_answer_pays_for_its_longest_turn() -> None:
    config = ShapingConfig(overlong_buffer=10, overlong_factor=2.0)
    after = shape_rewards(long((8, 8, 8), (3, 15), ()), config, turn_tokens=20)
    assert after.rewards_G == pytest.approx([1.0, 0.0, 1.0])
    assert [t.score.parts["overlong"] for t in after.trajectories] == pytest.approx([0.0, -1.0, 0.0])


def test_a_group_is_filtered_by_what_its_answers_earned_before_the_penalty() -> None:
    right = long(*[(3,)] * 7, (15,))
    after = shape_rewards(right, ShapingConfig(overlong_buffer=10, overlong_factor=0.1), turn_tokens=20)
    assert after.rewards_G == pytest.approx([1.0] * 7 + [0.95])
    assert earned_rewards(after) == [1.0] * 8
    assert not has_advantage(after, kind="grpo")
    assert has_advantage(after, kind="reinforce_pp")  # equal rewards still give it a nonzero advantage


def test_an_answer_stays_right_when_a_penalty_is_taken_from_its_reward() -> None:
    after = shape_rewards(long((15,), (3,)), ShapingConfig(overlong_buffer=10), turn_tokens=20)
    assert after.rewards_G == pytest.approx([0.5, 1.0])
    assert [t.correct for t in after.trajectories] == [True, True]  # the environment has no score part `correct`


def test_a_turn_with_a_thinking_budget_pays_nothing() -> None:
    told = long((20,), (1,), thinking=up_to(8))
    assert shape_rewards(told, ShapingConfig(overlong_buffer=10), turn_tokens=20) == told


def test_a_buffer_longer_than_a_turn_is_refused() -> None:
    with refuses("rl.shaping.overlong_buffer=97"):
        load_config(Path("configs/demo.yaml"), ["rl.shaping.overlong_buffer=97"])
    with pytest.raises(ValueError, match="rl.shaping.overlong_factor=-1"):
        ShapingConfig(overlong_factor=-1.0)


def test_thinking_tokens_have_a_penalty_in_forced_answers_too() -> None:
    made = group([(1.0, [turn(thinking=50)]), (0.0, [turn(thinking=100)])])
    forced = replace(
        made.trajectories[0], turns=(turn(thinking=20),), task=replace(made.ticket.task, thinking=up_to(20))
    )
    made = replace(made, trajectories=(replace(made.trajectories[0], forced_answers=(forced,)), made.trajectories[1]))
    adaptive = EnvPenalty(penalty=0.1, length=100.0)
    config = ShapingConfig(solve_rate_penalty=0.4)
    penalised = shape_rewards(made, config, length_penalty=adaptive)  # 0.1 + 0.4 / 2 for 100 tokens
    assert penalised.rewards_G == pytest.approx([1.0 - 0.15, -0.3])
    assert penalised.trajectories[0].forced_answers[0].reward == pytest.approx(1.0 - 0.06)
    assert [answer.correct for answer in penalised.trajectories] == [True, False]
    assert earned_rewards(penalised) == [1.0, 0.0]


def test_an_unsolved_group_pays_as_for_one_right_answer() -> None:
    penalised = shape_rewards(group([(0.0, [turn(thinking=100)])] * 4), ShapingConfig(solve_rate_penalty=0.4))
    assert penalised.rewards_G == pytest.approx([-0.1] * 4)
