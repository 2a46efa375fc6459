"""Resources servers of NeMo-Gym: a local server that behaves well, badly, or not at all."""

import json
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from support.bound import bound, made, opened

from temper.envs.catalog import configure_env
from temper.envs.core.errors import FailureKind
from temper.envs.core.http_client import Server
from temper.envs.core.task import Task
from temper.envs.transcript import score_turns
from temper.rewards.score import Outcome

TOOL = {
    "type": "function",
    "name": "add",
    "parameters": {"type": "object", "properties": {"count": {"type": "integer"}}},
}
ROW = {"responses_create_params": {"input": [{"role": "user", "content": "Add 5 to it."}], "tools": [TOOL]}}
COUNTER = ROW | {"initial_count": 3, "expected_count": 8}
SAY_ADD = '</think>I add.<tool_call>{"name": "add", "arguments": {"count": 5}}</tool_call>'
SHORT_S, HANG_S = 1.0, 3.0


class CounterServer(ThreadingHTTPServer):
    """A counter for each session. `faults[route]` lists the failures of its next requests."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), CounterHandler)
        self.counts: dict[str, int] = {}
        self.faults: dict[str, list[str]] = {}
        self.asked: Counter[str] = Counter()
        self.keys: set[tuple[str | None, str | None]] = set()
        self.bodies: list[tuple[str, dict[str, Any]]] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


class CounterHandler(BaseHTTPRequestHandler):
    server: CounterServer

    def do_POST(self) -> None:
        route = self.path.removeprefix("/")
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.asked[route] += 1
        self.server.keys.add((self.headers.get("Authorization"), self.headers.get("X-Key")))
        self.server.bodies.append((route, body))
        faults = self.server.faults.get(route, [])
        fault = (faults.pop(0) if len(faults) > 1 else faults[0]) if faults else ""
        if fault.isdigit():
            self.answer(int(fault), b'{"error": "as told"}')
        elif fault == "hang":
            time.sleep(HANG_S)
        elif fault == "drip":
            self.drip()
        elif fault == "redirect":
            self.answer(307, b"", location="http://example.com/")
        elif fault:
            self.answer(200, fault.encode())
        else:
            self.serve(route, body)

    def drip(self) -> None:
        self.send_response(200)
        self.end_headers()
        for _ in range(int(HANG_S / 0.1)):
            self.wfile.write(b" ")
            self.wfile.flush()
            time.sleep(0.1)

    def serve(self, route: str, body: dict[str, Any]) -> None:
        session = self.headers.get("Cookie", "")
        counts = self.server.counts
        if route == "seed_session":
            session = f"session={len(counts)}-{threading.get_ident()}"
            counts[session] = body["initial_count"]
            self.answer(200, b"{}", cookie=session)
        elif session not in counts:
            self.answer(403, b"no session")
        elif route == "add" and not isinstance(body.get("count"), int):
            self.answer(422, b'{"detail": "count must be a number"}')
        elif route == "add":
            counts[session] += body["count"]
            self.answer(200, json.dumps({"success": True}).encode())
        elif route == "verify":
            self.answer(200, json.dumps({"reward": float(counts[session] == body["expected_count"])}).encode())
        else:
            self.answer(404, b"no such tool")

    def answer(self, status: int, body: bytes, *, cookie: str = "", location: str = "") -> None:
        self.send_response(status)
        if cookie:
            self.send_header("Set-Cookie", f"{cookie}; path=/; httponly")
        if location:
            self.send_header("Location", location)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        pass


@pytest.fixture
def server() -> Iterator[CounterServer]:
    with CounterServer() as serving:
        thread = threading.Thread(target=serving.serve_forever, args=(0.01,))
        thread.start()
        yield serving
        serving.shutdown()
        thread.join()


def task_of(server: CounterServer, *, row: dict[str, Any] = COUNTER, timeout_s: float = 20.0) -> Task:
    options = {"url": server.url, "timeout_s": timeout_s, "backoff_s": 0.01, "retries": 2, "max_bytes": 4096}
    server_env = configure_env("nemo_gym", options)
    (rows,) = server_env.formats
    assert rows.matches(row)
    return bound(rows.load(row), server_env)


def fault_of(task: Task, *turns: str) -> str:
    """Return the message of the typed failure, which comes without a reward."""
    scored = score_turns(task, [*turns])
    assert scored.reward is None
    assert scored.failure is not None
    message = scored.failure.message
    assert (scored.failure.kind, message.split(":")[0]) == (FailureKind.ENVIRONMENT, "EnvironmentFault")
    return message


def test_a_session_is_seeded_played_and_verified(server: CounterServer) -> None:
    task = task_of(server)
    assert task.messages == ({"role": "user", "content": "Add 5 to it."},)
    assert task.tools[0]["function"]["name"] == "add"
    env = opened(task)
    *_, info = env.step(SAY_ADD)
    assert info["messages"] == [{"role": "tool", "content": '{"success": true}'}]
    _, reward, terminated, truncated, info = env.step("</think>It is 8.")
    assert (reward, terminated, truncated, info["outcome"]) == (1.0, True, False, "ok")
    assert info["parts"] == {"correct": 1.0, "format": 1.0, "tool_errors": 0.0}
    assert dict(server.asked) == {"seed_session": 1, "add": 1, "verify": 1}
    assert server.bodies[0] == ("seed_session", COUNTER)
    route, verified = server.bodies[-1]
    items = verified["response"]["output"]
    assert route == "verify"
    assert {name: verified[name] for name in COUNTER} == COUNTER
    assert [item["type"] for item in items] == ["message", "function_call", "function_call_output", "message"]
    assert items[1]["call_id"] == items[2]["call_id"]
    assert json.loads(items[1]["arguments"]) == {"count": 5}
    assert items[3]["content"][0]["text"] == "It is 8."


def test_the_response_is_one_that_openais_own_types_take(server: CounterServer) -> None:
    responses = pytest.importorskip("openai.types.responses", reason="openai is not installed")
    score_turns(task_of(server), ["</think>It is 3."])
    sent = server.bodies[-1][1]["response"]
    assert responses.Response.model_validate(sent).output_text == "It is 3."


def test_sessions_of_concurrent_episodes_do_not_mix(server: CounterServer) -> None:
    def play(count: int) -> float | None:
        task = task_of(server, row=ROW | {"initial_count": count, "expected_count": count + 5})
        return score_turns(task, [SAY_ADD, "</think>done"]).reward

    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(play, range(40))) == [1.0] * 40


@pytest.mark.parametrize("turn", ["seed_session", "add", "verify"])
def test_a_server_that_turns_requests_away_is_asked_again(server: CounterServer, turn: str) -> None:
    server.faults[turn] = ["503", "429", ""]
    assert score_turns(task_of(server), [SAY_ADD, "</think>done"]).reward == 1.0
    assert server.asked[turn] == 3


@pytest.mark.parametrize("fault", ["503", "hang", "drip", "502"])
def test_what_may_be_repeated_is_repeated_and_then_a_fault(server: CounterServer, fault: str) -> None:
    server.faults["verify"] = [fault]
    assert "attempts: 3" in fault_of(task_of(server, timeout_s=SHORT_S), "</think>done")
    assert server.asked["verify"] == 3


@pytest.mark.parametrize("fault", ["hang", "502"])
def test_a_tool_call_of_unknown_fate_is_not_repeated(server: CounterServer, fault: str) -> None:
    server.faults["add"] = [fault]
    assert "attempts: 1" in fault_of(task_of(server, timeout_s=SHORT_S), SAY_ADD)
    assert server.asked["add"] == 1


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ("<html>", "not JSON"),
        ("[" * 3000, "not JSON"),
        ("[1]", "no object"),
        ("{}", "reward is None"),
        ('{"reward": NaN}', "reward is nan"),
        ('{"reward": 1e999}', "reward is inf"),
        ('{"reward": "1"}', "finite number"),
        ('{"reward": true}', "finite number"),
        ('{"reward": 1, "x": "' + "y" * 5000 + '"}', "longer than 4096 bytes"),
        ('{"reward": 0, "_ng_failure_class": "judge_failed"}', "judge_failed"),
        ("redirect", "not followed"),
        ("404", "status 404"),
        ("500", "status 500"),
    ],
)
def test_a_verdict_that_is_none_is_a_fault_and_no_reward(server: CounterServer, fault: str, message: str) -> None:
    server.faults["verify"] = [fault]
    assert message in fault_of(task_of(server), "</think>done")


def test_a_server_that_is_not_there_is_a_fault(server: CounterServer) -> None:
    task = task_of(server)
    server.server_close()
    start = time.monotonic()
    assert "no connection" in fault_of(task, "</think>done")
    assert time.monotonic() - start < 5


def test_mistakes_of_the_model_are_told_to_the_model(server: CounterServer) -> None:
    env = opened(task_of(server))
    for call, told in (
        ('{"name": "add", "arguments": {"count": "x"}}', '{"detail": "count must be a number"}'),
        ('{"name": "verify", "arguments": {}}', "error: unknown tool; there are add"),
        ('{"name": "../seed_session", "arguments": {}}', "error: unknown tool; there are add"),
        ("{broken", "error: tool call is not JSON"),
    ):
        *_, info = env.step(f"</think><tool_call>{call}</tool_call>")
        assert info["messages"] == [{"role": "tool", "content": told}]
    assert dict(server.asked) == {"seed_session": 1, "add": 1}
    _, reward, *_, info = env.step("</think>\ud800")
    assert (reward, info["parts"]["tool_errors"], info["parts"]["format"]) == (0.0, 1.0, 0.0)


def test_a_failing_tool_is_reported_and_its_output_cut(server: CounterServer) -> None:
    server.faults["add"] = ["500", "x" * 100_000]
    env = opened(task_of(server))
    assert env.step(SAY_ADD)[0] == '{"error": "as told"}'
    assert env.step(SAY_ADD)[0] == "x" * 4096
    *_, info = env.step("</think>" + SAY_ADD.removeprefix("</think>") * 20)
    assert [message["content"].startswith("error:") for message in info["messages"]] == [False] * 16 + [True] * 4
    assert server.asked["add"] == 18


def test_the_last_turn_is_verified_though_it_calls_a_tool(server: CounterServer) -> None:
    judged = score_turns(task_of(server), [SAY_ADD])
    assert (judged.reward, judged.score.outcome) == (1.0, Outcome.TRUNCATED)


@pytest.mark.parametrize(
    ("options", "sent"), [({}, ("Bearer secret", None)), ({"key_header": "X-Key"}, (None, "secret"))]
)
def test_a_key_from_the_environment_goes_with_every_request(
    server: CounterServer, options: dict[str, str], sent: tuple[str | None, str | None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TEMPER_TEST_KEY", "secret\n")
    server_env = configure_env("nemo_gym", {"url": server.url, "key_variable": "TEMPER_TEST_KEY"} | options)
    task = bound(server_env.formats[0].load(COUNTER), server_env)
    assert "secret" not in repr(task)
    env = opened(task)
    env.step(SAY_ADD)
    env.close()
    assert server.asked.total() == 2
    assert server.keys == {sent}


def test_listed_hosts_and_this_machine_are_asked() -> None:
    assert Server(url="https://gym.example.com/env", hosts=("gym.example.com",)).retries == 3
    for own in ("http://localhost:1", "http://127.0.0.9", "http://[::1]:80"):
        assert Server(url=own).url == own


@pytest.mark.parametrize(
    ("params", "error"),
    [
        ({"input": []}, "responses_create_params.input"),
        ({"input": [{"role": "user", "content": [{"type": "input_image"}]}]}, "input_image"),
        ({"input": [{"type": "web_search_call"}]}, "web_search_call"),
        ({"input": "x", "tools": [{"type": "mcp"}]}, "mcp"),
        ({"input": "x", "tools": [{"type": "function", "name": "verify"}]}, "'verify'"),
        ({"input": "x", "tools": [{"type": "function", "name": "../x"}]}, "'../x'"),
    ],
)
def test_a_row_that_can_not_be_played_is_refused(params: dict[str, Any], error: str) -> None:
    (rows,) = configure_env("nemo_gym", {"url": "http://localhost"}).formats
    with pytest.raises(ValueError, match=error):
        rows.load({"responses_create_params": params})


def test_prompts_of_several_kinds_of_items_are_read() -> None:
    (rows,) = configure_env("nemo_gym", {"url": "http://localhost"}).formats
    said = [
        {"role": "developer", "content": "Be brief."},
        {"role": "user", "content": [{"type": "input_text", "text": "Hi"}]},
        {"type": "function_call", "call_id": "1", "name": "add", "arguments": '{"count": 1}'},
        {"type": "function_call_output", "call_id": "1", "output": "ok"},
    ]
    task = rows.load({"responses_create_params": {"instructions": "Policy.", "input": said}})
    assert [message["role"] for message in task.messages] == ["system", "system", "user", "assistant", "tool"]
    assert task.messages[3]["tool_calls"][0]["function"] == {"name": "add", "arguments": {"count": 1}}


def test_a_server_has_no_tasks_of_its_own() -> None:
    with pytest.raises(ValueError, match=r"options\['task'\]"):
        made("nemo_gym").reset()
