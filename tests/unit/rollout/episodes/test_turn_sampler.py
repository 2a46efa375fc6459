"""Token limits of thinking and answer, on recorded completions."""

import asyncio

import pytest
from support.replay_engine import ReplayEngine

from temper.envs.core.thinking_mode import OFF, UNLIMITED, Thinking, up_to
from temper.learner.models.fresh import byte_tokenizer
from temper.rollout.budget.config import ThinkingConfig
from temper.rollout.budget.rule import ThinkingLimit, ThinkingTags
from temper.rollout.engines.protocol import Completion, TurnRequest
from temper.rollout.episodes.turn_sampler import SampledTurn, TurnSampler
from temper.rollout.sampling import Sampling
from temper.rollout.trajectory import Closed, WeightVersion
from temper.rollout.weights.manifest import WeightManifest

TOKENIZER = byte_tokenizer()
TAGS = ThinkingTags(TOKENIZER)
PROMPT = tuple(TOKENIZER("<think>\n", add_special_tokens=False)["input_ids"])
CLOSING = 3
"""Tokens of the closing: a newline, the tag, a newline."""


class Asked(ReplayEngine):
    """Replays one completion and keeps the request."""

    def __init__(self, text: str, *, finished: bool = True, prompt: tuple[int, ...] = PROMPT) -> None:
        ids = tuple(TOKENIZER(text, add_special_tokens=False)["input_ids"])
        said = Completion(token_ids=ids, logprobs_T=(-1.0,) * len(ids), versions_T=(0,) * len(ids), finished=finished)
        super().__init__({prompt: [said]})
        self.asked: list[tuple[int, ThinkingLimit | None]] = []

    async def generate(self, request: TurnRequest) -> Completion:
        self.asked.append((request.max_tokens, request.limit))
        return await super().generate(request)

    async def load_weights(self, manifest: WeightManifest, offer: object, *, number: int) -> WeightVersion:
        raise AssertionError


def say(
    engine: Asked, thinking: Thinking, config: ThinkingConfig, *, room: int = 500, thinking_so_far: int = 0
) -> SampledTurn:
    sampler = TurnSampler(engine, TAGS, config, turn_tokens=100)
    return asyncio.run(sampler.sample(PROMPT, thinking, room=room, thinking_so_far=thinking_so_far, seed=1))


@pytest.mark.parametrize("thinking", [UNLIMITED, OFF])
def test_without_a_budget_turn_and_episode_limits_hold(thinking: Thinking) -> None:
    engine = Asked("a")
    say(engine, thinking, ThinkingConfig())
    say(engine, thinking, ThinkingConfig(), room=7)
    assert engine.asked == [(100, None), (7, None)]


def test_a_budget_leaves_room_for_grace_closing_and_answer() -> None:
    engine = Asked("a")
    say(engine, up_to(20), ThinkingConfig(grace=4, answer_tokens=30))
    assert engine.asked == [(20 + 4 + CLOSING + 30, ThinkingLimit(tokens=20, grace=4))]


def test_a_budget_shrinks_to_what_the_episode_has_left() -> None:
    engine = Asked("a")
    say(engine, up_to(20), ThinkingConfig(answer_tokens=30), room=40)
    say(engine, up_to(20), ThinkingConfig(answer_tokens=30), room=10)
    assert engine.asked == [(40, ThinkingLimit(tokens=40 - CLOSING - 30)), (10, ThinkingLimit(tokens=0))]


@pytest.mark.parametrize(
    ("most", "answer_tokens", "asked"),
    [
        (80, 30, (20 + 4 + CLOSING + 30, 20)),
        (40, 30, (40, 40 - 4 - CLOSING - 30)),
        (80, None, (80, 20)),
        (400, None, (400, 20)),
        (20, None, (20, 20 - 4 - CLOSING - 1)),
        (5, None, (5, 0)),
    ],
)
def test_the_most_tokens_of_a_turn_hold_its_thought_too(
    most: int, answer_tokens: int | None, asked: tuple[int, int]
) -> None:
    engine = Asked("a")
    sampler = TurnSampler(engine, TAGS, ThinkingConfig(grace=4, answer_tokens=answer_tokens), turn_tokens=100)
    sampling = Sampling(max_tokens=most)
    asyncio.run(sampler.sample(PROMPT, up_to(20), room=500, thinking_so_far=0, seed=1, sampling=sampling))
    assert engine.asked == [(asked[0], ThinkingLimit(tokens=asked[1], grace=4))]


def test_there_is_room_for_the_models_opening() -> None:
    engine = Asked("a", prompt=(1, 2, 3))
    sampler = TurnSampler(engine, TAGS, ThinkingConfig(answer_tokens=30), turn_tokens=100)
    asyncio.run(sampler.sample((1, 2, 3), up_to(20), room=500, thinking_so_far=0, seed=1))
    assert engine.asked == [(1 + 20 + CLOSING + 30, ThinkingLimit(tokens=20))]


def test_earlier_turns_use_an_episodes_budget() -> None:
    engine = Asked("a")
    for scope in ("turn", "episode"):
        say(engine, up_to(20), ThinkingConfig(scope=scope, answer_tokens=9), thinking_so_far=15)
    say(engine, up_to(20), ThinkingConfig(scope="episode", answer_tokens=9), thinking_so_far=25)
    assert [limit and limit.tokens for _, limit in engine.asked] == [20, 5, 0]


def test_an_answer_after_early_thinking_has_its_limit() -> None:
    said = say(Asked("ab\n</think>\n123456"), up_to(50), ThinkingConfig(answer_tokens=4))
    assert TOKENIZER.decode(list(said.completion.token_ids)) == "ab\n</think>\n123"
    assert (said.completion.finished, said.thinking.tokens, said.thinking.answer_tokens) == (False, 3, 4)
    assert said.thinking.closed is Closed.ITSELF
    whole = say(Asked("ab\n</think>\n123"), up_to(50), ThinkingConfig(answer_tokens=4))
    assert whole.completion.finished


def test_a_budget_for_a_model_without_tags_is_an_error() -> None:
    sampler = TurnSampler(Asked("a"), None, ThinkingConfig(), turn_tokens=100)
    with pytest.raises(ValueError, match="budget of 5 tokens"):
        asyncio.run(sampler.sample(PROMPT, up_to(5), room=50, thinking_so_far=0, seed=1))
    said = asyncio.run(sampler.sample(PROMPT, UNLIMITED, room=50, thinking_so_far=0, seed=1))
    assert said.thinking.closed is Closed.NONE
