"""The server of docs/environments.md, extracted from the page, started, and used as the page shows."""

import importlib
import json
import re
import sys
import threading
from collections.abc import Iterator
from http.server import ThreadingHTTPServer
from pathlib import Path

import pytest

from temper.envs.source import open_source
from temper.envs.transcript import score_turns
from temper.orchestrator.__main__ import main
from temper.orchestrator.pipeline.config import load_config

PAGE = (
    (Path(__file__).parents[4] / "docs" / "environments.md")
    .read_text(encoding="utf-8")
    .partition("## A server of your own\n")[2]
    .partition("\n## ")[0]
)
HERE = "http://127.0.0.1:8000"


def blocks(language: str) -> list[str]:
    """Return the page's code blocks in a language."""
    found: list[str] = re.findall(rf"```{language}\n(.*?)```", PAGE, re.DOTALL)
    return found


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Return the address of the page's server at a free port. Its row and its turns are in the current folder."""
    row, said = blocks("json")
    for name, text in (("guess.py", blocks("python")[0]), ("guesses.jsonl", row), ("responses.jsonl", said)):
        (tmp_path / name).write_text(text, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    handler = importlib.import_module("guess").Handler
    handler.log_message = lambda *_: None
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as serving:
        thread = threading.Thread(target=serving.serve_forever, args=(0.01,))
        thread.start()
        yield f"http://127.0.0.1:{serving.server_address[1]}"
        serving.shutdown()
        thread.join()
    sys.modules.pop("guess", None)


def test_the_command_of_the_page_grades_its_turns(server: str, tmp_path: Path) -> None:
    (given,) = re.findall(r"^temper env grade (.+?) +#", PAGE.replace("\\\n", " "), re.MULTILINE)
    words = [one.strip("'") for one in re.findall(r"'[^']+'|\S+", given.replace(HERE, server))]
    assert main(["env", "grade", *words]) == 0
    graded = json.loads((tmp_path / "graded.jsonl").read_text(encoding="utf-8"))
    assert (graded["key"], graded["reward"], graded["failure"]) == (0, 1.0, None)


def test_the_configuration_of_the_page_plays_with_the_server(server: str, tmp_path: Path) -> None:
    own = blocks("yaml")[0].replace(HERE, server).replace("/data/", f"{tmp_path}/")
    rows = "".join(f"{json.dumps(json.loads(blocks('json')[0]) | {'seed': seed})}\n" for seed in range(32))
    (tmp_path / "guesses.jsonl").write_text(rows, encoding="utf-8")
    (tmp_path / "run.yaml").write_text(own, encoding="utf-8")
    env = load_config(tmp_path / "run.yaml", ["name=mine"]).environments["guess"]
    tasks = open_source(env, split="train", seed=0)
    for task in map(tasks.task, range(4)):
        assert score_turns(task, [str(number) for number in range(1, 21)]).reward == 1.0
        assert score_turns(task, ["twenty-one", "21"]).reward == 0.0
