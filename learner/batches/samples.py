"""Training samples: token ids and their loss masks, from trajectories or from supervised data.

An answer has one raw advantage, and with nested budgets one for each part of its reasoning.

Suffixes: `_T` one entry per token of a sample, `_G` answer of a group, `_S` part of its reasoning, `_N` group.
"""

import random
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import count, groupby, islice, pairwise
from types import MappingProxyType

import numpy as np

from temper.learner.batches.pass_experts import join_choices
from temper.learner.losses.advantages import GroupAdvantage, advantage_function, normalise_and_clip
from temper.learner.losses.nested import part_advantages
from temper.rollout.expert_choices import Choices
from temper.rollout.token_arrays import (
    Floats,
    Ids,
    Integers,
    Marks,
    Truths,
    as_floats,
    as_ids,
    as_marks,
    fill_array,
    join_arrays,
    same_values,
)
from temper.rollout.trajectory import Group, Ticket, Trajectory, TurnFault, WeightVersion

UNTRAINED, UNKNOWN = np.bool_(False), np.float32(np.nan)
NO_OVERRIDES: Mapping[TurnFault, float] = MappingProxyType({})


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TrainingSample:
    """One sequence to train on, in read-only arrays (`rollout/token_arrays.py`).

    `trained_T[t]` marks tokens with loss. Token t is predicted from the tokens before it. `behaviour_T` is the engine's
    log-probability of a sampled token and NaN elsewhere. `oldest` and `newest` are the weight versions that sampled it, None
    for supervised data. Samples of one `group`, or of none, may share a prompt. `experts` are the recorded expert choices,
    if any. pi and the policies compared with it use the sampling `temperature`. `episode` numbers the episodes of a batch:
    the branches and forced answers of one share its weight. Without one a sample is its own episode. `place` is the index of
    its trajectory among the scored ones of the batch. It is None without a trajectory, for forced answers, and for answers of
    several branches.
    """

    ids: Ids
    trained_T: Marks
    advantages_T: Floats
    behaviour_T: Floats
    oldest: WeightVersion | None = None
    newest: WeightVersion | None = None
    group: int | None = None
    temperature: float = 1.0
    episode: int | None = None
    place: int | None = None
    experts: Choices | None = field(default=None, compare=False)

    def __post_init__(self) -> None:
        count = len(self.ids)
        for name, length in (
            ("trained_T", len(self.trained_T)),
            ("advantages_T", len(self.advantages_T)),
            ("behaviour_T", len(self.behaviour_T)),
            ("experts", count if self.experts is None else len(self.experts)),
        ):
            if length != count:
                raise ValueError(f"{name} has {length} entries for {count} ids")
        if not count:
            raise ValueError("a training sample has no tokens")
        if self.trained_T[0]:
            raise ValueError("trained_T[0] is true: nothing predicts the first token; set it to false")

    def __eq__(self, other: object) -> bool:
        return isinstance(other, TrainingSample) and same_values(self, other)

    @classmethod
    def supervised(cls, *, ids: Integers, trained_T: Truths) -> "TrainingSample":
        """Return a sample of supervised data: advantage 1, nothing sampled."""
        count = len(ids)
        return cls(
            ids=as_ids(ids),
            trained_T=as_marks(trained_T),
            advantages_T=fill_array(count, np.float32(1.0)),
            behaviour_T=fill_array(count, UNKNOWN),
        )

    @property
    def trained_tokens(self) -> int:
        return int(self.trained_T.sum())

    @property
    def has_advantage(self) -> bool:
        """Whether a trained token has a nonzero advantage."""
        return bool(self.advantages_T[self.trained_T].any())

    @property
    def first_trained(self) -> int:
        """Index of the first token with loss. There must be one."""
        return int(self.trained_T.argmax())


@dataclass(frozen=True, slots=True, kw_only=True)
class PartCredit:
    """The raw advantage of an answer's sampled tokens from `start` to the next part. `tokens` of them are trained."""

    start: int
    advantage: float
    tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerCredit:
    """The credit of an answer. Tokens before the first part are not trained: a forced answer shares them with the whole.

    `episode` is the index of the whole answer in its group.
    """

    answer: Trajectory
    episode: int
    parts: tuple[PartCredit, ...]


