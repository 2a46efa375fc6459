"""The documents keep the rules of `.vale/Temper`, applied here without Vale."""

import re
from collections.abc import Iterator
from typing import Any

import pytest
import yaml
from support.documents import DOCUMENTS, ROOT, text

RULES = {file.stem: yaml.safe_load(file.read_text()) for file in sorted((ROOT / ".vale" / "Temper").glob("*.yml"))}
GENERATED = {"docs/settings.md"}
PAGES = ["CHANGELOG.md", *(page for page in DOCUMENTS if page not in GENERATED)]


def paragraphs(text: str) -> Iterator[str]:
    """Yield paragraphs, list items and table cells of Markdown without code, links' targets and headings."""
    text = re.sub(r"^(```|~~~).*?^\1", "", text, flags=re.S | re.M)
    text = re.sub(r"`[^`]*`", "code", text)
    text = re.sub(r"\]\([^)]*\)|https?://\S+", " ", text)
    for block in re.split(r"\n\s*\n|\n(?=\s*(?:[-*]|\d+\.)\s)", text):
        lines = [line for line in block.splitlines() if not line.startswith("#")]
        for line in (line for line in lines if line.startswith("|")):
            yield from line.strip("|").split("|")
        yield " ".join(line.strip() for line in lines if not line.startswith("|"))


def sentences(text: str) -> Iterator[str]:
    for paragraph in paragraphs(text):
        yield from re.split(r"(?<=[.!?:])\s+", paragraph.strip().lstrip("-* "))


def patterns(rule: dict[str, Any]) -> Iterator[str]:
    """Yield the regular expressions of a rule, each of which matches a fault."""
    for token in [*rule.get("tokens", ()), *rule.get("swap", ())]:
        yield token if rule.get("nonword") else rf"\b(?:{token})\b"


def faults(rule: dict[str, Any], text: str) -> list[str]:
    """Return the sentences that violate a rule."""
    flags = re.IGNORECASE if rule.get("ignorecase") else 0
    if rule["extends"] == "occurrence":
        return [one for one in sentences(text) if len(re.findall(rule["token"], one)) > rule["max"]]
    return [one for one in sentences(text) if any(re.search(pattern, one, flags) for pattern in patterns(rule))]


@pytest.mark.parametrize("page", PAGES)
def test_a_page_keeps_the_rules_of_style(page: str) -> None:
    assert [(name, found) for name, rule in RULES.items() if (found := faults(rule, text(page)))] == []


@pytest.mark.parametrize(
    ("rule", "broken"),
    [
        ("Reports", "The user is told it."),
        ("Pictures", "The run goes on."),
        ("WhatClause", "What dies is replaced."),
        ("Terms", "A newcomer starts."),
        ("LongSentence", "word " * 41),
    ],
)
def test_a_rule_finds_a_fault(rule: str, broken: str) -> None:
    assert faults(RULES[rule], broken)
    assert not faults(RULES[rule], "Dead workers are replaced while the run continues.")
