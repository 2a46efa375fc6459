"""Groups with stored turns: they give the same metrics and batches as the groups themselves, and a loss is typed."""

import asyncio
import pickle
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from support.plain_process import PlainResult
from support.replayed_run import Questions, Rollouts
from support.turns import report_of

from temper.envs.core.errors import Failure, FailureKind
from temper.learner.batches.builder import BatchBuilder, build_shares
from temper.learner.config import LearnerConfig
from temper.learner.losses.config import LossConfig
from temper.orchestrator.loop.buffer import Dropped
from temper.orchestrator.loop.config import ShapingConfig
from temper.orchestrator.loop.shaping import shape_rewards
from temper.orchestrator.loop.step import StepReport
from temper.orchestrator.stages.step_metrics import step_metrics
from temper.rollout.stored_turns import GroupsLost, read_all_groups, read_group, read_groups, set_reference, store_turns
from temper.rollout.trajectory import Group, Stop, Ticket, Trajectory, TurnFault, TurnTotals, WeightVersion

BUILDER = BatchBuilder(config=LearnerConfig(ranks=2, micro_batch_tokens=256), pad_id=0)
LOSS = LossConfig(malformed_thinking=-1.5, mask_truncated=True)
SHAPING = ShapingConfig(thinking_length=0.1, answer_length=0.1, overlong_buffer=15, solve_rate_penalty=0.1)


def group(number: int) -> Group:
    """Return a group of turns with several versions, with a failed answer."""
    ticket = Ticket(number=number, task=Questions().task(number), admitted=WeightVersion(step=number))
    found = asyncio.run(Rollouts().run_group(ticket, 4))
    failure = Failure(kind=FailureKind.SANDBOX, message="lost")
    failed = replace(found.trajectories[0], reward=None, failure=failure, stop=Stop.FAILURE)
    return replace(found, failed=(failed,))


def stored(group: Group, *, lost: bool = False) -> Group:
    """Return the group as it arrives from another process."""
    head, turns = pickle.loads(pickle.dumps(store_turns(group)))
    result = PlainResult(turns)
    result.lost = lost
    return set_reference(head, result)


def report(groups: list[Group], dropped: Group) -> StepReport:
    return report_of(groups, dropped=Dropped(zero_advantage=1, groups=[dropped]), version=7)


def finished(given: Callable[[Group], Group]) -> tuple[list[Group], Group]:
    groups = [shape_rewards(given(group(number)), SHAPING, turn_tokens=20) for number in range(5)]
    return groups[:4], groups[4]


def test_stored_groups_have_the_metrics_of_the_groups() -> None:
    groups, dropped = finished(lambda one: one)
    metrics = step_metrics(report(groups, dropped))
    assert step_metrics(report(*finished(stored))) == metrics
    versions = [turn.versions_T for one in groups for answer in one.trajectories for turn in answer.turns]
    assert metrics["train/lag_tokens"] == float(7 - np.concatenate(versions).mean())
    turns = [turn for one in (*groups, dropped) for answer in one.trajectories for turn in answer.turns]
    assert metrics["env/math/well_formed"] == 1 - sum(TurnFault.THINKING in turn.faults for turn in turns) / len(turns)


def test_stored_groups_make_the_batches_of_the_groups() -> None:
    def builds(opened: list[Group]) -> Any:
        return BUILDER.build_from_groups(opened, LOSS, updates=2, epochs=2)

    groups, heads = finished(lambda one: one)[0], finished(stored)[0]
    for rank in range(2):
        shares, lost = build_shares(heads, builds, number=rank)
        assert not lost
        assert pickle.dumps(shares) == pickle.dumps([batch.share(rank) for batch in builds(groups)])


def test_a_stored_group_opens_as_it_was_with_the_rewards_of_now() -> None:
    whole = group(3)
    forced = replace(whole.trajectories[1], reward=0.25)
    whole = replace(
        whole, trajectories=(replace(whole.trajectories[0], forced_answers=(forced,)), *whole.trajectories[1:])
    )
    head = stored(whole)
    assert head.trajectories[0].totals == TurnTotals.of(whole.trajectories[0].turns)
    assert len(head.trajectories[1].turns) == len(whole.trajectories[1].turns)
    with pytest.raises(LookupError, match="stored in another process"):
        list(head.trajectories[0].turns)
    assert read_all_groups([head]) == [whole]
    again = replace(head, trajectories=tuple(replace(one, reward=0.5) for one in head.trajectories))
    (opened,) = read_all_groups([pickle.loads(pickle.dumps(again))])
    assert opened.rewards_G == [0.5] * 4
    assert [one.turns for one in opened.trajectories] == [one.turns for one in whole.trajectories]


def test_turns_of_a_retry_come_from_several_workers() -> None:
    first, second = group(1), group(2)
    merged = stored(first).merge_retry(stored(second))
    assert read_all_groups([merged]) == [first.merge_retry(second)]


def test_lost_turns_are_named_and_end_no_other_group() -> None:
    groups = [stored(group(1)), stored(group(2), lost=True), group(3)]
    opened, lost = asyncio.run(read_groups(groups))
    assert ([one.ticket.number for one in opened], lost) == ([1, 3], {2})
    assert build_shares(groups, lambda opened: [], number=0) == ([], {2})
    with pytest.raises(GroupsLost) as caught:
        read_all_groups(groups)
    assert pickle.loads(pickle.dumps(caught.value)).tickets == {2}


def test_lost_answers_are_failures_of_a_worker() -> None:
    async def answering(head: Group) -> Group:
        return head

    opened = asyncio.run(read_group(answering(stored(group(1), lost=True))))
    assert [one.kind for one in opened.failures] == [FailureKind.WORKER] * 5
    assert opened.trajectories == ()
    assert asyncio.run(read_group(answering(stored(group(1))))) == group(1)
    without = Trajectory(task=Questions().task(1), turns=(), stop=Stop.ENV, reward=1.0)
    assert asyncio.run(read_group(answering(stored(replace(group(1), trajectories=(without,)))))).rewards_G == [1.0]
