"""Interrupted turns: which tokens are sampled again, and which limits hold."""

import asyncio
import dataclasses
import math
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.held_engine import HeldEngine, said_in
from support.interruptions import (
    LONG_S,
    Echo,
    gone_on,
    interrupted,
    mathematics,
    own,
    runner_of,
    same_but_for_versions,
    stopped,
    ticket_of,
    written_and_read,
)
from support.scripted_engine import RENDERER, TAGS, TOKENIZER, completion, play

from temper.envs.core.task import EnvRef
from temper.envs.core.thinking_mode import up_to
from temper.rollout.budget.config import ThinkingConfig
from temper.rollout.budget.rule import ThinkingLimit
from temper.rollout.config import EpisodeLimits
from temper.rollout.engines.protocol import Completion
from temper.rollout.episodes.resume import PartialEpisode, PartialGroup
from temper.rollout.episodes.runner import GroupInProgress
from temper.rollout.trajectory import Resumption, Stop, Trajectory


class Moody(Echo):
    """It answers differently each time, or refuses, or ends early."""

    moods: Iterator[str]

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        mood = next(self.moods)
        if mood == "refuses":
            raise ValueError("not again")
        told = super().step(action)
        if mood == "ends":
            return "", 0.0, True, False, {}
        return (*told[:4], {"messages": [{"role": "user", "content": mood}]})


@pytest.mark.parametrize("second", ["other", "refuses", "ends"])
def test_an_episode_restarts_if_its_environment_differs(second: str, caplog: pytest.LogCaptureFixture) -> None:
    task, texts = own(Path())
    whole = play(task, texts, make=lambda _: with_moods(iter(["same"] * 3)))
    moods = iter(["same", second, *["same"] * 3])
    _, trajectory = interrupted(task, said_in(whole), turn=1, tokens=1, make=lambda _: with_moods(moods))
    same_but_for_versions(trajectory, whole)
    assert trajectory.resumption is Resumption.RESTARTED
    assert "an episode of echo/1" in caplog.text


def with_moods(moods: Iterator[str]) -> Moody:
    env = Moody()
    env.moods = moods
    return env


class Gated(Echo):
    """Its second answer waits for a signal."""

    open: threading.Event
    waiting: threading.Event

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        if self.number == 1:
            self.waiting.set()
            assert self.open.wait(LONG_S)
        return super().step(action)


def test_a_whole_turn_is_not_sampled_again() -> None:
    task, texts = own(Path())
    whole = play(task, texts)
    opened, waiting = threading.Event(), threading.Event()

    def gated(_: EnvRef) -> Gated:
        env = Gated()
        env.open, env.waiting = opened, waiting
        return env

    async def story() -> tuple[PartialEpisode, HeldEngine, Trajectory]:
        running = GroupInProgress(
            ticket_of(task), runner_of(HeldEngine(said_in(whole)), make=gated), attempt=0, seeds=[1], partial=None
        )
        playing = asyncio.create_task(running.play())
        await asyncio.to_thread(waiting.wait, LONG_S)
        left = written_and_read(running.to_partial())
        playing.cancel()
        await asyncio.wait([playing], timeout=LONG_S)
        opened.set()
        engine = HeldEngine(said_in(whole))
        return left.unfinished[0], engine, await gone_on(task, engine, left, make=gated)

    left, engine, trajectory = asyncio.run(story())
    same_but_for_versions(trajectory, whole)
    assert left.turn is not None
    assert left.turn.is_finished
    assert len(engine.asked) == 1  # the third turn
    assert [tuple(turn.versions_T) for turn in trajectory.turns] == [tuple(turn.versions_T) for turn in whole.turns]


def test_an_episode_may_be_stopped_again_and_again() -> None:
    task, texts = own(Path())
    whole = play(task, ["a long beginning</think>" + text for text in texts])
    said = said_in(whole)

    async def story() -> Trajectory:
        left = None
        for version in range(8):  # first in the first turn, then in the second
            left = await stopped(task, HeldEngine(said, version=version, hold_at=version == 4, tokens=3), partial=left)
        assert left is not None
        return await gone_on(task, HeldEngine(said, version=8), left)

    trajectory = asyncio.run(story())
    same_but_for_versions(trajectory, whole)
    first, second = (tuple(turn.versions_T) for turn in trajectory.turns[:2])
    assert first[:12] == (0,) * 3 + (1,) * 3 + (2,) * 3 + (3,) * 3
    assert set(first[12:]) == {4}
    assert second[:12] == (4,) * 3 + (5,) * 3 + (6,) * 3 + (7,) * 3


