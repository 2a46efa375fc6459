"""Raw advantages of a group's answers: one for each answer, and with nested budgets one for each part of a thought."""

from collections.abc import Sequence
from dataclasses import dataclass

from temper.learner.losses.advantages import GroupAdvantage
from temper.learner.losses.nested import part_advantages
from temper.rollout.trajectory import Group, Trajectory


@dataclass(frozen=True, slots=True, kw_only=True)
class CreditedAnswer:
    """An answer, and the raw advantages of its sampled tokens from each of `starts` on.

    `tokens` are the trained tokens of each part. Of a cut only the answer after the thought is trained.
    """

    answer: Trajectory
    starts: Sequence[int]
    advantages: Sequence[float]
    tokens: Sequence[int]
    is_cut: bool = False


def credit_group(group: Group, advantage: GroupAdvantage) -> list[CreditedAnswer]:
    """Return a group's answers, then their cuts. `advantage` subtracts the baseline within a group.

    An answer is compared with the answers at the same budget. The parts of a thought: see `learner/losses/nested.py`.
    """
    own_G = advantage(group.rewards_G)
    budgets = group.ticket.task.thinking.cuts
    if not budgets:
        return [
            CreditedAnswer(answer=answer, starts=[0], advantages=[own], tokens=[answer.model_tokens])
            for answer, own in zip(group.trajectories, own_G, strict=True)
        ]
    parts_GS = part_advantages([answer.outcomes for answer in group.trajectories], advantage)
    credited = [
        _credit_thought(answer, budgets, parts_S, own)
        for answer, parts_S, own in zip(group.trajectories, parts_GS, own_G, strict=True)
    ]
    for budget in budgets:
        cuts = [cut for answer in group.trajectories if (cut := answer.cut_at(budget)) is not None and not cut.failure]
        places = [cut.turns[0].forced_at or 0 for cut in cuts]
        own_G = advantage([cut.reward for cut in cuts if cut.reward is not None])
        credited += [
            CreditedAnswer(answer=cut, starts=[start], advantages=[own], tokens=[_trained(cut, start)], is_cut=True)
            for cut, start, own in zip(cuts, places, own_G, strict=True)
        ]
    return credited


def _credit_thought(answer: Trajectory, budgets: Sequence[int], parts_S: Sequence[float], own: float) -> CreditedAnswer:
    """Return an answer whose thought has the advantages `parts_S`, and whose answer has `own`."""
    if len(answer.turns) != 1:
        return CreditedAnswer(answer=answer, starts=[0], advantages=[own], tokens=[answer.model_tokens])
    (turn,) = answer.turns
    cuts = [answer.cut_at(budget) for budget in budgets]
    places = [0, *(None if cut is None or cut.failure else cut.turns[0].forced_at for cut in cuts)]
    parts = [(place, value) for place, value in zip(places, parts_S, strict=True) if place is not None]
    parts.append((len(turn.sampled_ids) - turn.thinking.answer_tokens, own))
    starts = [start for start, _ in parts]
    stops = [*starts[1:], len(turn.sampled_ids)]
    return CreditedAnswer(
        answer=answer,
        starts=starts,
        advantages=[value for _, value in parts],
        tokens=[_trained(answer, start, stop) for start, stop in zip(starts, stops, strict=True)],
    )


def _trained(answer: Trajectory, start: int, stop: int | None = None) -> int:
    """Return how many tokens the model sampled itself in a part of the only turn."""
    return int((~answer.turns[0].injected_T[start:stop]).sum())
