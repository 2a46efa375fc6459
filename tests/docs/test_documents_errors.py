"""Each text that docs/troubleshooting.md quotes is one that the code, or the setup, still says."""

import ast
import re
import sysconfig
from pathlib import Path

import pytest
from docs.test_documents import CODE, ROOT, SOURCES

PAGE = ROOT / "docs" / "troubleshooting.md"
LIBRARIES = "\n## What libraries say\n"
QUOTED_OF = re.compile(r"^\| `([^`]+)` \| `([\w/]+\.py)`", re.MULTILINE)
QUOTED = re.compile(r"^\| `([^`]+)` \|", re.MULTILINE)
VARIES = "\0"


def said(source: str) -> list[str]:
    """Every string of a module, joined as it will be, with a mark where something is filled in."""
    found = []
    for node in ast.walk(ast.parse(source)):
        parts = node.values if isinstance(node, ast.JoinedStr) else [node]
        if isinstance(node, ast.JoinedStr) or (isinstance(node, ast.Constant) and isinstance(node.value, str)):
            found.append("".join(str(part.value) if isinstance(part, ast.Constant) else VARIES for part in parts))
    return found


OURS = [path for path in SOURCES if path.relative_to(ROOT).parts[0] in set(CODE) - {"tests"}]
SAID = [text for path in OURS for text in said(path.read_text(encoding="utf-8"))]
SAID += (ROOT / "requirements" / "install.sh").read_text(encoding="utf-8").splitlines()
OWN, THEIRS = PAGE.read_text(encoding="utf-8").split(LIBRARIES)
TEXTS = QUOTED.findall(OWN)


def pattern(quoted: str) -> re.Pattern[str]:
    """What a quoted text looks like, with anything where it differs."""
    return re.compile(".*".join(re.escape(part) for part in re.split(r" ?\.\.\. ?", quoted) if part), re.DOTALL)


def test_the_page_quotes_many_errors_each_once() -> None:
    assert len(TEXTS) > 40
    assert len(set(TEXTS)) == len(TEXTS)


@pytest.mark.parametrize("quoted", TEXTS)
def test_a_quoted_error_is_still_said(quoted: str) -> None:
    wanted = pattern(quoted)
    assert any(wanted.search(text) for text in SAID)


@pytest.mark.parametrize(("quoted", "file"), QUOTED_OF.findall(THEIRS))
def test_an_error_of_a_library_is_said_by_the_file_that_the_page_names(quoted: str, file: str) -> None:
    wanted = pattern(quoted)
    source = Path(sysconfig.get_path("purelib")) / file
    assert any(wanted.search(text) for text in said(source.read_text(encoding="utf-8")))


def test_a_text_that_nobody_says_is_found(tmp_path: Path) -> None:
    module = tmp_path / "one.py"
    module.write_text('raise ValueError(f"{a} is no " f"{b}; give one")')
    texts = said(module.read_text())
    assert pattern("... is no ...; give one").search(texts[0])
    assert not any(pattern("is not a").search(text) for text in texts)
