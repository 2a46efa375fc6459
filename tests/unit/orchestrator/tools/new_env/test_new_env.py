"""`temper env new`: the package passes its own tests, `temper env check` and the run checks in a user's folder."""

import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from temper.orchestrator.__main__ import main
from temper.orchestrator.cli.env_commands import FORMS as OFFERED
from temper.orchestrator.tools.new_env.writing import FORMS, write_env

TAKEN = ("math", "envs", "yaml", "3d", "two-words", "class", "on", "null", "here")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A user's folder as the current folder and on the module path."""
    (tmp_path / "envs").mkdir()  # must not shadow the package
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path, str(tmp_path)])
    before = set(sys.modules)
    yield tmp_path
    for name in set(sys.modules) - before:
        if name.startswith("mine_"):
            del sys.modules[name]


def test_all_that_is_written_passes_what_the_printed_lines_do(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for form in FORMS:
        assert main(["env", "new", f"mine_{form}", *([] if form == FORMS[0] else [f"--{form}"])]) == 0
    lines = [line.strip() for line in capsys.readouterr().out.splitlines()]
    for line in lines:
        if line.startswith("temper "):
            assert main(shlex.split(line)[1:]) == 0, line
    shown = capsys.readouterr().out
    assert shown.count("passed\n") == len(FORMS)
    assert shown.count("(--dry-run)") == len(FORMS)

    tests = [line.rpartition(" ") for line in lines if " -m pytest " in line]
    (command,) = {command for command, _, _ in tests}
    names = " ".join(name for _, _, name in tests)
    done = subprocess.run(
        f"{command} {names}", shell=True, cwd=folder, capture_output=True, text=True, timeout=100, check=False
    )
    assert done.returncode == 0, done.stdout
    texts = [file.read_text() for name in FORMS for file in (folder / f"mine_{name}").glob("*.*")]
    assert [text for text in texts if "my_env" in text or "new_env" in text] == []


def test_the_command_offers_each_form() -> None:
    assert tuple(OFFERED) == FORMS


@pytest.mark.parametrize("name", TAKEN)
def test_a_name_that_is_taken_or_none_is_refused(name: str, tmp_path: Path) -> None:
    (tmp_path / "here.py").write_text("")
    with pytest.raises(ValueError, match=name):
        write_env(name, "answer", tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["here.py"]
