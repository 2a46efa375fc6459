"""Runs episodes: a task, an environment and an engine make a trajectory. Failures are data."""

import asyncio
import functools
import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import count

from temper.envs.catalog import make_env
from temper.envs.core.clock import Clock
from temper.envs.core.errors import EnvironmentFault, PromptTooLong, describe_error, failure_of
from temper.envs.core.step_result import StepResult
from temper.envs.core.task import Message, Task
from temper.envs.core.thinking_mode import up_to
from temper.envs.env_episode import EnvEpisode, MakeEnv
from temper.envs.judge import JUDGED, Verdict, compare_answers
from temper.rewards.score import JUDGE
from temper.rollout.config import EpisodeLimits
from temper.rollout.engines.protocol import Completion
from temper.rollout.episodes.agent_play import AgentPlay
from temper.rollout.episodes.agent_session import AgentServer
from temper.rollout.episodes.env_threads import Stopwatch
from temper.rollout.episodes.episode import LIMITS, EngineSteps, Episode, build_turn, fill_last_experts, turn_seed
from temper.rollout.episodes.renderer import Renderer
from temper.rollout.episodes.resume import PartialEpisode, PartialGroup
from temper.rollout.episodes.turn_sampler import TurnSampler
from temper.rollout.sampling import PLAIN, Sampling
from temper.rollout.token_arrays import tokens_of
from temper.rollout.trajectory import NO_TIME, TOKEN_LIMITS, Group, Resumption, Stop, Ticket, Trajectory

LOG = logging.getLogger(__name__)


class NotReplayed(EnvironmentFault):
    """A replay of the same turns left the environment in another state."""


