import math
import pickle
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from support.refusals import refuses
from support.turns import turn_of

from temper.envs.core.task import EnvRef, Task
from temper.learner.batches.micro_batches import MicroBatch, build_batch
from temper.learner.batches.samples import TrainingSample, mini_batches, samples_from_groups
from temper.learner.losses.config import Aggregation, LossConfig
from temper.rollout.sampling import Sampling
from temper.rollout.token_arrays import as_floats, as_ids, as_marks
from temper.rollout.trajectory import Group, Stop, Ticket, Trajectory, Turn, WeightVersion

NAN = float("nan")


def supervised(length: int, *, first: int = 0) -> TrainingSample:
    return TrainingSample.supervised(ids=range(first, first + length), trained_T=[False] + [True] * (length - 1))


def group(*trajectories: Trajectory) -> Group:
    task = trajectories[0].task
    return Group(ticket=Ticket(number=0, task=task, admitted=WeightVersion(step=0)), trajectories=trajectories)


def trajectory(*turns: Turn, reward: float, stop: Stop = Stop.ENV) -> Trajectory:
    task = Task(env=EnvRef(name="math"), key="1", messages=({"role": "user", "content": "1+1"},), spec={})
    return Trajectory(task=task, turns=turns, stop=stop, reward=reward)


FIRST = Turn(
    context_ids=as_ids((1, 2)),
    sampled_ids=as_ids((3, 4, 5)),
    logprobs_T=as_floats((-0.1, NAN, -0.3)),
    versions_T=as_ids((4, 4, 5)),
    injected_T=as_marks((False, True, False)),
    text="",
)
SECOND = Turn(
    context_ids=as_ids((6,)),
    sampled_ids=as_ids((7, 8)),
    logprobs_T=as_floats((-0.4, -0.5)),
    versions_T=as_ids((5, 6)),
    injected_T=as_marks((False, False)),
    text="",
)


def test_a_trajectory_becomes_one_sequence_of_all_its_turns():
    first, second = samples_from_groups(
        [group(trajectory(FIRST, SECOND, reward=1.0), trajectory(FIRST, reward=0.0))], advantage="rloo"
    )
    assert first.ids.tolist() == [1, 2, 3, 4, 5, 6, 7, 8]
    assert first.trained_T.tolist() == [False, False, True, False, True, False, True, True]
    assert first.advantages_T.tolist() == [1.0] * 8
    assert first.behaviour_T[2] == np.float32(-0.1)
    assert [math.isnan(value) for value in first.behaviour_T] == [True, True, False, True, False, True, False, False]
    assert (first.oldest, first.newest) == (WeightVersion(step=4), WeightVersion(step=6))
    assert second.advantages_T.tolist() == [-1.0] * 5


def test_micro_batches_carry_the_temperatures_of_groups():
    plain = group(trajectory(FIRST, reward=1.0), trajectory(FIRST, reward=0.0))
    warm = replace(plain, ticket=replace(plain.ticket, number=1, sampling=Sampling(temperature=1.5)))
    samples = samples_from_groups([plain, warm], advantage="rloo")
    assert [sample.temperature for sample in samples] == [1.0, 1.0, 1.5, 1.5]
    (both,) = build_batch(samples, ranks=1, micro_batch_tokens=100, pad_id=0).micro_batches[0]
    assert both.temperatures_B is not None
    assert sorted(both.temperatures_B.tolist()) == [1.0, 1.0, 1.5, 1.5]
    (alone,) = build_batch(samples[:2], ranks=1, micro_batch_tokens=100, pad_id=0).micro_batches[0]
    assert alone.temperatures_B is None


def test_masked_truncated_trajectories_carry_no_loss():
    cut = group(trajectory(FIRST, reward=1.0, stop=Stop.LENGTH), trajectory(FIRST, reward=0.0))
    masked, kept = samples_from_groups([cut], advantage="dr_grpo", mask_truncated=True)
    assert masked.trained_tokens == 0
    assert kept.trained_tokens == 2
    assert samples_from_groups([cut], advantage="dr_grpo")[0].trained_tokens == 2


def test_a_truncated_branch_carries_no_loss_and_the_others_do() -> None:
    shared, cut, whole = turn_of([5, 6]), replace(turn_of([7, 8, 9]), truncated=True), turn_of([10])
    one = replace(trajectory(shared, cut, whole, reward=1.0, stop=Stop.LENGTH), parents=(-1, 0, 0))
    first, second = samples_from_groups([group(one)], advantage="dr_grpo", mask_truncated=True)
    assert (first.trained_tokens, second.trained_tokens) == (0, 3)
    between = replace(one, turns=(shared, whole, whole), stop=Stop.EPISODE_LENGTH)
    assert not any(
        s.trained_tokens for s in samples_from_groups([group(between)], advantage="dr_grpo", mask_truncated=True)
    )


