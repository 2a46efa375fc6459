"""`new-env`: what it writes passes its own tests, envcheck and the checks of a run, in a folder of the user's own."""

import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from temper.orchestrator.__main__ import main
from temper.orchestrator.tools.new_env import writing
from temper.orchestrator.tools.new_env.writing import FORMS, Form, write_env

TAKEN = {
    "math": "is an environment of Temper's own",
    "envs": "is a package of Temper's or of a library",
    "yaml": "is a package of Temper's or of a library",
    "3d": "can't be the name of a module",
    "two-words": "can't be the name of a module",
    "class": "can't be the name of a module",
    "on": "means True in a configuration",
    "null": "means None in a configuration",
    "here": "is there already",
}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A user's folder, which is the current one and searched for modules."""
    (tmp_path / "envs").mkdir()  # hides nothing
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path, str(tmp_path)])
    before = set(sys.modules)
    yield tmp_path
    for name in set(sys.modules) - before:
        if name.startswith("mine_"):
            del sys.modules[name]


def test_all_that_is_written_passes_what_the_printed_lines_do(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for form in FORMS:
        assert main(["new-env", f"mine_{form}", *([] if form == FORMS[0] else [f"--{form}"])]) == 0
    lines = [line.strip() for line in capsys.readouterr().out.splitlines()]
    for line in lines:
        if line.startswith("temper "):
            assert main(shlex.split(line)[1:]) == 0, line
    shown = capsys.readouterr().out
    assert shown.count("passed\n") == len(FORMS)
    assert shown.count("(--dry-run)") == len(FORMS)

    tests = [line.rpartition(" ") for line in lines if line.startswith("PYTHONPATH=")]
    (command,) = {command for command, _, _ in tests}
    names = " ".join(name for _, _, name in tests)
    done = subprocess.run(
        f"{command} {names}", shell=True, cwd=folder, capture_output=True, text=True, timeout=100, check=False
    )
    assert done.returncode == 0, done.stdout
    texts = [file.read_text() for name in FORMS for file in (folder / f"mine_{name}").glob("*.*")]
    assert [text for text in texts if "my_env" in text or "new_env" in text] == []
    schemas = [
        (folder / f"mine_{form}" / "run.yaml").read_text().splitlines()[0].partition("$schema=")[2] for form in FORMS
    ]
    assert all(Path(schema).is_absolute() and Path(schema).is_file() for schema in schemas)


@pytest.mark.parametrize("form", FORMS)
def test_a_name_that_holds_the_one_that_is_there_stays_whole(form: Form, tmp_path: Path) -> None:
    plain, like = (write_env(name, form, tmp_path) for name in ("mine_env", "my_env2"))
    for one, other in zip(plain.files, like.files, strict=True):
        assert other.read_text(encoding="utf-8") == one.read_text(encoding="utf-8").replace("mine_env", "my_env2")


def test_a_checkout_in_a_folder_of_the_name_that_is_there_is_named_as_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writing, "SCHEMA", (writing.SCHEMA[0], "/home/my_env/docs/settings.schema.json"))
    made = write_env("mine", "answer", tmp_path)
    (run,) = (file for file in made.files if file.name == "run.yaml")
    assert "$schema=/home/my_env/docs/settings.schema.json\n" in run.read_text(encoding="utf-8")


@pytest.mark.parametrize("name", TAKEN)
def test_a_name_that_is_taken_or_none_is_refused(name: str, tmp_path: Path) -> None:
    (tmp_path / "here.py").write_text("")
    with pytest.raises(ValueError, match=TAKEN[name]):
        write_env(name, "answer", tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["here.py"]
