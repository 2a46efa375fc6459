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
    """The credit of an answer. Tokens before the first part are not trained: a forced answer shares them with the whole."""

    answer: Trajectory
    parts: tuple[PartCredit, ...]


def credit_group(group: Group, advantage: GroupAdvantage) -> list[AnswerCredit]:
    """Return the credit of a group's answers, then of their forced answers. `advantage` subtracts a group's baseline.

    An answer is compared with the answers at the same budget, the parts of the reasoning as in `learner/losses/nested.py`.
    Without nested budgets, or if an answer has several turns, each answer is one part.
    """
    answers, own_G = group.trajectories, advantage(group.rewards_G)
    budgets = group.ticket.task.thinking.nested_budgets
    if not budgets or any(len(answer.turns) != 1 for answer in answers):
        return [
            AnswerCredit(answer=one, parts=(PartCredit(start=0, advantage=own, tokens=one.model_tokens),))
            for one, own in zip(answers, own_G, strict=True)
        ]
    parts_GS = part_advantages([answer.budget_rewards for answer in answers], advantage)
    credits = [
        _credit_answer(answer, parts_S, own) for answer, parts_S, own in zip(answers, parts_GS, own_G, strict=True)
    ]
    for budget in budgets:
        pairs = ((answer, answer.forced_answer(budget)) for answer in answers)
        forced = [(answer, one) for answer, one in pairs if one is not None and not one.failure]
        forced_G = advantage([one.reward for _, one in forced if one.reward is not None])
        for (answer, one), own in zip(forced, forced_G, strict=True):
            start = answer.shared_tokens(one)
            shared = _model_tokens(one, 0, start)
            part = PartCredit(start=start, advantage=own, tokens=one.model_tokens - shared)
            credits.append(AnswerCredit(answer=one, parts=(part,)))
    return credits


def _credit_answer(answer: Trajectory, parts_S: Sequence[float], own: float) -> AnswerCredit:
    """Return the credit of an answer whose reasoning has the advantages `parts_S`, and whose end has `own`."""
    (turn,) = answer.turns
    forced = [answer.forced_answer(budget) for budget in answer.task.thinking.nested_budgets]
    starts = [0, *(None if one is None or one.failure else one.turns[0].forced_end_start for one in forced)]
    parts = [(start, value) for start, value in zip(starts, parts_S, strict=True) if start is not None]
    parts.append((len(turn.sampled_ids) - turn.thinking.answer_tokens, own))
    stops = [*(start for start, _ in parts[1:]), len(turn.sampled_ids)]
    return AnswerCredit(
        answer=answer,
        parts=tuple(
            PartCredit(start=start, advantage=value, tokens=_model_tokens(answer, start, stop))
            for (start, value), stop in zip(parts, stops, strict=True)
        ),
    )


def _model_tokens(answer: Trajectory, start: int, stop: int) -> int:
    """Return how many tokens of a part of the first turn the model sampled itself."""
    return int((~answer.turns[0].injected_T[start:stop]).sum())
