"""One episode: a task, an environment and an engine make a trajectory, whatever goes wrong."""

import asyncio
import hashlib
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeVar

import numpy as np

from envs.catalog import make_env
from envs.core.clock import Clock
from envs.core.errors import EnvError, EpisodeTimeout, PromptTooLong
from envs.core.failure import Failure, FailureKind, failure_of, in_words
from envs.core.setting import running, scheduled
from envs.core.step_result import StepResult
from envs.core.task import Message, Task
from envs.core.turn_text import ParsedTurn, calls_are_valid, parse_turn
from envs.play import MakeEnv, Play
from envs.source import THREADS
from rollout.engines.protocol import Completion
from rollout.episodes.env_threads import EnvThreads
from rollout.episodes.renderer import Renderer
from rollout.episodes.turn_sampler import SampledTurn, TurnSampler
from rollout.trajectory import TOKEN_LIMITS, Stop, Trajectory, Turn, TurnFault

T = TypeVar("T")
LIMITS = {
    Stop.ENV: "",
    Stop.TURNS: "after the run's limit of turns",
    Stop.LENGTH: "at the token limit of a turn",
    Stop.EPISODE_LENGTH: "at the token limit of the episode",
}
"""Where an episode was cut off, in words."""


@dataclass(frozen=True, kw_only=True)
class EpisodeLimits:
    """How far an episode may go."""

    turn_tokens: int = scheduled(128)
    """Most tokens sampled in one turn."""
    total_tokens: int = scheduled(768)
    """Longest sequence of an episode, prompt and observations included, in tokens."""
    turns: int | None = scheduled(None)
    """Most turns in an episode of any environment; null leaves them to the environments (`envs.NAME.max_turns`)."""
    timeout_s: float = running(120.0)
    """Deadline of an episode, in seconds; what it waits for the engine, threads and graders does not count."""

    def __post_init__(self) -> None:
        for name in ("turn_tokens", "total_tokens", "timeout_s"):
            if getattr(self, name) <= 0:
                raise ValueError(f"rollout.limits.{name}={getattr(self, name)} must be above 0")
        if self.turns is not None and self.turns < 1:
            raise ValueError(f"rollout.limits.turns={self.turns} must be 1 or more, or null")


class EngineFault(EnvError):
    """The engine failed to generate."""

    kind = "engine"


