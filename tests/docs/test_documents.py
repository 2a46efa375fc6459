"""What the documents name is there: files, folders, classes, modules and make targets."""

import ast
import builtins
import re
from pathlib import Path

import pytest
import yaml

from temper.orchestrator.stages.registry import HELP

ROOT = Path(__file__).resolve().parents[2]
DOCUMENTS = (
    *("README.md", "CONTRIBUTING.md", "SECURITY.md", "AGENTS.md"),
    *sorted(str(page.relative_to(ROOT)) for page in (ROOT / "docs").glob("*.md")),
)
CODE = ("rewards", "envs", "rollout", "learner", "orchestrator", "tests")
FOLDERS = (*CODE, "configs", "docs", "requirements", ".ci")
ENDINGS = (".py", ".md", ".yaml", ".sh", ".in", ".svg", ".jinja")
OF_A_RUN = {"backwards.py", "guess.py", "mine.py", "office", "config.yaml", "vllm", "result.svg", "curves.svg"}
"""Files that a reader or a run writes, and the package whose errors are quoted, file by file."""
SOURCES = [path for folder in CODE for path in (ROOT / folder).rglob("*.py")]
CLASSES = {
    node.name
    for path in SOURCES
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
    if isinstance(node, ast.ClassDef)
}
SPAN = re.compile(r"`([^`\n]+)`")
FENCE = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)
PATH = re.compile(r"[\w.-]+(?:/[\w.-]+)*/?")
PATH_IN_A_BLOCK = re.compile(rf"(?<![\w./])(?:{'|'.join(CODE)}|configs|docs)/[\w./]*\w")
CLASS = re.compile(r"(?:[A-Z][a-z0-9]+){2,}")
LIBRARIES = {"DeepSpeed", "AsyncEngineArgs", "TaskData", "ToolEnv"}


def text(document: str) -> str:
    return (ROOT / document).read_text(encoding="utf-8")


def spans(document: str) -> list[str]:
    """What stands between backticks, outside of blocks of code."""
    return SPAN.findall(FENCE.sub("", text(document)))


def is_there(path: str) -> bool:
    """Whether a path is one of the repository: from its root, or for a file's name alone, anywhere in the code."""
    if "/" in path:
        return (ROOT / path).exists()
    return (ROOT / path).exists() or any(found.name == path for found in SOURCES)


@pytest.mark.parametrize("document", DOCUMENTS)
def test_files_and_folders_that_a_document_names_exist(document: str) -> None:
    named = {span for span in spans(document) if PATH.fullmatch(span)}
    files = {span for span in named if span.endswith(ENDINGS) and span.split("/")[0] not in OF_A_RUN}
    folders = {span for span in named if span.endswith("/") and span.split("/")[0] in FOLDERS}
    drawn = {path for block in FENCE.findall(text(document)) for path in PATH_IN_A_BLOCK.findall(block)}
    assert [path for path in sorted(files | folders | drawn) if not is_there(path)] == []


@pytest.mark.parametrize("document", DOCUMENTS)
def test_links_of_a_document_lead_somewhere(document: str) -> None:
    links = re.findall(r"\]\(([^)#\s]+)", text(document))
    folder = (ROOT / document).parent
    assert [link for link in links if "://" not in link and not (folder / link).exists()] == []


def anchors(document: Path) -> set[str]:
    """What a link to a heading of a document may name."""
    headings = re.findall(r"^#+ (.+)$", FENCE.sub("", document.read_text(encoding="utf-8")), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading).lower().replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("document", DOCUMENTS)
def test_links_to_a_heading_lead_to_one(document: str) -> None:
    links = re.findall(r"\]\(((?:[\w/.]*\.md)?)#([^)\s]+)\)", text(document))
    pages = {page: ROOT / document if not page else (ROOT / document).parent / page for page, _ in links}
    assert [(page, anchor) for page, anchor in links if anchor not in anchors(pages[page])] == []


@pytest.mark.parametrize("document", DOCUMENTS)
def test_classes_that_a_document_names_exist(document: str) -> None:
    named = {word for span in spans(document) for word in span.split(".") if CLASS.fullmatch(word)}
    if document == "docs/architecture.md":
        drawn = {word for block in FENCE.findall(text(document)) for word in re.findall(r"\w+", block)}
        named |= {word for word in drawn if CLASS.fullmatch(word)}
    assert sorted(named - CLASSES - LIBRARIES - set(dir(builtins))) == []


@pytest.mark.parametrize("document", DOCUMENTS)
def test_modules_that_a_document_runs_exist(document: str) -> None:
    modules = {name for name in re.findall(r"python -m ([\w.]+)", text(document)) if name.split(".")[0] in CODE}
    paths = {name: ROOT / name.replace(".", "/") for name in modules}
    assert [name for name, path in paths.items() if not (path.with_suffix(".py").exists() or path.is_dir())] == []


@pytest.mark.parametrize("document", DOCUMENTS)
def test_make_targets_that_a_document_names_exist(document: str) -> None:
    targets = {name for names in re.findall(r"^([a-z -]+):", text("Makefile"), re.MULTILINE) for name in names.split()}
    named = set(re.findall(r"(?:`|^)make ([a-z_-]+)", text(document), re.MULTILINE))
    assert sorted(named - targets - HELP.keys()) == []


README_LINES = 150
WITHOUT_THE_MAP = {"README.md", "CONTRIBUTING.md", "SECURITY.md", "AGENTS.md", "docs/index.md"}


def test_the_readme_is_short_and_its_map_has_every_page() -> None:
    assert len(text("README.md").splitlines()) <= README_LINES
    linked = set(re.findall(r"\]\((docs/\w+\.md)\)", text("README.md")))
    assert sorted(set(DOCUMENTS) - linked - WITHOUT_THE_MAP) == []  # else: a line in the map of README.md


def test_the_site_has_every_page_once_and_no_link_leaves_it() -> None:
    site = yaml.safe_load(text("mkdocs.yml"))
    pages = [page for part in site["nav"] for entry in next(iter(part.values())) for page in entry.values()]
    folder = ROOT / site["docs_dir"]
    assert sorted(pages) == sorted(page.name for page in folder.glob("*.md"))  # else: a line under `nav` of mkdocs.yml
    assert [page for page in pages if "](../" in (folder / page).read_text(encoding="utf-8")] == []


def test_the_picture_of_the_demo_has_the_accuracies_of_the_first_row_of_its_table() -> None:
    row = re.search(r"^\| 1 \| (.+) \|$", text("docs/results.md"), re.MULTILINE)
    assert row is not None
    math, code, tools = (re.findall(r"\d\.\d\d", cell) for cell in row[1].split(" | "))
    before = ["0.00"]
    drawn = re.findall(r">(\d\.\d\d)</text>", text("docs/pictures/result.svg"))
    assert drawn == [*before, *code, *before, *math, *before, *tools]
