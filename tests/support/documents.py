"""The documents and their code blocks."""

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
DOCUMENTS = (
    *("README.md", "CONTRIBUTING.md", "SECURITY.md", "AGENTS.md"),
    *sorted(str(page.relative_to(ROOT)) for folder in ("docs", "configs") for page in (ROOT / folder).rglob("*.md")),
)
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```", re.MULTILINE | re.DOTALL)


def text(document: str) -> str:
    """The text of a document."""
    return (ROOT / document).read_text(encoding="utf-8")


def blocks(document: str, language: str) -> list[str]:
    """The document's code blocks in a language. Blocks of commands have none."""
    return [found for named, found in BLOCK.findall(text(document)) if named == language]


def tutorial_block(language: str) -> str:
    """The first block in a language of the page about custom environments."""
    return blocks("docs/own_environment.md", language)[0]
