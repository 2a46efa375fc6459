"""The table of faults names tests that there are, and has a row for each fault that a test looks at."""

import ast
from pathlib import Path

import pytest
from support.fault_rows import ROWS
from support.fault_table import Sight, table

TESTS = Path(__file__).parent
SEEN = {row.name: Sight(text="as promised") for row in ROWS if row.held_by is None}


def functions(path: Path) -> set[str]:
    return {node.name for node in ast.parse(path.read_text("utf-8")).body if isinstance(node, ast.FunctionDef)}


def test_every_row_is_held_by_a_fast_test_or_looked_at_by_one_of_faults() -> None:
    assert len({row.name for row in ROWS}) == len(ROWS)
    for row in ROWS:
        if row.held_by is not None:
            file, _, test = row.held_by.partition("::")
            assert row.seen, row.name
            assert test in functions(TESTS / file), row.held_by


def test_the_table_has_a_line_for_each_row_and_says_what_was_not_seen() -> None:
    lines = table(SEEN).splitlines()
    assert sum(line.startswith("| ") for line in lines) == len(ROWS) + 1
    assert all(line.count("|") == 5 for line in lines if line.startswith("|"))
    some = dict(list(SEEN.items())[1:])
    with pytest.raises(ValueError, match=f"nothing was seen of {next(iter(SEEN))}"):
        table(some)
    skipped = table(SEEN | {"disk-metrics": Sight(text="no mount", skipped=True)})
    assert "not looked at here: no mount" in skipped