@pytest.mark.parametrize("aggregation", ["token", "sequence", "constant"])
def test_branches_do_not_change_the_weight_of_an_episode(aggregation: Aggregation) -> None:
    """12 tokens in one branch or in three, with 7 other episodes of 12 tokens: an eighth of the batch."""
    four = turn_of([5, 6, 7, 8])
    one = trajectory(four, turn_of([5, 6, 7, 8], context=()), turn_of([5, 6, 7, 8], context=()), reward=1.0)
    three = replace(one, turns=(four, four, four), parents=(-1, -1, -1))
    samples = samples_from_groups([group(one, *[one] * 4), group(three, one, one)], advantage="rloo")
    assert len(samples) == 10
    batch = build_batch(samples, ranks=2, micro_batch_tokens=30, pad_id=0, aggregation=aggregation, constant_length=12)
    weights = dict.fromkeys(range(8), 0.0)
    for plan, micro_batches in zip(batch.plan, batch.micro_batches, strict=True):
        for items, micro in zip(plan, micro_batches, strict=False):
            episodes = [batch.rows[row].episode for item in items for row in item.rows]
            for episode, total in zip(episodes, micro.weights_BT.sum(axis=1), strict=True):
                assert episode is not None
                weights[episode] += total / batch.denominator
    assert weights == pytest.approx(dict.fromkeys(range(8), 0.125))


def test_mini_batches_keep_the_samples_of_an_episode_together() -> None:
    one = trajectory(turn_of([5]), turn_of([6]), reward=1.0)
    forked = replace(one, parents=(-1, -1))
    samples = samples_from_groups([group(forked, one, forked)], advantage="rloo")
    split = mini_batches(samples, count=3)
    assert [{sample.episode for sample in part} for part in split] == [{0}, {1}, {2}]
    assert [len(part) for part in split] == [2, 1, 2]


def test_misaligned_sequences_are_refused_with_both_lengths():
    with refuses("behaviour_T", 1, 2):
        TrainingSample(
            ids=as_ids((1, 2)),
            trained_T=as_marks((False, True)),
            advantages_T=as_floats((0.0, 0.0)),
            behaviour_T=as_floats((NAN,)),
        )
    with pytest.raises(ValueError, match="trained_T"):
        TrainingSample.supervised(ids=(1, 2), trained_T=(True, True))


def test_micro_batches_hold_like_lengths_within_the_token_budget():
    lengths = [3, 10, 4, 9, 3, 10, 5, 2]
    batch = build_batch([supervised(n) for n in lengths], ranks=1, micro_batch_tokens=20, pad_id=99)
    assert [m.ids_BT.shape for m in batch.micro_batches[0]] == [(2, 10), (2, 9), (4, 4)]
    assert batch.denominator == sum(lengths) - len(lengths) == batch.trained_tokens
    assert batch.tokens == sum(lengths)


def test_padding_is_on_the_right_and_weighs_nothing():
    batch = build_batch([supervised(3), supervised(2, first=7)], ranks=1, micro_batch_tokens=100, pad_id=99)
    (only,) = batch.micro_batches[0]
    assert only.ids_BT.tolist() == [[0, 1, 2], [7, 8, 99]]
    assert only.weights_BT.tolist() == [[0.0, 1.0, 1.0], [0.0, 1.0, 0.0]]


def test_a_sequence_over_the_budget_has_a_micro_batch_of_its_own():
    batch = build_batch([supervised(30), supervised(5), supervised(5)], ranks=1, micro_batch_tokens=10, pad_id=0)
    assert [m.ids_BT.shape for m in batch.micro_batches[0]] == [(1, 30), (2, 5)]


def test_ranks_get_like_shares_and_as_many_micro_batches():
    lengths = [20, 19, 18, 17, 5, 4, 3, 2, 2]
    batch = build_batch([supervised(n) for n in lengths], ranks=2, micro_batch_tokens=20, pad_id=0)
    first, second = batch.micro_batches
    assert len(first) == len(second)
    tokens = [sum(int(m.weights_BT.sum()) for m in share) for share in batch.micro_batches]
    assert sum(tokens) == batch.denominator
    assert abs(tokens[0] - tokens[1]) <= 3


class CountedRows(list[TrainingSample]):
    """Rows that remember which of them were read alone."""

    def __init__(self, rows: Sequence[TrainingSample]) -> None:
        super().__init__(rows)
        self.read = list[int]()

    def __getitem__(self, row: Any) -> Any:
        self.read.append(row)
        return super().__getitem__(row)


