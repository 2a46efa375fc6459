"""The outcomes of the judges as a page: `make judges`.

A test is one row. Its marker names the suite and the part of it, and the test records `version`, `passed`, `differs` (cases
without agreement) and `why`.
"""

from pathlib import Path
from typing import Any

import pytest

HEAD = """# Outside judges

Code of other projects checks Temper. `make judges` fetches it by package, runs it and writes this page.

| suite | version | run | passed | differs or skipped | why |
|---|---|---|---|---|---|
"""
NOT_RUN = [
    "| Open Responses | | its compliance suite | 0 | skipped | No registry has it. llm-comply has its cases |\n",
    "| vLLM | | its tests of the server | 0 | skipped | They download models |\n",
]
FOOT = """
A case that differs without a listed reason fails `make judges`. Packages are in `runs/judges`, not in `.venv`.
"""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--judges-page", type=Path, help="the page to write with the outcomes of the judges")


@pytest.fixture(autouse=True)
def _suite(request: pytest.FixtureRequest, record_property: Any) -> None:
    marker = request.node.get_closest_marker("judges")
    for name, value in (marker.kwargs if marker else {}).items():
        record_property(name, value)


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    page = config.getoption("--judges-page", default=None)  # unknown if pytest starts above this folder
    if page is None:
        return
    reports = [
        report
        for outcome in ("passed", "failed", "skipped", "error")
        for report in terminalreporter.stats.get(outcome, [])
        if report.when == "call" or report.outcome != "passed"
    ]
    rows = [_row(report) for report in reports if "suite" in dict(report.user_properties)]
    page.write_text(HEAD + "".join(sorted(rows + NOT_RUN)) + FOOT, encoding="utf-8")


def _row(report: pytest.TestReport) -> str:
    found = dict(report.user_properties)
    differs, why = str(found.get("differs", 0)), str(found.get("why", ""))
    if report.skipped:
        differs, why = "skipped", str(report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longrepr)
    elif report.failed:
        differs, why = "failed", f"{found.get('differs', '')} {why}".strip()
    cells = [found["suite"], found.get("version", ""), found["run"], found.get("passed", 0), differs, why]
    return "| " + " | ".join(str(cell).replace("Skipped: ", "").replace("|", "/") for cell in cells) + " |\n"
