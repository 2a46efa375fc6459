"""The process of a task set: rewards, errors, its end and the end of an episode. tests/judges has the real library."""

import json
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from temper.envs.agents import AgentEpisode
from temper.envs.binding import bind
from temper.envs.config import EnvConfig
from temper.envs.core.errors import EnvironmentFault
from temper.envs.tasksets.env import _SLOTS, TasksetProcess, _tasks, generate, play, taskset_process

TALKER = f"""#!{sys.executable}
import json, sys, time
given = json.loads(sys.stdin.readline())
print(json.dumps({{"tasks": [{{"key": str(n), "prompt": f"task {{n}}"}} for n in range(given["max_tasks"])]}}), flush=True)
for line in sys.stdin:
    asked = json.loads(line)
    if "cancel" in asked:
        open(given["env"]["note"], "a").write(f"cancelled {{asked['cancel']}}")
        continue
    rewards = {{"good": 0.5, "key": len(asked["key"])}}
    found = [{{"rewards": rewards}}, {{"error": "TaskError: broken"}}, None, ...][int(asked["task"])]
    if found is ...:
        sys.exit(1)
    if found is not None:
        print(json.dumps({{"id": asked["id"]}} | found), flush=True)
"""
"""A process with four tasks: rewards, an error, silence, the end of the process."""


@pytest.fixture
def options(tmp_path: Path) -> Iterator[dict[str, Any]]:
    python = tmp_path / "python"
    python.write_text(TALKER, encoding="utf-8")
    python.chmod(0o755)
    yield {"python": str(python), "taskset": "mine", "env": {"note": str(tmp_path / "note")}, "max_tasks": 4}
    for slot in _SLOTS.values():
        if slot.process is not None:
            slot.process.close()
    _SLOTS.clear()
    _tasks.cache_clear()


def episode_of(options: dict[str, Any], task: int) -> AgentEpisode:
    row = {"task": str(task), "options": options}
    return AgentEpisode(messages=[], tools=[], row=row, url="http://127.0.0.1:9/v1", key="four", model="model")


def test_tasks_and_rewards_come_from_the_process(options: dict[str, Any]) -> None:
    made = [generate(random.Random(seed), 1, options=options) for seed in range(20)]
    assert {task.messages[0]["content"] for task in made} == {f"task {number}" for number in range(4)}
    assert play(episode_of(options, 0)) == {"good": 0.5, "key": 4.0}


def test_a_process_outlives_the_thread_that_started_it(options: dict[str, Any]) -> None:
    assert generate(random.Random(1), 1, options=options).key in "0123"
    seen: list[int] = []
    for _ in range(2):
        thread = threading.Thread(target=lambda: seen.append(id(taskset_process(options))))
        thread.start()
        thread.join()
        assert play(episode_of(options, 0))["good"] == 0.5
    assert seen[0] == seen[1]


def test_errors_are_faults_and_the_process_restarts(options: dict[str, Any]) -> None:
    for task, words in ((1, "broken"), (3, "has ended"), (3, "has ended")):
        with pytest.raises(EnvironmentFault, match=words):
            play(episode_of(options, task))
    assert play(episode_of(options, 0))["good"] == 0.5


def test_the_end_of_an_episode_cancels_it(options: dict[str, Any], tmp_path: Path) -> None:
    episode = episode_of(options, 2)
    threading.Timer(0.3, episode.close).start()
    with pytest.raises(EnvironmentFault, match="over"):
        play(episode)
    began = time.monotonic()
    while not (tmp_path / "note").exists():
        assert time.monotonic() - began < 10
        time.sleep(0.01)
    assert play(episode_of(options, 0))["good"] == 0.5


@pytest.mark.parametrize("python", ["/no/such/python", "/bin/true"])
def test_a_process_that_does_not_start_is_a_users_mistake(python: str) -> None:
    with pytest.raises(ValueError, match="mine|options.python"):
        generate(random.Random(1), 1, options={"python": python, "taskset": "mine"})


def script(python: Path, lines: str) -> dict[str, Any]:
    """Options with this program as Python."""
    python.write_text(f"#!{sys.executable}\nimport time\ninput()\n{lines}\n", encoding="utf-8")
    python.chmod(0o755)
    return {"python": str(python), "taskset": "mine"}