class EpisodeRunner:
    """Runs episodes of any environment with one engine, which samples `sequences` turns at once."""

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
        self._steps = EngineSteps(sampler=sampler, limits=limits, sequences=sequences, on_step=on_step)
        self._make_env = make_env
        self._agents = agents
        self._numbers = count()

    @property
    def env_works(self) -> bool:
        return self._steps.threads.are_at_work

    @property
    def hung_calls(self) -> int:
        return self._steps.threads.hung_calls

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
        return await self._steps.finish(episode, self._play(episode))

    async def add_forced_answers(self, full: Trajectory, *, seed: int, sampling: Sampling) -> Trajectory:
        """Return an episode with its forced answers, of which some may have failed. Episodes of several turns or of an agent
        have none.
        """
        budgets = full.task.thinking.nested_budgets
        if not budgets or len(full.turns) != 1 or full.parents or full.failure is not None:
            return full
        seeds = (turn_seed(seed, 1 + number) for number in range(len(budgets)))
        forcing = (
            self._force_answer(full, budget, seed=one, sampling=sampling)
            for budget, one in zip(budgets, seeds, strict=True)
        )
        return replace(full, forced_answers=tuple(one for one in await asyncio.gather(*forcing) if one is not None))

    async def _force_answer(self, full: Trajectory, budget: int, *, seed: int, sampling: Sampling) -> Trajectory | None:
        """Return this episode under a budget, from the beginning that both share. None if the budget changes nothing."""
        (turn,) = full.turns
        context, ids = tokens_of(turn.context_ids), tokens_of(turn.sampled_ids)
        sampled = Completion(
            token_ids=ids,
            logprobs_T=tuple(turn.logprobs_T.tolist()),
            versions_T=tokens_of(turn.versions_T),
            finished=full.stop is not Stop.LENGTH,  # at the episode's limit no budget has tokens left either
        )
        room = self._limits.total_tokens - len(context)
        before = self._sampler.turn_at_budget(sampled, budget, context, room=room, sampling=sampling)
        if before is None:
            return None
        task, start = replace(full.task, thinking=up_to(budget)), len(before.completion.token_ids)
        partial = PartialEpisode(turns=(), turn=before, seconds=0.0, times=NO_TIME)
        forced = await self.play(self.episode(task, seed=seed, sampling=sampling, partial=partial))
        if forced.failure is not None:
            return forced
        ends_here = not before.is_finished and start < len(ids)
        if forced.resumption is Resumption.RESUMED and (not ends_here or forced.turns[0].forced_end_start == start):
            return forced
        differs = failure_of(NotReplayed(f"the reasoning could not be ended at its token {start}"))
        return replace(forced, reward=None, failure=differs, stop=Stop.FAILURE)

    async def compare_answers(self, group: Group) -> Group:
        """Return the group with the judge's comparisons in its rewards. All answers fail if the judge fails."""
        task, answers = group.ticket.task, group.trajectories
        assert task.env.settings.judge is not None
        texts = [str(answer.score.evidence.get(JUDGED, "")) for answer in answers]
        comparing = functools.partial(compare_answers, task.env.settings.judge, task, texts)
        watch, clock = Stopwatch(), Clock(self._limits.timeout_s)
        try:
            verdicts = await self._steps.call_env(task, comparing, clock=clock, watch=watch)
        except Exception as error:  # a fault of the judge is data
            return group.fail(failure_of(error))
        return replace(group, trajectories=tuple(map(_with_verdict, answers, verdicts)))

    async def _play(self, episode: Episode) -> tuple[Stop, StepResult]:
        if not episode.task.env.settings.agent:
            return await self._play_turns(episode)
        play = AgentPlay(episode, steps=self._steps, renderer=self._renderer, limits=self._limits, agents=self._agents)
        return await play.play()

    async def _play_turns(self, episode: Episode) -> tuple[Stop, StepResult]:
        task, turns = episode.task, episode.turns
        context, ids = await self._open(episode)
        episode.watch.lap()
        while True:
            room = self._limits.total_tokens - len(ids)
            if room <= 0:
                stop = Stop.EPISODE_LENGTH
                return stop, await self._steps.call(episode, functools.partial(episode.env.truncate, LIMITS[stop]))
            episode.context = context
            sampled = await self._steps.sample(episode, ids, room=room, number=len(turns), clock=episode.clock)
            episode.completion = sampled.completion
            if turns:
                turns[-1] = fill_last_experts(turns[-1], context, sampled.completion)
            text = episode.sampling.cut_at_stop_string(self._renderer.text(sampled.completion.token_ids))
            parsed = self._renderer.parse(text, task, context)
            sampled_ids = sampled.completion.token_ids
            stop = self._steps.stop_after(
                finished=sampled.completion.finished, turns=len(turns) + 1, is_full=len(sampled_ids) >= room
            )
            result = await self._steps.call(episode, functools.partial(episode.env.step, parsed, limit=LIMITS[stop]))
            episode.end_turn(build_turn(task, context, sampled, parsed, result, stop=stop, times=episode.watch.lap()))
            if stop in TOKEN_LIMITS:
                return stop, result
            if result.done:
                return (Stop.TURNS if result.truncated else Stop.ENV), result
            context = self._renderer.observation_ids(
                result.messages, thinks=task.thinks, calls=parsed.calls, after=sampled_ids
            )
            ids = (*ids, *sampled_ids, *context)

    async def _open(self, episode: Episode) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Prepare the environment for the next turn. Return the turn's new ids, and all ids."""
        partial = episode.partial
        if partial is not None:
            try:
                opened = await self._replay(episode, partial)
            except Exception as error:  # any error of a replayed environment
                LOG.warning("an episode of %s starts anew: %s", episode.task.label, describe_error(error))
                self._steps.leave(episode.env)
                episode.restart(EnvEpisode(episode.task, make=self._make_env))
            else:
                episode.resume_from(partial)
                return opened
        ids = self._prompt_ids(episode.task, await self._steps.call(episode, episode.env.begin))
        return ids, ids

    async def _replay(self, episode: Episode, partial: PartialEpisode) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Replay the finished turns. Raises if the environment or the renderer gives another result."""
        task, env = episode.task, episode.env
        if partial.turns and not task.env.replays:
            raise NotReplayed("the environment does not support replays")
        context = ids = self._prompt_ids(task, await self._steps.call(episode, env.begin))
        for number, turn in enumerate(partial.turns, start=1):
            if tokens_of(turn.context_ids) != context:
                raise NotReplayed(f"the context of turn {number} changed")
            parsed = self._renderer.parse(turn.text, task, context)
            result = await self._steps.call(episode, functools.partial(env.step, parsed))
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


def _with_verdict(answer: Trajectory, verdict: Verdict) -> Trajectory:
    """Return an answer with the judge's share of wins as a part of its reward, and its cost as evidence."""
    settings, score = answer.task.env.settings, answer.score
    assert answer.reward is not None
    weight = settings.weights.get(JUDGE, 0.0) if settings.weights else 1.0
    parts, evidence = score.parts | {JUDGE: verdict.value}, score.evidence | verdict.costs
    return replace(
        answer, reward=answer.reward + weight * verdict.value, score=replace(score, parts=parts, evidence=evidence)
    )


class GroupInProgress:
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
