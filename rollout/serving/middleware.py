"""ASGI middleware before vLLM: it escapes client text, and translates thinking options.

The server writes the turns of a conversation, so all client texts are escaped as in rollouts. A raw prompt, as text or
token ids, holds the turns itself and can't be escaped. It is answered only if the operator trusts the clients.
"""

import asyncio
import json
import secrets
from collections.abc import Awaitable, Callable, MutableMapping
from http import HTTPStatus
from typing import Any

from temper.rollout.budget.rule import RefusedRequest
from temper.rollout.escaping import Escaper
from temper.rollout.serving.request import ThinkingRules, rewrite_request

CHAT = "/v1/chat/completions"
RESPONSES = "/v1/responses"
CONVERSATIONS = (CHAT, f"{CHAT}/batch", RESPONSES, "/v1/messages", "/v1/messages/count_tokens")
RAW_PROMPTS = ("/v1/completions",)
UNCHANGED = ("/tokenize", "/detokenize")
"""Routes that do not run the model."""
EXACT = ("model", "stop", "stop_sequences", "bad_words", "response_format", "structured_outputs", "vllm_xargs")
"""Keys of a body that never become a part of a prompt, and must not change."""
MESSAGES = ("messages", "input")
READS = ("GET", "HEAD", "OPTIONS")
Check = Callable[[dict[str, Any]], None]


def require_served(method: str, path: str, *, raw_prompts: bool) -> None:
    """Raise `RefusedRequest` for untrusted raw prompts, and for unknown paths.

    Unknown paths include vLLM's administration, of which some need no key.
    """
    if method in READS or path in CONVERSATIONS or path in UNCHANGED or (raw_prompts and path in RAW_PROMPTS):
        return
    if path in RAW_PROMPTS:
        raise RefusedRequest(
            f"raw prompts could forge any turn and are refused; send messages to {CHAT}, or start the server "
            f"with --raw-prompts",
            status=HTTPStatus.FORBIDDEN,
        )
    raise RefusedRequest(f"{method} {path} is not served", status=HTTPStatus.NOT_FOUND)


def read_conversation(content: bytes, escaper: Escaper, check: Check) -> dict[str, Any] | None:
    """Return an escaped conversation. None if it is no JSON object, which vLLM refuses.

    Raises `RefusedRequest` if it can't be parsed or escaped, or if `check` refuses it before it is escaped.
    """
    try:
        body = json.loads(content)
    except RecursionError as error:
        raise RefusedRequest("the body is nested too deeply") from error
    except ValueError:
        return None
    if not isinstance(body, dict):
        return None
    check(body)
    try:
        return {key: _escape(key, value, escaper) for key, value in body.items()}
    except RecursionError as error:
        raise RefusedRequest("the body is nested too deeply") from error
    except ValueError as error:
        raise RefusedRequest(str(error)) from error


def _escape(key: str, value: Any, escaper: Escaper) -> Any:
    if key in EXACT:
        return value
    return escaper.messages(value) if key in MESSAGES else escaper.data(value)


Message = MutableMapping[str, Any]
Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]
HEALTH = "/health"
"""The only route without a key, for probes."""
MOST_BYTES = 16 * 2**20
"""Longest body of a request: 16 MiB hold more than a million tokens."""


class ThinkingMiddleware:
    """Escapes conversations, applies `rewrite_request` to chats, and refuses requests.

    With a `key` every request except `HEALTH` needs it: vLLM checks it on some routes only.
    """

    def __init__(
        self, app: App, rules: ThinkingRules, escaper: Escaper, *, raw_prompts: bool, key: str | None = None
    ) -> None:
        self._app = app
        self._rules = rules
        self._escaper = escaper
        self._raw_prompts = raw_prompts
        self._key = None if key is None else key.encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "websocket" and not self._has_key(scope):
            await send({"type": "websocket.close", "code": 1008})
            return
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        try:
            if scope["path"] != HEALTH and not self._has_key(scope):
                raise RefusedRequest(
                    "the key is missing or wrong; send the header `Authorization: Bearer KEY`",
                    status=HTTPStatus.UNAUTHORIZED,
                )
            require_served(scope["method"], scope["path"], raw_prompts=self._raw_prompts)
            if scope["method"] in READS:
                await self._app(scope, receive, send)
                return
            content = await _content(receive)
            if content is None:
                return
            if scope["path"] in CONVERSATIONS:
                body = await asyncio.to_thread(read_conversation, content, self._escaper, self._check)
                content = content if body is None else to_json_bytes(self._prepare(body, scope["path"]))
        except RefusedRequest as error:
            await _refuse(send, error)
            return
        parts: list[Message] = [{"type": "http.request", "body": content, "more_body": False}]

        async def receive_prepared() -> Message:
            return parts.pop() if parts else await receive()

        await self._app({**scope, "headers": _headers(scope, len(content))}, receive_prepared, send)

    def _has_key(self, scope: Scope) -> bool:
        if self._key is None:
            return True
        scheme, _, given = dict(scope["headers"]).get(b"authorization", b"").partition(b" ")
        return scheme.lower() == b"bearer" and secrets.compare_digest(given, self._key)

    def _check(self, body: dict[str, Any]) -> None:
        """Raise `RefusedRequest` for a conversation that is not worth escaping. A thread calls it."""

    def _prepare(self, body: dict[str, Any], path: str) -> dict[str, Any]:
        """Return the body for vLLM."""
        return rewrite_request(body, self._rules) if path == CHAT else body


def to_json_bytes(body: dict[str, Any]) -> bytes:
    return json.dumps(body).encode("ascii")


async def _content(receive: Receive) -> bytes | None:
    """Return the whole body of a request, or None if the client is gone. Raise `RefusedRequest` above `MOST_BYTES`."""
    content = bytearray()
    while True:
        message = await receive()
        if message["type"] != "http.request":
            return None
        content += message.get("body", b"")
        if len(content) > MOST_BYTES:
            raise RefusedRequest(
                f"the body is longer than {MOST_BYTES} bytes; send less", status=HTTPStatus.REQUEST_ENTITY_TOO_LARGE
            )
        if not message.get("more_body", False):
            return bytes(content)


def _headers(scope: Scope, length: int) -> list[tuple[bytes, bytes]]:
    """Return the request's headers for a body of this length."""
    kept = [(name, value) for name, value in scope["headers"] if name not in (b"content-length", b"transfer-encoding")]
    return [*kept, (b"content-length", str(length).encode("ascii"))]


async def _refuse(send: Send, refused: RefusedRequest) -> None:
    """Return a status with an error object in vLLM's form."""
    about = {
        "message": str(refused),
        "type": f"{refused.status.phrase.title().replace(' ', '')}Error",
        "param": refused.parameter,
        "code": refused.status,
    }
    content = to_json_bytes({"error": about})
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(content)).encode("ascii"))]
    await send({"type": "http.response.start", "status": int(refused.status), "headers": headers})
    await send({"type": "http.response.body", "body": content})
