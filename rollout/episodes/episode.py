"""An episode's state, its turns, and the steps that all plays of an episode share."""

import asyncio
import functools
import hashlib
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from typing import TypeVar

import numpy as np

from temper.envs.core.clock import Clock, call_at_end
from temper.envs.core.errors import EnvError, EpisodeTimeout, FailureKind, describe_error, failure_of
from temper.envs.core.process import WorkerDied
from temper.envs.core.step_result import StepResult
from temper.envs.core.task import Task
from temper.envs.core.turn_text import ParsedTurn, has_valid_calls
from temper.envs.env_episode import EnvEpisode
from temper.rollout.config import EpisodeLimits
from temper.rollout.engines.protocol import Completion
from temper.rollout.episodes.env_threads import EnvThreads, Stopwatch
from temper.rollout.episodes.resume import PartialEpisode, PartialTurn
from temper.rollout.episodes.turn_sampler import SampledTurn, TurnSampler
from temper.rollout.sampling import PLAIN, Sampling
from temper.rollout.token_arrays import as_floats, as_ids, as_marks
from temper.rollout.trajectory import (
    NO_TIME,
    TOKEN_LIMITS,
    Resumption,
    Stop,
    Times,
    Trajectory,
    Turn,
    TurnFault,
    last_turns,
)

T = TypeVar("T")
LIMITS = {
    Stop.ENV: "",
    Stop.TURNS: "after the run's limit of turns",
    Stop.LENGTH: "at the token limit of a turn",
    Stop.EPISODE_LENGTH: "at the token limit of the episode",
}
"""The place of a truncation, for the environment."""
PartialOf = Callable[[str], Completion | None]
"""Returns the tokens that the engine has sampled for the request of this name."""


@dataclass(kw_only=True, slots=True)
class Episode:
    """The state of an episode: its finished turns and the current one.

    `partial` holds the part from an earlier process until the environment has replayed it. `resumption` records the result.
    """

    task: Task
    seed: int
    name: str
    env: EnvEpisode
    clock: Clock
    sampling: Sampling = PLAIN
    partial: PartialEpisode | None = None
    resumption: Resumption = Resumption.NO
    watch: Stopwatch = field(default_factory=Stopwatch)
    turns: list[Turn] = field(default_factory=list)
    parents: list[int] = field(default_factory=list)
    """The turns that an agent's turns continue, as in `Trajectory`. Empty without an agent."""
    stops: list[Stop] = field(default_factory=list)
    """The limit that ended each of an agent's turns, or `Stop.ENV`."""
    context: tuple[int, ...] | None = None
    """The current turn's new ids. None between two turns."""
    before: Completion | None = None
    """The current turn's tokens from an earlier process."""
    completion: Completion | None = None
    """The current turn, once it is complete."""
    since: float = field(default_factory=time.monotonic)
    earlier_s: float = 0.0
    earlier: Times = NO_TIME

    def turn_name(self, number: int) -> str:
        return f"{self.name}.{number}"

    @property
    def seconds(self) -> float:
        return self.earlier_s + time.monotonic() - self.since

    @property
    def times(self) -> Times:
        return self.earlier + self.watch.times

    def resume_from(self, partial: PartialEpisode) -> None:
        """Continue after the environment has replayed the finished turns."""
        self.turns.extend(partial.turns)
        self.earlier_s, self.earlier = partial.seconds, partial.times
        if partial.turn is not None:
            self.before = partial.turn.completion
            self.completion = partial.turn.completion if partial.turn.is_finished else None
        self.partial, self.resumption = None, Resumption.RESUMED

    def restart(self, env: EnvEpisode) -> None:
        """Drop the partial turns and start anew with this environment."""
        self.env = env
        self.partial, self.resumption = None, Resumption.RESTARTED

    def end_turn(self, turn: Turn) -> None:
        """Add a turn with the environment's response."""
        self.turns.append(turn)
        self.context = self.before = self.completion = None

    def agent_end(self, otherwise: Stop) -> tuple[Stop, str]:
        """Return the token limit that cut the last turn of a branch, with the turn's text, or else `otherwise`."""
        cut = [at for at in last_turns(self.parents) if self.turns[at].truncated]
        return (self.stops[cut[-1]], self.turns[cut[-1]].text) if cut else (otherwise, "")

    def to_partial(self, of_engine: PartialOf) -> PartialEpisode | None:
        """Return the data from which another process can continue. None before the first token, and for agents."""
        if self.task.env.settings.agent:
            return None
        if self.partial is not None:
            return self.partial
        turn = None
        if (
            self.context is not None
            and (completion := self.completion or self._sampled(of_engine(self.turn_name(len(self.turns))))) is not None
        ):
            turn = PartialTurn(context_ids=self.context, completion=completion, is_finished=self.completion is not None)
        if turn is None and not self.turns:
            return None
        return PartialEpisode(turns=tuple(self.turns), turn=turn, seconds=self.seconds, times=self.times)

    def _sampled(self, since: Completion | None) -> Completion | None:
        if self.before is None or since is None:
            return self.before or since
        return self.before.join(since)


