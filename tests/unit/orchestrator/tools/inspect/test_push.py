"""Pushing a run's model to a fake hub on loopback."""

import base64
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import yaml
from unit.orchestrator.tools.inspect.report.test_report import write_run

from temper.orchestrator.__main__ import main
from temper.orchestrator.run.folder import RunDir
from temper.orchestrator.tools.inspect.push import collect_files, upload

CONFIG = """
name: tiny
model: {path: Qwen/Qwen3-0.6B}
envs: {math: {data: {path: openai/gsm8k}}}
rl: {steps: 2, optim: {learning_rate: 0.5}}
"""


class FakeHub(ThreadingHTTPServer):
    """A hub that records the files of a commit and the visibility of the repository."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Request)
        self.endpoint = f"http://127.0.0.1:{self.server_port}"
        self.files: dict[str, bytes] = {}
        self.private: bool | None = None
        self.deleted: list[str] = []

    def answer(self, path: str, body: bytes) -> dict[str, Any] | list[dict[str, Any]]:
        if path == "/api/repos/create":
            asked = json.loads(body)
            self.private = asked.get("private", asked.get("visibility") == "private")
            return {"url": f"{self.endpoint}/me/tiny", "name": "me/tiny"}
        if path == "/api/models/me/tiny/preupload/main":
            files = json.loads(body)["files"]
            return {"files": [{"path": one["path"], "uploadMode": "regular", "shouldIgnore": False} for one in files]}
        if path == "/api/models/me/tiny/commit/main":
            for line in map(json.loads, body.splitlines()):
                if line["key"] == "deletedFile":
                    self.deleted.append(line["value"]["path"])
                if line["key"] == "file":
                    self.files[line["value"]["path"]] = base64.b64decode(line["value"]["content"])
            return {"commitOid": "0" * 40, "commitUrl": f"{self.endpoint}/me/tiny/commit/{'0' * 40}", "hookOutput": ""}
        if path.startswith("/api/models/me/tiny/tree/"):
            there = ("model-00001-of-00002.safetensors", "model.safetensors.index.json", "LICENSE")
            return [{"type": "file", "path": name, "size": 1, "oid": "0" * 40} for name in there]
        return {
            "id": "me/tiny",
            "sha": "0" * 40,
            "siblings": [],
            "private": True,
            "tags": [],
            "downloads": 0,
            "likes": 0,
        }


class _Request(BaseHTTPRequestHandler):
    server: FakeHub

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        content = json.dumps(self.server.answer(self.path.partition("?")[0], body)).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    do_GET = do_POST

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def run(tmp_path: Path) -> RunDir:
    write_run(tmp_path / "tiny", [])
    run = RunDir(tmp_path / "tiny")
    run.config.write_text(CONFIG)
    (run.root / "result.svg").write_text("<svg/>")
    model = run.root / "model"
    model.mkdir()
    for name in ("config.json", "tokenizer.json", "model.safetensors", "loop.json"):
        (model / name).write_text(name)
    manifest = json.loads((run.root / "manifest.json").read_text())
    (run.root / "manifest.json").write_text(
        json.dumps(manifest | {"model": "model", "stages": {"rl": "rl", "sft": "sft"}})
    )
    return run


@pytest.fixture
def hub() -> Iterator[FakeHub]:
    with FakeHub() as made:
        threading.Thread(target=made.serve_forever, daemon=True).start()
        yield made
        made.shutdown()


def test_the_card_has_metadata_results_settings_and_the_command(run: RunDir) -> None:
    card = collect_files(run, "me/tiny")["README.md"].read_text()
    metadata = yaml.safe_load(card.split("---\n")[1])
    assert (metadata["base_model"], metadata["datasets"]) == ("Qwen/Qwen3-0.6B", ["openai/gsm8k"])
    assert metadata["tags"] == ["temper", "sft", "rl"]
    assert "| math | 0.000 | 0.875 |" in card
    assert "| `rl.optim.learning_rate` | 0.5 |" in card
    assert "temper run runs/tiny/config.yaml" in card


@pytest.mark.parametrize("public", [False, True])
def test_model_card_and_picture_are_uploaded(
    run: RunDir, hub: FakeHub, public: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_test")
    address = upload(collect_files(run, "me/tiny"), "me/tiny", public=public, run=run.root, endpoint=hub.endpoint)
    assert address == f"{hub.endpoint}/me/tiny"
    assert set(hub.files) == {"README.md", "result.svg", "config.json", "tokenizer.json", "model.safetensors"}
    assert hub.files["model.safetensors"] == b"model.safetensors"
    assert hub.private is not public
    assert sorted(hub.deleted) == ["model-00001-of-00002.safetensors", "model.safetensors.index.json"]


def test_a_dry_run_writes_the_card_and_lists_the_files(run: RunDir, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["push", str(run.root), "me/tiny", "--dry-run"]) == 0
    assert (run.root / "README.md").is_file()
    assert "model.safetensors" in capsys.readouterr().out


def test_an_upload_without_token_or_hub_names_the_command(
    run: RunDir, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("HF_TOKEN", raising=False)
    monkeypatch.setattr("huggingface_hub.constants.HF_TOKEN_PATH", str(tmp_path / "none"))
    with pytest.raises(ValueError, match=rf"temper push {run.root} me/tiny"):
        upload({}, "me/tiny", public=False, run=run.root)
    monkeypatch.setenv("HF_TOKEN", "hf_test")
    with pytest.raises(ConnectionError, match=rf"temper push {run.root} me/tiny"):
        upload({}, "me/tiny", public=False, run=run.root, endpoint="http://127.0.0.1:9")
