"""One episode: a task, an environment and an engine make a trajectory. Failures are data."""

import asyncio
import functools
import hashlib
import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import count
from typing import Any, TypeVar

import numpy as np

from temper.envs.agents import AgentEpisode, call_agent, end_with_reward, to_parsed_turn
from temper.envs.catalog import make_env
from temper.envs.core.clock import Clock, call_at_end
from temper.envs.core.errors import (
    EnvError,
    EnvironmentFault,
    EpisodeTimeout,
    FailureKind,
    PromptTooLong,
    describe_error,
    failure_of,
)
from temper.envs.core.process import WorkerDied
from temper.envs.core.step_result import StepResult
from temper.envs.core.task import Message, Task
from temper.envs.core.thinking_mode import Thinking, up_to
from temper.envs.core.turn_text import ParsedTurn, calls_are_valid
from temper.envs.env_episode import EnvEpisode, MakeEnv
from temper.envs.judge import JUDGED, Verdict, compared
from temper.rewards.score import JUDGE
from temper.rollout.config import EpisodeLimits
from temper.rollout.engines.protocol import Completion
from temper.rollout.episodes.agent_session import (
    AgentReply,
    AgentRequest,
    AgentServer,
    AgentSession,
    LimitReached,
    TurnTree,
)
from temper.rollout.episodes.env_threads import EnvThreads, Stopwatch
from temper.rollout.episodes.renderer import Renderer
from temper.rollout.episodes.resume import PartialEpisode, PartialGroup, PartialTurn
from temper.rollout.episodes.turn_sampler import SampledTurn, TurnSampler
from temper.rollout.sampling import PLAIN, Sampling
from temper.rollout.token_arrays import as_floats, as_ids, as_marks, tokens_of
from temper.rollout.trajectory import (
    NO_TIME,
    TOKEN_LIMITS,
    Group,
    Resumption,
    Stop,
    Ticket,
    Times,
    Trajectory,
    Turn,
    TurnFault,
    last_turns,
)

LOG = logging.getLogger(__name__)
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
            self.completion = partial.turn.completion if partial.turn.whole else None
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
            turn = PartialTurn(context_ids=self.context, completion=completion, whole=self.completion is not None)
        if turn is None and not self.turns:
            return None
        return PartialEpisode(turns=tuple(self.turns), turn=turn, seconds=self.seconds, times=self.times)

    def _sampled(self, since: Completion | None) -> Completion | None:
        if self.before is None or since is None:
            return self.before or since
        return self.before.then(since)


class NotReplayed(EnvironmentFault):
    """A replay of the same turns left the environment in another state."""


class EngineFault(EnvError):
    """The engine failed to generate."""

    kind = "engine"


