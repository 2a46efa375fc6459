"""Task sets of verifiers (v1), of its hub, Harbor, NeMo-Gym, OpenEnv or TextArena: their code plays and scores the episodes.

verifiers needs other versions of our libraries, so it has its own Python environment. Options:

- `python`: the Python of that environment.
- `taskset`: the id of a task set, or its settings with `id`, as verifiers takes them.
- `env`: further settings of verifiers' environment, such as `{agent: {harness: {id: bash}}}`. By default each agent has the
  harness `null` in a process of this machine.
- `most`: tasks to read (1024).
"""

import atexit
import itertools
import json
import os
import random
import subprocess
import threading
from collections.abc import Mapping
from concurrent.futures import Future
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from temper.envs.agents import INHERITED_VARIABLES, AgentEpisode
from temper.envs.core.bounds import only_known, whole
from temper.envs.core.definition import EnvDefinition
from temper.envs.core.errors import EnvironmentFault, describe_error
from temper.envs.core.process import kill_group
from temper.envs.core.task import Message, Task
from temper.envs.sandbox.seal import end_with_parent
from temper.envs.task_env import TaskEnv

CHILD = Path(__file__).with_name("child.py")
START_S = 120.0
"""Time limit of a start with the reading of all tasks, in seconds."""
LONGEST_S = 24 * 3600.0
"""Time limit of one episode besides its own deadline, in seconds."""
MOST = 1024


INHERITED = ("UV_", "PIP_", "SSL_", "REQUESTS_", "CURL_", "HTTP_", "HTTPS_", "NO_PROXY", "HF_", "DOCKER_")
"""Beginnings of further environment variables that verifiers gets: for downloads and containers."""
SECRET = ("KEY", "TOKEN", "SECRET", "PASSWORD")


def _is_inherited(name: str) -> bool:
    public = name.upper().startswith(INHERITED) and not any(word in name.upper() for word in SECRET)
    return name in INHERITED_VARIABLES or public


class TasksetProcess:
    """verifiers in its own Python. Raise `ValueError` if it does not start or has no tasks."""

    def __init__(self, options: Mapping[str, Any]) -> None:
        taskset = options["taskset"]
        given = {**options.get("env", {}), "taskset": {"id": taskset} if isinstance(taskset, str) else taskset}
        self._numbers = itertools.count()
        self._answers: dict[int, Future[dict[str, Any]]] = {}
        self._lock = threading.Lock()
        self._first: Future[dict[str, Any]] = Future()
        try:
            self._process = subprocess.Popen(
                [options["python"], str(CHILD)],
                env={name: value for name, value in os.environ.items() if _is_inherited(name)},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                start_new_session=True,
                preexec_fn=end_with_parent,
            )
        except OSError as error:
            raise ValueError(f"options.python={options['python']}: {error}") from error
        threading.Thread(target=self._read, name="verifiers", daemon=True).start()
        self._write({"env": given, "most": options.get("most", MOST)})
        try:
            self.tasks: list[dict[str, str]] = self._first.result(START_S)["tasks"]
        except Exception as error:
            self.close()
            raise ValueError(f"{taskset} does not start with verifiers: {describe_error(error)}") from error
        if not self.tasks:
            self.close()
            raise ValueError(f"{taskset} has no tasks")

    @property
    def runs(self) -> bool:
        return self._process.poll() is None

    def play(self, number: int, episode: AgentEpisode) -> dict[str, float]:
        """Return the rewards of an episode of a task. Raise `EnvironmentFault` if it fails."""
        asked, answer = next(self._numbers), Future[dict[str, Any]]()
        with self._lock:
            self._answers[asked] = answer
        episode.at_end(partial(self._cancel, asked))
        self._write({"id": asked, "task": number, "url": episode.url, "key": episode.key, "model": episode.model})
        found = answer.result(LONGEST_S)
        if "error" in found:
            raise EnvironmentFault(found["error"])
        return {str(name): float(value) for name, value in found["rewards"].items()}

    def close(self) -> None:
        kill_group(self._process.pid)
        self._process.wait()

    def _cancel(self, asked: int) -> None:
        if (answer := self._take(asked)) is not None:
            self._write({"cancel": asked})
            answer.set_exception(EnvironmentFault("the episode is over"))

    def _take(self, asked: int) -> "Future[dict[str, Any]] | None":
        with self._lock:
            return self._answers.pop(asked, None)

    def _write(self, line: dict[str, Any]) -> None:
        assert self._process.stdin is not None
        try:
            with self._lock:
                self._process.stdin.write(json.dumps(line) + "\n")
                self._process.stdin.flush()
        except OSError as error:
            raise EnvironmentFault(f"verifiers has ended: {error}") from error

    def _read(self) -> None:
        assert self._process.stdout is not None
        for text in self._process.stdout:
            line = json.loads(text)
            if "tasks" in line:
                self._first.set_result(line)
            elif (answer := self._take(line["id"])) is not None:
                answer.set_result(line)
        ended = EnvironmentFault("verifiers has ended; its errors are in the log of the process that started it")
        with self._lock:
            waiting = [self._first, *self._answers.values()]
            self._answers.clear()
        for one in waiting:
            if not one.done():
                one.set_exception(ended)


_PROCESSES: dict[str, TasksetProcess] = {}
_STARTING = threading.Lock()


def taskset_process(options: Mapping[str, Any]) -> TasksetProcess:
    """Return the process of this one for these options, after starting it if it is new or has ended."""
    key = json.dumps(options, sort_keys=True)
    with _STARTING:
        found = _PROCESSES.get(key)
        if found is None or not found.runs:
            found = _PROCESSES[key] = TasksetProcess(options)
        return found


@atexit.register
def _close_all() -> None:
    for one in _PROCESSES.values():
        one.close()


def play(episode: AgentEpisode) -> dict[str, float]:
    """The agent of these environments."""
    try:
        process = taskset_process(episode.row["options"])
    except ValueError as error:
        raise EnvironmentFault(str(error)) from error
    return process.play(episode.row["task"], episode)


def generate(rng: random.Random, level: int, *, options: Mapping[str, Any]) -> Task:
    tasks = taskset_process(options).tasks
    number = rng.randrange(len(tasks))
    message: Message = {"role": "user", "content": tasks[number]["prompt"] or tasks[number]["key"]}
    return Task(messages=(message,), spec={"task": number, "options": dict(options)})


class TasksetEnv(TaskEnv):
    """The task set plays and scores its episodes itself."""


def configure(options: Mapping[str, Any]) -> EnvDefinition:
    only_known(options, ("python", "taskset", "env", "most"), "options")
    for name in ("python", "taskset"):
        if not options.get(name):
            raise ValueError(f"options.{name} is missing; set {name} as in docs/agents.md")
    whole("options.most", options.get("most", MOST), least=1)
    return replace(ENVIRONMENT, generate=partial(generate, options=options), options=dict(options))


ENVIRONMENT = EnvDefinition(
    id="verifiers",
    entry_point="temper.envs.tasksets.env:TasksetEnv",
    configure=configure,
    agent=f"{play.__module__}.{play.__qualname__}",
    parts=(),
    replays=False,
)
