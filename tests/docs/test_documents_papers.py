"""The index of papers in docs/algorithms.md: settings that load, papers that the code names, tests that there are."""

import ast
import re
import shlex
from dataclasses import dataclass
from typing import Any

import pytest
import yaml
from docs.test_documents import ROOT, SOURCES, text

from temper.learner.losses.advantages import ADVANTAGES
from temper.learner.losses.config import LossConfig
from temper.learner.losses.surrogates import SURROGATES
from temper.orchestrator.pipeline.config import Config, load_config

PAGE = "docs/algorithms.md"
DOCSTRINGS = " ".join(
    " ".join((ast.get_docstring(node) or "").split())
    for path in SOURCES
    if path.relative_to(ROOT).parts[0] != "tests"
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
    if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A line of the index."""

    paper: str
    settings: str
    tests: str

    @property
    def overrides(self) -> list[str]:
        """The settings, each as it is given on the command line."""
        return shlex.split(self.settings.strip("` "))

    @property
    def titles(self) -> list[str]:
        """The titles of its papers."""
        return re.findall(r'"([^"]+)"', self.paper)


def setting(config: Config, key: str) -> Any:
    """The value of a setting, a tuple as a list."""
    first, *further = key.split(".")
    value = config.sections.get(first) or getattr(config, first)
    for name in further:
        value = getattr(value, name)
    return list(value) if isinstance(value, tuple) else value


def rows() -> list[Row]:
    """Every line of the index."""
    lines = text(PAGE).split("\n## Papers\n")[1].splitlines()
    cells = [[cell.strip() for cell in line.split(" | ")] for line in lines if re.search(r'", \d{4}', line)]
    return [Row(paper=paper, settings=settings, tests=tests) for paper, _, settings, tests in cells]


ROWS = rows()


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.titles[0])
def test_the_settings_of_a_paper_load_and_are_what_the_run_then_has(row: Row) -> None:
    assert row.overrides
    config = load_config(ROOT / "configs" / "demo.yaml", row.overrides)
    for override in row.overrides:
        key, _, value = override.partition("=")
        assert setting(config, key) == yaml.safe_load(value)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.titles[0])
def test_a_paper_is_one_that_the_code_names(row: Row) -> None:
    assert row.titles
    assert [title for title in row.titles if f'"{title}' not in DOCSTRINGS] == []


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.titles[0])
def test_the_tests_of_a_paper_are_there(row: Row) -> None:
    named = re.findall(r"`(tests/\w+\.py)::(\w+)`", row.tests)
    assert named
    for file, name in named:
        functions = [
            node.name for node in ast.parse((ROOT / file).read_text()).body if isinstance(node, ast.FunctionDef)
        ]
        assert name in functions


def test_the_index_has_every_advantage_and_surrogate_of_the_code() -> None:
    asked = {override for row in ROWS for override in row.overrides}
    usual = LossConfig()
    advantages = {f"rl.loss.advantage={name}" for name in ADVANTAGES.keys() - {"reinforce_pp_baseline"}}
    surrogates = {f"rl.loss.surrogate={name}" for name in SURROGATES.keys() - {usual.surrogate}}
    assert sorted((advantages | surrogates) - asked) == []
