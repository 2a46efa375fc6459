"""The server of the viewer: one run, on loopback alone, by the standard library."""

import json
import threading
from collections import OrderedDict
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import unquote, urlsplit

from orchestrator.run.folder import RunDir
from orchestrator.viewing.archive import Archive
from orchestrator.viewing.page import document
from orchestrator.viewing.recorded_file import recorded_files
from orchestrator.viewing.run_facts import facts_of, tokenizer_of_run

LOOPBACK = "127.0.0.1"
NAMES = (LOOPBACK, "localhost")
"""What a browser on this machine calls it; under another name that leads here it is somebody else's page that asks."""
HELD = 4
"""Files whose columns are held at once."""
REQUEST_S = 30.0
"""How long a browser may take to send a request or to take its answer, in seconds."""


class Shelf:
    """The columns of a run's files, read again where a file has changed. May be asked from several threads."""

    def __init__(self, run: RunDir) -> None:
        self.run = run
        self._tokenizer = tokenizer_of_run(run)
        self._lock = threading.Lock()
        self._held: OrderedDict[tuple[str, int, int], Archive] = OrderedDict()

    def archive(self, name: str) -> Archive:
        """Return the columns of a file of the run. Raise `KeyError` where there is none of this name."""
        file = {one.name: one for one in recorded_files(self.run)}[name]
        status = file.path.stat()
        key = (name, status.st_mtime_ns, status.st_size)
        with self._lock:
            if key not in self._held:
                self._held[key] = Archive(file, self._tokenizer)
            self._held.move_to_end(key)
            while len(self._held) > HELD:
                self._held.popitem(last=False)
            return self._held[key]

    def read_ahead(self) -> None:
        """Read the file that a page opens with, while the browser starts."""
        files = recorded_files(self.run)
        first = next((one for one in files if one.kind == "step"), next(iter(files), None))
        if first is not None:
            threading.Thread(target=self.archive, args=(first.name,), daemon=True).start()

    def part(self, path: str) -> bytes:
        """Return what lies at NAME/table or NAME/NUMBER. Raise `KeyError`, `IndexError` or `ValueError` where nothing does."""
        name, _, which = path.rpartition("/")
        archive = self.archive(name)
        return archive.table if which == "table" else archive.piece(int(which))


class ViewServer(ThreadingHTTPServer):
    """Serves the page of one run, at `address`, from a thread a request."""

    daemon_threads = True

    def __init__(self, run: RunDir, *, port: int = 0) -> None:
        """Listen on a port of loopback, with 0 one that is free. Raise `OSError` where it is taken."""
        super().__init__((LOOPBACK, port), _Request)
        self.shelf = Shelf(run)

    @property
    def address(self) -> str:
        """Where a browser finds it."""
        return f"http://{LOOPBACK}:{self.server_port}/"


class _Request(BaseHTTPRequestHandler):
    server: ViewServer
    timeout = REQUEST_S

    def do_GET(self) -> None:
        """Answer with the page, or with columns."""
        if self.headers.get("Host") not in {f"{name}:{self.server.server_port}" for name in NAMES}:
            self._send(HTTPStatus.FORBIDDEN, "text/plain", b"the viewer answers to 127.0.0.1 and localhost alone\n")
            return
        path = unquote(urlsplit(self.path).path)
        if path == "/":
            page = document(facts_of(self.server.shelf.run))
            self._send(HTTPStatus.OK, "text/html; charset=utf-8", page.encode())
        elif path.startswith("/data/"):
            self._data(path.removeprefix("/data/"))
        else:
            self._send(HTTPStatus.NOT_FOUND, "text/plain", b"nothing lies here\n")

    def _data(self, path: str) -> None:
        try:
            data = self.server.shelf.part(path)
        except (KeyError, IndexError, ValueError, OSError) as error:
            told = json.dumps({"error": f"{path}: {error}"}).encode()
            self._send(HTTPStatus.NOT_FOUND, "application/json", told)
        else:
            self._send(HTTPStatus.OK, "application/gzip", data)

    def _send(self, status: HTTPStatus, kind: str, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Cache-Control", "no-store")
        self.send_header("X-Content-Type-Options", "nosniff")
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing of each request."""