class EpisodeRunner:
    """Runs episodes of any environment against one engine, which samples `sequences` turns at once.

    An episode's clock stands still while it waits for its turn, at the engine as at an environment's threads.
    """

    def __init__(
        self,
        *,
        sampler: TurnSampler,
        renderer: Renderer,
        limits: EpisodeLimits,
        sequences: int = 256,
        make_env: MakeEnv = make_env,
    ) -> None:
        self._sampler = sampler
        self._renderer = renderer
        self._limits = limits
        self._seats = asyncio.Semaphore(sequences)
        self._threads = EnvThreads()
        self._make_env = make_env

    async def run(self, task: Task, *, seed: int) -> Trajectory:
        """Play one episode to its end. Never raises for a fault outside the model: it becomes a typed failure."""
        start = time.monotonic()
        turns: list[Turn] = []
        play, clock = Play(task, make=self._make_env), Clock(self._limits.timeout_s)
        try:
            stop, result = await self._play(task, play, turns, clock, seed=seed)
        except Exception as error:  # a bad episode is data
            return _failed(task, turns, failure_of(error), seconds=time.monotonic() - start)
        finally:
            if not play.over:  # nobody waits for the end: a call of the environment may still be under way
                self._threads.start(play.close)
        return Trajectory(
            task=task,
            turns=tuple(turns),
            stop=stop,
            reward=result.reward,
            verdict=result.verdict,
            seconds=time.monotonic() - start,
        )

    async def _play(
        self, task: Task, play: Play, turns: list[Turn], clock: Clock, *, seed: int
    ) -> tuple[Stop, StepResult]:
        begin = await self._in_thread(task, clock, play.begin)
        context = seen = self._prompt_ids(task, begin)
        while True:
            room = self._limits.total_tokens - len(seen)
            if room <= 0:
                stop = Stop.EPISODE_LENGTH
                return stop, await self._in_thread(task, clock, partial(play.cut, LIMITS[stop]))
            said = await self._speak(seen, task, turns, clock, room=room, seed=_turn_seed(seed, len(turns)))
            if turns:
                turns[-1] = _processed(turns[-1], context, said.completion)
            parsed = parse_turn(self._renderer.text(said.completion.token_ids), thinks=task.thinks)
            stop = self._stop(said.completion, room, turns=len(turns) + 1)
            result = await self._in_thread(task, clock, partial(play.turn, parsed, cut=LIMITS[stop]))
            turns.append(_turn(task, context, said, parsed, result))
            if stop in TOKEN_LIMITS:
                return stop, result
            if result.done:
                return (Stop.TURNS if result.out_of_turns else Stop.ENV), result
            context = self._renderer.observation_ids(result.messages, thinks=task.thinks)
            seen = (*seen, *said.completion.token_ids, *context)

    def _prompt_ids(self, task: Task, said_first: tuple[Message, ...]) -> tuple[int, ...]:
        ids = self._renderer.prompt_ids(replace(task, messages=(*task.messages, *said_first)))
        if len(ids) >= self._limits.total_tokens:
            raise PromptTooLong(
                f"the prompt has {len(ids)} tokens, rollout.limits.total_tokens={self._limits.total_tokens}"
            )
        return ids

    async def _speak(
        self, ids: tuple[int, ...], task: Task, turns: list[Turn], clock: Clock, *, room: int, seed: int
    ) -> SampledTurn:
        thought_so_far = sum(turn.thought.tokens for turn in turns)
        async with self._seats:
            with clock.turned(on=True):
                try:
                    async with asyncio.timeout(clock.left_s) as deadline:
                        return await self._sampler.sample(
                            ids, task.thinking, room=room, thought_so_far=thought_so_far, seed=seed
                        )
                except Exception as error:
                    if deadline.expired():
                        raise EpisodeTimeout("the deadline of the episode passed while the model spoke") from error
                    raise EngineFault(in_words(error)) from error

    def _stop(self, said: Completion, room: int, *, turns: int) -> Stop:
        """The limit that ends the episode with this turn; `Stop.ENV` where none does, which leaves it to the environment."""
        if not said.finished:
            return Stop.EPISODE_LENGTH if len(said.token_ids) >= room else Stop.LENGTH
        return Stop.ENV if self._limits.turns is None or turns < self._limits.turns else Stop.TURNS

    async def _in_thread(self, task: Task, clock: Clock, function: Callable[[], T]) -> T:
        return await self._threads.call(function, env=task.env, at_once=task.spec.get("threads", THREADS), clock=clock)


def sample_seed(run_seed: int, ticket: int, sample: int, attempt: int) -> int:
    """The seed of one sample: the same for any worker that redoes it."""
    digest = hashlib.sha256(f"{run_seed}/{ticket}/{sample}/{attempt}".encode()).digest()
    return int.from_bytes(digest[:6], "big")


def _turn_seed(seed: int, turn: int) -> int:
    return (seed + turn * 1_000_003) % 2**63


def _turn(task: Task, context: tuple[int, ...], said: SampledTurn, parsed: ParsedTurn, result: StepResult) -> Turn:
    faults = {
        TurnFault.THOUGHT: not parsed.well_formed,
        TurnFault.TOOL_CALL: not calls_are_valid(parsed.calls, task.tools),
    }
    experts = said.completion.experts
    return Turn(
        context_ids=context,
        sampled_ids=said.completion.token_ids,
        logprobs_T=said.completion.logprobs_T,
        versions_T=said.completion.versions_T,
        forced_T=said.completion.forced_T,
        text=parsed.text,
        observation=result.messages,
        thought=said.thought,
        faults=tuple(fault for fault, there in faults.items() if there),
        experts=None if experts is None else experts[-len(context) - len(said.completion.token_ids) :],
    )


def _processed(turn: Turn, context: tuple[int, ...], said: Completion) -> Turn:
    """The turn before, whose last id the engine processed when it went on: with the experts that it chose then."""
    if turn.experts is None or said.experts is None:
        return turn
    last = len(said.experts) - len(said.token_ids) - len(context) - 1
    return replace(turn, experts=np.concatenate([turn.experts[:-1], said.experts[last : last + 1]]))


def _failed(task: Task, turns: list[Turn], failure: Failure, *, seconds: float) -> Trajectory:
    too_long = failure.kind is FailureKind.PROMPT_TOO_LONG
    return Trajectory(
        task=task,
        turns=tuple(turns),
        stop=Stop.PROMPT_TOO_LONG if too_long else Stop.FAILURE,
        failure=failure,
        seconds=seconds,
    )
