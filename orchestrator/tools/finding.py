"""Findings of all tools as lines of text or as JSON."""

from collections import Counter
from collections.abc import Iterable
from typing import Any

from temper.orchestrator.pipeline.finding import Finding, Level


def findings_to_json(findings: Iterable[Finding]) -> dict[str, Any]:
    """Return findings and the counts of failures and warnings as plain JSON data."""
    rows = [finding.to_json() for finding in findings]
    counts = Counter(row["level"] for row in rows)
    return {"findings": rows, "failures": counts["failure"], "warnings": counts["warning"]}


def counts_line(findings: Iterable[Finding]) -> str:
    """Return the number of findings of each level as text."""
    counts = Counter(finding.level for finding in findings)
    bad = [
        f"{counts[level]} {level.value}{'' if counts[level] == 1 else 's'}" for level in (Level.FAILURE, Level.WARNING)
    ]
    return f"{', '.join(bad)}, {counts[Level.OK]} ok"