@pytest.mark.parametrize("shared", [False, True])
def test_a_rank_builds_only_its_own_rows(shared: bool) -> None:
    samples = [
        TrainingSample.supervised(ids=(*range(200), *[n] * n), trained_T=[False] * 200 + [True] * n)
        for n in (20, 19, 18, 17, 5, 4, 3, 2, 2)
    ]
    whole = build_batch(samples, ranks=2, micro_batch_tokens=400, pad_id=0, shared_prompts=shared).build_all()
    assert any(micro.prompts is not None for micro in whole.micro_batches[0]) == shared
    read = list[set[int]]()
    for rank in range(2):
        rows = CountedRows(whole.rows)
        own = replace(whole, rows=rows).share(rank)
        read.append(set(rows.read))
        assert read[-1] == {row for plan in whole.plan[rank] for item in plan for row in item.rows}
        assert pickle.dumps(own) == pickle.dumps(whole.share(rank))
    assert not read[0] & read[1]
    assert len(read[0] | read[1]) == len(samples)


def test_a_rank_with_fewer_micro_batches_gets_weightless_ones():
    batch = build_batch([supervised(n) for n in (20, 10, 10)], ranks=2, micro_batch_tokens=10, pad_id=0)
    shares = [[float(m.weights_BT.sum()) for m in share] for share in batch.micro_batches]
    assert shares == [[19.0, 0.0], [9.0, 9.0]]


def test_the_sequence_aggregation_weighs_each_sequence_the_same():
    batch = build_batch(
        [supervised(5), supervised(3)], ranks=1, micro_batch_tokens=99, pad_id=0, aggregation="sequence"
    )
    (only,) = batch.micro_batches[0]
    assert only.weights_BT.sum(axis=1).tolist() == pytest.approx([1.0, 1.0])
    assert batch.denominator == 2.0


def test_versions_of_a_batch_are_its_oldest_and_newest():
    sequences = [
        *samples_from_groups([group(trajectory(FIRST, reward=1.0), trajectory(SECOND, reward=0.0))], advantage="rloo")
    ]
    batch = build_batch(sequences, ranks=1, micro_batch_tokens=99, pad_id=0)
    assert (batch.oldest, batch.newest) == (WeightVersion(step=4), WeightVersion(step=6))
    assert build_batch([supervised(3)], ranks=1, micro_batch_tokens=99, pad_id=0).oldest is None


def test_a_rank_without_a_sequence_gets_weightless_micro_batches():
    untrained = TrainingSample.supervised(ids=(1, 2), trained_T=(False, False))
    batch = build_batch([supervised(3), untrained], ranks=3, micro_batch_tokens=99, pad_id=0)
    assert [[float(m.weights_BT.sum()) for m in share] for share in batch.micro_batches] == [[2.0], [0.0], [0.0]]
    assert (batch.denominator, batch.samples, batch.trained_tokens) == (2.0, 1, 2)


@pytest.mark.parametrize("aggregation", ["token", "sequence", "constant"])
def test_rows_without_an_advantage_count_but_are_not_computed(aggregation: Aggregation) -> None:
    samples = samples_from_groups(
        [group(trajectory(FIRST, reward=1.0), trajectory(SECOND, reward=0.0)), group(trajectory(FIRST, reward=1.0))],
        advantage="rloo",
    )
    every, few = (
        build_batch(
            samples,
            ranks=2,
            micro_batch_tokens=99,
            pad_id=0,
            aggregation=aggregation,
            constant_length=7,
            needs_all=all_,
        )
        for all_ in (True, False)
    )
    assert (few.denominator, few.trained_tokens) == (every.denominator, every.trained_tokens)
    assert (every.samples, few.samples) == (3, 2)
    weights = [
        sum(float(one.weights_BT.sum()) for share in made.micro_batches for one in share) for made in (every, few)
    ]
    assert weights[0] - weights[1] == pytest.approx(few.uncomputed.weight)
    none = build_batch(samples[2:], ranks=2, micro_batch_tokens=99, pad_id=0, needs_all=False)
    assert [[float(one.weights_BT.sum()) for one in share] for share in none.micro_batches] == [[0.0], [0.0]]


def test_a_loss_that_needs_all_tokens_says_so() -> None:
    assert not any(one.needs_all_tokens for one in (LossConfig(), LossConfig(surrogate="cispo")))
    for settings in ({"kl_coefficient": 0.1}, {"entropy_bonus": 0.1}, {"objective": "nll"}, {"objective": "distill"}):
        assert LossConfig(**settings).needs_all_tokens, settings


def test_a_batch_without_a_trained_token_has_no_micro_batches():
    untrained = TrainingSample.supervised(ids=(1, 2), trained_T=(False, False))
    for shared in (False, True):
        batch = build_batch([untrained], ranks=2, micro_batch_tokens=99, pad_id=0, shared_prompts=shared)
        assert (batch.micro_batches, batch.trained_tokens, batch.samples) == (((), ()), 0, 0)


def test_arrays_of_a_micro_batch_must_have_one_shape():
    floats = np.zeros((1, 2), dtype=np.float32)
    with pytest.raises(ValueError, match="shape"):
        MicroBatch(
            ids_BT=np.zeros((1, 3), dtype=np.int64), weights_BT=floats, advantages_BT=floats, behaviour_BT=floats
        )
