"""One episode: a task, an environment and an engine make a trajectory, whatever goes wrong."""

import asyncio
import hashlib
import logging
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import count
from typing import TypeVar

from temper.envs.catalog import make_env
from temper.envs.core.clock import Clock, at_its_end
from temper.envs.core.errors import EnvError, EnvironmentFault, EpisodeTimeout, PromptTooLong
from temper.envs.core.failure import FailureKind, failure_of, in_words
from temper.envs.core.pulse import WorkerDied
from temper.envs.core.setting import running, scheduled
from temper.envs.core.step_result import StepResult
from temper.envs.core.task import Message, Task
from temper.envs.play import MakeEnv, Play
from temper.rollout.engines.protocol import Completion
from temper.rollout.episodes.begun import BegunEpisode
from temper.rollout.episodes.env_threads import EnvThreads
from temper.rollout.episodes.in_flight import Episode
from temper.rollout.episodes.kept_turn import kept_turn, processed
from temper.rollout.episodes.renderer import Renderer
from temper.rollout.episodes.turn_sampler import SampledTurn, TurnSampler
from temper.rollout.sampling import PLAIN, Sampling
from temper.rollout.token_arrays import tokens_of
from temper.rollout.trajectory import TOKEN_LIMITS, Stop, Trajectory

LOG = logging.getLogger(__name__)
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


class NotReplayed(EnvironmentFault):
    """An environment is not where it was after the same turns."""


class EngineFault(EnvError):
    """The engine failed to generate."""

    kind = "engine"