def limited(said: str, closing: str, answer: str) -> Completion:
    """A turn with a forced end of thinking."""
    parts = [TOKENIZER(text, add_special_tokens=False)["input_ids"] for text in (said, closing, answer)]
    ids = (*parts[0], *parts[1], *parts[2], TOKENIZER.eos_token_id)
    injected_T = (False,) * len(parts[0]) + (True,) * len(parts[1]) + (False,) * (len(parts[2]) + 1)
    logprobs_T = tuple(math.nan if forced else -0.25 for forced in injected_T)
    return Completion(
        token_ids=ids, logprobs_T=logprobs_T, versions_T=(0,) * len(ids), injected_T=injected_T, finished=True
    )


def test_a_thought_has_one_limit_however_often_it_is_interrupted() -> None:
    task, _ = mathematics(Path())
    task = dataclasses.replace(task, thinking=up_to(5))
    thinking = ThinkingConfig(grace=2, answer_tokens=30)
    said = {RENDERER.prompt_ids(task): limited("2+2=4", TAGS.closing, "\\boxed{4}")}
    (whole,) = said.values()

    async def story(tokens: int) -> tuple[HeldEngine, Trajectory]:
        left = await stopped(task, HeldEngine(said, hold_at=0, tokens=tokens), thinking=thinking)
        engine = HeldEngine(said)
        return engine, await gone_on(task, engine, left, thinking=thinking)

    undisturbed = HeldEngine(said)
    expected = asyncio.run(
        gone_on(task, undisturbed, PartialGroup(ticket=ticket_of(task), attempt=0), thinking=thinking)
    )
    for tokens in range(len(whole.token_ids)):  # before the closing, inside it and after it
        engine, trajectory = asyncio.run(story(tokens))
        same_but_for_versions(trajectory, expected)
        (partial, _, limit), (most,) = engine.asked[0], engine.most
        assert (partial, limit) == (tokens, ThinkingLimit(tokens=5, grace=2))
        assert partial + most == undisturbed.most[0]


def test_turn_and_tokens_decide_the_seed_of_the_rest() -> None:
    task, texts = mathematics(Path())
    said = said_in(play(task, texts))

    async def seed(tokens: int) -> int:
        left = await stopped(task, HeldEngine(said, hold_at=0, tokens=tokens))
        engine = HeldEngine(said)
        await gone_on(task, engine, left)
        return engine.asked[0][1]

    seeds = [asyncio.run(seed(tokens)) for tokens in (0, 1, 2, 2)]
    assert seeds[0] == 1  # nothing was sampled: the turn has its own
    assert len(set(seeds)) == 3
    assert seeds[2] == seeds[3]


def test_limits_of_turn_and_episode_count_the_tokens_before() -> None:
    task, _ = mathematics(Path())
    prompt = len(RENDERER.prompt_ids(task))
    long = {RENDERER.prompt_ids(task): completion("x" * 60)}
    cases = [
        (EpisodeLimits(turn_tokens=40, total_tokens=prompt + 50), Stop.LENGTH, 40),
        (EpisodeLimits(turn_tokens=400, total_tokens=prompt + 50), Stop.EPISODE_LENGTH, 50),
    ]
    for limits, stop, tokens in cases:
        _, trajectory = interrupted(task, long, turn=0, tokens=30, limits=limits)
        assert (trajectory.stop, trajectory.sampled_tokens) == (stop, tokens)

    async def lowered() -> tuple[HeldEngine, Trajectory]:
        left = await stopped(task, HeldEngine(long, hold_at=0, tokens=30))
        engine = HeldEngine(long)
        return engine, await gone_on(task, engine, left, limits=EpisodeLimits(turn_tokens=20, total_tokens=prompt + 50))

    engine, trajectory = asyncio.run(lowered())
    assert engine.asked == []
    assert (trajectory.stop, trajectory.sampled_tokens) == (Stop.LENGTH, 20)


def test_recorded_experts_of_answered_turns_are_kept() -> None:
    task, texts = own(Path())
    plain = said_in(play(task, texts))
    said = {}
    for number, (prompt, turn) in enumerate(sorted(plain.items(), key=lambda pair: len(pair[0]))):
        ids = len(prompt) + len(turn.token_ids)
        experts = np.full((ids, 2, 2), number, dtype=np.int16)
        experts[-1] = -1  # the last id was sampled, and not processed
        said[prompt] = dataclasses.replace(turn, experts=experts)

    class Recording(HeldEngine):
        def partial_completion(self, request: str) -> Completion | None:
            return None

    async def story(engine: HeldEngine) -> Trajectory:
        left = await stopped(task, engine)
        return await gone_on(task, HeldEngine(said), left)

    whole = asyncio.run(gone_on(task, HeldEngine(said), PartialGroup(ticket=ticket_of(task), attempt=0)))
    trajectory = asyncio.run(story(Recording(said, hold_at=1, tokens=1)))
    same_but_for_versions(trajectory, whole)
    for ours, theirs in zip(trajectory.turns, whole.turns, strict=True):
        np.testing.assert_array_equal(ours.experts, theirs.experts)
