"""One episode: a task, an environment and an engine make a trajectory. The one place where faults become data."""

import asyncio
import hashlib
import math
import time
from collections.abc import Callable
from concurrent.futures import Executor
from dataclasses import dataclass, field, replace
from typing import Any

import gymnasium
import numpy as np

from envs.catalog import make_env
from envs.dialogue import calls_are_valid, thought_is_well_formed
from envs.errors import GraderError, kind_of
from envs.setting import running, scheduled
from envs.task import Message, Task
from rewards.verdict import Outcome
from rollout.engine import Completion
from rollout.renderer import Renderer
from rollout.speech import Speaker, Speech
from rollout.trajectory import Failure, FailureKind, Stop, Trajectory, Turn, TurnFault


@dataclass(frozen=True, kw_only=True)
class EpisodeLimits:
    """How far an episode may go."""

    turn_tokens: int = scheduled(128)
    """Most tokens sampled in one turn."""
    total_tokens: int = scheduled(768)
    """Longest sequence of an episode, prompt and observations included, in tokens."""
    turns: int = scheduled(4)
    """Most turns in an episode."""
    timeout_s: float = running(120.0)
    """Deadline of an episode, in seconds."""

    def __post_init__(self) -> None:
        for name in ("turn_tokens", "total_tokens", "turns", "timeout_s"):
            if getattr(self, name) <= 0:
                raise ValueError(f"rollout.limits.{name}={getattr(self, name)} must be above 0")


@dataclass(frozen=True, slots=True, kw_only=True)
class StepResult:
    """What an environment answered to one turn."""

    reward: float
    done: bool
    out_of_turns: bool
    outcome: Outcome | None
    parts: dict[str, float]
    detail: str = ""
    evidence: dict[str, Any] = field(default_factory=dict)
    messages: tuple[dict[str, Any], ...] = ()


class EngineFault(Exception):
    """The engine failed to generate."""


class EpisodeRunner:
    """Runs episodes of any environment against one engine. `pool` runs the environments' synchronous steps."""

    def __init__(
        self,
        *,
        speaker: Speaker,
        renderer: Renderer,
        limits: EpisodeLimits,
        pool: Executor,
        make_env: Callable[[str], gymnasium.Env[str, str]] = make_env,
    ) -> None:
        self._make_env = make_env
        self._speaker = speaker
        self._renderer = renderer
        self._limits = limits
        self._pool = pool

    async def run(self, task: Task, *, seed: int) -> Trajectory:
        """Play one episode to its end. Never raises for a fault outside the model: it becomes a typed failure."""
        start = time.monotonic()
        turns: list[Turn] = []
        try:
            async with asyncio.timeout(self._limits.timeout_s):
                stop, result = await self._play(task, turns, seed=seed)
            if not math.isfinite(result.reward):
                raise GraderError(f"the reward of {task.env}/{task.key} is {result.reward}, not a finite number")
        except Exception as error:  # the one place that catches: a bad episode is data
            return _failed(task, turns, error, seconds=time.monotonic() - start)
        return Trajectory(
            task=task,
            turns=tuple(turns),
            stop=stop,
            reward=result.reward,
            outcome=result.outcome,
            parts=result.parts,
            detail=result.detail,
            evidence=result.evidence,
            seconds=time.monotonic() - start,
        )

    async def _play(self, task: Task, turns: list[Turn], *, seed: int) -> tuple[Stop, StepResult]:
        env, said_first = await self._off_loop(self._opened, task)
        try:
            context = self._renderer.prompt_ids(replace(task, messages=(*task.messages, *said_first)))
            seen = context
            while True:
                room = self._limits.total_tokens - len(seen)
                if room <= 0:
                    return Stop.LENGTH, StepResult(
                        reward=0.0, done=True, out_of_turns=False, outcome=Outcome.WRONG, parts={}
                    )
                said = await self._speak(seen, task, turns, room=room, seed=_turn_seed(seed, len(turns)))
                if turns:
                    turns[-1] = _processed(turns[-1], context, said.completion)
                text = self._renderer.text(said.completion.token_ids)
                result = await self._off_loop(_step, env, text)
                turns.append(_turn(task, context, said, text, result))
                stop = self._stop(said.completion, result, len(turns))
                if stop is not None:
                    return stop, result
                context = self._renderer.observation_ids(result.messages, reasoning=task.reasoning)
                seen = (*seen, *said.completion.token_ids, *context)
        finally:
            env.close()

    def _opened(self, task: Task) -> tuple[gymnasium.Env[str, str], tuple[Message, ...]]:
        """A new environment, reset, and the messages that it adds to the task's own, such as a server's observation."""
        env = self._make_env(task.kind)
        try:
            _, info = env.reset(options={"task": task})
        except BaseException:
            env.close()
            raise
        return env, tuple(info.get("messages", ()))

    async def _speak(self, ids: tuple[int, ...], task: Task, turns: list[Turn], *, room: int, seed: int) -> Speech:
        thought_so_far = sum(turn.thought.tokens for turn in turns)
        try:
            return await self._speaker.say(ids, task.thinking, room=room, thought_so_far=thought_so_far, seed=seed)
        except TimeoutError:
            raise
        except Exception as error:
            raise EngineFault(f"{type(error).__name__}: {error}") from error

    def _stop(self, said: Completion, result: StepResult, turns: int) -> Stop | None:
        if not said.finished:
            return Stop.LENGTH
        if result.done:
            return Stop.TURNS if result.out_of_turns else Stop.ENV
        return Stop.TURNS if turns >= self._limits.turns else None

    async def _off_loop(self, function: Any, *arguments: Any) -> Any:
        return await asyncio.get_running_loop().run_in_executor(self._pool, function, *arguments)


