"""Agents of the user: programs that play an episode through an endpoint of the model.

An agent is a function of an `AgentEpisode`, sync or async. It returns an answer, which the environment scores as the
model's own, or the reward: a number, or numbers by name.
"""

import os
import subprocess
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory, TemporaryFile
from typing import IO, Any

from temper.envs.core.errors import EnvironmentFault, GraderError, describe_error
from temper.envs.core.functions import load_function, run_function
from temper.envs.core.process import kill_group
from temper.envs.core.step_result import StepResult
from temper.envs.core.task import Message, Task, Tool
from temper.envs.core.turn_text import ParsedTurn
from temper.envs.own_reward import copy_row, read_parts
from temper.envs.sandbox.seal import end_with_parent
from temper.rewards.score import Score, weighted_reward

MAX_ERROR_CHARACTERS = 500
"""Characters of a program's errors in a message."""
INHERITED_VARIABLES = ("PATH", "HOME", "LANG", "TMPDIR", "PYTHONPATH", "VIRTUAL_ENV")
"""Environment variables that a program of an agent gets."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """The endpoint of one episode: `url` ends in /v1, `key` is the episode's own."""

    url: str
    key: str
    model: str


@dataclass(slots=True, kw_only=True)
class AgentEpisode:
    """The task, the endpoint and a folder for an agent, with the files of the environment, if it has any. The folder is
    removed after the episode.

    `row` is a copy of the row of data, or of the spec of a generated task: it may hold the expected answer. `url` is the base
    of OpenAI's routes /chat/completions and /responses, and of Anthropic's /messages.
    """

    messages: list[Message]
    tools: list[Tool]
    row: dict[str, Any]
    url: str
    key: str
    model: str
    _folder: "TemporaryDirectory[str]" = field(
        init=False,
        default_factory=partial(TemporaryDirectory, prefix="temper-agent-", ignore_cleanup_errors=True),
    )
    _programs: "list[subprocess.Popen[bytes]]" = field(init=False, default_factory=list)
    _at_end: list[Callable[[], object]] = field(init=False, default_factory=list)
    _over: bool = field(init=False, default=False)
    _lock: threading.Lock = field(init=False, default_factory=threading.Lock)

    @classmethod
    def of(cls, task: Task, first: Sequence[Message], endpoint: Endpoint) -> "AgentEpisode":
        """Return the episode of a task, to which the environment adds the messages `first`."""
        return cls(
            messages=[*task.messages, *first],
            tools=[*task.tools],
            row=copy_row(task),
            url=endpoint.url,
            key=endpoint.key,
            model=endpoint.model,
        )

    @property
    def folder(self) -> Path:
        return Path(self._folder.name)

    @property
    def variables(self) -> dict[str, str]:
        """The environment variables that configure the clients of OpenAI and Anthropic."""
        return {
            "OPENAI_BASE_URL": self.url,
            "OPENAI_API_KEY": self.key,
            "ANTHROPIC_BASE_URL": self.url.removesuffix("/v1"),
            "ANTHROPIC_API_KEY": self.key,
            "MODEL": self.model,
        }

    def run(self, command: Sequence[str], *, stdin: str = "") -> str:
        """Run a program in the folder with `variables`. Return its standard output. It ends no later than the episode.

        Raise `EnvironmentFault` if it fails.
        """
        with TemporaryFile() as given, TemporaryFile() as output, TemporaryFile() as errors:
            given.write(stdin.encode())
            given.seek(0)
            program = self._start(command, given, output, errors)
            program.wait()
            with self._lock:
                self._programs.remove(program)
                kill_group(program.pid)
            if program.returncode:
                shown = _text(errors)[-MAX_ERROR_CHARACTERS:].strip()
                raise EnvironmentFault(f"{command[0]} ended with status {program.returncode}: {shown}")
            return _text(output)

    def _start(
        self, command: Sequence[str], given: IO[bytes], output: IO[bytes], errors: IO[bytes]
    ) -> "subprocess.Popen[bytes]":
        """Start a program with files, not pipes, which its children in the background could keep open."""
        inherited = {name: os.environ[name] for name in INHERITED_VARIABLES if name in os.environ}
        with self._lock:
            if self._over:
                raise EnvironmentFault("the episode is over")
            program = subprocess.Popen(
                command,
                cwd=self.folder,
                env=inherited | self.variables,
                stdin=given,
                stdout=output,
                stderr=errors,
                start_new_session=True,
                preexec_fn=end_with_parent,
            )
            self._programs.append(program)
            return program

    def at_end(self, function: Callable[[], object]) -> None:
        """Call a function when the episode ends, also before its agent does."""
        with self._lock:
            if not self._over:
                self._at_end.append(function)
                return
        function()

    def close(self) -> None:
        """End all programs with their children, and remove the folder."""
        with self._lock:
            self._over = True
            for program in self._programs:
                kill_group(program.pid)
            self._folder.cleanup()
        for function in self._at_end:
            with suppress(Exception):  # the others are called too
                function()


def _text(file: IO[bytes]) -> str:
    file.seek(0)
    return file.read().decode(errors="replace")


def call_agent(name: str, episode: AgentEpisode) -> Any:
    """Return the result of the user's agent. Raise `EnvironmentFault` if it raises."""
    try:
        return run_function(load_function(name), episode)
    except (Exception, SystemExit) as error:
        raise EnvironmentFault(f"{name} raised {describe_error(error)}") from error


def to_parsed_turn(text: str) -> ParsedTurn:
    """Return an agent's answer as a turn without reasoning and calls."""
    return ParsedTurn(text=text, reasoning=None, answer=text, content=text, readable=True, well_formed=True, calls=())


def end_with_reward(task: Task, returned: Any) -> StepResult:
    """Return the end of an episode with the agent's own reward. Raise `GraderError` unless it is a number, or several."""
    settings = task.env.settings
    assert settings.agent is not None
    if settings.judge is not None or settings.length_limit is not None:
        raise GraderError(
            f"{settings.agent} returned a reward, which leaves judge and length_limit nothing to judge; return the answer"
        )
    parts = read_parts(returned, settings.agent, settings)
    if settings.weights and parts.keys().isdisjoint(settings.weights):
        raise GraderError(
            f"{settings.agent} returned {', '.join(parts)}, and weights has only {', '.join(settings.weights)}"
        )
    reward = weighted_reward(parts, settings.weights or dict.fromkeys(parts, 1.0))
    return StepResult(reward=reward, done=True, score=Score(parts=parts, detail="scored by the agent"))
