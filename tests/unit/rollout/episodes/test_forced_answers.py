"""Reasoning that is also ended at nested budgets: the episodes, their samples, and a resumed group."""

import asyncio
from dataclasses import replace

import numpy as np
import pytest
from support.interruptions import written_and_read
from support.refusals import refuses
from support.replay_engine import ReplayEngine
from support.scripted_engine import RENDERER, TAGS, TOKENIZER, completion, runner_of

from temper.envs.binding import bind
from temper.envs.config import EnvConfig
from temper.envs.core.task import Task
from temper.envs.core.thinking_mode import Mode, NestedThinkingMix, Thinking, up_to
from temper.envs.source import open_source
from temper.learner.batches.samples import samples_from_groups
from temper.orchestrator.evaluation.budget_curve import at_budget
from temper.rollout.budget.config import ThinkingConfig
from temper.rollout.config import EpisodeLimits
from temper.rollout.engines.protocol import Completion, TurnRequest
from temper.rollout.episodes.runner import EpisodeRunner, GroupInProgress
from temper.rollout.episodes.turn_sampler import TurnSampler
from temper.rollout.token_arrays import tokens_of
from temper.rollout.trajectory import Group, Stop, Ticket, WeightVersion

THOUGHT = "7+8=15 so it is 15"
BUDGETS = (6, 10, 64)
"""The last one is longer than the thought."""


def task() -> Task:
    made = open_source(bind("math", EnvConfig()), split="train", seed=1).task(0)
    return replace(
        made, spec=made.spec | {"answer": "15"}, thinking=Thinking(mode=Mode.UNLIMITED, nested_budgets=BUDGETS)
    )


class ForcedEngine(ReplayEngine):
    """Ends `THOUGHT` at the limit of a request, then gives the answer of its budget."""

    def __init__(self, answers: dict[int | None, str]) -> None:
        super().__init__({})
        self.said = answers
        self.requests = list[TurnRequest]()

    async def generate(self, request: TurnRequest) -> Completion:
        self.requests.append(request)
        if request.limit is None:
            return completion(f"{THOUGHT}</think>\\boxed{{{self.said[None]}}}")
        closing = TAGS.forced_end(request.prefix_ids, request.limit, opened=TAGS.is_opened_by(request.prompt_ids))
        assert closing is not None
        assert closing.start == len(request.prefix_ids)
        said = completion(f"\\boxed{{{self.said[request.limit.tokens]}}}")
        return Completion(
            token_ids=(*closing.ids, *said.token_ids),
            logprobs_T=(float("nan"),) * len(closing.ids) + said.logprobs_T,
            versions_T=(1,) * (len(closing.ids) + len(said.token_ids)),
            injected_T=(True,) * len(closing.ids) + said.injected_T,
            finished=True,
        )


def played(engine: ForcedEngine, *, samples: int = 1, of: Task | None = None) -> Group:
    ticket = Ticket(number=5, task=of or task(), admitted=WeightVersion(step=0))
    running = GroupInProgress(ticket, runner_of(engine), attempt=0, seeds=list(range(samples)), partial=None)
    return asyncio.run(running.play())


def test_each_reached_budget_has_an_answer_to_the_same_thought() -> None:
    engine = ForcedEngine({None: "15", 6: "7", 10: "15"})
    (whole,) = played(engine).trajectories
    assert whole.budget_rewards == [0.0, 1.0, 1.0, 1.0]  # the thought ended before the last budget
    assert [cut.task.thinking.budget for cut in whole.forced_answers] == [6, 10]
    for cut, budget in zip(whole.forced_answers, BUDGETS, strict=False):
        assert tokens_of(cut.turns[0].sampled_ids[:budget]) == tokens_of(whole.turns[0].sampled_ids[:budget])
        assert cut.turns[0].forced_end_start == cut.turns[0].thinking.tokens == budget
    assert len({request.seed for request in engine.requests}) == 3


