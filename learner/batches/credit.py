"""Raw advantages of a group's answers: one for each answer, and with nested budgets one for each part of the reasoning."""

from collections.abc import Sequence
from dataclasses import dataclass

from temper.learner.losses.advantages import GroupAdvantage
from temper.learner.losses.nested import part_advantages
from temper.rollout.trajectory import Group, Trajectory


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
