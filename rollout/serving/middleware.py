"""The ASGI middleware before vLLM: it breaks the tags in what clients write, and puts thinking into the words of vLLM.

A conversation comes as messages, and the server writes the turns: the tags in all its texts are broken, as in rollouts. A
raw prompt is a whole conversation in one text, or in token ids. Its author writes the turns and thoughts too, so nothing in
it can be told apart. It is answered only if the operator of the server trusts its clients.
"""

import json
import secrets
from collections.abc import Awaitable, Callable, MutableMapping
from http import HTTPStatus
from typing import Any

from temper.rollout.budget.rule import RefusedRequest
from temper.rollout.escaping import Escaper
from temper.rollout.serving.request import ThinkingRules, rewrite_request

CHAT = "/v1/chat/completions"
CONVERSATIONS = (CHAT, f"{CHAT}/batch", "/v1/responses", "/v1/messages", "/v1/messages/count_tokens")
RAW_PROMPTS = ("/v1/completions",)
UNCHANGED = ("/tokenize", "/detokenize")
"""What asks the model nothing."""
EXACT = ("model", "stop", "stop_sequences", "bad_words", "response_format", "structured_outputs", "vllm_xargs")
"""What of a body never becomes part of a prompt, and means something else where it is altered."""
MESSAGES = ("messages", "input")
READS = ("GET", "HEAD", "OPTIONS")


def require_served(method: str, path: str, *, raw_prompts: bool) -> None:
    """Raise `RefusedRequest` for a raw prompt where those are not answered, and for a path that is none of the above.

    Among the latter are those by which vLLM is administered, some of which ask for no key.
    """
    if method in READS or path in CONVERSATIONS or path in UNCHANGED or (raw_prompts and path in RAW_PROMPTS):
        return
    if path in RAW_PROMPTS:
        raise RefusedRequest(
            f"raw prompts are not answered, since they could forge any turn: send messages to {CHAT}, or have the server "
            f"started with --raw-prompts",
            status=HTTPStatus.FORBIDDEN,
        )
    raise RefusedRequest(f"{method} {path} is not served", status=HTTPStatus.NOT_FOUND)


def read_conversation(content: bytes, escaper: Escaper) -> dict[str, Any] | None:
    """Return the body of a conversation with the tags in its texts broken; None for what is no JSON object, which vLLM refuses.

    Raises `RefusedRequest` for what can't be read or made harmless.
    """
    try:
        body = json.loads(content)
    except RecursionError as error:
        raise RefusedRequest("the body is nested too deeply") from error
    except ValueError:
        return None
    if not isinstance(body, dict):
        return None
    try:
        return {key: _escaped(key, value, escaper) for key, value in body.items()}
    except RecursionError as error:
        raise RefusedRequest("the body is nested too deeply") from error
    except ValueError as error:
        raise RefusedRequest(str(error)) from error


def _escaped(key: str, value: Any, escaper: Escaper) -> Any:
    if key in EXACT:
        return value
    return escaper.messages(value) if key in MESSAGES else escaper.data(value)


Message = MutableMapping[str, Any]
Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]
HEALTH = "/health"
"""The one route without a key, for probes."""
MOST_BYTES = 16 * 2**20
"""Longest body of a request: 16 MiB hold more than a million tokens."""


class ThinkingMiddleware:
    """Escapes the bodies of conversations, rewrites the bodies of chats by `rewrite_request`, and refuses requests itself.

    With a `key` every request but those for `HEALTH` must give it: vLLM asks for it on some of its routes only.
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
                    "give the server's key as the header `Authorization: Bearer KEY`", status=HTTPStatus.UNAUTHORIZED
                )
            require_served(scope["method"], scope["path"], raw_prompts=self._raw_prompts)
            if scope["method"] in READS:
                await self._app(scope, receive, send)
                return
            content = await _content(receive)
            if content is None:
                return
            if scope["path"] in CONVERSATIONS:
                content = self._prepared(content, scope["path"])
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

    def _prepared(self, content: bytes, path: str) -> bytes:
        """Return the body that vLLM gets."""
        body = read_conversation(content, self._escaper)
        if body is None:
            return content
        return json.dumps(rewrite_request(body, self._rules) if path == CHAT else body).encode("ascii")


async def _content(receive: Receive) -> bytes | None:
    """Return the whole body of a request, or None if the client is gone. Raise `RefusedRequest` for one above `MOST_BYTES`."""
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
    """Return the request's headers for a body of this many bytes."""
    kept = [(name, value) for name, value in scope["headers"] if name not in (b"content-length", b"transfer-encoding")]
    return [*kept, (b"content-length", str(length).encode("ascii"))]


async def _refuse(send: Send, refused: RefusedRequest) -> None:
    """Return a status with an error object as vLLM gives it."""
    about = {
        "message": str(refused),
        "type": f"{refused.status.phrase.title().replace(' ', '')}Error",
        "param": refused.parameter,
        "code": refused.status,
    }
    content = json.dumps({"error": about}).encode("ascii")
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(content)).encode("ascii"))]
    await send({"type": "http.response.start", "status": int(refused.status), "headers": headers})
    await send({"type": "http.response.body", "body": content})