def test_samples_train_each_token_once() -> None:
    group = played(ForcedEngine({None: "15", 6: "7", 10: "15"}))
    other = played(ForcedEngine({None: "3", 6: "7", 10: "3"}))
    both = replace(group, trajectories=(*group.trajectories, *other.trajectories))
    whole, wrong, *cuts = samples_from_groups([both], advantage="rloo")
    assert [sample.place for sample in (whole, wrong, *cuts)] == [0, 1, None, None, None, None]
    prompt, thought = len(both.trajectories[0].turns[0].context_ids), len(TOKENIZER(THOUGHT)["input_ids"])
    values = whole.advantages_T[prompt:]
    # Outcomes are (0, 1, 1, 1) against (0, 0, 0, 0). The thought ended before the last cut, so that its last part has no token.
    first, second, third = 3 / 4, 3 / 4 * 3 / 4 + 1 / 4 * 3 / 4, 1 / 2 * 1 / 2 + 1 / 2 * (1 / 2 - 2 / 3 * 1 / 2)
    assert values[:6] == pytest.approx([first] * 6)
    assert values[6:10] == pytest.approx([second] * 4)
    assert values[10:thought] == pytest.approx([third] * (thought - 10))
    assert values[thought + 1 :] == pytest.approx(
        [1.0] * (len(values) - thought - 1)
    )  # the answer, after the closing tag
    assert whole.trained_T[prompt:].all()
    at_six, _, at_ten, _ = cuts
    assert not at_six.advantages_T.any()  # both are wrong there
    assert not at_ten.trained_T[: prompt + 10].any()
    trained = TOKENIZER.decode(at_ten.ids[at_ten.trained_T])
    assert trained.startswith("\\boxed{15}")
    assert set(at_ten.advantages_T[at_ten.trained_T]) == {np.float32(1.0)}
    assert [sample.episode for sample in (whole, wrong, *cuts)] == [0, 1, 0, 1, 0, 1]


def test_thoughts_that_ended_before_a_budget_count_at_it() -> None:
    """The only forced answer at a budget is compared with the whole answer of the shorter thought."""
    group = played(ForcedEngine({None: "15", 6: "7", 10: "15"}))
    (short,) = played(ForcedEngine({None: "15", 6: "15", 10: "15"})).trajectories
    short = replace(short, forced_answers=())
    _, _, at_six, at_ten = samples_from_groups(
        [replace(group, trajectories=(*group.trajectories, short))], advantage="rloo"
    )
    assert set(at_six.advantages_T[at_six.trained_T]) == {np.float32(-1.0)}
    assert set(at_ten.advantages_T[at_ten.trained_T]) == {np.float32(0.0)}


class SteadyModel(ReplayEngine):
    """Writes one text, also after a prefix of it."""

    def __init__(self, text: str) -> None:
        super().__init__({})
        self.whole = completion(text)

    async def generate(self, request: TurnRequest) -> Completion:
        start, end = len(request.prefix_ids), len(request.prefix_ids) + request.max_tokens
        kept = self.whole.first(end)
        rest = kept.token_ids[start:]
        return replace(
            kept, token_ids=rest, logprobs_T=kept.logprobs_T[start:], versions_T=kept.versions_T[start:], injected_T=()
        )