def sample_seed(run_seed: int, ticket: int, sample: int, attempt: int) -> int:
    """The seed of one sample: the same for any worker that redoes it."""
    digest = hashlib.sha256(f"{run_seed}/{ticket}/{sample}/{attempt}".encode()).digest()
    return int.from_bytes(digest[:6], "big")


def _turn_seed(seed: int, turn: int) -> int:
    return (seed + turn * 1_000_003) % 2**63


def _step(env: gymnasium.Env[str, str], text: str) -> StepResult:
    _, reward, terminated, truncated, info = env.step(text)
    return StepResult(
        reward=float(reward),
        done=terminated or truncated,
        out_of_turns=truncated and not terminated,
        outcome=Outcome(info["outcome"]) if "outcome" in info else None,
        parts=dict(info.get("parts", {})),
        detail=str(info.get("detail", "")),
        evidence=dict(info.get("evidence", {})),
        messages=tuple(info.get("messages", ())),
    )


def _turn(task: Task, context: tuple[int, ...], said: Speech, text: str, result: StepResult) -> Turn:
    faults = {
        TurnFault.THOUGHT: not thought_is_well_formed(text, reasoning=task.reasoning),
        TurnFault.TOOL_CALL: not calls_are_valid(text, reasoning=task.reasoning, tools=task.tools),
    }
    experts = said.completion.experts
    return Turn(
        context_ids=context,
        sampled_ids=said.completion.token_ids,
        logprobs_T=said.completion.logprobs_T,
        versions_T=said.completion.versions_T,
        forced_T=said.completion.forced_T,
        text=text,
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


def _failed(task: Task, turns: list[Turn], error: Exception, *, seconds: float) -> Trajectory:
    return Trajectory(
        task=task,
        turns=tuple(turns),
        stop=Stop.FAILURE,
        failure=Failure(kind=_kind(error), message=f"{type(error).__name__}: {error}"[:500]),
        seconds=seconds,
    )


def _kind(error: Exception) -> FailureKind:
    match error:
        case TimeoutError():
            return FailureKind.TIMEOUT
        case EngineFault():
            return FailureKind.ENGINE
        case _:
            return FailureKind(kind_of(error))
