"""The engine that replays completions: order, speed, and partial completions."""

import asyncio
from time import monotonic

import pytest
from support.in_loop import in_loop
from support.replay_engine import ReplayEngine

from temper.rollout.engines.protocol import Completion, TurnRequest


def completion(*ids: int) -> Completion:
    return Completion(token_ids=ids, logprobs_T=(-1.0,) * len(ids), versions_T=(0,) * len(ids), finished=True)


def asked(*prompt: int, most: int = 100, name: str = "a") -> TurnRequest:
    return TurnRequest(prompt_ids=prompt, max_tokens=most, seed=0, name=name)


@in_loop
async def test_completions_come_in_order_and_others_get_the_rest() -> None:
    engine = ReplayEngine({(1,): [completion(5), completion(6)]}, others=[completion(7, 8, 9)])
    asking = [asked(1), asked(1), asked(1), asked(2), asked(3, most=2)]
    assert [(await engine.generate(request)).token_ids for request in asking] == [(5,), (6,), (5,), (7, 8, 9), (7, 8)]
    stats = engine.take_stats()
    assert (stats.prompt_tokens, stats.sampled_tokens) == (5, 8)
    assert engine.take_stats().sampled_tokens == 0


def test_an_unrecorded_prompt_is_an_error() -> None:
    with pytest.raises(KeyError):
        asyncio.run(ReplayEngine({(1,): [completion(5)]}).generate(asked(2)))


@in_loop
async def test_a_slow_completion_is_partial_meanwhile() -> None:
    engine = ReplayEngine({}, others=[completion(*range(100))], token_s=0.003)
    began = monotonic()
    playing = asyncio.create_task(engine.generate(asked(1)))
    while not ((part := engine.partial_completion("a")) and part.token_ids):
        assert not playing.done()
        await asyncio.sleep(0)
    part, whole, seconds = part, await playing, monotonic() - began
    assert 0 < len(part.token_ids) < 100
    assert not part.finished
    assert part.token_ids == whole.token_ids[: len(part.token_ids)]
    assert seconds >= 0.3
    assert engine.partial_completion("a") is None
