"""The programs of an agent."""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from temper.envs.agents import FOLDERS, MAX_OUTPUT_BYTES, AgentEpisode, Endpoint, end_with_reward
from temper.envs.core.errors import EnvironmentFault, GraderError
from temper.envs.core.locked_folder import remove_abandoned
from temper.envs.core.task import EnvRef, EnvSettings, Task

ROOT = Path(__file__).resolve().parents[3]
ENDPOINT = Endpoint(url="http://127.0.0.1:9/v1", key="k", model="m")


def task_of(**settings: object) -> Task:
    ref = EnvRef(name="e", settings=EnvSettings(agent="mine.solve", **settings))  # type: ignore[arg-type]
    return Task(messages=({"role": "user", "content": "?"},), spec={"answer": "4"}, env=ref)


@pytest.fixture
def episode() -> Iterator[AgentEpisode]:
    made = AgentEpisode.of(task_of(), ({"role": "user", "content": "first"},), ENDPOINT)
    yield made
    made.close()


def test_a_program_gets_the_folder_and_the_endpoint_alone(
    episode: AgentEpisode, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("A_SECRET", "1")
    shown = episode.run(
        ["sh", "-c", "pwd; echo $OPENAI_BASE_URL $ANTHROPIC_BASE_URL $MODEL [$A_SECRET]; cat"], stdin="in"
    )
    folder, endpoint, given = shown.split("\n")
    assert Path(folder) == episode.folder
    assert endpoint == "http://127.0.0.1:9/v1 http://127.0.0.1:9 m []"
    assert given == "in"
    assert [message["content"] for message in episode.messages] == ["?", "first"]


ESCAPES = {
    "a child in the background": "sleep 60 & echo $!",
    "a session": "setsid sleep 60 & echo $!",
    "a daemon": "(setsid sh -c 'sleep 60 & echo $! >pid' &) & while ! test -s pid; do sleep 0.1; done; cat pid",
}
WORKER = """
import sys
from temper.envs.agents import AgentEpisode
episode = AgentEpisode(messages=[], tools=[], row={}, url="http://127.0.0.1:9/v1", key="k", model="m")
print(episode.folder, flush=True)
episode.run(["sh", "-c", "setsid sleep 60 & echo $! >pid; wait"])
"""


def is_running(pid: int) -> bool:
    return psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE


def wait_for_pid(folder: Path) -> int:
    deadline = time.monotonic() + 20
    while not (text := (folder / "pid").read_text() if (folder / "pid").exists() else ""):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    return int(text)


@pytest.mark.parametrize("how", ESCAPES)
def test_a_program_ends_with_all_of_its_descendants(episode: AgentEpisode, how: str) -> None:
    began = time.monotonic()
    child = int(episode.run(["sh", "-c", ESCAPES[how]]))
    assert time.monotonic() - began < 10
    assert not is_running(child)


def test_an_episodes_end_ends_its_program_and_daemon(episode: AgentEpisode) -> None:
    ended: list[str] = []

    def play() -> None:
        try:
            episode.run(["sh", "-c", "setsid sleep 60 & echo $! >pid; wait"])
        except EnvironmentFault as error:
            ended.append(str(error))

    playing = threading.Thread(target=play)
    playing.start()
    child = wait_for_pid(episode.folder)
    episode.close()
    assert not is_running(child)
    playing.join(10)
    assert ended


def test_a_killed_worker_leaves_no_program_or_folder(tmp_path: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", WORKER],
        cwd=ROOT,
        env=os.environ | {"TMPDIR": str(tmp_path)},
        stdout=subprocess.PIPE,
        text=True,
    ) as worker:
        assert worker.stdout is not None
        child = wait_for_pid(Path(worker.stdout.readline().strip()))
        remove_abandoned(FOLDERS, tmp_path)
        assert list(tmp_path.iterdir())  # its worker lives
        os.kill(worker.pid, signal.SIGKILL)
    deadline = time.monotonic() + 20
    while is_running(child):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    remove_abandoned(FOLDERS, tmp_path)
    assert not list(tmp_path.iterdir())


def test_a_program_that_signals_its_group_ends_as_itself(episode: AgentEpisode) -> None:
    with pytest.raises(EnvironmentFault, match=f"status {128 + signal.SIGTERM}"):
        episode.run(["sh", "-c", "kill 0; sleep 60"])


def test_a_program_that_writes_too_much_is_a_fault(episode: AgentEpisode) -> None:
    assert len(episode.run(["head", "-c", f"{MAX_OUTPUT_BYTES}", "/dev/zero"])) == MAX_OUTPUT_BYTES
    with pytest.raises(EnvironmentFault, match=f"head wrote {MAX_OUTPUT_BYTES + 1} "):
        episode.run(["head", "-c", f"{MAX_OUTPUT_BYTES + 1}", "/dev/zero"])


def test_a_program_that_fails_is_a_fault_with_its_errors(episode: AgentEpisode) -> None:
    with pytest.raises(EnvironmentFault, match="status 3: broken"):
        episode.run(["sh", "-c", "echo broken >&2; exit 3"])


def test_after_the_episode_nothing_runs_and_the_folder_is_gone(episode: AgentEpisode) -> None:
    folder = episode.folder
    assert os.path.isdir(folder)
    episode.close()
    assert not os.path.exists(folder)
    with pytest.raises(EnvironmentFault, match="over"):
        episode.run(["true"])


def test_parts_of_the_agent_are_weighed() -> None:
    result = end_with_reward(task_of(weights={"good": 2.0}), {"good": 0.5, "other": 9.0})
    assert (result.reward, result.done) == (1.0, True)


@pytest.mark.parametrize("settings", [{"weights": {"correct": 1.0}}, {"length_limit": 10}])
def test_a_reward_that_the_settings_do_not_weigh_is_a_fault(settings: dict[str, object]) -> None:
    with pytest.raises(GraderError):
        end_with_reward(task_of(**settings), 1.0)
