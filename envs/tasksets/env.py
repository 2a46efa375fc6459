"""Task sets of verifiers (v1), which plays and scores their episodes in its own Python environment. See docs/agents.md."""

import json
import os
import random
import signal
import subprocess
import threading
import time
from collections.abc import Mapping
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import psutil

from temper.envs.agents import AgentEpisode
from temper.envs.core.bounds import require_int, require_known, require_type
from temper.envs.core.clock import stop_clock
from temper.envs.core.definition import EnvDefinition
from temper.envs.core.errors import EnvironmentFault, describe_error
from temper.envs.core.process import kill_group, require_python, wrap_in_shell
from temper.envs.core.task import Message, Task

CHILD = Path(__file__).with_name("child.py")
START_S, STOP_S = 170.0, 10.0
"""Time limits of a start with the reading of all tasks, below `supervision.stalled_s`, and of an end, in seconds."""
PAUSE_S = 60.0
"""Seconds after a failed start before the next one."""
MAX_TASKS = 1024
MAX_EPISODES = 2000
"""Episodes of one process. verifiers keeps a client for each."""
INHERITED = (
    *("PATH", "HOME", "LANG", "TMPDIR", "HF_", "DOCKER_", "CONTAINER", "XDG_RUNTIME_DIR"),
    *("UV_", "PIP_", "SSL_", "REQUESTS_", "CURL_", "HTTP", "NO_PROXY"),
)
"""Beginnings of environment variables that verifiers gets: for downloads and containers."""
SECRET = ("KEY", "TOKEN", "SECRET", "PASSWORD")
Options = Mapping[str, Any]


