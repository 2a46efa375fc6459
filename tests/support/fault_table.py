"""`python tests/support/fault_table.py FOLDER OUT`: the table of faults, from what the tests saw.

Each test of a fault writes a small JSON file into the folder that TEMPER_FAULTS names (nowhere without it); what a fast test
of `make test` holds is said here with that test's name. `make test-faults` puts both together as `docs/faults.md`.
"""

import json
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from support.fault_row import Row
from support.fault_rows import ROWS

FOLDER = "TEMPER_FAULTS"
HEAD = """# Faults: what is promised, what was seen

Written by `make test-faults` from what its tests saw: real engines (vLLM and DeepSpeed on CPUs), real processes, a tiny
model, {cores} cores. Where a fast test of `make test` holds a row, it is named and says what it asserts. The threads are those
in which users of other projects met the fault.

| fault | promised | seen | met in |
|---|---|---|---|
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sight:
    """What a test saw of a fault: `seen`, or why it could not look here."""

    text: str
    skipped: bool = False


def saw(name: str, text: str, *, skipped: bool = False) -> None:
    """Keep what was seen of the fault `name` of the table."""
    assert any(row.name == name and row.held_by is None for row in ROWS), f"no row {name!r} is open"
    print(f"{name}: {text}")
    if folder := os.environ.get(FOLDER):
        path = Path(folder) / f"{name}.json"
        path.write_text(json.dumps({"text": text, "skipped": skipped}), encoding="utf-8")


def read(folder: Path) -> dict[str, Sight]:
    """Return what was seen, by the names of the rows."""
    return {path.stem: Sight(**json.loads(path.read_text(encoding="utf-8"))) for path in sorted(folder.glob("*.json"))}


def table(sights: Mapping[str, Sight]) -> str:
    """Return the document. Raise `ValueError` where the tests have not seen a fault of the table."""
    missing = [row.name for row in ROWS if row.held_by is None and row.name not in sights]
    if missing:
        raise ValueError(f"nothing was seen of {', '.join(missing)}; run all tests of faults")
    return HEAD.format(cores=os.cpu_count()) + "".join(_line(row, sights) for row in ROWS)


def _line(row: Row, sights: Mapping[str, Sight]) -> str:
    if row.held_by is not None:
        file, _, test = row.held_by.partition("::")
        seen = f"`{test}` in `tests/{file}`: {row.seen}"
    else:
        sight = sights[row.name]
        seen = f"not looked at here: {sight.text}" if sight.skipped else sight.text
    threads = ", ".join(f"[{thread.name}]({thread.url})" for thread in row.threads)
    cells = [row.fault, row.promised, seen, threads]
    return "| " + " | ".join(cell.replace("|", "\\|").replace("\n", " ") for cell in cells) + " |\n"


def main(arguments: list[str]) -> int:
    folder, out = map(Path, arguments)
    out.write_text(table(read(folder)), encoding="utf-8")
    print(f"{out}: {len(ROWS)} faults")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