def samples_from_groups(
    groups: Sequence[Group],
    *,
    advantage: str,
    advantage_clip: float = 20.0,
    mask_truncated: bool = False,
    overrides: Mapping[TurnFault, float] = NO_OVERRIDES,
    normalise: bool = True,
    nested_weights: Sequence[float] = (),
) -> list[TrainingSample]:
    """Return a sample for each branch of the scored trajectories of a batch and of their forced answers.

    A token is trained if the model sampled it. `mask_truncated` masks truncated branches, and a turn in several branches is
    trained in the first that is not masked. `overrides` replace the advantage of turns with a fault, by the lowest if a turn
    has several. `normalise` is as in `normalise_and_clip`, and `nested_weights` as in `credit_group`.
    """
    rule = advantage_function(advantage)
    credits_N = [credit_group(group, rule, nested_weights=nested_weights) for group in groups]
    values_N = normalise_and_clip(
        [[part.advantage for one in credits for part in one.parts] for credits in credits_N],
        [[tokens for one in credits for tokens in _trained_tokens(one, mask_truncated)] for credits in credits_N],
        kind=advantage,
        clip=advantage_clip,
        normalise=normalise,
    )
    samples, places, before = list[TrainingSample](), count(), 0
    for group, credits, values in zip(groups, credits_N, map(iter, values_N), strict=True):
        for number, one in enumerate(credits):
            advantages = list(islice(values, len(one.parts)))
            first, *others = (
                _branch_sample(
                    one,
                    branch,
                    advantages=advantages,
                    untrained=untrained,
                    overrides=overrides,
                    ticket=group.ticket,
                    episode=before + one.episode,
                )
                for branch, untrained in _untrained_turns(one, mask_truncated)
            )
            place = next(places) if number < len(group.trajectories) else None
            samples += [first, *others] if others else [replace(first, place=place)]
        before += len(group.trajectories)
    return samples


def _untrained_turns(credit: AnswerCredit, mask_truncated: bool) -> Iterator[tuple[list[int], set[int]]]:
    """Yield each branch with its untrained turns: all of a masked branch, else the turns that earlier branches train."""
    masked, seen = _masked_branches(credit, mask_truncated), set[int]()
    for branch in credit.answer.branches:
        if branch in masked:
            yield branch, set(branch)
        else:
            yield branch, set(seen)
            seen.update(branch)


def _masked_branches(credit: AnswerCredit, mask_truncated: bool) -> Sequence[list[int]]:
    return credit.answer.truncated_branches if mask_truncated else []


def _trained_tokens(credit: AnswerCredit, mask_truncated: bool) -> list[int]:
    """Return the number of trained tokens of each part. An answer of several branches has one part."""
    answer, masked = credit.answer, _masked_branches(credit, mask_truncated)
    if not masked:
        return [part.tokens for part in credit.parts]
    kept = {at for branch in answer.branches if branch not in masked for at in branch}
    tokens = sum(int((~answer.turns[at].injected_T).sum()) for at in kept)
    return [min(part.tokens, tokens) for part in credit.parts]


def _branch_sample(
    credit: AnswerCredit,
    branch: Sequence[int],
    *,
    advantages: Sequence[float],
    untrained: Collection[int],
    overrides: Mapping[TurnFault, float],
    ticket: Ticket,
    episode: int,
) -> TrainingSample:
    """Return the sample of a branch. `branch` and `untrained` are indices of turns."""
    turns, starts = [credit.answer.turns[at] for at in branch], [part.start for part in credit.parts]
    ids: list[Ids] = []
    values: list[Floats] = []
    trained: list[Marks] = []
    behaviour: list[Floats] = []
    for at, turn in zip(branch, turns, strict=True):
        context, sampled = len(turn.context_ids), len(turn.sampled_ids)
        places = [0] * len(starts) if at else starts  # only the first turn has parts
        values_T, shared_T = np.zeros(sampled, dtype=np.float32), np.arange(sampled) < places[0]
        for place, value in zip(places, advantages, strict=True):
            values_T[place:] = value
        if faults := [overrides[fault] for fault in turn.faults if fault in overrides]:
            values_T[:] = min(faults)
        ids += [turn.context_ids, turn.sampled_ids]
        own_T = fill_array(sampled, UNTRAINED) if at in untrained else as_marks(~turn.injected_T & ~shared_T)
        trained += [fill_array(context, UNTRAINED), own_T]
        behaviour += [fill_array(context, UNKNOWN), turn.logprobs_T]
        values += [fill_array(context, np.float32(advantages[0])), as_floats(values_T)]
    versions_T = join_arrays((turn.versions_T for turn in turns), np.int32)
    return TrainingSample(
        ids=join_arrays(ids, np.int32),
        trained_T=join_arrays(trained, np.bool_),
        advantages_T=join_arrays(values, np.float32),
        behaviour_T=join_arrays(behaviour, np.float32),
        oldest=WeightVersion(step=int(versions_T.min())) if len(versions_T) else None,
        newest=WeightVersion(step=int(versions_T.max())) if len(versions_T) else None,
        group=ticket.number,
        temperature=ticket.sampling.temperature,
        episode=episode,
        experts=join_choices([(len(t.context_ids) + len(t.sampled_ids), t.experts) for t in turns]),
    )


