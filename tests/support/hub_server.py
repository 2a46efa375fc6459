"""A hub on loopback, with the routes of a download."""

import hashlib
import json
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import unquote, urlsplit

COMMIT = "0123456789abcdef0123456789abcdef01234567"


@dataclass(slots=True)
class HubServer:
    """Repositories by kind and name (`models/owner/name`, `datasets/owner/name`) with their files, all at one commit."""

    repos: Mapping[str, Mapping[str, bytes]]
    commit: str = COMMIT
    endpoint: str = ""
    sent: list[str] = field(default_factory=list)
    """The requested files."""

    def answer(self, path: str) -> tuple[int, dict[str, str], bytes]:
        """Return status, headers and body of the answer to a request."""
        for repo, files in self.repos.items():
            name = repo.removeprefix("models/")
            if path.startswith(f"/api/{repo}/revision/"):
                revision = path.removeprefix(f"/api/{repo}/revision/")
                if revision not in ("main", self.commit):
                    return 404, {"X-Error-Code": "RevisionNotFound"}, b"{}"
                return 200, {}, json.dumps({"id": name, "sha": self.commit, "siblings": []}).encode()
            if path.startswith(f"/api/{repo}/tree/{self.commit}"):
                return 200, {}, json.dumps([_entry(name, content) for name, content in files.items()]).encode()
            if path.startswith(f"/{name}/resolve/{self.commit}/"):
                asked = path.removeprefix(f"/{name}/resolve/{self.commit}/")
                self.sent.append(asked)
                etag = {"ETag": f'"{_sha(files[asked])}"', "X-Repo-Commit": self.commit}
                return 200, etag, files[asked]
        return 404, {"X-Error-Code": "RepoNotFound"}, b"{}"


@contextmanager
def served(repos: Mapping[str, Mapping[str, bytes]], *, commit: str = COMMIT) -> Iterator[HubServer]:
    """Serve repositories while the context lasts."""
    hub = HubServer(repos, commit=commit)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            self._answer(body=True)

        def do_HEAD(self) -> None:
            self._answer(body=False)

        def _answer(self, *, body: bool) -> None:
            status, headers, content = hub.answer(unquote(urlsplit(self.path).path))
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            if body:
                self.wfile.write(content)

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    hub.endpoint = f"http://127.0.0.1:{server.server_port}"
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()


def _sha(content: bytes) -> str:
    return hashlib.sha1(content).hexdigest()


def _entry(path: str, content: bytes) -> dict[str, str | int]:
    return {"type": "file", "path": path, "size": len(content), "oid": _sha(content)}
