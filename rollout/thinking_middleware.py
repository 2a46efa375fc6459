"""The ASGI middleware that puts what chat requests say about thinking into the words of vLLM, or answers 400."""

import json
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from rollout.thinking_request import ThinkingRequestError, ThinkingRules, rewritten_json

PATH = "/v1/chat/completions"
Message = MutableMapping[str, Any]
Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]


class ThinkingMiddleware:
    """Rewrites the bodies of chat requests by `rewritten`; everything else goes through as it is."""

    def __init__(self, app: App, rules: ThinkingRules) -> None:
        self._app = app
        self._rules = rules

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] != "POST" or scope["path"] != PATH:
            await self._app(scope, receive, send)
            return
        content = await _content(receive)
        if content is None:
            return
        try:
            content = rewritten_json(content, self._rules)
        except ThinkingRequestError as error:
            await _refuse(send, error)
            return
        parts: list[Message] = [{"type": "http.request", "body": content, "more_body": False}]

        async def receive_rewritten() -> Message:
            return parts.pop() if parts else await receive()

        await self._app({**scope, "headers": _headers(scope, len(content))}, receive_rewritten, send)


async def _content(receive: Receive) -> bytes | None:
    """The whole body of a request; None where the client is gone."""
    content = bytearray()
    while True:
        message = await receive()
        if message["type"] != "http.request":
            return None
        content += message.get("body", b"")
        if not message.get("more_body", False):
            return bytes(content)


def _headers(scope: Scope, length: int) -> list[tuple[bytes, bytes]]:
    """The request's headers for a body of this many bytes."""
    kept = [(name, value) for name, value in scope["headers"] if name not in (b"content-length", b"transfer-encoding")]
    return [*kept, (b"content-length", str(length).encode("ascii"))]


async def _refuse(send: Send, error: ThinkingRequestError) -> None:
    """Status 400 with an error object as vLLM gives it."""
    about = {"message": str(error), "type": "BadRequestError", "param": error.parameter, "code": 400}
    content = json.dumps({"error": about}).encode("ascii")
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(content)).encode("ascii"))]
    await send({"type": "http.response.start", "status": 400, "headers": headers})
    await send({"type": "http.response.body", "body": content})