class EpisodeRunner:
    """Runs episodes of any environment with one engine, which samples `sequences` turns at once.

    An episode's clock stops while the episode waits for the engine or for an environment thread. It also stops before the
    first token of a turn, and while the engine loads weights or sleeps.
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
        agents: AgentServer | None = None,
    ) -> None:
        """`on_step` is called after each call of an environment. Without `agents`, episodes of agents fail."""
        self._sampler = sampler
        self._renderer = renderer
        self._limits = limits
        self._places = asyncio.Semaphore(sequences)
        self._threads = EnvThreads()
        self._make_env = make_env
        self._on_step = on_step
        self._agents = agents
        self._numbers = count()

    @property
    def env_works(self) -> bool:
        return self._threads.are_at_work

    @property
    def hung_calls(self) -> int:
        return self._threads.hung_calls

    async def run(self, task: Task, *, seed: int) -> Trajectory:
        """Run one episode. Raises as `play`."""
        return await self.play(self.episode(task, seed=seed))

    def episode(
        self, task: Task, *, seed: int, sampling: Sampling = PLAIN, partial: PartialEpisode | None = None
    ) -> Episode:
        """Return a new episode, or one that continues a partial episode."""
        env, clock, name = (
            EnvEpisode(task, make=self._make_env),
            Clock(self._limits.timeout_s),
            f"e{next(self._numbers)}",
        )
        return Episode(task=task, seed=seed, sampling=sampling, name=name, env=env, clock=clock, partial=partial)

    def to_partial(self, episode: Episode) -> PartialEpisode | None:
        """Return the data from which another process can continue, or None before the first token."""
        return episode.to_partial(self._sampler.partial_completion)

    async def play(self, episode: Episode) -> Trajectory:
        """Run an episode to its end. A failure outside the model becomes a typed failure. Raises only `WorkerDied`."""
        result, failure = StepResult(), None
        try:
            stop, result = await (self._play_agent if episode.task.env.settings.agent else self._play)(episode)
        except WorkerDied:  # another worker runs it with the same seed
            raise
        except Exception as error:  # a bad episode is data
            failure = failure_of(error)
            stop = Stop.PROMPT_TOO_LONG if failure.kind is FailureKind.PROMPT_TOO_LONG else Stop.FAILURE
        finally:
            self._leave(episode.env)
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

    async def add_forced_answers(self, whole: Trajectory, *, seed: int, sampling: Sampling) -> Trajectory:
        """Return an episode with its forced answers, of which some may have failed. Episodes of several turns or of an agent
        have none.
        """
        budgets = whole.task.thinking.nested_budgets
        if not budgets or len(whole.turns) != 1 or whole.parents or whole.failure is not None:
            return whole
        seeds = (_turn_seed(seed, 1 + number) for number in range(len(budgets)))
        forcing = (
            self._force_answer(whole, budget, seed=one, sampling=sampling)
            for budget, one in zip(budgets, seeds, strict=True)
        )
        return replace(whole, forced_answers=tuple(one for one in await asyncio.gather(*forcing) if one is not None))

    async def _force_answer(
        self, whole: Trajectory, budget: int, *, seed: int, sampling: Sampling
    ) -> Trajectory | None:
        """Return this episode under a budget, from the beginning that both share. None if the budget changes nothing."""
        (turn,) = whole.turns
        context, ids = tokens_of(turn.context_ids), tokens_of(turn.sampled_ids)
        sampled = Completion(
            token_ids=ids,
            logprobs_T=tuple(turn.logprobs_T.tolist()),
            versions_T=tokens_of(turn.versions_T),
            finished=whole.stop is not Stop.LENGTH,  # at the episode's limit no budget has tokens left either
        )
        room = self._limits.total_tokens - len(context)
        before = self._sampler.turn_at_budget(sampled, budget, context, room=room, sampling=sampling)
        if before is None:
            return None
        task, start = replace(whole.task, thinking=up_to(budget)), len(before.completion.token_ids)
        partial = PartialEpisode(turns=(), turn=before, seconds=0.0, times=NO_TIME)
        forced = await self.play(self.episode(task, seed=seed, sampling=sampling, partial=partial))
        if forced.failure is not None:
            return forced
        ends_here = not before.whole and start < len(ids)
        if forced.resumption is Resumption.RESUMED and (not ends_here or forced.turns[0].forced_end_start == start):
            return forced
        differs = failure_of(NotReplayed(f"the reasoning could not be ended at its token {start}"))
        return replace(forced, reward=None, failure=differs, stop=Stop.FAILURE)

    async def compare_answers(self, group: Group) -> Group:
        """Return the group with the judge's comparisons in its rewards. All answers fail if the judge fails."""
        task, answers = group.ticket.task, group.trajectories
        assert task.env.settings.judge is not None
        texts = [str(answer.score.evidence.get(JUDGED, "")) for answer in answers]
        comparing = functools.partial(compared, task.env.settings.judge, task, texts)
        watch, clock = Stopwatch(), Clock(self._limits.timeout_s)
        try:
            verdicts = await self._threads.call(
                comparing, env=task.env.name, at_once=task.env.settings.threads, clock=clock, watch=watch
            )
        except Exception as error:  # a fault of the judge is data
            return group.fail(failure_of(error))
        finally:
            self._on_step()
        return replace(group, trajectories=tuple(map(_with_verdict, answers, verdicts)))

    def _leave(self, env: EnvEpisode) -> None:
        """Close an unfinished environment in a thread, without a wait: one of its calls may still run."""
        if not env.over:
            self._threads.start(env.close)

    async def _play(self, episode: Episode) -> tuple[Stop, StepResult]:
        task, turns = episode.task, episode.turns
        context, ids = await self._open(episode)
        episode.watch.lap()
        while True:
            room = self._limits.total_tokens - len(ids)
            if room <= 0:
                stop = Stop.EPISODE_LENGTH
                return stop, await self._in_thread(episode, functools.partial(episode.env.truncate, LIMITS[stop]))
            episode.context = context
            sampled = await self._sample(episode, ids, room=room, number=len(turns), clock=episode.clock)
            episode.completion = sampled.completion
            if turns:
                turns[-1] = fill_last_experts(turns[-1], context, sampled.completion)
            text = episode.sampling.cut_at_stop_string(self._renderer.text(sampled.completion.token_ids))
            parsed = self._renderer.parse(text, task, context)
            stop = self._stop(sampled.completion, room, turns=len(turns) + 1)
            result = await self._in_thread(episode, functools.partial(episode.env.step, parsed, limit=LIMITS[stop]))
            turn = build_turn(task, context, sampled, parsed, result, times=episode.watch.lap())
            episode.end_turn(replace(turn, truncated=stop in TOKEN_LIMITS))
            if stop in TOKEN_LIMITS:
                return stop, result
            if result.done:
                return (Stop.TURNS if result.truncated else Stop.ENV), result
            sampled_ids, calls = sampled.completion.token_ids, parsed.calls
            context = self._renderer.observation_ids(
                result.messages, thinks=task.thinks, calls=calls, after=sampled_ids
            )
            ids = (*ids, *sampled_ids, *context)

    async def _play_agent(self, episode: Episode) -> tuple[Stop, StepResult]:
        """Let the user's agent play an episode. Its faults are the environment's, unless a limit of the episode caused them."""
        task, name = episode.task, episode.task.env.settings.agent
        assert name is not None
        if self._agents is None:
            raise EnvironmentFault(f"{name} needs a vLLM engine, whose endpoint it calls")
        first = await self._in_thread(episode, episode.env.begin)
        tree = TurnTree(self._renderer)
        episode.parents = tree.parents
        answering = functools.partial(self._answer_request, episode, tree)
        checking = functools.partial(self._check_limits, episode)
        session = AgentSession(episode, tree, sample=answering, check=checking)
        async with self._agents.open(session) as endpoint:
            agent = AgentEpisode.of(task, first, endpoint)
            try:
                playing = functools.partial(_work_on_files, name, agent, episode.env)
                returned = await self._in_thread(episode, playing, waits=lambda: session.is_answering)
            except EpisodeTimeout:
                raise
            except Exception as error:
                if session.fault is not None:
                    raise session.fault from error
                refusal = session.limit_behind(error)
                if refusal is None:
                    raise
                if not episode.turns:
                    raise PromptTooLong(str(refusal)) from error
                stop, _ = episode.agent_end(refusal.stop)
                return stop, await self._in_thread(episode, functools.partial(episode.env.truncate, LIMITS[stop]))
            finally:
                session.close()
                self._threads.start(agent.close)
        if session.fault is not None:
            raise session.fault  # the agent took it for an answer
        if not episode.turns:
            raise EnvironmentFault(f"{name} ended without a request to {endpoint.url}")
        stop, unfinished = episode.agent_end(Stop.ENV)
        if not isinstance(returned, str):
            return stop, end_with_reward(task, returned)
        parsed, limit = to_parsed_turn(returned), LIMITS[stop] or "after the agent's answer"
        if unfinished and not returned.strip():  # its thinking has no end, so there is no answer
            parsed = replace(parsed, text=unfinished, readable=False)
        return stop, await self._in_thread(episode, functools.partial(episode.env.step, parsed, limit=limit))

    def _check_limits(self, episode: Episode, tokens: int, turn: int) -> None:
        """Raise `LimitReached` if there is no room after a prompt of `tokens`, or if the number of the turn is too high."""
        most_turns = (self._limits.turns, episode.task.env.settings.max_turns)
        if any(most is not None and turn >= most for most in most_turns):
            raise LimitReached(f"this request is {LIMITS[Stop.TURNS]}", Stop.TURNS)
        if tokens >= self._limits.total_tokens:
            message = f"this request has at least {tokens} tokens and is {LIMITS[Stop.EPISODE_LENGTH]}"
            raise LimitReached(message, Stop.EPISODE_LENGTH)

    async def _answer_request(
        self, episode: Episode, tree: TurnTree, request: AgentRequest, *, number: int, clock: Clock
    ) -> AgentReply:
        """Sample the turn that answers an agent's request. Others may be sampled meanwhile."""
        ids, room = request.ids, self._limits.total_tokens - len(request.ids)
        sampling = self._sampling(episode.sampling, episode.task.thinking, request)
        sampled = await self._sample(episode, ids, room=room, number=number, clock=clock, sampling=sampling)
        completion = sampled.completion
        parent, context = tree.find_parent(ids)
        if parent >= 0:
            episode.turns[parent] = fill_last_experts(episode.turns[parent], context, completion)
        task = replace(episode.task, tools=request.tools)
        whole = self._renderer.text(completion.token_ids)
        text = sampling.cut_at_stop_string(whole)
        parsed = self._renderer.parse(text, task, ids)
        stop = self._stop(completion, room, turns=len(episode.turns) + 1)
        turn = build_turn(task, context, sampled, parsed, StepResult(), times=episode.watch.lap())
        tree.add(parent, context, completion.token_ids, text=request.text, unsent=len(whole) - len(text))
        episode.end_turn(replace(turn, truncated=stop in TOKEN_LIMITS))
        episode.stops.append(stop)
        return AgentReply(completion=completion, text=text, readable=parsed.readable)

    def _sampling(self, own: Sampling, thinking: Thinking, request: AgentRequest) -> Sampling:
        """Return the episode's sampling with the request's stop strings, and with its limit if that is lower."""
        sampling = replace(own, stop=[*own.stop, *request.stop])
        most = own.max_tokens or self._limits.turn_tokens + (thinking.budget or 0)
        if request.max_tokens is None or request.max_tokens >= most:
            return sampling
        return replace(sampling, max_tokens=request.max_tokens)

    async def _open(self, episode: Episode) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Prepare the environment for the next turn. Return the turn's new ids, and all ids."""
        partial = episode.partial
        if partial is not None:
            try:
                opened = await self._replay(episode, partial)
            except Exception as error:  # any error of a replayed environment
                LOG.warning("an episode of %s starts anew: %s", episode.task.label, describe_error(error))
                self._leave(episode.env)
                episode.restart(EnvEpisode(episode.task, make=self._make_env))
            else:
                episode.resume_from(partial)
                return opened
        ids = self._prompt_ids(episode.task, await self._in_thread(episode, episode.env.begin))
        return ids, ids

    async def _replay(self, episode: Episode, partial: PartialEpisode) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Replay the finished turns. Raises if the environment or the renderer gives another result."""
        task, env = episode.task, episode.env
        if partial.turns and not task.env.replays:
            raise NotReplayed("the environment does not support replays")
        context = ids = self._prompt_ids(task, await self._in_thread(episode, env.begin))
        for number, turn in enumerate(partial.turns, start=1):
            if tokens_of(turn.context_ids) != context:
                raise NotReplayed(f"the context of turn {number} changed")
            parsed = self._renderer.parse(turn.text, task, context)
            result = await self._in_thread(episode, functools.partial(env.step, parsed))
            if result.done or result.messages != turn.observation:
                raise NotReplayed(f"the environment's response to turn {number} changed")
            sampled_ids, calls = tokens_of(turn.sampled_ids), parsed.calls
            context = self._renderer.observation_ids(
                result.messages, thinks=task.thinks, calls=calls, after=sampled_ids
            )
            ids = (*ids, *sampled_ids, *context)
        if partial.turn is not None and partial.turn.context_ids != context:
            raise NotReplayed("the context of the last turn changed")
        return context, ids

    def _prompt_ids(self, task: Task, first: tuple[Message, ...]) -> tuple[int, ...]:
        ids = self._renderer.prompt_ids(task, first)
        if len(ids) >= self._limits.total_tokens:
            raise PromptTooLong(
                f"the prompt has {len(ids)} tokens; rollout.limits.total_tokens={self._limits.total_tokens} must be larger"
            )
        return ids

    async def _sample(
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
        seed = _turn_seed(episode.seed, number)
        async with episode.watch.place(self._places):
            with clock.turned(on=True), episode.watch.running("generate_s"):
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

    def _stop(self, completion: Completion, room: int, *, turns: int) -> Stop:
        """Return the limit that ends the episode after this turn, or `Stop.ENV`: the environment decides."""
        if not completion.finished:
            return Stop.EPISODE_LENGTH if len(completion.token_ids) >= room else Stop.LENGTH
        return Stop.ENV if self._limits.turns is None or turns < self._limits.turns else Stop.TURNS

    async def _in_thread(
        self, episode: Episode, function: Callable[[], T], *, waits: Callable[[], bool] = lambda: False
    ) -> T:
        """Call a function of an environment. `waits` returns whether it waits for the engine."""
        task = episode.task
        at_once = task.env.settings.threads
        try:
            return await self._threads.call(
                function, env=task.env.name, at_once=at_once, clock=episode.clock, watch=episode.watch, waits=waits
            )
        finally:
            self._on_step()


def _work_on_files(name: str, agent: AgentEpisode, env: EnvEpisode) -> Any:
    """Return the result of the user's agent, which works on the environment's files. Raise as `call_agent`."""
    env.write_files(agent.folder)
    try:
        return call_agent(name, agent)
    finally:
        env.read_files(agent.folder)


def _with_verdict(answer: Trajectory, verdict: Verdict) -> Trajectory:
    """Return an answer with the judge's share of wins as a part of its reward, and its cost as evidence."""
    settings, score = answer.task.env.settings, answer.score
    assert answer.reward is not None
    weight = settings.weights.get(JUDGE, 0.0) if settings.weights else 1.0
    parts, evidence = score.parts | {JUDGE: verdict.value}, score.evidence | verdict.costs
    return replace(
        answer, reward=answer.reward + weight * verdict.value, score=replace(score, parts=parts, evidence=evidence)
    )


