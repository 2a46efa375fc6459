"""A local OpenAI-compatible server with scripted answers and scripted failures."""

import asyncio
import json
import threading
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from support.bound import bound

from temper.envs.core.task import Task
from temper.rollout.config import EpisodeLimits
from temper.rollout.remote.client import ChatClient, ChatServer
from temper.rollout.remote.episodes import RemoteEpisodes
from temper.rollout.sampling import PLAIN
from temper.rollout.trajectory import Group, Ticket, WeightVersion

Body = dict[str, Any]
Say = Callable[[Body], dict[str, Any]]
HANG_S = 3.0
KEY = "a-key-that-nobody-writes"
MATH = bound(Task(key="1", messages=({"role": "user", "content": "2+2=?"},), spec={"answer": "4"}), "math")
CALL = {"id": "x1", "type": "function", "function": {"name": "get", "arguments": '{"key": "a"}'}}


def told(content: str | None, *, reason: str = "stop", **message: Any) -> dict[str, Any]:
    """A choice with this message."""
    return {"index": 0, "finish_reason": reason, "message": {"role": "assistant", "content": content, **message}}


class ChatServerDouble(ThreadingHTTPServer):
    """`say` returns the choice for a request. `faults` lists the failures of the next requests in order."""

    daemon_threads = True

    def __init__(self, say: Say, *, faults: list[str] | None = None, key: str = "", seconds: float = 0.0) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.say, self.faults, self.key, self.seconds = say, list(faults or ()), key, seconds
        self.bodies: list[Body] = []
        self.busy = self.busiest = 0
        self.lock = threading.Lock()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}/v1"

    def __enter__(self) -> "ChatServerDouble":
        threading.Thread(target=self.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
        return self

    def __exit__(self, *exc: object) -> None:
        self.shutdown()
        self.server_close()


class _Handler(BaseHTTPRequestHandler):
    server: ChatServerDouble

    def do_GET(self) -> None:
        if self.path != "/v1/models":
            self._answer(404, {"error": {"message": "not found"}})
            return
        self._answer(200, {"object": "list", "data": [{"id": "tiny", "object": "model"}]})

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        server = self.server
        with server.lock:
            server.bodies.append(body)
            server.busy += 1
            server.busiest = max(server.busiest, server.busy)
            fault = server.faults.pop(0) if server.faults else ""
        try:
            time.sleep(HANG_S if fault == "hang" else server.seconds)
        finally:
            with server.lock:  # before the answer: whoever has it may ask the next
                server.busy -= 1
        self._respond(body, fault)

    def _respond(self, body: Body, fault: str) -> None:
        if self.server.key and self.headers.get("Authorization") != f"Bearer {self.server.key}":
            self._answer(401, {"error": {"message": "no such key"}})
        elif fault == "too long":
            message = "This model's maximum context length is 64 tokens."
            self._answer(400, {"error": {"message": message, "code": 400}})
        elif fault.isdigit():
            self._answer(int(fault), {"error": {"message": "as told"}})
        elif fault == "rubbish":
            self._answer(200, {"choices": [{"message": "hello"}]})
        elif fault == "broken off":
            self._send(200, b'{"choices": [{"mess')
        elif fault == "overloaded":
            self._answer(200, {"error": {"message": "overloaded"}})
        else:
            usage = {"completion_tokens": 9, "completion_tokens_details": {"reasoning_tokens": 4}}
            self._answer(200, {"choices": [self.server.say(body)], "usage": usage})

    def _answer(self, status: int, data: Any) -> None:
        self._send(status, json.dumps(data).encode())

    def _send(self, status: int, content: bytes) -> None:
        try:
            self.send_response(status)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)
        except OSError:  # whoever asked has gone
            pass

    def log_message(self, format: str, *args: Any) -> None:
        return


def asked(server: ChatServerDouble, task: Task, *, samples: int = 1, **settings: Any) -> Group:
    """A server's group of answers to a task."""
    known = {"concurrency", "timeout_s", "retries", "key"} & settings.keys()
    given = {"backoff_s": 0.01, "timeout_s": 20.0} | {name: settings.pop(name) for name in known}

    async def run() -> Group:
        async with ChatClient(ChatServer(url=server.url, **given)) as client:
            sampling = settings.pop("sampling", PLAIN)
            episodes = RemoteEpisodes(
                client,
                "tiny",
                limits=EpisodeLimits(**settings.pop("limits", {})),
                seed=1,
                retries=settings.pop("again", 0),
            )
            ticket = Ticket(number=1, task=task, admitted=WeightVersion(step=0), sampling=sampling)
            return await episodes.run_group(ticket, samples)

    return asyncio.run(run())
