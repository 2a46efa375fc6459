"""Links of the documents resolve, their YAML blocks load, and their command lines parse."""

import argparse
import re
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.documents import BLOCK, DOCUMENTS, ROOT, blocks, text
from tokenizers import Tokenizer
from tokenizers.models import WordLevel

from temper.orchestrator.__main__ import join_command, parser
from temper.orchestrator.cli.eval_command import is_override
from temper.orchestrator.pipeline.config import load_config

OWN_MODULES = {
    "docs/own_environment.md": "backwards",
    "docs/algorithms.md": "mine",
    "docs/agents.md": "my_agent",
}
"""Pages that define a module, which YAML blocks later use."""
ROOM = "rollout.engine.max_model_len=131072"
"""A profile chooses this by hardware and model. Neither is here."""
YAML = [(document, block) for document in DOCUMENTS for block in blocks(document, "yaml")]
LINES = [
    line
    for document in DOCUMENTS
    for block in blocks(document, "")
    for line in block.replace("\\\n", " ").splitlines()
    if line.startswith("temper ")
]


def anchors(document: Path) -> set[str]:
    """The headings of a document as link anchors."""
    headings = re.findall(r"^#+ (.+)$", BLOCK.sub("", document.read_text(encoding="utf-8")), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading).lower().replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("document", DOCUMENTS)
def test_links_resolve(document: str) -> None:
    folder = (ROOT / document).parent
    for link, anchor in re.findall(r"\]\(((?![a-z]+:)[^)#\s]*)#?([^)\s]*)\)", text(document)):
        page = folder / link if link else ROOT / document
        assert page.exists(), link
        assert not anchor or anchor in anchors(page), f"{link}#{anchor}"


@pytest.fixture(scope="module")
def readers_folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A reader's folder with the documents' modules, a tokenizer, a model's configuration, and a foreign Python."""
    folder = tmp_path_factory.mktemp("reader")
    for document, module in OWN_MODULES.items():
        (folder / f"{module}.py").write_text(blocks(document, "python")[0], encoding="utf-8")
    (folder / "models" / "qwen3").mkdir(parents=True)
    Tokenizer(WordLevel()).save(str(folder / "models" / "qwen3" / "tokenizer.json"))
    (folder / "models" / "reward_model").mkdir()
    (folder / "models" / "Nemotron-H-8B-Reasoning").mkdir()
    held = {
        "config.json": '{"id2label": {"0": "good"}}',
        "chat_template.jinja": "{{ messages }}",
        "model.safetensors": "",
    }
    for name, content in held.items():
        (folder / "models" / "reward_model" / name).write_text(content, encoding="ascii")
    foreign = folder / "opt" / "nemo_gym" / "bin" / "python"
    foreign.parent.mkdir(parents=True)
    foreign.write_text("#!/bin/sh\n", encoding="ascii")
    foreign.chmod(0o755)
    sys.path.insert(0, str(folder))
    yield folder
    sys.path.remove(str(folder))
    for module in OWN_MODULES.values():
        sys.modules.pop(module, None)


@pytest.mark.parametrize(("document", "block"), YAML, ids=[f"{document}-{at}" for at, (document, _) in enumerate(YAML)])
def test_yaml_blocks_load(document: str, block: str, readers_folder: Path, tmp_path: Path) -> None:
    here = re.sub("/(models|opt/nemo_gym)/", rf"{readers_folder}/\1/", block)
    (tmp_path / "block.yaml").write_text(here, encoding="utf-8")
    named = re.search(r"^name: (\S+)", block, re.MULTILINE)
    over = [ROOM, *([] if named else ["name=documents"])]
    over += [] if re.search(r"^envs:", block, re.MULTILINE) else ["envs={math: {}, tool_use: {}}"]
    assert load_config(tmp_path / "block.yaml", over).name == (named[1] if named else "documents")


@pytest.fixture(scope="module")
def root_parser() -> argparse.ArgumentParser:
    """The command line's parser."""
    return parser()


@pytest.mark.parametrize("line", LINES)
def test_command_lines_parse(line: str, root_parser: argparse.ArgumentParser, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    words = join_command(shlex.split(line, comments=True)[1:])
    if "--help" in words:
        with pytest.raises(SystemExit, match="0"):
            root_parser.parse_args(words)
        return
    given, later = root_parser.parse_known_args(words)
    assert not later or ("overrides" in given and all(map(is_override, later))), later