def sample_seed(run_seed: int, ticket: int, sample: int, attempt: int) -> int:
    """Return the seed of one sample. Any worker that repeats it gets the same seed."""
    digest = hashlib.sha256(f"{run_seed}/{ticket}/{sample}/{attempt}".encode()).digest()
    return int.from_bytes(digest[:6], "big")


def _turn_seed(seed: int, turn: int) -> int:
    return (seed + turn * 1_000_003) % 2**63


class Attempt:
    """The episodes of one ticket in one worker."""

    def __init__(
        self, ticket: Ticket, runner: EpisodeRunner, *, attempt: int, seeds: Sequence[int], partial: PartialGroup | None
    ) -> None:
        """Make an episode for each seed. Further partial episodes are dropped."""
        self._ticket = ticket
        self._runner = runner
        self._attempt = attempt
        finished = {} if partial is None else partial.finished
        unfinished = {} if partial is None else partial.unfinished
        self._seeds = seeds
        samples = range(len(seeds))
        self._finished: dict[int, Trajectory] = {n: finished[n] for n in samples if n in finished}
        self._playing: dict[int, Episode] = {
            n: runner.episode(ticket.task, seed=seeds[n], sampling=ticket.sampling, partial=unfinished.get(n))
            for n in samples
            if n not in finished
        }

    async def play(self) -> Group:
        """Run all episodes and their forced answers. Return the answers in the order of the samples."""
        bare = [sample for sample, answer in self._finished.items() if not answer.forced_answers]
        adding = (self._add_forced_answers(sample) for sample in bare)
        await asyncio.gather(*adding, *(self._one(sample, episode) for sample, episode in list(self._playing.items())))
        return Group.of(self._ticket, [answer for _, answer in sorted(self._finished.items())])

    async def _one(self, sample: int, episode: Episode) -> None:
        self._finished[sample] = await self._runner.play(episode)
        del self._playing[sample]
        await self._add_forced_answers(sample)

    async def _add_forced_answers(self, sample: int) -> None:
        self._finished[sample] = await self._runner.add_forced_answers(
            self._finished[sample], seed=self._seeds[sample], sampling=self._ticket.sampling
        )

    def to_partial(self) -> PartialGroup:
        """Return the current state."""
        unfinished = {sample: self._runner.to_partial(episode) for sample, episode in self._playing.items()}
        return PartialGroup(
            ticket=self._ticket,
            attempt=self._attempt,
            finished=dict(self._finished),
            unfinished={sample: one for sample, one in unfinished.items() if one is not None},
        )


def build_turn(
    task: Task, context: tuple[int, ...], sampled: SampledTurn, parsed: ParsedTurn, result: StepResult, *, times: Times
) -> Turn:
    """Return the turn that was sampled after `context`, parsed, and answered with `result`."""
    completion = sampled.completion
    experts = completion.experts
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
        faults=turn_faults(parsed, task),
        experts=None if experts is None else experts[-len(context) - len(completion.token_ids) :],
        times=times,
        tool_spans=result.tool_spans,
    )


def turn_faults(parsed: ParsedTurn, task: Task) -> tuple[TurnFault, ...]:
    faults = {
        TurnFault.THINKING: not parsed.well_formed,
        TurnFault.TOOL_CALL: not calls_are_valid(parsed.calls, task.tools),
    }
    return tuple(fault for fault, there in faults.items() if there)


def fill_last_experts(turn: Turn, context: tuple[int, ...], after: Completion) -> Turn:
    """Return the turn before `after`, with the expert choices of its last id, which the engine processes only now."""
    if turn.experts is None or after.experts is None:
        return turn
    last = len(after.experts) - len(after.token_ids) - len(context) - 1
    return replace(turn, experts=np.concatenate([turn.experts[:-1], after.experts[last : last + 1]]))
