"""Requests to a server: its address, deadlines, retries with backoff, typed faults.

`Session` is the client of environments and judges. `rollout/remote/client.py`, which asks for many answers at once, shares
its checks of addresses and replies, and its pauses.

Requests that never reached the server (connection refused), or that it turned away (429, 503), are retried with growing,
jittered pauses. A request with an unknown result (time-out, broken connection, 5xx) is retried only on an idempotent route:
`seed_session`, `verify` and chat completions, never on a tool call.

Redirects are not followed, and the machine's proxy settings and credentials are not used, so that a request goes only to the
server of the options. Compression is not requested. Cookies last for a session.
"""

import functools
import ipaddress
import json
import math
import os
import random
import ssl
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from temper.envs.core.bounds import SettingError, require_int
from temper.envs.core.clock import stop_clock
from temper.envs.core.errors import EnvironmentFault
from temper.envs.core.judge_config import RUN_KEY

if TYPE_CHECKING:
    import httpx

TURNED_AWAY = (429, 503)
NOT_REACHED = (429, 502, 503, 504)
REFUSED = (400, 422)
IDLE_S = 2.0
"""Seconds after which idle connections are dropped, before servers close them, mostly after 5."""
MAX_RESULT_CHARACTERS = 16_384
"""Characters of a reply that the model sees."""
JSON = {"Content-Type": "application/json", "Accept": "application/json"}
"""Headers of a request."""
ALONE: dict[str, Any] = {"follow_redirects": False, "trust_env": False}
"""Options of a client that follows no redirects, and uses no proxy settings or credentials of this machine."""
SHOWN = 200
"""Characters of a reply that an error shows."""


class RequestRefused(EnvironmentFault):
    """The server finds a part of the request wrong."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Server:
    """The address and limits of an environment server."""

    url: str
    hosts: tuple[str, ...] = ()
    """Allowed hosts besides this machine."""
    timeout_s: float = 30.0
    """Deadline of one request, in seconds."""
    retries: int = 3
    """Retries of a retryable request."""
    backoff_s: float = 0.5
    """Pause before the first retry, in seconds. Each further one doubles."""
    max_bytes: int = 2**20
    """Largest reply, in bytes."""
    key_variable: str = ""
    """Environment variable on every worker with the value that each request carries. Empty for none."""
    key_header: str = "Authorization"
    """Header of that value. In `Authorization` it follows `Bearer`."""

    def __post_init__(self) -> None:
        # The key of a run's own judge opens nothing else, and ends with the run.
        url = read_address("options.url", self.url, has_key=self.key_variable not in ("", RUN_KEY))
        if url.host not in self.hosts and not is_loopback(url.host):
            raise ValueError(f"options.url: {url.host!r} is not this machine; add it to options.hosts to allow it")
        if not isinstance(self.key_variable, str) or not isinstance(self.key_header, str):
            raise ValueError("options.key_variable and options.key_header must be names")
        if self.key_variable and not os.environ.get(self.key_variable, "").strip():
            raise ValueError(f"options.key_variable: {self.key_variable} is not set; export it before the run starts")
        require_int("options.retries", self.retries)
        require_int("options.max_bytes", self.max_bytes)
        for name, seconds in (("timeout_s", self.timeout_s), ("backoff_s", self.backoff_s)):
            if not isinstance(seconds, int | float) or not 0 < seconds < float("inf"):
                raise ValueError(f"options.{name} is {seconds!r}; set seconds above 0")

    @property
    def address(self) -> tuple[str, int]:
        """The host and the port of the URL."""
        url = read_address("options.url", self.url)
        return url.host, url.port or (443 if url.scheme == "https" else 80)

    @classmethod
    def from_options(cls, options: Mapping[str, Any]) -> "Server":
        """Return the server of plain settings. Raise `ValueError` for a wrong or a missing one."""
        if "url" not in options:
            raise ValueError("options.url is missing; set the server's address, for example http://127.0.0.1:8000")
        hosts = options.get("hosts", [])
        if not isinstance(hosts, list) or not all(isinstance(host, str) for host in hosts):
            raise ValueError(f"options.hosts is {hosts!r}; set a list of host names")
        return cls(**{**options, "hosts": tuple(hosts)})

    def key(self) -> dict[str, str]:
        if not self.key_variable:
            return {}
        value = os.environ[self.key_variable].strip()
        return {self.key_header: f"Bearer {value}" if self.key_header.lower() == "authorization" else value}


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpReply:
    """A server's reply. `is_complete` is False if the body was truncated at `max_bytes`."""

    status: int
    body: bytes
    is_complete: bool

    @property
    def text(self) -> str:
        return self.body.decode("utf-8", "replace")


