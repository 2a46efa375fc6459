"""The process of an agent of NeMo-Gym: rewards, errors and its end. A stand-in plays it. tests/judges has the real package."""

import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from temper.envs.agents import AgentEpisode
from temper.envs.binding import EnvConfig, bind
from temper.envs.catalog import configure_env
from temper.envs.core.errors import EnvironmentFault
from temper.envs.remote.gym_agent import _PROCESSES, CHILD, play

BLOCKED = f"""
import os, sys, time
sys.path.insert(0, {str(CHILD.parent)!r})
from gym_agent_child import Episodes

class Player:
    async def play(self, row, variables):
        print(os.getpid(), flush=True)
        time.sleep(60)

episodes = Episodes(Player())
print(episodes.server_address[1], flush=True)
episodes.serve_forever(0.1)
"""
"""A server of episodes with an agent that blocks its event loop."""
STAND_IN = f"""#!{sys.executable}
import json, os, socket, sys, threading
if "-c" in sys.argv:
    sys.exit(sys.argv[-1] != "responses_api_agents.simple_agent.app")
agent, host, port = sys.argv[-3:]
if port == "1":
    sys.exit(1)
listener = socket.create_server(("127.0.0.1", 0))
print(json.dumps({{"error": "no port"}} if port == "2" else {{"port": listener.getsockname()[1]}}), flush=True)
threading.Thread(target=lambda: (sys.stdin.read(), os._exit(0)), daemon=True).start()
while True:
    connection, _ = listener.accept()
    with connection, connection.makefile("rb") as lines:
        row, variables = json.loads(lines.readline())
        if row["want"] == "silence":
            lines.read()
        elif row["want"] == "end":
            os._exit(1)
        elif row["want"] == "reward":
            connection.sendall(json.dumps({{"reward": 0.5 + (variables["MODEL"] == "model")}}).encode())
        elif row["want"] != "nothing":
            connection.sendall(json.dumps({{"error": row["want"]}}).encode())
"""
"""A Python with one agent, which gives what the row wants."""


@pytest.fixture
def options(tmp_path: Path) -> Iterator[dict[str, Any]]:
    python = tmp_path / "python"
    python.write_text(STAND_IN, encoding="utf-8")
    python.chmod(0o755)
    yield {"url": "http://127.0.0.1:8000", "agent": "simple_agent", "python": str(python)}
    for process in _PROCESSES.values():
        process.close()
    _PROCESSES.clear()


def episode_of(options: dict[str, Any], want: str) -> AgentEpisode:
    row = {"responses_create_params": {"input": "Add 5."}, "want": want}
    task = configure_env("nemo_gym", options).formats[0].load(row)
    return AgentEpisode(
        messages=[*task.messages], tools=[], row=dict(task.spec), url="http://127.0.0.1:9/v1", key="k", model="model"
    )


def test_the_agent_pays_the_reward_of_its_server(options: dict[str, Any]) -> None:
    assert [play(episode_of(options, "reward")) for _ in range(2)] == [1.5, 1.5]
    assert len(_PROCESSES) == 1


@pytest.mark.parametrize("want", ["TaskError: broken", "nothing", "end"])
def test_an_agents_error_is_a_fault_of_its_episode_alone(options: dict[str, Any], want: str) -> None:
    with pytest.raises(EnvironmentFault):
        play(episode_of(options, want))
    if want == "end":
        for process in _PROCESSES.values():
            process.process.wait(10)
    assert play(episode_of(options, "reward")) == 1.5


def test_the_end_of_an_episode_ends_its_agent(options: dict[str, Any]) -> None:
    assert play(episode_of(options, "reward")) == 1.5  # it has started
    episode = episode_of(options, "silence")
    threading.Timer(0.3, episode.close).start()
    with pytest.raises(EnvironmentFault):
        play(episode)
    assert play(episode_of(options, "reward")) == 1.5


@pytest.mark.parametrize("port", [1, 2])
def test_an_agent_that_does_not_start_is_a_fault(options: dict[str, Any], port: int) -> None:
    with pytest.raises(EnvironmentFault, match="simple_agent"):
        play(episode_of(options | {"url": f"http://127.0.0.1:{port}"}, "reward"))


@pytest.mark.parametrize(
    ("wrong", "key"),
    [
        ({"agent": "simple_agnt"}, "options.agent"),
        ({"python": "/no/such/python"}, "options.python"),
        ({"python": None}, "options.python"),
        ({"url": "http://127.0.0.1:8000/path"}, "options.url"),
        ({"url": "http://example.com"}, "options.url"),
        ({"retries": 1}, "retries"),
    ],
)
def test_options_that_an_agent_can_not_have_are_refused(
    options: dict[str, Any], wrong: dict[str, Any], key: str
) -> None:
    with pytest.raises(ValueError, match=key):
        configure_env("nemo_gym", options | wrong)


def test_the_agent_scores_its_own_episodes(options: dict[str, Any]) -> None:
    assert bind("gym", EnvConfig(kind="nemo_gym", options=options)).ref.settings.agent is not None
    with pytest.raises(ValueError, match="length_limit"):
        bind("gym", EnvConfig(kind="nemo_gym", options=options, length_limit=9))


def test_an_agent_that_blocks_ends_with_its_episode() -> None:
    command = [sys.executable, "-c", BLOCKED]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        with socket.create_connection(("127.0.0.1", int(server.stdout.readline()))) as episode:
            episode.sendall(b"[{}, {}]\n")
            agent = int(server.stdout.readline())
        deadline = time.monotonic() + 20
        while (is_left := Path(f"/proc/{agent}").exists()) and time.monotonic() < deadline:
            time.sleep(0.05)
        server.kill()
    assert not is_left
