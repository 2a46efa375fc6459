"""Agents of the user: programs that play an episode through an endpoint of the model.

An agent is a function of an `AgentEpisode`, sync or async. It returns an answer, which the environment scores as the
model's own, or the reward: a number, or numbers by name.
"""

import atexit
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory, TemporaryFile, gettempdir
from typing import IO, Any

from temper.envs.core import subreaper
from temper.envs.core.errors import EnvironmentFault, GraderError, describe_error
from temper.envs.core.functions import load_function, run_function
from temper.envs.core.locked_folder import LockedFolder, remove_abandoned
from temper.envs.core.process import wrap_in_shell
from temper.envs.core.step_result import StepResult
from temper.envs.core.task import Message, Task, Tool
from temper.envs.core.turn_text import ParsedTurn
from temper.envs.own_reward import copy_row, read_parts
from temper.rewards.score import Score, weigh_reward

MAX_ERROR_CHARACTERS = 500
"""Characters of a program's errors in a message."""
MAX_OUTPUT_BYTES = 2**24
"""Longest output of a program, which an agent reads as one text."""
STOP_S = 2 * subreaper.KILL_S
"""Most seconds that the programs of an episode may take to end."""
FOLDERS = "temper-agent-"
"""Begins the name of each worker's folder with the folders of its episodes."""
INHERITED_VARIABLES = ("PATH", "HOME", "LANG", "TMPDIR", "PYTHONPATH", "VIRTUAL_ENV")
"""Environment variables that a program of an agent gets."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """The endpoint of one episode: `url` ends in /v1, `key` is the episode's own."""

    url: str
    key: str
    model: str


@cache
def _own_folder() -> Path:
    """Return this process's folder. Its first call removes those of ended processes."""
    folder = LockedFolder(FOLDERS, Path(gettempdir()))
    atexit.register(folder.close)
    return folder.path


def remove_folders() -> None:
    """Remove the folders of ended processes."""
    remove_abandoned(FOLDERS, Path(gettempdir()))


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
        init=False, default_factory=lambda: TemporaryDirectory(dir=_own_folder(), ignore_cleanup_errors=True)
    )
    _programs: "dict[subprocess.Popen[bytes], socket.socket]" = field(init=False, default_factory=dict)
    """Each with a socket. Closing it ends the program."""
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
        """Run a program in the folder with `variables`. Return its standard output, of at most `MAX_OUTPUT_BYTES`.

        When it ends, its descendants end too, also in other sessions. All end no later than the episode. Raise
        `EnvironmentFault` if it fails or writes more.
        """
        with TemporaryFile() as given, TemporaryFile() as output, TemporaryFile() as errors:
            given.write(stdin.encode())
            given.seek(0)
            program = self._start(command, given, output, errors)
            program.wait()
            with self._lock:
                own = self._programs.pop(program, None)
            if own is not None:
                own.close()
            if program.returncode:
                shown = _text(errors, last=4 * MAX_ERROR_CHARACTERS)[-MAX_ERROR_CHARACTERS:].strip()
                raise EnvironmentFault(f"{command[0]} ended with status {program.returncode}: {shown}")
            if (size := output.seek(0, os.SEEK_END)) > MAX_OUTPUT_BYTES:
                raise EnvironmentFault(
                    f"{command[0]} wrote {size} bytes, and {MAX_OUTPUT_BYTES} are read; let it write to a file"
                )
            return _text(output)

    def _start(
        self, command: Sequence[str], given: IO[bytes], output: IO[bytes], errors: IO[bytes]
    ) -> "subprocess.Popen[bytes]":
        """Start a program with files, not pipes, which its children in the background could keep open."""
        with self._lock:
            if self._over:
                raise EnvironmentFault("the episode is over")
            own, theirs = socket.socketpair()
            with theirs:
                program = subprocess.Popen(
                    wrap_in_shell([sys.executable, "-I", "-S", subreaper.__file__, str(theirs.fileno()), *command]),
                    cwd=self.folder,
                    env=inherited_variables() | self.variables,
                    stdin=given,
                    stdout=output,
                    stderr=errors,
                    pass_fds=(theirs.fileno(),),
                    start_new_session=True,
                )
            self._programs[program] = own
            return program

    def at_end(self, function: Callable[[], object]) -> None:
        """Call a function when the episode ends, also before its agent does."""
        with self._lock:
            if not self._over:
                self._at_end.append(function)
                return
        function()

    def close(self) -> None:
        """End all programs with their descendants, and remove the folder."""
        with self._lock:
            self._over = True
            programs, self._programs = self._programs, {}
        for own in programs.values():
            own.close()
        for program in programs:
            with suppress(subprocess.TimeoutExpired):
                program.wait(STOP_S)
        self._folder.cleanup()
        for function in self._at_end:
            with suppress(Exception):  # the others are called too
                function()


def inherited_variables() -> dict[str, str]:
    """Return the environment variables of this process that a program of an agent gets."""
    return {name: os.environ[name] for name in INHERITED_VARIABLES if name in os.environ}


def _text(file: IO[bytes], *, last: int = MAX_OUTPUT_BYTES) -> str:
    """Return the last bytes of a file as text."""
    file.seek(max(0, file.seek(0, os.SEEK_END) - last))
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
    reward = weigh_reward(parts, settings.weights or dict.fromkeys(parts, 1.0))
    return StepResult(reward=reward, done=True, score=Score(parts=parts, detail="scored by the agent"))