def test_the_error_of_a_start_is_in_the_message(tmp_path: Path) -> None:
    options = script(tmp_path / "python", """print('{"error": "LookupError: no words"}')""")
    with pytest.raises(ValueError, match="no words"):
        generate(random.Random(1), 1, options=options)


LIBRARY = """
import contextlib, sys
from types import SimpleNamespace
from unittest.mock import MagicMock

parts = ("clients", "configs.agent", "tasksets.harbor.taskset", "utils.generic", "utils.loaders")
clients, agent, harbor, generic, loaders = (MagicMock() for _ in parts)
sys.modules |= {f"verifiers.v1.{part}": one for part, one in zip(parts, (clients, agent, harbor, generic, loaders))}
task = SimpleNamespace(key="0", data=SimpleNamespace(prompt_text="task 0"))
agent.agent_config_fields.return_value = ["agent"]
harbor.HarborTaskset, loaders.taskset_class.return_value = str, SimpleNamespace
loaders.load_environment.return_value = SimpleNamespace(taskset=[task], serving=contextlib.nullcontext)
EnvConfig = TasksetConfig = Env = Taskset = MagicMock()
"""
"""The names of verifiers that the process uses."""


def test_the_listing_of_tasks_ends_without_a_traceback(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    package = tmp_path / "verifiers" / "v1"
    package.mkdir(parents=True)
    (package.parent / "__init__.py").touch()
    (package / "__init__.py").write_text(LIBRARY, encoding="utf-8")
    options = {"python": sys.executable, "taskset": "mine", "folder": str(tmp_path)}
    assert _tasks(json.dumps(options)) == [{"key": "0", "prompt": "task 0"}]
    assert capfd.readouterr().err == ""


def test_a_process_that_does_not_read_ends_its_servers(tmp_path: Path) -> None:
    waits = f"""try:
    print('{{"tasks": [{{}}]}}', flush=True)
    time.sleep(60)
except KeyboardInterrupt:
    open({str(tmp_path / "ended")!r}, "w").close()"""
    TasksetProcess(script(tmp_path / "python", waits)).close()
    assert (tmp_path / "ended").exists()


def test_servers_end_after_the_worker_and_its_shell_are_killed(tmp_path: Path) -> None:
    """Ray kills the children of a worker that ends."""
    ends = (
        f"print('{{\"tasks\": [{{}}]}}', flush=True)\nsys.stdin.read()\nopen({str(tmp_path / 'ended')!r}, 'w').close()"
    )
    process = TasksetProcess(script(tmp_path / "python", f"import sys\n{ends}"))._process
    process.kill()
    process.wait()
    assert process.stdin is not None
    process.stdin.close()
    began = time.monotonic()
    while not (tmp_path / "ended").exists():
        assert time.monotonic() - began < 10
        time.sleep(0.01)


STUCK = """print('{"tasks": [{}]}', flush=True)
import runpy, signal, sys, threading
from unittest.mock import MagicMock
parts = ("", ".clients", ".configs.agent", ".tasksets.harbor.taskset", ".utils.generic", ".utils.loaders")
sys.modules |= {"verifiers": MagicMock()} | {f"verifiers.v1{part}": MagicMock() for part in parts}
child = runpy.run_path(sys.argv[1])
ends = child["end_after_input"]
ends.__globals__["STOP_S"] = 0.1
signal.signal(signal.SIGINT, signal.SIG_IGN)
threading.Thread(target=ends, args=(child["requests"].fileno(),)).start()
time.sleep(60)"""
"""A process that reads nothing and ignores interrupts."""


def test_a_stuck_process_is_killed_after_the_end_of_its_input(tmp_path: Path) -> None:
    process = TasksetProcess(script(tmp_path / "python", STUCK))._process
    assert process.stdin is not None
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(1)
    process.stdin.close()
    assert process.wait(10) == 128 + signal.SIGKILL  # of the shell, for its child


def test_an_environment_keeps_its_name() -> None:
    assert bind("game", EnvConfig(kind="verifiers", options={"python": "p", "taskset": "t"})).name == "game"


@pytest.mark.parametrize(
    "more", [{"agent": "support.user_agents.chat"}, {"length_limit": 9}, {"tools": ["calculator"]}]
)
def test_settings_of_answers_are_refused(more: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(more))):
        bind("game", EnvConfig(kind="verifiers", options={"python": "p", "taskset": "t"}, **more))
