"""The project, the newest changelog entry and the command report one version."""

import re
import tomllib
from datetime import date
from pathlib import Path

import pytest

from temper.orchestrator.__main__ import main

ROOT = Path(__file__).resolve().parents[2]
HEADING = re.compile(r"^## (\S+) - (\S+)$", re.MULTILINE)


def test_the_newest_entry_of_the_changelog_is_the_projects_version_and_what_the_command_says(
    capsys: pytest.CaptureFixture[str],
) -> None:
    version = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["version"]
    text = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    entries = HEADING.findall(text)
    assert len(entries) == len(re.findall(r"^## (?!Unreleased$)", text, re.MULTILINE))  # each has a number and a day
    assert entries[0][0] == version
    days = [date.fromisoformat(day) for _, day in entries]
    assert days == sorted(days, reverse=True)
    with pytest.raises(SystemExit, match="0"):
        main(["--version"])
    assert capsys.readouterr().out == f"temper {version}\n"
