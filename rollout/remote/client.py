"""Client of an OpenAI-compatible server, with deadlines, retries with backoff, limited concurrency and typed errors.

The key is only in a request header, never in a message.
"""

import asyncio
import json
from dataclasses import dataclass, field
from typing import Any

import httpx

from temper.envs.core.bounds import require_not_negative, require_positive
from temper.envs.core.errors import EnvError, EpisodeTimeout, PromptTooLong
from temper.envs.core.http_client import ALONE, JSON, next_pause_s, read_address, read_object


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatServer:
    """A server that answers POST `url`/chat/completions. Raises `ValueError` for invalid settings."""

    url: str
    """Base URL including the version, such as http://127.0.0.1:8000/v1."""
    key: str = field(default="", repr=False)
    """Bearer token. It is never logged, and never sent unencrypted to another machine."""
    concurrency: int = 16
    """Concurrent requests."""
    timeout_s: float = 600.0
    """Deadline of one request, in seconds."""
    retries: int = 4
    """Retries of a request after a connection error, status 429 or 5xx, or an invalid answer."""
    backoff_s: float = 0.5
    """Pause before the first retry, in seconds. It doubles each time, unless the server sets it."""
    max_bytes: int = 2**24
    """Largest reply, in bytes."""

    def __post_init__(self) -> None:
        read_address("url", self.url, has_key=bool(self.key))
        require_positive("concurrency", self.concurrency)
        require_positive("timeout_s", self.timeout_s)
        require_not_negative("retries", self.retries)

    def route(self, name: str) -> str:
        """Return the URL of a route."""
        return f"{self.url.rstrip('/')}/{name}"


REPEATED = (408, 429)
"""Statuses that are retried, besides 5xx."""
LONGEST_PAUSE_S = 60.0
TOO_LONG = ("context length", "context_length", "maximum context", "max_model_len", "prompt is too long")
"""Servers' error texts for a conversation without room for an answer."""


class ServerFault(EnvError):
    """The server can't be reached, fails, or returns an invalid answer."""

    kind = "engine"


class Refused(EnvError):
    """The server refuses the request."""

    kind = "refused"


class _Retryable(Exception):
    """An error that a retry may avoid. `pause_s` is the pause that the server asks for, if any."""

    def __init__(self, problem: str, pause_s: float | None = None) -> None:
        super().__init__(problem)
        self.pause_s = pause_s


class ChatClient:
    """Client of one server. Use it as an asynchronous context manager, in one event loop."""

    def __init__(self, server: ChatServer) -> None:
        self.server = server
        key = {"Authorization": f"Bearer {server.key}"} if server.key else {}
        self._client = httpx.AsyncClient(
            headers=JSON | key,
            timeout=server.timeout_s,
            limits=httpx.Limits(max_connections=server.concurrency),
            **ALONE,
        )

    async def __aenter__(self) -> "ChatClient":
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self._client.aclose()

    async def models(self) -> list[str]:
        """Return the names of the server's models. Raises as `complete`."""
        found = await self._ask("GET", "models", None)
        data = found.get("data")
        return [one["id"] for one in data if isinstance(one.get("id"), str)] if isinstance(data, list) else []

    async def complete(self, body: dict[str, Any]) -> dict[str, Any]:
        """Return the server's answer to a chat request.

        Raises `ServerFault`, `Refused`, `PromptTooLong`, or `EpisodeTimeout` without an answer in time.
        """
        return await self._ask("POST", "chat/completions", body)

    async def _ask(self, method: str, route: str, body: dict[str, Any] | None) -> dict[str, Any]:
        url, server = self.server.route(route), self.server
        for attempt in range(server.retries + 1):
            try:
                async with asyncio.timeout(server.timeout_s):
                    return _answer(f"{method} {url}", *await self._once(method, url, body))
            except (TimeoutError, httpx.ReadTimeout, httpx.WriteTimeout, httpx.PoolTimeout) as error:
                raise EpisodeTimeout(f"{method} {url}: no answer in {server.timeout_s:g} s (timeout_s)") from error
            except httpx.HTTPError as error:
                problem, pause = f"{type(error).__name__}: {error}", None
            except _Retryable as error:
                problem, pause = str(error), error.pause_s
            if attempt < server.retries:
                usual = next_pause_s(server.backoff_s, attempt + 1)
                await asyncio.sleep(min(LONGEST_PAUSE_S, max(usual, pause or 0.0)))
        raise ServerFault(f"{method} {url}: {problem} (attempts: {server.retries + 1})")

    async def _once(self, method: str, url: str, body: dict[str, Any] | None) -> tuple[httpx.Response, bytes]:
        content = None if body is None else json.dumps(body).encode()
        received = bytearray()
        async with self._client.stream(method, url, content=content) as reply:
            async for chunk in reply.aiter_bytes():
                received += chunk
                if len(received) > self.server.max_bytes:
                    raise ServerFault(f"{method} {url}: the reply is longer than {self.server.max_bytes} bytes")
        return reply, bytes(received)


def _answer(request: str, reply: httpx.Response, content: bytes) -> dict[str, Any]:
    """Return the object in a 2xx reply. Raise the error of any other reply."""
    status = reply.status_code
    if status in REPEATED or status >= 500:
        raise _Retryable(f"status {status}: {_show(content)}", _read_pause(reply))
    if 300 <= status < 400:
        raise ServerFault(f"{request}: status {status}: redirects are not followed; use the target URL")
    if not 200 <= status < 300:
        message = _show(content)
        if status in (400, 413, 422) and any(words in message.lower() for words in TOO_LONG):
            raise PromptTooLong(f"{request}: status {status}: {message}")
        raise Refused(f"{request}: status {status}: {message}")
    try:
        found = read_object(content)
    except ValueError as error:
        raise _Retryable(str(error)) from error
    if found.get("error"):
        raise _Retryable(f"the reply is an error: {_show(content)!r}")
    return found


def _read_pause(reply: httpx.Response) -> float | None:
    """Return the pause in seconds that the server asks for, or None."""
    try:
        return float(reply.headers.get("retry-after", ""))
    except ValueError:
        return None


def _show(content: bytes) -> str:
    return content[:300].decode("utf-8", "replace")