class TasksetProcess:
    """A process of verifiers. It raises `ValueError` if it does not start or has no tasks. It ends with its input."""

    def __init__(self, options: Options) -> None:
        taskset = options["taskset"]
        config = {**options.get("env", {}), "taskset": {"id": taskset} if isinstance(taskset, str) else taskset}
        self._answers: dict[int, Future[dict[str, Any]]] = {}
        self._lock, self._writing = threading.Lock(), threading.Lock()
        self._ended, self._played = False, 0
        self._started: Future[dict[str, Any]] = Future()
        require_python(options["python"], "verifiers")
        self._process = subprocess.Popen(
            wrap_in_shell([options["python"], str(CHILD)]),
            env=_variables(options),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        threading.Thread(target=self._read, name="verifiers", daemon=True).start()
        try:
            self._write({"env": config, "max_tasks": options.get("max_tasks", MAX_TASKS)})
            started = self._started.result(START_S)
            if "error" in started:
                raise EnvironmentFault(started["error"])
            self.tasks: list[dict[str, str]] = started["tasks"]
        except Exception as error:
            self.close()
            raise ValueError(f"{taskset} does not start with verifiers: {describe_error(error)}") from error
        if not self.tasks:
            self.close()
            raise ValueError(f"{taskset} has no tasks")

    @property
    def is_open(self) -> bool:
        return not self._ended and self._process.poll() is None

    @property
    def is_worn(self) -> bool:
        """Whether it has played so many episodes that another one should follow, and plays none."""
        with self._lock:
            return self._played >= MAX_EPISODES and not self._answers

    def play(self, key: str, episode: AgentEpisode) -> dict[str, float]:
        """Return the rewards of an episode of a task. Raise `EnvironmentFault` if it fails or its end comes first."""
        answer = Future[dict[str, Any]]()
        with self._lock:
            if self._ended:
                raise EnvironmentFault("verifiers has ended")
            number = self._played
            self._played += 1
            self._answers[number] = answer
        self._write({"id": number, "task": key, "url": episode.url, "key": episode.key, "model": episode.model})
        episode.at_end(partial(self._cancel, number))
        found = answer.result()  # the end of the process or of the episode settles it
        if "error" in found:
            raise EnvironmentFault(found["error"])
        return {str(name): float(value) for name, value in found["rewards"].items()}

    def close(self) -> None:
        """Interrupt the process, also in a start, so that it ends its servers. Kill it if it does not end."""
        assert self._process.stdin is not None
        with suppress(psutil.NoSuchProcess):
            for child in psutil.Process(self._process.pid).children():
                child.send_signal(signal.SIGINT)
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(STOP_S)
        kill_group(self._process.pid)
        self._process.wait()
        with suppress(OSError), self._writing:
            self._process.stdin.close()

    def _cancel(self, number: int) -> None:
        if (answer := self._take(number)) is not None:
            answer.set_exception(EnvironmentFault("the episode is over"))
            with suppress(EnvironmentFault):
                self._write({"cancel": number})

    def _take(self, number: int) -> "Future[dict[str, Any]] | None":
        with self._lock:
            return self._answers.pop(number, None)

    def _write(self, line: dict[str, Any]) -> None:
        assert self._process.stdin is not None
        try:
            with self._writing:
                self._process.stdin.write(json.dumps(line) + "\n")
                self._process.stdin.flush()
        except (OSError, ValueError) as error:  # ValueError: it is closed
            raise EnvironmentFault(f"verifiers has ended: {error}") from error

    def _read(self) -> None:
        assert self._process.stdout is not None
        try:
            with self._process.stdout as lines:
                for text in lines:
                    line = json.loads(text)
                    if "id" not in line:
                        self._started.set_result(line)
                    elif (answer := self._take(line["id"])) is not None:
                        answer.set_result(line)
        finally:
            with self._lock:
                self._ended = True
                waiting = [self._started, *self._answers.values()]
                self._answers.clear()
            for one in waiting:
                if not one.done():
                    one.set_exception(
                        EnvironmentFault("verifiers has ended; its errors are in the log of this process")
                    )


def _variables(options: Options) -> dict[str, str]:
    """Return the environment variables of verifiers: public ones for downloads, and those that the options name."""
    public = {
        name: value
        for name, value in os.environ.items()
        if name.upper().startswith(INHERITED) and not any(word in name.upper() for word in SECRET) and "@" not in value
    }
    named = {name: os.environ[name] for name in options.get("variables", ()) if name in os.environ}
    folder = {"PYTHONPATH": str(Path(options["folder"]).resolve())} if "folder" in options else {}
    return public | named | folder


class _Slot:
    """The process for some options, and the last failure of a start."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.process: TasksetProcess | None = None
        self.failure, self.failed_at = "", 0.0


_SLOTS: dict[str, _Slot] = {}


def taskset_process(options: Options) -> TasksetProcess:
    """Return this process's child for these options, after starting it if it is new, worn or has ended.

    Raise `ValueError` if it does not start, also for a while after that.
    """
    slot = _SLOTS.setdefault(json.dumps(options, sort_keys=True), _Slot())
    with slot.lock:
        old = slot.process
        if old is not None and old.is_open and not old.is_worn:
            return old
        if slot.failure and time.monotonic() - slot.failed_at < PAUSE_S:
            raise ValueError(slot.failure)
        slot.process, slot.failure = None, ""
        if old is not None:
            old.close()
        try:
            slot.process = TasksetProcess(options)
        except ValueError as error:
            slot.failure, slot.failed_at = str(error), time.monotonic()
            raise
        return slot.process


@cache
def _tasks(options: str) -> list[dict[str, str]]:
    """Return the tasks of a task set by its options as JSON text. Raise `ValueError` if it does not start."""
    process = TasksetProcess(json.loads(options))
    process.close()
    return process.tasks


def play(episode: AgentEpisode) -> dict[str, float]:
    """The agent of these environments."""
    try:
        with stop_clock():
            process = taskset_process(episode.row["options"])
    except ValueError as error:
        raise EnvironmentFault(str(error)) from error
    return process.play(episode.row["task"], episode)


def generate(rng: random.Random, level: int, *, options: Options) -> Task:
    task = rng.choice(_tasks(json.dumps(options, sort_keys=True)))
    message: Message = {"role": "user", "content": task["prompt"] or task["key"]}
    return Task(messages=(message,), spec={"task": task["key"], "options": dict(options)}, key=task["key"])


def configure(options: Options) -> EnvDefinition:
    require_known(options, ("python", "taskset", "env", "max_tasks", "folder", "variables"), "options")
    for name in ("python", "taskset"):
        if not options.get(name):
            raise ValueError(f"options.{name} is missing; set {name} as in docs/agents.md")
    for name, kind in (("python", str), ("folder", str), ("env", Mapping), ("variables", list)):
        if name in options:
            require_type(f"options.{name}", options[name], kind)
    if not isinstance(options["taskset"], str):
        require_type("options.taskset", options["taskset"], Mapping)
    for variable in options.get("variables", ()):
        require_type("options.variables", variable, str)
    require_int("options.max_tasks", options.get("max_tasks", MAX_TASKS), least=1)
    if "retries" in options.get("env", {}):
        raise ValueError("options.env.retries: turns of a failed attempt would train; Temper retries episodes itself")
    return replace(ENVIRONMENT, generate=partial(generate, options=options), options=dict(options))


ENVIRONMENT = EnvDefinition(
    id="verifiers",
    entry_point="temper.envs.task_env:TaskEnv",
    configure=configure,
    agent=f"{play.__module__}.{play.__qualname__}",
    parts=(),
    replays=False,
)
