"""The metric names that docs/metrics.md explains, and a run's names that it lacks."""

import json
import re
from collections.abc import Iterable
from functools import cache
from pathlib import Path

PAGE = Path(__file__).resolve().parents[2] / "docs" / "metrics.md"
NAME = re.compile(r"`((?:(?:[a-z]+|NAME)/)?[\w/]+)`")
PLACES = re.compile(r"NAME|PART|KIND|MODE|NUMBER")
OF_ALL = {"avg_at_k", "version", "seconds"}
"""Metrics of an evaluation between steps over all environments. The page names them in a sentence."""


@cache
def explained() -> tuple[str, ...]:
    """The names in the first column of the page's tables, with their places."""
    rows = [line.split("|")[1] for line in PAGE.read_text(encoding="utf-8").splitlines() if line.startswith("| `")]
    return tuple(name for row in rows for name in NAME.findall(row))


@cache
def pattern() -> re.Pattern[str]:
    """A pattern of all names with their places filled in."""
    return re.compile("|".join(PLACES.sub("[^/]+", re.escape(name)) for name in explained()))


def unexplained(names: Iterable[str]) -> list[str]:
    """The metrics that the page does not explain."""
    return sorted(name for name in set(names) - OF_ALL if not pattern().fullmatch(name))


def unexplained_of(metrics: Path) -> list[str]:
    """The metrics and events in a run's rows that the page does not explain."""
    rows = [json.loads(line) for line in metrics.read_text(encoding="utf-8").splitlines()]
    page = PAGE.read_text(encoding="utf-8")
    events = {row["event"]["kind"] for row in rows if "event" in row}
    named = {name for row in rows if "event" not in row for name in row} - {"stage", "step", "time"}
    return unexplained(named) + sorted(kind for kind in events if f"`{kind}`" not in page)
