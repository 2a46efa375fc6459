"""One episode of one environment, played from outside: by the rollouts, and by given turns when answers are graded."""

import threading
from collections.abc import Callable
from dataclasses import replace

import gymnasium

from temper.envs.catalog import make_env
from temper.envs.core.errors import EnvironmentFault
from temper.envs.core.step_result import StepResult, checked, from_gymnasium, messages_in, spans_of_step
from temper.envs.core.task import EnvRef, Message, Task
from temper.envs.core.turn_text import ParsedTurn
from temper.envs.task_env import TaskEnv
from temper.rewards.score import Outcome, Score

RAW_TURNS = "raw_turns"
"""Key of the `metadata` of a class that takes turns with their thoughts and tags."""
MakeEnv = Callable[[EnvRef], gymnasium.Env[str, str]]


class EnvEpisode:
    """An episode of a task: `begin`, then turns until one is done. It closes the environment as soon as it is over.

    Calls come one after the other, from any threads; each raises whatever the environment raises.
    """

    def __init__(self, task: Task, *, make: MakeEnv = make_env) -> None:
        self._task = task
        self._name = task.label
        self._make = make
        self._env: gymnasium.Env[str, str] | None = None
        self._lock = threading.Lock()
        self.over = False
        """Whether it came to its end, after which nothing is left to be closed."""

    def begin(self) -> tuple[Message, ...]:
        """Make and reset the environment; return the messages that it adds, such as a server's observation."""
        if self._task.fault:
            raise EnvironmentFault(self._task.fault)
        with self._lock:
            self._env = self._make(self._task.env)
            _, info = self._env.reset(options={"task": self._task})
            return messages_in(info, self._name)

    def step(self, parsed: ParsedTurn, *, limit: str = "") -> StepResult:
        """Return what the environment says to a turn. `limit` names the limit that ends the episode with it, if one does."""
        with self._lock:
            env = self._opened
            if limit and isinstance(env.unwrapped, TaskEnv) and not parsed.readable:
                return self._over(self._truncate(env, limit, parsed.text))
            with spans_of_step() as spans:
                result = self._answered(env, parsed)
            result = replace(result, tool_spans=tuple(spans))
            if limit and not result.done:
                ended = self._truncate(env, limit, "")
                result = replace(ended, messages=result.messages, tool_spans=result.tool_spans)
            return self._over(result)

    def truncate(self, limit: str) -> StepResult:
        """Return what the episode is worth that this limit ends between two turns."""
        with self._lock:
            return self._over(self._truncate(self._opened, limit, ""))

    def close(self) -> None:
        with self._lock:
            self._close()

    @property
    def _opened(self) -> gymnasium.Env[str, str]:
        assert self._env is not None, "call begin first; an episode that is over takes no turns"
        return self._env

    def _answered(self, env: gymnasium.Env[str, str], parsed: ParsedTurn) -> StepResult:
        """Hand over the turn: as it was read to an environment of Temper, its text to a wrapper, the answer to any other."""
        if isinstance(env, TaskEnv):
            return checked(env.respond(parsed), self._name)
        whole = isinstance(env.unwrapped, TaskEnv) or bool(env.metadata.get(RAW_TURNS))
        return from_gymnasium(env.step(parsed.text if whole else parsed.answer), self._name)

    def _truncate(self, env: gymnasium.Env[str, str], limit: str, text: str) -> StepResult:
        """Return the environment's score on what there is; 0 from one that is not Temper's own."""
        inner = env.unwrapped
        if isinstance(inner, TaskEnv):
            return checked(inner.truncate(limit, text), self._name)
        judged = Score(outcome=Outcome.TRUNCATED, detail=f"cut off {limit}")
        return StepResult(done=True, truncated=True, score=judged)

    def _over(self, result: StepResult) -> StepResult:
        if result.done:
            self._close()
            self.over = True
        return result

    def _close(self) -> None:
        env, self._env = self._env, None
        if env is not None:
            env.close()