class EngineFault(EnvError):
    """The engine failed to generate."""

    kind = "engine"


class EpisodeSteps:
    """The steps of an episode that every play shares, with any source of turns.

    An episode's clock stops while the episode waits for an environment thread.
    """

    def __init__(self, *, limits: EpisodeLimits, on_step: Callable[[], None] = lambda: None) -> None:
        """`on_step` is called after each call of an environment."""
        self._limits = limits
        self.threads = EnvThreads()
        self._on_step = on_step

    async def finish(self, episode: Episode, playing: Awaitable[tuple[Stop, StepResult]]) -> Trajectory:
        """Return the trajectory of an episode when its play ends. A failure outside the model becomes a typed failure.

        Raises only `WorkerDied`.
        """
        result, failure = StepResult(), None
        try:
            stop, result = await playing
        except WorkerDied:  # another worker runs it with the same seed
            raise
        except Exception as error:  # a bad episode is data
            failure = failure_of(error)
            stop = Stop.PROMPT_TOO_LONG if failure.kind is FailureKind.PROMPT_TOO_LONG else Stop.FAILURE
        finally:
            self.leave(episode.env)
        return Trajectory(
            task=episode.task,
            turns=tuple(episode.turns),
            stop=stop,
            reward=None if failure is not None else result.reward,
            score=result.score,
            failure=failure,
            seconds=episode.seconds,
            times=episode.times,
            resumption=episode.resumption,
            parents=tuple(episode.parents),
        )

    def leave(self, env: EnvEpisode) -> None:
        """Close an unfinished environment in a thread, without a wait: one of its calls may still run."""
        if not env.is_over:
            self.threads.start(env.close)

    def stop_after(self, *, finished: bool, turns: int, is_full: bool = False) -> Stop:
        """Return the limit that ends the episode after this turn, or `Stop.ENV`: the environment decides.

        `finished` is false if a token limit truncated the turn, which is the episode's if that `is_full`.
        """
        if not finished:
            return Stop.EPISODE_LENGTH if is_full else Stop.LENGTH
        return Stop.ENV if self._limits.turns is None or turns < self._limits.turns else Stop.TURNS

    async def call(
        self, episode: Episode, function: Callable[[], T], *, waits: Callable[[], bool] = lambda: False
    ) -> T:
        """Call a function of an episode's environment. `waits` returns whether it waits for the engine."""
        return await self.call_env(episode.task, function, clock=episode.clock, watch=episode.watch, waits=waits)

    async def call_env(
        self,
        task: Task,
        function: Callable[[], T],
        *,
        clock: Clock,
        watch: Stopwatch,
        waits: Callable[[], bool] = lambda: False,
    ) -> T:
        """Call a function of a task's environment in a thread, as `call`."""
        at_once = task.env.settings.threads
        try:
            return await self.threads.call(
                function, env=task.env.name, at_once=at_once, clock=clock, watch=watch, waits=waits
            )
        finally:
            self._on_step()


