"""Where an OpenAI-compatible server is, and how patient we are with it."""

from dataclasses import dataclass, field

import httpx

from temper.envs.core.bounds import not_negative, positive
from temper.envs.remote.client import is_loopback


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatServer:
    """A server that answers POST `url`/chat/completions. Raises `ValueError` for what can't be one."""

    url: str
    """Up to and with its version, such as http://127.0.0.1:8000/v1."""
    key: str = field(default="", repr=False)
    """What it asks for as a bearer token; never written, shown or sent in clear to another machine."""
    concurrency: int = 16
    """Requests under way at once."""
    timeout_s: float = 600.0
    """Deadline of one request, in seconds."""
    retries: int = 4
    """Repetitions of a request that did not reach the server, was turned away (429) or met a fault of it (5xx, no answer)."""
    backoff_s: float = 0.5
    """Pause before the first repetition, in seconds; each further one is twice as long, or what the server asks for."""
    max_bytes: int = 2**24
    """Largest reply, in bytes."""

    def __post_init__(self) -> None:
        try:
            url = httpx.URL(self.url)
        except httpx.InvalidURL as error:
            raise ValueError(f"url={self.url!r}: {error}") from error
        if url.scheme not in ("http", "https") or not url.host or url.userinfo or url.query or url.fragment:
            raise ValueError(f"url={self.url!r} must be like http://127.0.0.1:8000/v1, without user or query")
        if self.key and url.scheme == "http" and not is_loopback(url.host):
            raise ValueError(
                f"url={self.url!r} would send the key of the server in clear to another machine; take https://, or leave the "
                f"key empty"
            )
        positive("concurrency", self.concurrency)
        positive("timeout_s", self.timeout_s)
        not_negative("retries", self.retries)

    def route(self, name: str) -> str:
        """Return the address of one of its routes."""
        return f"{self.url.rstrip('/')}/{name}"
