"""Settings, metrics and files that the pages name exist. The lists of pages match the site."""

import re
from collections.abc import Iterator

import pytest
from support.documents import BLOCK, DOCUMENTS, ROOT, text
from support.metric_names import pattern
from support.page_list import DOCS, INDEX, LLMS, index, llms, parts

from temper.orchestrator.pipeline.reference.settings import all_settings

PAGES = tuple(page for page in DOCUMENTS if page not in {"docs/settings.md", "docs/gpu.md", "docs/coming_from.md"})
SPAN = re.compile(r"`([^`\n]+)`")
SETTING = re.compile(r"(?<![\w./-])((?:[a-z][a-z_]*)(?:\.[a-zA-Z_*][\w*-]*)+)(?=[=:`, ]|$)")
METRIC = re.compile(r"(?<![\w./])(?:train|rollout|env|time|buffer|episode|engine|push)/[\w/]+")
PATH = re.compile(r"(?:rewards|envs|rollout|learner|orchestrator|tests|configs|requirements)/[\w./]*\w/?")
SECTIONS = frozenset(key.partition(".")[0] for key in all_settings())
FREE = re.compile(r"envs\.[\w*-]+\.(options|weights)|rollout\.engine\.extra|rl_tools|rl-2|rl\.eval$")
"""Keys that users choose, and the stage of evaluations between steps."""


def spans(page: str) -> Iterator[str]:
    """The code spans of a page."""
    yield from SPAN.findall(BLOCK.sub("", text(page)))


@pytest.mark.parametrize("page", PAGES)
def test_named_settings_exist(page: str) -> None:
    known = {re.sub(r"^envs\.\*", "envs.NAME", key) for key in all_settings()}
    named = {key for span in spans(page) for key in SETTING.findall(span) if key.partition(".")[0] in SECTIONS}
    keys = {re.sub(r"^envs\.[\w*-]+", "envs.NAME", key) for key in named if not FREE.match(key)}
    sections = {key.rpartition(".")[0] for key in known}
    assert sorted(keys - known - sections - {"envs.NAME"}) == []


@pytest.mark.parametrize("page", PAGES)
def test_named_metrics_are_those_of_the_reference(page: str) -> None:
    named = {name for span in spans(page) if not PATH.fullmatch(span) for name in METRIC.findall(span)}
    named = {re.sub(r"^env/[a-z_]+/", "env/NAME/", name) for name in named if "." not in name}
    places = {name for name in named if (ROOT / name).exists() or name.endswith("/")}
    assert sorted(name for name in named - places if not pattern().fullmatch(name)) == []


@pytest.mark.parametrize("page", PAGES)
def test_named_files_exist(page: str) -> None:
    named = {span for span in spans(page) if PATH.fullmatch(span) and not re.search(r"[A-Z]{4}", span)}
    assert sorted(name for name in named if not (ROOT / name).exists() and not pattern().fullmatch(name)) == []


@pytest.mark.parametrize("folder", ["configs", "envs", "learner", "orchestrator", "requirements", "rewards", "rollout"])
def test_pages_that_code_names_exist(folder: str) -> None:
    files = [path for path in (ROOT / folder).rglob("*") if path.suffix in {".py", ".yaml", ".sh"}]
    named = {name for path in files for name in re.findall(r"docs/\w+\.md", path.read_text(encoding="utf-8"))}
    assert sorted(name for name in named if not (ROOT / name).exists()) == []


def test_the_list_of_pages_has_every_page() -> None:
    listed = [page for part in parts().values() for page in part.values()]
    assert sorted(listed) == sorted(page.name for page in DOCS.glob("*.md") if page != INDEX)


def test_the_lists_made_of_it_are_current() -> None:
    assert (INDEX.read_text(encoding="utf-8"), LLMS.read_text(encoding="utf-8")) == (index(), llms())
