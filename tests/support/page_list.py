"""The lists of pages in docs/index.md and docs/llms.txt, made of the site's navigation and the first sentence of each page.

Write them by `PYTHONPATH=tests .venv/bin/python -m support.page_list`.
"""

import re

import yaml
from support.documents import ROOT

DOCS = ROOT / "docs"
INDEX, LLMS = DOCS / "index.md", DOCS / "llms.txt"


def parts() -> dict[str, dict[str, str]]:
    """Return the parts of the site without its first page: the file of each page by its title."""
    lines = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    _, *named = yaml.safe_load(lines[lines.index("nav:") :])["nav"]
    return {
        part: {title: page for entry in pages for title, page in entry.items()}
        for door in named
        for part, pages in door.items()
    }


def opening(page: str) -> str:
    """Return the first sentence of a page."""
    paragraph = " ".join((DOCS / page).read_text(encoding="utf-8").split("\n\n")[1].split())
    return re.split(r"(?<=[.?!]) ", paragraph)[0]


def listed() -> str:
    """Return a heading for each part and a line for each page."""
    lines = (
        f"## {part}\n\n" + "\n".join(f"- [{title}]({page}): {opening(page)}" for title, page in pages.items())
        for part, pages in parts().items()
    )
    return "\n\n".join(lines) + "\n"


def index() -> str:
    """Return the first page of the site: its text up to the first heading of a part, then the list."""
    return INDEX.read_text(encoding="utf-8").partition("## ")[0] + listed()


def llms() -> str:
    """Return the list for language models (llmstxt.org)."""
    return f"# Temper\n\n> {opening(INDEX.name)}\n\n{listed()}"


if __name__ == "__main__":
    INDEX.write_text(index(), encoding="utf-8")
    LLMS.write_text(llms(), encoding="utf-8")
