"""The address of MLflow's page of runs, asked of a server that wants to know who asks."""

import threading
from base64 import b64encode
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from temper.orchestrator.tracking.mlflow.dashboard import runs_page

ASKED: list[tuple[str, str | None]] = []
"""The host and the authorization of each request."""


class Guarded(BaseHTTPRequestHandler):
    """A server with one experiment."""

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        ASKED.append((self.headers["Host"], self.headers["Authorization"]))
        body = b'{"experiments": [{"name": "temper", "experiment_id": "7"}]}'
        self.send_response(200 if self.headers["Authorization"] else 401)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Print nothing."""


@pytest.fixture
def host() -> Iterator[str]:
    ASKED.clear()
    with ThreadingHTTPServer(("127.0.0.1", 0), Guarded) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"127.0.0.1:{server.server_port}"
        server.shutdown()


def basic(text: str) -> str:
    return f"Basic {b64encode(text.encode()).decode()}"


def test_a_server_is_asked_by_the_user_of_its_address_or_by_mlflows_variables(
    host: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(OSError, match="401"):
        runs_page(f"http://{host}", "temper")
    assert runs_page(f"http://me:p%40ss@{host}", "temper").startswith(f"http://me:p%40ss@{host}/#/experiments/7/runs")
    monkeypatch.setenv("MLFLOW_TRACKING_TOKEN", "secret")
    runs_page(f"http://{host}", "temper")
    monkeypatch.setenv("MLFLOW_TRACKING_USERNAME", "you")
    monkeypatch.setenv("MLFLOW_TRACKING_PASSWORD", "word")
    runs_page(f"http://{host}", "temper")
    assert [(host, None), (host, basic("me:p@ss")), (host, "Bearer secret"), (host, basic("you:word"))] == ASKED