class EngineSteps(EpisodeSteps):
    """The steps of an episode whose turns an engine samples, `sequences` at once.

    An episode's clock also stops while the episode waits for the engine, before the first token of a turn, and while the
    engine loads weights or sleeps.
    """

    def __init__(
        self, *, sampler: TurnSampler, limits: EpisodeLimits, sequences: int, on_step: Callable[[], None]
    ) -> None:
        super().__init__(limits=limits, on_step=on_step)
        self._sampler = sampler
        self._places = asyncio.Semaphore(sequences)

    async def sample(
        self,
        episode: Episode,
        ids: tuple[int, ...],
        *,
        room: int,
        number: int,
        clock: Clock,
        sampling: Sampling | None = None,
    ) -> SampledTurn:
        """Sample the turn of this number after `ids`. `sampling` replaces the episode's."""
        if episode.completion is not None:  # an earlier process sampled it
            return self._sampler.measure_turn(episode.completion, episode.task.thinking, ids)
        thinking_so_far = sum(turn.thinking.tokens for turn in episode.turns)
        seed = turn_seed(episode.seed, number)
        async with episode.watch.place(self._places):
            with clock.keep(on=True), episode.watch.running("generate_s"):
                try:
                    async with asyncio.timeout(None) as deadline:
                        with call_at_end(clock, functools.partial(deadline.reschedule, 0.0)):
                            return await self._sampler.sample(
                                ids,
                                episode.task.thinking,
                                room=room,
                                thinking_so_far=thinking_so_far,
                                seed=seed,
                                sampling=sampling or episode.sampling,
                                partial=episode.before,
                                request=episode.turn_name(number),
                                clock=clock,
                            )
                except WorkerDied:
                    raise
                except Exception as error:
                    if deadline.expired():
                        raise EpisodeTimeout("the deadline of the episode passed while the model generated") from error
                    raise EngineFault(describe_error(error)) from error


def sample_seed(run_seed: int, ticket: int, sample: int, attempt: int) -> int:
    """Return the seed of one sample. Any worker that repeats it gets the same seed."""
    digest = hashlib.sha256(f"{run_seed}/{ticket}/{sample}/{attempt}".encode()).digest()
    return int.from_bytes(digest[:6], "big")


def turn_seed(seed: int, turn: int) -> int:
    return (seed + turn * 1_000_003) % 2**63


def build_turn(
    task: Task,
    context: tuple[int, ...],
    sampled: SampledTurn,
    parsed: ParsedTurn,
    result: StepResult,
    *,
    stop: Stop,
    times: Times,
) -> Turn:
    """Return the turn that was sampled after `context`, up to the limit `stop`, parsed, and answered with `result`."""
    completion = sampled.completion
    experts = completion.experts
    faults = {
        TurnFault.THINKING: not parsed.well_formed,
        TurnFault.TOOL_CALL: not has_valid_calls(parsed.calls, task.tools),
    }
    return Turn(
        context_ids=as_ids(context),
        sampled_ids=as_ids(completion.token_ids),
        logprobs_T=as_floats(completion.logprobs_T),
        versions_T=as_ids(completion.versions_T),
        injected_T=as_marks(completion.injected_T),
        text=parsed.text,
        reasoning=parsed.reasoning,
        answer=parsed.answer,
        observation=result.messages,
        thinking=sampled.thinking,
        faults=tuple(fault for fault, there in faults.items() if there),
        truncated=stop in TOKEN_LIMITS,
        experts=None if experts is None else experts[-len(context) - len(completion.token_ids) :],
        times=times,
        tool_spans=result.tool_spans,
    )


def fill_last_experts(turn: Turn, context: tuple[int, ...], after: Completion) -> Turn:
    """Return the turn before `after`, with the expert choices of its last id, which the engine processes only now."""
    if turn.experts is None or after.experts is None:
        return turn
    last = len(after.experts) - len(after.token_ids) - len(context) - 1
    return replace(turn, experts=np.concatenate([turn.experts[:-1], after.experts[last : last + 1]]))