def credit_group(
    group: Group, advantage: GroupAdvantage, *, nested_weights: Sequence[float] = ()
) -> list[AnswerCredit]:
    """Return the credit of a group's answers, then of their forced answers. `advantage` subtracts a group's baseline.

    An answer is compared with the answers at the same budget, which include the whole answers to reasoning that ended before
    it. The parts of the reasoning are credited as in `learner/losses/nested.py`, whose weights are `nested_weights`. Without
    nested budgets, or if an answer has several turns, each answer is one part.
    """
    answers, own_G = group.trajectories, advantage(group.rewards_G)
    budgets = group.ticket.task.thinking.nested_budgets
    if not budgets or any(len(answer.turns) != 1 for answer in answers):
        return [
            AnswerCredit(
                answer=one, episode=number, parts=(PartCredit(start=0, advantage=own, tokens=one.model_tokens),)
            )
            for number, (one, own) in enumerate(zip(answers, own_G, strict=True))
        ]
    rewards_GS = [answer.budget_rewards for answer in answers]
    parts_GS = part_advantages(rewards_GS, advantage, weights_S=nested_weights)
    credits = [
        _credit_answer(answer, number, parts_S, own)
        for number, (answer, parts_S, own) in enumerate(zip(answers, parts_GS, own_G, strict=True))
    ]
    for place, budget in enumerate(budgets):
        forced_G = [answer.forced_answer(budget) for answer in answers]
        scored = [number for number, one in enumerate(forced_G) if not _has_failed(one)]
        values = advantage([rewards_GS[number][place] for number in scored])
        for number, own in zip(scored, values, strict=True):
            one = forced_G[number]
            if one is None:  # the reasoning ended before the budget, and the whole answer has its credit
                continue
            start = answers[number].shared_tokens(one)
            shared = _model_tokens(one, 0, start)
            part = PartCredit(start=start, advantage=own, tokens=one.model_tokens - shared)
            credits.append(AnswerCredit(answer=one, episode=number, parts=(part,)))
    return credits


def _credit_answer(answer: Trajectory, episode: int, parts_S: Sequence[float], own: float) -> AnswerCredit:
    """Return the credit of an answer whose reasoning has the advantages `parts_S`, and whose end has `own`."""
    (turn,) = answer.turns
    forced = [answer.forced_answer(budget) for budget in answer.task.thinking.nested_budgets]
    starts = [0, *(None if one is None or _has_failed(one) else one.turns[0].forced_end_start for one in forced)]
    parts = [(start, value) for start, value in zip(starts, parts_S, strict=True) if start is not None]
    parts.append((len(turn.sampled_ids) - turn.thinking.answer_tokens, own))
    stops = [*(start for start, _ in parts[1:]), len(turn.sampled_ids)]
    return AnswerCredit(
        answer=answer,
        episode=episode,
        parts=tuple(
            PartCredit(start=start, advantage=value, tokens=_model_tokens(answer, start, stop))
            for (start, value), stop in zip(parts, stops, strict=True)
        ),
    )


def _has_failed(forced: Trajectory | None) -> bool:
    return forced is not None and forced.failure is not None


def _model_tokens(answer: Trajectory, start: int, stop: int) -> int:
    """Return how many tokens of a part of the first turn the model sampled itself."""
    return int((~answer.turns[0].injected_T[start:stop]).sum())


def episodes_of(samples: Sequence[TrainingSample]) -> list[int]:
    """Return the episode of each sample. A sample without one gets a negative number that no other has."""
    return [~place if one.episode is None else one.episode for place, one in enumerate(samples)]


def mini_batches(samples: Sequence[TrainingSample], *, count: int, epoch: int = 0) -> list[list[TrainingSample]]:
    """Split samples into `count` parts of similar size: whole groups if there are enough, else whole episodes.

    Epoch 0 keeps the order, so that each part has a share of each environment. Later epochs shuffle, seeded by the epoch and
    the first group's number.
    """
    groups = [list(members) for _, members in groupby(samples, key=lambda sample: sample.group)]
    units = groups if len(groups) >= count else _group_by_episode(samples)
    if epoch and samples:
        random.Random(f"{samples[0].group}/{epoch}").shuffle(units)
    bounds = [len(units) * number // count for number in range(count + 1)]
    runs = [units[start:stop] for start, stop in pairwise(bounds)]
    return [[sample for unit in run for sample in unit] for run in runs]


def _group_by_episode(samples: Sequence[TrainingSample]) -> list[list[TrainingSample]]:
    found: dict[int, list[TrainingSample]] = {}
    for episode, sample in zip(episodes_of(samples), samples, strict=True):
        found.setdefault(episode, []).append(sample)
    return list(found.values())
