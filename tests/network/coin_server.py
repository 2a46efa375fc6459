"""An environment server whose reward is the parity of an answer's length: `coin_server.py ADDRESS PORT PACE`.

`PACE` is a file with the seconds that a verdict takes.
"""

import contextlib
import json
import sys
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def handle(self) -> None:
        with contextlib.suppress(ConnectionError):  # connections break with the network
            super().handle()

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        answer: dict[str, float] = {}
        if self.path == "/verify":
            time.sleep(float(Path(sys.argv[3]).read_text(encoding="ascii") or 0))  # empty while it is written
            answer = {"reward": float(len(json.dumps(body["response"]["output"])) % 2)}
        text = json.dumps(answer).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def log_message(self, format: str, *args: object) -> None:
        pass


if __name__ == "__main__":
    with ThreadingHTTPServer((sys.argv[1], int(sys.argv[2])), Handler) as server:
        server.serve_forever()
