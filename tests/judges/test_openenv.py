"""A server of the package openenv-core, in its own environment, pays as computed by hand."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from judges.packages import python_with, serving
from unit.envs.remote.test_openenv import played

from temper.envs.binding import bind
from temper.envs.config import EnvConfig
from temper.envs.core.errors import EnvironmentFault
from temper.envs.source import open_source
from temper.orchestrator.cluster.this_machine import free_port

VERSION = "0.3.0"
ECHO = Path(__file__).parents[1] / "support" / "foreign" / "openenv_echo.py"


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    """The address of a running server."""
    command: list[str | Path] = [python_with(f"openenv-core=={VERSION}"), ECHO, str(port := free_port())]
    with serving(command, lambda: f"http://127.0.0.1:{port}/health"):
        yield f"http://127.0.0.1:{port}"


@pytest.mark.judges(suite="OpenEnv", run="an echo server: sessions, rewards, a refused action, a fault")
def test_a_server_pays_for_each_message(url: str, record_property: Any) -> None:
    options = {"url": url, "prompt": "Say something.", "action": "message", "observation": "echoed"}
    source = open_source(bind("echo", EnvConfig(kind="openenv", options=options)), split="train", seed=1)
    for index in range(3):
        task = source.task(index)
        seed = task.spec["reset"]["seed"]
        seen, result = played(task, "hello", "end")
        assert seen == [f"ready {seed}", f"hello {seed}"]
        assert result.reward == pytest.approx(0.5 + 0.3)
    whole = bind("echo", EnvConfig(kind="openenv", options=options | {"action": None}))
    seen, result = played(open_source(whole, split="train", seed=1).task(0), '{"text": "hi"}', '{"message": "end"}')
    assert seen[1].startswith("error:")
    assert result.reward == pytest.approx(0.3)
    with pytest.raises(EnvironmentFault, match="no such luck"):
        played(source.task(3), "fail")
    record_property("version", VERSION)
    record_property("passed", 5)