class Session:
    """One episode's requests, with its cookies."""

    def __init__(self, server: Server) -> None:
        import httpx  # imports slowly

        self.server = server
        self._client = httpx.Client(
            verify=_tls(),
            timeout=server.timeout_s,
            headers=JSON | {"Accept-Encoding": "identity"} | server.key(),
            limits=httpx.Limits(keepalive_expiry=IDLE_S),
            **ALONE,
        )

    def post(self, route: str, body: Mapping[str, Any], *, repeatable: bool) -> HttpReply:
        """Return the reply, of any status below 500 except 429. If the request is not `repeatable`, also of status 500.

        Raise `EnvironmentFault` if the server is unreachable, too slow, fails, or redirects.
        """
        import httpx  # imports slowly

        for attempt in range(self.server.retries + 1):
            if attempt:
                time.sleep(next_pause_s(self.server.backoff_s, attempt))
            try:
                reply = self._once(route, body)
            except (httpx.ConnectError, httpx.ConnectTimeout) as error:
                problem, again = f"no connection: {error}", True
            except httpx.TimeoutException:
                problem, again = f"no reply in {self.server.timeout_s:g} s", repeatable
            except httpx.HTTPError as error:
                problem, again = f"{type(error).__name__}: {error}", repeatable
            else:
                if reply.status not in NOT_REACHED and not (repeatable and reply.status >= 500):
                    return reply
                problem = f"status {reply.status}: {reply.text[:SHOWN]}"
                again = repeatable or reply.status in TURNED_AWAY
            if not again:
                break
        raise EnvironmentFault(f"POST {self._url(route)}: {problem} (attempts: {attempt + 1})")

    def post_json(self, route: str, body: Mapping[str, Any]) -> dict[str, Any]:
        """Return the JSON object of a 2xx reply of an idempotent route. Raise `EnvironmentFault` for any other."""
        reply = self.post(route, body, repeatable=True)
        if not 200 <= reply.status < 300:
            fault = RequestRefused if reply.status in REFUSED else EnvironmentFault
            raise fault(f"POST {self._url(route)}: status {reply.status}: {reply.text[:SHOWN]}")
        if not reply.is_complete:
            raise EnvironmentFault(f"POST {self._url(route)}: the reply is longer than {self.server.max_bytes} bytes")
        try:
            return read_object(reply.body)
        except ValueError as error:
            raise EnvironmentFault(f"POST {self._url(route)}: {error}") from error

    def _once(self, route: str, body: Mapping[str, Any]) -> HttpReply:
        import httpx  # imports slowly

        deadline = time.monotonic() + self.server.timeout_s
        received, is_complete = bytearray(), True
        with self._client.stream("POST", self._url(route), content=json.dumps(body).encode()) as response:
            if 300 <= response.status_code < 400:
                where = response.headers.get("location", "")
                raise EnvironmentFault(
                    f"POST {self._url(route)}: redirected to {where[:SHOWN]!r}, which is not followed"
                )
            for chunk in response.iter_raw():
                received += chunk
                if len(received) > self.server.max_bytes:
                    is_complete = False
                    break
                if time.monotonic() > deadline:
                    raise httpx.ReadTimeout("the reply did not end in time")
        return HttpReply(
            status=response.status_code, body=bytes(received[: self.server.max_bytes]), is_complete=is_complete
        )

    def _url(self, route: str) -> str:
        return f"{self.server.url.rstrip('/')}/{route}"

    def close(self) -> None:
        self._client.close()


def read_address(key: str, address: str, *, has_key: bool = False) -> "httpx.URL":
    """Return the address of a server, which the setting `key` has. With `has_key`, requests carry a key.

    Raise `SettingError` if it is no address or has a user or a query, or if it would send the key unencrypted to another
    machine.
    """
    import httpx  # imports slowly

    try:
        url = httpx.URL(address)
    except (httpx.InvalidURL, TypeError) as error:
        raise SettingError(key, address, str(error)) from error
    if url.scheme not in ("http", "https") or not url.host or url.userinfo or url.query or url.fragment:
        raise SettingError(key, address, "set an address such as http://127.0.0.1:8000, without user or query")
    if has_key and url.scheme == "http" and not is_loopback(url.host):
        raise SettingError(key, address, "a key needs https to another machine; use https")
    return url


def is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def next_pause_s(first_s: float, failed: int) -> float:
    """Return the jittered pause after the `failed` attempt, counted from 1. Each pause is about twice the one before."""
    return first_s * 2 ** (failed - 1) * random.uniform(0.5, 1.0)


def read_object(body: bytes) -> dict[str, Any]:
    """Return the JSON object of a reply. Raise `ValueError` for anything else."""
    shown = body[:SHOWN].decode("utf-8", "replace")
    try:
        found = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"the reply is not JSON: {shown!r}") from error
    if not isinstance(found, dict):
        raise ValueError(f"the reply is no object: {shown!r}")
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatReply:
    """A chat completion: its text, complete or cut, and the tokens of prompt and reply, 0 if the server counts none."""

    text: str
    is_complete: bool
    tokens: int


def request_chat(server: Server, body: Mapping[str, Any]) -> ChatReply:
    """Return a chat completion. The wait is off the episode's clock.

    Raise `EnvironmentFault` as `Session.post_json`.
    """
    session = Session(server)
    try:
        with stop_clock():
            found = session.post_json("chat/completions", body)
    finally:
        session.close()
    text, reason, usage = "", None, found.get("usage")
    match found:
        case {"choices": [{"message": {"content": str(text)}, "finish_reason": reason}, *_]}:
            pass
    counts = [usage.get(name) for name in ("prompt_tokens", "completion_tokens")] if isinstance(usage, dict) else []
    return ChatReply(
        text=text, is_complete=reason != "length", tokens=sum(count for count in counts if isinstance(count, int))
    )


def read_number(value: Any, name: str) -> float:
    """Return a finite number of a reply, which `name` names. Raise `EnvironmentFault` for anything else."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise EnvironmentFault(f"the server's {name} is {str(value)[:100]}; it must be a finite number")
    return float(value)


@functools.cache
def _tls() -> ssl.SSLContext:
    return ssl.create_default_context()
