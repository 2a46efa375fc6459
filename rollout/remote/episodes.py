"""Episodes with a model behind a server, over chat messages with structured answers.

Environments see no difference from `rollout/episodes/runner.py`. Features that need token ids are missing: budgets,
log-probabilities, versions, and resuming in another process.
"""

import asyncio
from functools import partial
from time import monotonic
from typing import Any

from temper.envs.catalog import make_env
from temper.envs.core.clock import Clock
from temper.envs.core.errors import PromptTooLong
from temper.envs.core.step_result import StepResult
from temper.envs.core.task import Message
from temper.envs.env_episode import EnvEpisode
from temper.rollout.config import EpisodeLimits
from temper.rollout.engines.protocol import Completion
from temper.rollout.episodes.episode import LIMITS, Episode, EpisodeSteps, build_turn, sample_seed
from temper.rollout.episodes.turn_sampler import SampledTurn
from temper.rollout.remote.chat_messages import ChatTurn, read_turn, request_body
from temper.rollout.remote.client import ChatClient
from temper.rollout.trajectory import Group, Stop, Ticket, Trajectory

NO_IDS = Completion(token_ids=(), logprobs_T=(), versions_T=(), finished=True)
"""The tokens of each turn, which are none because servers return no ids."""


class RemoteEpisodes:
    """Groups of episodes with one model of one server, with limited concurrency."""

    def __init__(
        self,
        client: ChatClient,
        model: str,
        *,
        limits: EpisodeLimits,
        seed: int,
        retries: int = 1,
    ) -> None:
        """`retries` is the number of retries of an episode after a transient failure.

        Only two limits apply: the number of turns, and the deadline of environment calls. Requests have their own deadline.
        """
        self._client = client
        self._model = model
        self._limits = limits
        self._seed = seed
        self._retries = retries
        self._places = asyncio.Semaphore(client.server.concurrency)
        self._steps = EpisodeSteps(limits=limits)
        self.heard = 0.0
        """Time of the last finished request, on the monotonic clock."""

    async def run_group(self, ticket: Ticket, samples: int) -> Group:
        """Return `samples` answers to the ticket's task. Failed ones are retried."""
        group = await self._attempt(ticket, samples, 0)
        for attempt in range(1, self._retries + 1):
            if not group.worth_retrying:
                break
            group = group.merge_retry(await self._attempt(ticket, group.worth_retrying, attempt))
        return group

    async def _attempt(self, ticket: Ticket, samples: int, attempt: int) -> Group:
        seeds = [sample_seed(self._seed, ticket.number, sample, attempt) for sample in range(samples)]
        return Group.of(ticket, await asyncio.gather(*(self._play(ticket, seed) for seed in seeds)))

    async def _play(self, ticket: Ticket, seed: int) -> Trajectory:
        """Run an episode to its end. A failure outside the model becomes a typed failure."""
        env, clock = EnvEpisode(ticket.task, make=make_env), Clock(self._limits.timeout_s)
        episode = Episode(task=ticket.task, seed=seed, name="", sampling=ticket.sampling, env=env, clock=clock)
        return await self._steps.finish(episode, self._conversation(episode))

    async def _conversation(self, episode: Episode) -> tuple[Stop, StepResult]:
        task, env, turns = episode.task, episode.env, episode.turns
        messages: list[Message] = [*task.messages, *await self._steps.call(episode, env.begin)]
        episode.watch.lap()
        while True:
            try:
                reply = await self._ask(episode, messages)
            except PromptTooLong:
                if not turns:
                    raise
                stop = Stop.EPISODE_LENGTH
                return stop, await self._steps.call(episode, partial(env.truncate, LIMITS[stop]))
            stop = self._steps.stop_after(finished=reply.finished, turns=len(turns) + 1)
            result = await self._steps.call(episode, partial(env.step, reply.parsed, limit=LIMITS[stop]))
            sampled = SampledTurn(completion=NO_IDS, thinking=reply.thinking)
            turns.append(build_turn(task, (), sampled, reply.parsed, result, stop=stop, times=episode.watch.lap()))
            if stop is Stop.LENGTH:
                return stop, result
            if result.done:
                return (Stop.TURNS if result.truncated else Stop.ENV), result
            messages += [reply.message, *result.messages]

    async def _ask(self, episode: Episode, messages: list[Message]) -> ChatTurn:
        task, sampling = episode.task, episode.sampling
        seed = episode.seed + len(episode.turns)
        body: dict[str, Any] = request_body(self._model, messages, task.tools, task.thinking, sampling, seed=seed)
        async with episode.watch.place(self._places):
            try:
                with episode.watch.running("generate_s"):
                    return read_turn(await self._client.complete(body), thinks=task.thinks, sampling=sampling)
            finally:
                self.heard = monotonic()
