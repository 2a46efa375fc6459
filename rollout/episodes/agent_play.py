"""An episode that the user's agent plays: its requests become turns."""

import functools
from collections.abc import Callable
from dataclasses import replace
from typing import Any, TypeVar

from temper.envs.agents import AgentEpisode, call_agent, end_with_reward, to_parsed_turn
from temper.envs.core.clock import Clock
from temper.envs.core.errors import EnvironmentFault, EpisodeTimeout, PromptTooLong
from temper.envs.core.step_result import StepResult
from temper.envs.env_episode import EnvEpisode
from temper.rollout.config import EpisodeLimits
from temper.rollout.episodes.agent_session import (
    AgentReply,
    AgentRequest,
    AgentServer,
    AgentSession,
    LimitReached,
    TurnTree,
)
from temper.rollout.episodes.episode import LIMITS, EngineSteps, Episode, build_turn, fill_last_experts
from temper.rollout.episodes.renderer import Renderer
from temper.rollout.sampling import Sampling
from temper.rollout.trajectory import Stop

T = TypeVar("T")


class AgentPlay:
    """Plays one episode with its agent."""

    def __init__(
        self,
        episode: Episode,
        *,
        steps: EngineSteps,
        renderer: Renderer,
        limits: EpisodeLimits,
        agents: AgentServer | None,
    ) -> None:
        name = episode.task.env.settings.agent
        assert name is not None
        if agents is None:
            raise EnvironmentFault(f"{name} needs a vLLM engine, whose endpoint it calls")
        self._name = name
        self._episode = episode
        self._steps = steps
        self._renderer = renderer
        self._limits = limits
        self._agents = agents
        self._tree = TurnTree(renderer)
        episode.parents = self._tree.parents

    async def play(self) -> tuple[Stop, StepResult]:
        """Let the agent play. Its faults are the environment's, unless a limit of the episode caused them."""
        episode, task = self._episode, self._episode.task
        first = await self._call(episode.env.begin)
        session = AgentSession(episode, self._tree, sample=self._answer_request, check=self._check_limits)
        async with self._agents.open(session) as endpoint:
            agent = AgentEpisode.of(task, first, endpoint)
            try:
                playing = functools.partial(_work_on_files, self._name, agent, episode.env)
                returned = await self._call(playing, waits=lambda: session.is_answering)
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
                return stop, await self._call(functools.partial(episode.env.truncate, LIMITS[stop]))
            finally:
                session.close()
                self._steps.threads.start(agent.close)
        if session.fault is not None:
            raise session.fault  # the agent took it for an answer
        if not episode.turns:
            raise EnvironmentFault(f"{self._name} ended without a request to {endpoint.url}")
        stop, unfinished = episode.agent_end(Stop.ENV)
        if not isinstance(returned, str):
            return stop, end_with_reward(task, returned)
        parsed, limit = to_parsed_turn(returned), LIMITS[stop] or "after the agent's answer"
        if unfinished and not returned.strip():  # its thinking has no end, so there is no answer
            parsed = replace(parsed, text=unfinished, readable=False)
        return stop, await self._call(functools.partial(episode.env.step, parsed, limit=limit))

    def _check_limits(self, tokens: int, turn: int) -> None:
        """Raise `LimitReached` if there is no room after a prompt of `tokens`, or if the number of the turn is too high."""
        most_turns = (self._limits.turns, self._episode.task.env.settings.max_turns)
        if any(most is not None and turn >= most for most in most_turns):
            raise LimitReached(f"this request is {LIMITS[Stop.TURNS]}", Stop.TURNS)
        if tokens >= self._limits.total_tokens:
            message = f"this request has at least {tokens} tokens and is {LIMITS[Stop.EPISODE_LENGTH]}"
            raise LimitReached(message, Stop.EPISODE_LENGTH)

    async def _answer_request(self, request: AgentRequest, *, number: int, clock: Clock) -> AgentReply:
        """Sample the turn that answers an agent's request. Others may be sampled meanwhile."""
        episode, tree = self._episode, self._tree
        ids, room = request.ids, self._limits.total_tokens - len(request.ids)
        sampling = self._sampling(request)
        sampled = await self._steps.sample(episode, ids, room=room, number=number, clock=clock, sampling=sampling)
        completion = sampled.completion
        parent, context = tree.find_parent(ids)
        if parent >= 0:
            episode.turns[parent] = fill_last_experts(episode.turns[parent], context, completion)
        task = replace(episode.task, tools=request.tools)
        whole = self._renderer.text(completion.token_ids)
        text = sampling.cut_at_stop_string(whole)
        parsed = self._renderer.parse(text, task, ids)
        stop = self._steps.stop_after(
            finished=completion.finished, turns=len(episode.turns) + 1, is_full=len(completion.token_ids) >= room
        )
        turn = build_turn(task, context, sampled, parsed, StepResult(), stop=stop, times=episode.watch.lap())
        tree.add(parent, context, completion.token_ids, text=request.text, unsent=len(whole) - len(text))
        episode.end_turn(turn)
        episode.stops.append(stop)
        return AgentReply(completion=completion, text=text, readable=parsed.readable)

    def _sampling(self, request: AgentRequest) -> Sampling:
        """Return the episode's sampling with the request's stop strings, and with its limit if that is lower."""
        own, thinking = self._episode.sampling, self._episode.task.thinking
        sampling = replace(own, stop=[*own.stop, *request.stop])
        most = own.max_tokens or self._limits.turn_tokens + (thinking.budget or 0)
        if request.max_tokens is None or request.max_tokens >= most:
            return sampling
        return replace(sampling, max_tokens=request.max_tokens)

    async def _call(self, function: Callable[[], T], *, waits: Callable[[], bool] = lambda: False) -> T:
        return await self._steps.call(self._episode, function, waits=waits)


def _work_on_files(name: str, agent: AgentEpisode, env: EnvEpisode) -> Any:
    """Return the result of the user's agent, which works on the environment's files. Raise as `call_agent`."""
    env.write_files(agent.folder)
    try:
        return call_agent(name, agent)
    finally:
        env.read_files(agent.folder)
