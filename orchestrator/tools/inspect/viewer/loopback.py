"""A loopback HTTP server by the standard library: a function maps paths to responses."""

import sys
from collections.abc import Callable
from dataclasses import dataclass
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, TypeVar
from urllib.parse import unquote, urlsplit

LOOPBACK = "127.0.0.1"
NAMES = (LOOPBACK, "localhost")
"""Its names for a browser on this machine. A request under another name comes from a foreign page, so it is refused."""
REQUEST_S = 30.0
"""Timeout for a browser's request and response, in seconds."""
HTML, JSON = "text/html; charset=utf-8", "application/json"


@dataclass(frozen=True, slots=True, kw_only=True)
class PageAnswer:
    """The answer to a path. `kind` is its media type."""

    body: bytes
    kind: str = "text/plain"
    status: HTTPStatus = HTTPStatus.OK


NOTHING = PageAnswer(body=b"not found\n", status=HTTPStatus.NOT_FOUND)
REFUSED = PageAnswer(body=b"this page answers only to 127.0.0.1 and localhost\n", status=HTTPStatus.FORBIDDEN)


class LoopbackServer(ThreadingHTTPServer):
    """Serves the response of `answer` for each path at `address`, with a thread per request."""

    daemon_threads = True

    def __init__(self, answer: Callable[[str], PageAnswer], *, port: int = 0) -> None:
        """Listen on a port of loopback. 0 picks a free port. Raise `OSError` if it is taken."""
        super().__init__((LOOPBACK, port), _Request)
        self.answer = answer

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Print errors, except for a browser that disconnected early."""
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)

    @property
    def address(self) -> str:
        """The URL of the page."""
        return f"http://{LOOPBACK}:{self.server_port}/"


Server = TypeVar("Server", bound=LoopbackServer)


def open_server(make: Callable[[], Server], port: int) -> Server:
    """Return a server that listens. Raise `ValueError` if the port is taken."""
    try:
        return make()
    except OSError as error:
        raise ValueError(f"--port {port}: {error.strerror or error}; use another port, or omit it") from error


def serve_until_interrupt(server: LoopbackServer, what: str) -> None:
    """Print the address of `what`, and serve it until Ctrl-C."""
    with server:
        print(f"{what}: {server.address} (Ctrl-C to stop)", flush=True)
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            print()


class _Request(BaseHTTPRequestHandler):
    server: LoopbackServer
    timeout = REQUEST_S

    def do_GET(self) -> None:
        """Answer the request if it comes from this machine."""
        known = self.headers.get("Host") in {f"{name}:{self.server.server_port}" for name in NAMES}
        answer = self.server.answer(unquote(urlsplit(self.path).path)) if known else REFUSED
        self.send_response(answer.status)
        self.send_header("Content-Type", answer.kind)
        self.send_header("Content-Length", str(len(answer.body)))
        self.send_header("Cache-Control", "no-store")
        self.send_header("X-Content-Type-Options", "nosniff")
        self.end_headers()
        self.wfile.write(answer.body)

    def log_message(self, format: str, *args: object) -> None:
        """Log no requests."""
