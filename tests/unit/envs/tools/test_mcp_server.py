"""Tools of a real MCP server: schemas, results, the model's mistakes, time-outs and a server that ends."""

import sys
from pathlib import Path
from typing import Any

import psutil
import pytest

from temper.envs.binding import bind
from temper.envs.config import EnvConfig
from temper.envs.core.errors import EnvironmentFault
from temper.envs.core.turn_text import Call, parse_turn
from temper.envs.env_episode import EnvEpisode
from temper.envs.source import open_source
from temper.envs.tools.mcp_server import McpServer
from temper.envs.tools.shared_tools import shared_tools
from temper.envs.tools.text_tool import answer_call

SHOP = f"mcp:{sys.executable} {Path(__file__).parents[3] / 'support' / 'mcp_shop.py'}"


def answer(name: str, *, timeout_s: float = 10.0, **arguments: Any) -> str:
    return answer_call(Call(name=name, arguments=arguments), shared_tools([SHOP], timeout_s=timeout_s))


def test_a_task_declares_the_tools_of_the_server() -> None:
    task = open_source(bind("math", EnvConfig(tools=[SHOP])), split="train", seed=1).task(0)
    declared = {tool["function"]["name"]: tool["function"] for tool in task.tools}
    assert sorted(declared) == ["crash", "price", "sell", "wait"]
    assert declared["price"]["description"] == "Price of items."
    assert declared["price"]["parameters"]["required"] == ["item"]


def test_a_call_gives_the_text_of_the_result() -> None:
    assert answer("price", item="tea", count=2) == "6"


@pytest.mark.parametrize("arguments", [{}, {"item": "tea", "count": "many"}, {"item": "milk"}])
def test_mistakes_of_the_model_are_results(arguments: dict[str, Any]) -> None:
    assert answer("price", **arguments).startswith("error:")


def test_the_errors_of_tools_are_logged_not_printed(
    capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    server = McpServer(SHOP.removeprefix("mcp:"))
    for _ in range(2):
        with pytest.raises(ValueError, match="price"):
            server.call("price", {"item": "milk"}, timeout_s=10.0)
    server.close()
    assert "price" in caplog.text
    assert capfd.readouterr().err == ""


def test_what_a_server_wrote_before_it_ended_is_in_the_message() -> None:
    with pytest.raises(ValueError, match="ModuleNotFoundError"):
        McpServer(f"{sys.executable} -c 'import no_such_module'")


def test_a_slow_call_is_an_error_in_time_and_the_next_one_works() -> None:
    assert answer("wait", seconds=2.0, timeout_s=0.2).startswith("error:")
    assert answer("price", item="tea") == "3"


def test_a_server_that_ends_is_a_fault_and_starts_again() -> None:
    with pytest.raises(EnvironmentFault):
        answer("crash")
    assert answer("price", item="tea") == "3"


def test_each_episode_has_its_own_session_if_asked() -> None:
    env = bind("math", EnvConfig(tools=[SHOP.replace("mcp:", "mcp-per-episode:")], max_turns=4))
    task = open_source(env, split="train", seed=1).task(0)
    before, episodes = len(psutil.Process().children()), [EnvEpisode(task) for _ in range(2)]
    results = []
    for episode in episodes:
        episode.begin()
        for _ in range(2):
            turn = parse_turn('<tool_call>{"name": "sell", "arguments": {"item": "tea"}}</tool_call>', thinks=False)
            results += [message["content"] for message in episode.step(turn).messages]
        episode.close()
    assert results == ["1", "2", "1", "2"]
    assert len(psutil.Process().children()) == before


@pytest.mark.parametrize(
    "place", ["mcp:/no/such/program", f"mcp:{sys.executable} -c pass", "mcp:http://127.0.0.1:9/mcp"]
)
def test_a_server_that_does_not_start_is_a_users_mistake(place: str) -> None:
    with pytest.raises(ValueError, match=r"envs\.math"):
        bind("math", EnvConfig(tools=[place]))
