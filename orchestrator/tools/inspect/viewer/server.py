"""The server of the viewer on loopback: the page of one run, and its columns on request."""

import contextlib
import json
import sys
import threading
from collections import OrderedDict
from dataclasses import dataclass
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import unquote, urlsplit

from temper.orchestrator.run.folder import RunDir
from temper.orchestrator.tools.inspect.viewer.archive import Archive, compress_json
from temper.orchestrator.tools.inspect.viewer.page import render_page, run_facts
from temper.orchestrator.tools.inspect.viewer.recorded_file import RecordedFile, find_file, recorded_files
from temper.orchestrator.tools.inspect.viewer.token_bytes import TokenBytes, tokenizer_of_run

LOOPBACK = "127.0.0.1"
NAMES = (LOOPBACK, "localhost")
"""Its names for a browser on this machine. A request under another name comes from a foreign page, so it is refused."""
REQUEST_S = 30.0
"""Timeout for a browser's request and response, in seconds."""
HTML, JSON = "text/html; charset=utf-8", "application/json"
UNREADABLE = (LookupError, ValueError, TypeError, OSError)
"""Errors of a file that is missing, or that no run has written."""
HELD = 4
"""Files whose columns are held at once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PageAnswer:
    """The answer to a path. `kind` is its media type."""

    body: bytes
    kind: str = "text/plain"
    status: HTTPStatus = HTTPStatus.OK


NOTHING = PageAnswer(body=b"not found\n", status=HTTPStatus.NOT_FOUND)
REFUSED = PageAnswer(body=b"this page answers only to 127.0.0.1 and localhost\n", status=HTTPStatus.FORBIDDEN)


class ChangedFileError(Exception):
    """A file has changed since the page read its table."""


class ArchiveCache:
    """The columns of a run's files, read again after a change. Thread-safe."""

    def __init__(self, run: RunDir) -> None:
        self.run = run
        self._tokenizer: TokenBytes | None = None
        self._lock = threading.Lock()
        self._held: OrderedDict[tuple[str, str], Archive] = OrderedDict()

    def archive(self, name: str) -> Archive:
        """Return the columns of a file of the run. Raise `KeyError` if it does not exist."""
        file = self._file(name)
        key = (name, file.mark())
        with self._lock:
            if key not in self._held:
                self._tokenizer = self._tokenizer or tokenizer_of_run(self.run)  # a new run has none yet
                self._held[key] = Archive(file, self._tokenizer, mark=key[1])
            self._held.move_to_end(key)
            while len(self._held) > HELD:
                self._held.popitem(last=False)
            return self._held[key]

    def read_ahead(self) -> None:
        """Read the file that a page opens with, while the browser starts."""

        def read() -> None:
            with contextlib.suppress(*UNREADABLE):  # the page asks again, and shows the error
                self.archive(find_file(self.run).name)

        threading.Thread(target=read, daemon=True).start()

    def part(self, path: str) -> bytes:
        """Return the table at NAME/table, a piece at NAME/MARK/NUMBER, and nothing at NAME/MARK/same.

        Raise `KeyError`, `IndexError` or `ValueError` for any other path, `ChangedFileError` if the file has another mark.
        """
        name, *rest = path.split("/")
        if rest == ["table"]:
            return self.archive(name).table
        mark, which = rest
        self._check(name, mark)
        if which == "same":
            return compress_json({})
        try:
            return self.archive(name).piece(int(which))
        finally:  # the run may have rewritten it
            self._check(name, mark)

    def _file(self, name: str) -> RecordedFile:
        return {one.name: one for one in recorded_files(self.run)}[name]

    def _check(self, name: str, mark: str) -> None:
        if self._file(name).mark() != mark:
            raise ChangedFileError(f"{name} was written again")

    def answer(self, path: str) -> PageAnswer:
        """Return the page at "/", and columns below "/data/"."""
        if path == "/":
            return PageAnswer(body=render_page(run_facts(self.run)).encode(), kind=HTML)
        if not path.startswith("/data/"):
            return NOTHING
        asked = path.removeprefix("/data/")
        try:
            return PageAnswer(body=self.part(asked), kind="application/gzip")
        except ChangedFileError as error:
            return _error(str(error), HTTPStatus.CONFLICT)
        except UNREADABLE as error:
            what = "the run has no such file" if isinstance(error, LookupError) else error
            return _error(f"{asked}: {what}", HTTPStatus.NOT_FOUND)


def _error(text: str, status: HTTPStatus) -> PageAnswer:
    return PageAnswer(body=json.dumps({"error": text}).encode(), kind=JSON, status=status)


class ViewServer(ThreadingHTTPServer):
    """Serves the page of one run at `address`, with a thread per request."""

    daemon_threads = True

    def __init__(self, run: RunDir, *, port: int = 0) -> None:
        """Listen on a port of loopback. 0 picks a free port. Raise `OSError` if it is taken."""
        self.archives = ArchiveCache(run)
        super().__init__((LOOPBACK, port), _Request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Print errors, except for a browser that disconnected early."""
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)

    @property
    def address(self) -> str:
        """The URL of the page."""
        return f"http://{LOOPBACK}:{self.server_port}/"


class _Request(BaseHTTPRequestHandler):
    server: ViewServer
    timeout = REQUEST_S

    def do_GET(self) -> None:
        """Answer the request if it comes from this machine."""
        known = self.headers.get("Host") in {f"{name}:{self.server.server_port}" for name in NAMES}
        answer = self.server.archives.answer(unquote(urlsplit(self.path).path)) if known else REFUSED
        self.send_response(answer.status)
        self.send_header("Content-Type", answer.kind)
        self.send_header("Content-Length", str(len(answer.body)))
        self.send_header("Cache-Control", "no-store")
        self.send_header("X-Content-Type-Options", "nosniff")
        self.end_headers()
        self.wfile.write(answer.body)

    def log_message(self, format: str, *args: object) -> None:
        """Log no requests."""
