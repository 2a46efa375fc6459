"""One episode: a task, an environment and an engine make a trajectory, whatever goes wrong."""

import asyncio
import hashlib
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TypeVar

import numpy as np

from envs.catalog import make_env
from envs.core.clock import Clock
from envs.core.errors import EnvError, EpisodeTimeout, PromptTooLong
from envs.core.failure import FailureKind, failure_of, in_words
from envs.core.setting import running, scheduled
from envs.core.step_result import StepResult
from envs.core.task import Message, Task
from envs.core.turn_text import ParsedTurn, calls_are_valid, parse_turn
from envs.play import MakeEnv, Play
from rollout.engines.protocol import Completion
from rollout.episodes.env_threads import EnvThreads
from rollout.episodes.renderer import Renderer
from rollout.episodes.stopwatch import Stopwatch
from rollout.episodes.turn_sampler import SampledTurn, TurnSampler
from rollout.trajectory import TOKEN_LIMITS, Stop, Times, Trajectory, Turn, TurnFault

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


@dataclass(kw_only=True, slots=True)
class _Episode:
    """One episode while it is played."""

    task: Task
    seed: int
    play: Play
    clock: Clock
    watch: Stopwatch = field(default_factory=Stopwatch)
    turns: list[Turn] = field(default_factory=list)


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
        self._places = asyncio.Semaphore(sequences)
        self._threads = EnvThreads()
        self._make_env = make_env

    async def run(self, task: Task, *, seed: int) -> Trajectory:
        """Play one episode to its end. Never raises for a fault outside the model: it becomes a typed failure."""
        start = time.monotonic()
        play = Play(task, make=self._make_env)
        episode = _Episode(task=task, seed=seed, play=play, clock=Clock(self._limits.timeout_s))
        result, failure = StepResult(), None
        try:
            stop, result = await self._play(episode)
        except Exception as error:  # a bad episode is data
            failure = failure_of(error)
            stop = Stop.PROMPT_TOO_LONG if failure.kind is FailureKind.PROMPT_TOO_LONG else Stop.FAILURE
        finally:
            if not play.over:  # nobody waits for the end: a call of the environment may still be under way
                self._threads.start(play.close)
        return Trajectory(
            task=task,
            turns=tuple(episode.turns),
            stop=stop,
            reward=None if failure is not None else result.reward,
            verdict=result.verdict,
            failure=failure,
            seconds=time.monotonic() - start,
            times=episode.watch.times,
        )

    async def _play(self, episode: _Episode) -> tuple[Stop, StepResult]:
        task, turns = episode.task, episode.turns
        first = await self._in_thread(episode, episode.play.begin)
        context = ids = self._prompt_ids(task, first)
        episode.watch.lap()
        while True:
            room = self._limits.total_tokens - len(ids)
            if room <= 0:
                stop = Stop.EPISODE_LENGTH
                return stop, await self._in_thread(episode, partial(episode.play.cut, LIMITS[stop]))
            sampled = await self._sample(episode, ids, room=room)
            if turns:
                turns[-1] = _processed(turns[-1], context, sampled.completion)
            parsed = parse_turn(self._renderer.text(sampled.completion.token_ids), thinks=task.thinks)
            stop = self._stop(sampled.completion, room, turns=len(turns) + 1)
            result = await self._in_thread(episode, partial(episode.play.turn, parsed, cut=LIMITS[stop]))
            turns.append(_turn(task, context, sampled, parsed, result, times=episode.watch.lap()))
            if stop in TOKEN_LIMITS:
                return stop, result
            if result.done:
                return (Stop.TURNS if result.out_of_turns else Stop.ENV), result
            context = self._renderer.observation_ids(result.messages, thinks=task.thinks)
            ids = (*ids, *sampled.completion.token_ids, *context)

    def _prompt_ids(self, task: Task, first: tuple[Message, ...]) -> tuple[int, ...]:
        ids = self._renderer.prompt_ids(task, first)
        if len(ids) >= self._limits.total_tokens:
            raise PromptTooLong(
                f"the prompt has {len(ids)} tokens, rollout.limits.total_tokens={self._limits.total_tokens}"
            )
        return ids

    async def _sample(self, episode: _Episode, ids: tuple[int, ...], *, room: int) -> SampledTurn:
        thought_so_far = sum(turn.thought.tokens for turn in episode.turns)
        seed = _turn_seed(episode.seed, len(episode.turns))
        async with episode.watch.place(self._places):
            with episode.clock.turned(on=True), episode.watch.running("generate_s"):
                try:
                    async with asyncio.timeout(episode.clock.left_s) as deadline:
                        return await self._sampler.sample(
                            ids, episode.task.thinking, room=room, thought_so_far=thought_so_far, seed=seed
                        )
                except Exception as error:
                    if deadline.expired():
                        raise EpisodeTimeout("the deadline of the episode passed while the model generated") from error
                    raise EngineFault(in_words(error)) from error

    def _stop(self, completion: Completion, room: int, *, turns: int) -> Stop:
        """Return the limit that ends the episode with this turn; `Stop.ENV` where none does: the environment decides."""
        if not completion.finished:
            return Stop.EPISODE_LENGTH if len(completion.token_ids) >= room else Stop.LENGTH
        return Stop.ENV if self._limits.turns is None or turns < self._limits.turns else Stop.TURNS

    async def _in_thread(self, episode: _Episode, function: Callable[[], T]) -> T:
        task = episode.task
        at_once = task.env.settings.threads
        return await self._threads.call(
            function, env=task.env.name, at_once=at_once, clock=episode.clock, watch=episode.watch
        )


def sample_seed(run_seed: int, ticket: int, sample: int, attempt: int) -> int:
    """Return the seed of one sample: the same for any worker that redoes it."""
    digest = hashlib.sha256(f"{run_seed}/{ticket}/{sample}/{attempt}".encode()).digest()
    return int.from_bytes(digest[:6], "big")


def _turn_seed(seed: int, turn: int) -> int:
    return (seed + turn * 1_000_003) % 2**63


def _turn(
    task: Task, context: tuple[int, ...], sampled: SampledTurn, parsed: ParsedTurn, result: StepResult, *, times: Times
) -> Turn:
    faults = {
        TurnFault.THOUGHT: not parsed.well_formed,
        TurnFault.TOOL_CALL: not calls_are_valid(parsed.calls, task.tools),
    }
    completion = sampled.completion
    experts = completion.experts
    return Turn(
        context_ids=context,
        sampled_ids=completion.token_ids,
        logprobs_T=completion.logprobs_T,
        versions_T=completion.versions_T,
        forced_T=completion.forced_T,
        text=parsed.text,
        observation=result.messages,
        thought=sampled.thought,
        faults=tuple(fault for fault, there in faults.items() if there),
        experts=None if experts is None else experts[-len(context) - len(completion.token_ids) :],
        times=times,
    )


def _processed(turn: Turn, context: tuple[int, ...], after: Completion) -> Turn:
    """Return the turn before `after`, in which the engine processed its last id, with the experts that it chose then."""
    if turn.experts is None or after.experts is None:
        return turn
    last = len(after.experts) - len(after.token_ids) - len(context) - 1
    return replace(turn, experts=np.concatenate([turn.experts[:-1], after.experts[last : last + 1]]))
