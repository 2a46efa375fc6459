"""One episode of one environment, as the rollout and the grading of transcripts run it."""

import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import gymnasium

from temper.envs.catalog import make_env
from temper.envs.core.errors import EnvironmentFault
from temper.envs.core.step_result import StepResult, from_gymnasium, read_messages, spans_of_step, validate_result
from temper.envs.core.task import EnvRef, Message, Task
from temper.envs.core.turn_text import ParsedTurn
from temper.envs.task_env import TaskEnv
from temper.rewards.score import Outcome, Score

RAW_TURNS = "raw_turns"
"""Key of a class's `metadata`: its environments take turns with thinking and tags."""
MakeEnv = Callable[[EnvRef], gymnasium.Env[str, str]]


class EnvEpisode:
    """An episode of a task: call `begin`, then `step` until a result is done. It closes the environment at its end.

    Calls may come from any thread, one at a time. Each raises any error of the environment.
    """

    def __init__(self, task: Task, *, make: MakeEnv = make_env) -> None:
        self._task = task
        self._name = task.label
        self._make = make
        self._env: gymnasium.Env[str, str] | None = None
        self._lock = threading.Lock()
        self.is_over = False
        """Whether the episode has ended and the environment is closed."""

    def begin(self) -> tuple[Message, ...]:
        """Make and reset the environment. Return the messages that it adds, such as a server's observation."""
        if self._task.fault:
            raise EnvironmentFault(self._task.fault)
        with self._lock:
            self._env = self._make(self._task.env)
            _, info = self._env.reset(options={"task": self._task})
            return read_messages(info, self._name)

    def step(self, parsed: ParsedTurn, *, limit: str = "") -> StepResult:
        """Return the environment's result for a turn. `limit` names the limit that ends the episode with this turn, if
        any.
        """
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
        """End the episode between two turns at a limit, and return its result."""
        with self._lock:
            return self._over(self._truncate(self._opened, limit, ""))

    def write_files(self, folder: Path) -> None:
        """Write the files of the environment to the folder of an agent."""
        with self._lock:
            if self._env is not None and isinstance(self._env.unwrapped, TaskEnv):
                self._env.unwrapped.write_files(folder)

    def read_files(self, folder: Path) -> None:
        """Take over the files of an agent's folder, unless the episode is over."""
        with self._lock:
            if self._env is not None and isinstance(self._env.unwrapped, TaskEnv):
                self._env.unwrapped.read_files(folder)

    def close(self) -> None:
        with self._lock:
            self._close()

    @property
    def _opened(self) -> gymnasium.Env[str, str]:
        assert self._env is not None, "call begin first; an episode that is over takes no turns"
        return self._env

    def _answered(self, env: gymnasium.Env[str, str], parsed: ParsedTurn) -> StepResult:
        """Pass the parsed turn to an environment of Temper, its text to a wrapper, and the answer without calls to any
        other environment.
        """
        if isinstance(env, TaskEnv):
            return validate_result(env.respond(parsed), self._name)
        takes_text = isinstance(env.unwrapped, TaskEnv) or bool(env.metadata.get(RAW_TURNS))
        return from_gymnasium(env.step(parsed.text if takes_text else parsed.content), self._name)

    def _truncate(self, env: gymnasium.Env[str, str], limit: str, text: str) -> StepResult:
        """Return the environment's score so far, or 0 for an external environment."""
        inner = env.unwrapped
        if isinstance(inner, TaskEnv):
            return validate_result(inner.truncate(limit, text), self._name)
        score = Score(outcome=Outcome.TRUNCATED, detail=f"truncated {limit}")
        return StepResult(done=True, truncated=True, score=score)

    def _over(self, result: StepResult) -> StepResult:
        if result.done:
            self._close()
            self.is_over = True
        return result

    def _close(self) -> None:
        env, self._env = self._env, None
        if env is not None:
            env.close()