@pytest.mark.parametrize(
    ("answer_tokens", "turn_tokens", "unlimited", "limited"),
    [
        (None, 30, (Stop.LENGTH, 0.0), (Stop.ENV, 1.0)),  # the thought left too few tokens of the turn
        (None, 400, (Stop.ENV, 1.0), (Stop.ENV, 1.0)),
        (10, 400, (Stop.ENV, 1.0), (Stop.LENGTH, 0.0)),  # an answer under a budget has its own limit
        (20, 30, (Stop.LENGTH, 0.0), (Stop.ENV, 1.0)),
        (10, 30, (Stop.LENGTH, 0.0), (Stop.LENGTH, 0.0)),
    ],
)
def test_a_thought_below_a_budget_is_answered_as_in_a_pass(
    answer_tokens: int | None, turn_tokens: int, unlimited: tuple[Stop, float], limited: tuple[Stop, float]
) -> None:
    limits = EpisodeLimits(turn_tokens=turn_tokens, total_tokens=1000)
    engine = SteadyModel(f"{THOUGHT}</think>So the sum is \\boxed{{15}}")
    thinking = ThinkingConfig(answer_tokens=answer_tokens)
    sampler = TurnSampler(engine, TAGS, thinking, turn_tokens=turn_tokens)
    runner = EpisodeRunner(sampler=sampler, renderer=RENDERER, limits=limits)
    plain = replace(task(), thinking=Thinking(mode=Mode.UNLIMITED, nested_budgets=(20, 30)))
    ticket = Ticket(number=5, task=plain, admitted=WeightVersion(step=0))
    group = asyncio.run(GroupInProgress(ticket, runner, attempt=0, seeds=[0], partial=None).play())
    (whole,) = group.trajectories
    assert (whole.stop, whole.reward) == unlimited
    for budget in (20, 30):
        own = asyncio.run(runner.run(replace(plain, thinking=up_to(budget)), seed=1))
        assert (own.stop, own.reward) == limited
        (nested,) = at_budget(group, budget).trajectories
        assert (nested.stop, nested.reward, nested.turns, nested.task) == (own.stop, own.reward, own.turns, own.task)
    assert whole.budget_rewards == [limited[1], limited[1], unlimited[1]]
    sampled = [len(samples.ids[samples.trained_T]) for samples in samples_from_groups([group], advantage="rloo")]
    assert sum(sampled) == whole.all_sampled_tokens


def test_normalisation_counts_the_trained_tokens_of_cuts() -> None:
    groups = [played(ForcedEngine({None: "15", 6: "7", 10: "15"}), samples=2)]
    samples = samples_from_groups(groups, advantage="reinforce_pp")
    values = np.concatenate([sample.advantages_T[sample.trained_T] for sample in samples])
    assert values.mean() == pytest.approx(0.0, abs=1e-5)
    assert values.std() == pytest.approx(1.0, abs=1e-3)


def test_a_resumed_group_keeps_its_cuts_and_adds_missing_ones() -> None:
    engine = ForcedEngine({None: "15", 6: "7", 10: "15"})
    ticket = Ticket(number=5, task=task(), admitted=WeightVersion(step=0))
    running = GroupInProgress(ticket, runner_of(engine), attempt=0, seeds=[0], partial=None)
    group = asyncio.run(running.play())
    whole = written_and_read(running.to_partial())
    kept, made = whole.finished[0].forced_answers, group.trajectories[0].forced_answers
    assert [(one.task, one.turns[0], one.reward) for one in kept] == [
        (one.task, one.turns[0], one.reward) for one in made
    ]
    bare = replace(whole, finished={0: replace(whole.finished[0], forced_answers=())})
    again = GroupInProgress(ticket, runner_of(engine), attempt=0, seeds=[0], partial=bare)
    assert [one.reward for one in asyncio.run(again.play()).trajectories[0].forced_answers] == [0.0, 1.0]


def test_a_failed_forced_answer_has_no_reward_and_no_sample() -> None:
    class Broken(ForcedEngine):
        async def generate(self, request: TurnRequest) -> Completion:
            if request.limit is not None and request.limit.tokens == 6:
                raise RuntimeError("broken")
            return await super().generate(request)

    group = played(Broken({None: "15", 10: "15"}))
    (whole,) = group.trajectories
    assert [one.reward for one in whole.forced_answers] == [None, 1.0]
    assert whole.budget_rewards == [1.0] * 4
    assert len(samples_from_groups([group], advantage="rloo")) == 2


def test_nested_budgets_are_different_and_in_order() -> None:
    with refuses("thinking.nested_budgets=[8, 4]"):
        NestedThinkingMix(nested_budgets=[8, 4])
    with pytest.raises(ValueError, match="budget"):
        Thinking(mode=Mode.BUDGET, budget=8, nested_budgets=(4,))
    with pytest.raises(ValueError, match="no effect"):
        NestedThinkingMix(nested_budgets=[4], budget=0.5, budgets=[8], no_thinking=0.5)
    assert NestedThinkingMix(nested_budgets=[4], budgets=[8]).largest_budget == 4