class EpisodeRunner:
    """Runs episodes of any environment against one engine, which samples `sequences` turns at once.

    An episode's clock pauses while the episode waits for a place at the engine or at an environment's threads. It also
    pauses before the first token of a turn, and while the engine loads weights or sleeps.
    """

    def __init__(
        self,
        *,
        sampler: TurnSampler,
        renderer: Renderer,
        limits: EpisodeLimits,
        sequences: int = 256,
        make_env: MakeEnv = make_env,
        on_step: Callable[[], None] = lambda: None,
    ) -> None:
        """`on_step` is called after each answer of an environment."""
        self._sampler = sampler
        self._renderer = renderer
        self._limits = limits
        self._places = asyncio.Semaphore(sequences)
        self._threads = EnvThreads()
        self._make_env = make_env
        self._on_step = on_step
        self._numbers = count()

    @property
    def env_works(self) -> bool:
        """Whether a call of an environment is under way whose episode has time left."""
        return self._threads.are_at_work

    @property
    def hung_calls(self) -> int:
        """How many calls of environments still run although nobody waits for them any more."""
        return self._threads.hung_calls

    async def run(self, task: Task, *, seed: int) -> Trajectory:
        """Play one episode from its first turn to its end. Raises as `play`."""
        return await self.play(self.episode(task, seed=seed))

    def episode(
        self, task: Task, *, seed: int, sampling: Sampling = PLAIN, begun: BegunEpisode | None = None
    ) -> Episode:
        """Return an episode to be played: a new one, or one that goes on where another process left it."""
        play, clock, name = Play(task, make=self._make_env), Clock(self._limits.timeout_s), f"e{next(self._numbers)}"
        return Episode(task=task, seed=seed, sampling=sampling, name=name, play=play, clock=clock, begun=begun)

    def so_far(self, episode: Episode) -> BegunEpisode | None:
        """Return what there is of an episode that is played, for another process to go on; None where there is nothing."""
        return episode.so_far(self._sampler.so_far)

    async def play(self, episode: Episode) -> Trajectory:
        """Play an episode to its end. A fault outside the model becomes a typed failure; only `WorkerDied` is raised."""
        result, failure = StepResult(), None
        try:
            stop, result = await self._play(episode)
        except WorkerDied:  # another worker plays it from the same seed
            raise
        except Exception as error:  # a bad episode is data
            failure = failure_of(error)
            stop = Stop.PROMPT_TOO_LONG if failure.kind is FailureKind.PROMPT_TOO_LONG else Stop.FAILURE
        finally:
            self._leave(episode.play)
        return Trajectory(
            task=episode.task,
            turns=tuple(episode.turns),
            stop=stop,
            reward=None if failure is not None else result.reward,
            verdict=result.verdict,
            failure=failure,
            seconds=episode.seconds,
            times=episode.times,
            carried=episode.carried,
        )

    def _leave(self, play: Play) -> None:
        """Close an environment that has not come to its end. Nobody waits: a call of it may still be under way."""
        if not play.over:
            self._threads.start(play.close)

    async def _play(self, episode: Episode) -> tuple[Stop, StepResult]:
        task, turns = episode.task, episode.turns
        context, ids = await self._opened(episode)
        episode.watch.lap()
        while True:
            room = self._limits.total_tokens - len(ids)
            if room <= 0:
                stop = Stop.EPISODE_LENGTH
                return stop, await self._in_thread(episode, partial(episode.play.cut, LIMITS[stop]))
            episode.context = context
            sampled = await self._sample(episode, ids, room=room)
            episode.said = sampled.completion
            if turns:
                turns[-1] = processed(turns[-1], context, sampled.completion)
            text = episode.sampling.before_stop(self._renderer.text(sampled.completion.token_ids))
            parsed = self._renderer.parse(text, task, context)
            stop = self._stop(sampled.completion, room, turns=len(turns) + 1)
            result = await self._in_thread(episode, partial(episode.play.turn, parsed, cut=LIMITS[stop]))
            episode.end_turn(kept_turn(task, context, sampled, parsed, result, times=episode.watch.lap()))
            if stop in TOKEN_LIMITS:
                return stop, result
            if result.done:
                return (Stop.TURNS if result.out_of_turns else Stop.ENV), result
            said, calls = sampled.completion.token_ids, parsed.calls
            context = self._renderer.observation_ids(result.messages, thinks=task.thinks, calls=calls, after=said)
            ids = (*ids, *said, *context)

    async def _opened(self, episode: Episode) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Bring the environment to the turn that is next; return the ids that are new in it, and those of the whole."""
        begun = episode.begun
        if begun is not None:
            try:
                opened = await self._replayed(episode, begun)
            except Exception as error:  # whatever the environment raises that has played these turns before
                LOG.warning("an episode of %s begins again: %s", episode.task.label, in_words(error))
                self._leave(episode.play)
                episode.begin_again(Play(episode.task, make=self._make_env))
            else:
                episode.go_on(begun)
                return opened
        ids = self._prompt_ids(episode.task, await self._in_thread(episode, episode.play.begin))
        return ids, ids

    async def _replayed(self, episode: Episode, begun: BegunEpisode) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Play the turns again that the environment had answered. Raises where it or the renderer has another answer."""
        task, play = episode.task, episode.play
        if begun.turns and not task.env.replays:
            raise NotReplayed("the environment can't play the same turns again")
        context = ids = self._prompt_ids(task, await self._in_thread(episode, play.begin))
        for number, turn in enumerate(begun.turns, start=1):
            if tokens_of(turn.context_ids) != context:
                raise NotReplayed(f"what comes before turn {number} is other than it was")
            parsed = self._renderer.parse(turn.text, task, context)
            result = await self._in_thread(episode, partial(play.turn, parsed))
            if result.done or result.messages != turn.observation:
                raise NotReplayed(f"the environment answers turn {number} otherwise")
            said, calls = tokens_of(turn.sampled_ids), parsed.calls
            context = self._renderer.observation_ids(result.messages, thinks=task.thinks, calls=calls, after=said)
            ids = (*ids, *said, *context)
        if begun.turn is not None and begun.turn.context_ids != context:
            raise NotReplayed("what comes before the last turn is other than it was")
        return context, ids

    def _prompt_ids(self, task: Task, first: tuple[Message, ...]) -> tuple[int, ...]:
        ids = self._renderer.prompt_ids(task, first)
        if len(ids) >= self._limits.total_tokens:
            raise PromptTooLong(
                f"the prompt has {len(ids)} tokens, rollout.limits.total_tokens={self._limits.total_tokens}"
            )
        return ids

    async def _sample(self, episode: Episode, ids: tuple[int, ...], *, room: int) -> SampledTurn:
        if episode.said is not None:  # in a process before
            return self._sampler.measured(episode.said, episode.task.thinking, ids)
        thought_so_far = sum(turn.thought.tokens for turn in episode.turns)
        seed = _turn_seed(episode.seed, len(episode.turns))
        async with episode.watch.place(self._places):
            with episode.clock.turned(on=True), episode.watch.running("generate_s"):
                try:
                    async with asyncio.timeout(None) as deadline:
                        with at_its_end(episode.clock, partial(deadline.reschedule, 0.0)):
                            return await self._sampler.sample(
                                ids,
                                episode.task.thinking,
                                room=room,
                                thought_so_far=thought_so_far,
                                seed=seed,
                                sampling=episode.sampling,
                                begun=episode.before,
                                request=episode.request,
                                clock=episode.clock,
                            )
                except WorkerDied:
                    raise
                except Exception as error:
                    if deadline.expired():
                        raise EpisodeTimeout("the deadline of the episode passed while the model generated") from error
                    raise EngineFault(in_words(error)) from error

    def _stop(self, completion: Completion, room: int, *, turns: int) -> Stop:
        """Return the limit that ends the episode with this turn; `Stop.ENV` where none does: the environment decides."""
        if not completion.finished:
            return Stop.EPISODE_LENGTH if len(completion.token_ids) >= room else Stop.LENGTH
        return Stop.ENV if self._limits.turns is None or turns < self._limits.turns else Stop.TURNS

    async def _in_thread(self, episode: Episode, function: Callable[[], T]) -> T:
        task = episode.task
        at_once = task.env.settings.threads
        try:
            return await self._threads.call(
                function, env=task.env.name, at_once=at_once, clock=episode.clock, watch=episode.watch
            )
        finally:
            self._on_step()


def sample_seed(run_seed: int, ticket: int, sample: int, attempt: int) -> int:
    """Return the seed of one sample: the same for any worker that redoes it."""
    digest = hashlib.sha256(f"{run_seed}/{ticket}/{sample}/{attempt}".encode()).digest()
    return int.from_bytes(digest[:6], "big")


def _turn_seed(seed: int, turn: int) -> int:
    return (seed + turn * 1_000_003) % 2**63
