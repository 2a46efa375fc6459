"""An agent of NeMo-Gym plays the episodes of a resources server. A process in NeMo-Gym's own Python environment runs it."""

import json
import select
import socket
import subprocess
import threading
from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import httpx

from temper.envs.agents import AgentEpisode, inherited_variables
from temper.envs.core.bounds import require_known
from temper.envs.core.clock import stop_clock
from temper.envs.core.definition import EnvDefinition
from temper.envs.core.errors import EnvironmentFault
from temper.envs.core.http_client import Server, read_number
from temper.envs.core.process import kill_group, require_python, wrap_in_shell
from temper.envs.core.row_format import RowFormat, has_fields
from temper.envs.core.task import Task
from temper.envs.remote.responses_api import PARAMS, load

CHILD = Path(__file__).with_name("gym_agent_child.py")
HOST = "127.0.0.1"
START_S = 150.0
"""Deadline of a start, which imports NeMo-Gym, in seconds. It is below `supervision.stalled_s`."""
Address = tuple[str, str, str, str]
"""Python, agent, host and port of the resources server."""


class GymAgentProcess:
    """A process that forks an agent for each episode. It ends with its input."""

    def __init__(self, address: Address) -> None:
        python, *arguments = address
        self.process = subprocess.Popen(
            wrap_in_shell([python, "-I", str(CHILD), *arguments]),
            env=inherited_variables(),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,
        )
        assert self.process.stdout is not None
        is_ready, _, _ = select.select([self.process.stdout], [], [], START_S)
        line = self.process.stdout.readline() if is_ready else b""
        started = json.loads(line) if line.endswith(b"\n") else {"error": "its errors are in the log of this process"}
        if "error" in started:
            self.close()
            raise EnvironmentFault(f"{arguments[0]} of NeMo-Gym does not start: {started['error']}")
        self.port = int(started["port"])

    @property
    def is_open(self) -> bool:
        return self.process.poll() is None

    def close(self) -> None:
        kill_group(self.process.pid)
        self.process.wait()


_PROCESSES: dict[Address, GymAgentProcess] = {}
_LOCK = threading.Lock()


def agent_process(address: Address) -> GymAgentProcess:
    """Return this process's child for an agent, after starting it if it is new or has ended. Raise `EnvironmentFault`."""
    with _LOCK:
        if address not in _PROCESSES or not _PROCESSES[address].is_open:
            _PROCESSES[address] = GymAgentProcess(address)
        return _PROCESSES[address]


def play(episode: AgentEpisode) -> float:
    """The agent of these environments."""
    with stop_clock():
        process = agent_process(tuple(episode.row["agent"]))
    try:
        with socket.create_connection((HOST, process.port)) as server, server.makefile("rb") as reply:
            episode.at_end(lambda: server.shutdown(socket.SHUT_RDWR))
            server.sendall(json.dumps([episode.row["task"], episode.variables]).encode() + b"\n")
            found = json.loads(reply.read() or b'{"error": "the agent ended without a reward"}')
    except OSError as error:
        raise EnvironmentFault(f"the agent of NeMo-Gym has ended: {error}") from error
    if "error" in found:
        raise EnvironmentFault(found["error"])
    return read_number(found["reward"], "reward")


def with_agent(definition: EnvDefinition, options: Mapping[str, Any]) -> EnvDefinition:
    """Return the environment as the agent in the options plays it. Raise `ValueError` for options that it can't have."""
    require_known(options, ("url", "hosts", "agent", "python"), "options with options.agent")
    Server.from_options({name: value for name, value in options.items() if name in ("url", "hosts")})
    url = httpx.URL(options["url"])
    if url.scheme != "http" or url.path != "/":
        raise ValueError(f"options.url is {options['url']!r}; NeMo-Gym's agents ask http://HOST:PORT alone")
    agent, python = str(options["agent"]), str(options.get("python", ""))
    _check_agent(python, agent)
    address: Address = (python, agent, url.host, str(url.port or 80))

    def load_with_agent(row: dict[str, Any]) -> Task:
        return replace(load(row), spec={"task": dict(row), "agent": address})

    formats = (RowFormat(name="nemo_gym", matches=has_fields(PARAMS), load=load_with_agent),)
    return replace(
        definition,
        entry_point="temper.envs.task_env:TaskEnv",
        formats=formats,
        options=dict(options),
        agent=f"{play.__module__}.{play.__qualname__}",
        parts=(),
    )


@cache
def _check_agent(python: str, agent: str) -> None:
    require_python(python, "nemo-gym 0.4.0")
    find = "import importlib.util, sys; sys.exit(importlib.util.find_spec(sys.argv[1]) is None)"
    try:
        command = [python, "-I", "-c", find, f"responses_api_agents.{agent}.app"]
        subprocess.run(command, check=True, capture_output=True, timeout=START_S)
    except subprocess.SubprocessError as error:
        raise ValueError(
            f"options.agent={agent!r} is not in the nemo-gym of {python}; set an agent's folder, such as simple_agent"
        ) from error
