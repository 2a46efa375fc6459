"""Write a new environment: one of four templates, renamed, with its test and configuration."""

import importlib.util
import keyword
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

import yaml

from temper.envs.catalog import ENVIRONMENTS
from temper.orchestrator.cluster.this_machine import import_folders

Form = Literal["answer", "rows", "tools", "turns"]
"""One answer to a generated task, rows of data, tool calls, or several turns."""
FORMS: tuple[Form, ...] = get_args(Form)
TEMPLATES = Path(__file__).parent / "templates"
"""Files of all forms, and a folder of specific files for each form."""
FILES = ("__init__.py", "env.py", "test_env.py", "run.yaml", "rows.jsonl")
"""The files of an environment in reading order. Only the form `rows` has the last one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Written:
    """An environment that was written."""

    name: str
    files: tuple[Path, ...]

    @property
    def steps(self) -> list[tuple[str, str]]:
        """The next commands to run in the same folder, each with its purpose."""
        variables = "".join(f"PYTHONPATH={folder} " for folder in import_folders()[:1])
        pytest = f"{variables}{sys.executable} -P -m pytest -q --import-mode=append {self.name}"
        return [
            (f"temper env check {self.name}/run.yaml", "run its reference solutions and negatives"),
            (pytest, "runs its tests"),
            (f"temper run {self.name}/run.yaml --dry-run", "check the configuration, without --dry-run train"),
        ]


def write_env(name: str, form: Form, folder: Path) -> Written:
    """Write the package `name` into a folder. Raise `ValueError` for an invalid name or one in use."""
    _check(name, folder)
    made = folder / name
    texts = {file: text for file in FILES if (text := _template(file, form)) is not None}
    made.mkdir()
    for file, text in texts.items():
        (made / file).write_text(text.replace("my_env", name), encoding="utf-8")
    return Written(name=name, files=tuple(made / file for file in texts))


def _template(file: str, form: Form) -> str | None:
    """Return the text of a file of a form. None if the form does not have it."""
    stored = f"{file}.txt" if file.endswith(".py") else file
    found = [path for path in (TEMPLATES / form / stored, TEMPLATES / stored) if path.is_file()]
    return found[0].read_text(encoding="utf-8") if found else None


def _check(name: str, folder: Path) -> None:
    if not name.isidentifier() or not name.isascii() or keyword.iskeyword(name) or name.startswith("_"):
        raise ValueError(f"{name!r} is not a module name; use letters, digits and _, and start with a letter")
    if yaml.safe_load(name) != name:
        raise ValueError(f"{name!r} means {yaml.safe_load(name)} in YAML; use another name")
    if name in ENVIRONMENTS:
        raise ValueError(f"{name!r} is a built-in environment; use another name")
    if (folder / name).exists() or (folder / f"{name}.py").exists():
        raise ValueError(f"{folder / name} exists; use another name, or remove it")
    if importlib.util.find_spec(name) is not None:
        raise ValueError(f"{name!r} would be hidden by an installed package; use another name")
