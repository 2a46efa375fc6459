"""Twelve lines, in YAML or Python, train on a user's rows, reward and tool."""

import json
import subprocess
import sys
from pathlib import Path

from temper.orchestrator.cluster.this_machine import worker_variables

MINE = """
def reward(answer, row):
    return float(answer == row["answer"])
def lookup(city: str) -> int:
    \"\"\"Return the inhabitants of a city.

    Args:
        city: Its name.
    \"\"\"
    return {"Oslo": 700_000}[city]
"""
YAML = """
name: mine
stages: [init, rl, report]
envs: {cities: {data: rows.jsonl, reward: mine.reward, tools: [mine.lookup]}}
"""


def test_twelve_lines_are_a_run(tmp_path: Path) -> None:
    """The functions and the settings, without blank lines. The dry run checks the settings, and imports the functions."""
    assert sum(bool(line.strip()) for line in (MINE + YAML).splitlines()) <= 12
    (tmp_path / "mine.py").write_text(MINE)
    (tmp_path / "run.yaml").write_text(YAML)
    rows = [{"question": f"How many live in city {number}?", "answer": str(number)} for number in range(64)]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    command = [sys.executable, "-m", "temper.orchestrator", "run", "run.yaml", "--dry-run", "--json"]
    done = subprocess.run(
        command,
        cwd=tmp_path,
        env=worker_variables() | {"TEMPER_MODULES": str(tmp_path), "HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert [stage["name"] for stage in json.loads(done.stdout)["stages"]] == ["init", "rl", "report"]
