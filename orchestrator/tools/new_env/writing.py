"""Writes an environment of one's own: one of the four of this room, with its test and its configuration, renamed."""

import importlib.util
import keyword
import re
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

import yaml

from temper.envs.catalog import ENVIRONMENTS
from temper.orchestrator.cluster.this_machine import IMPORTS, ROOT

Form = Literal["answer", "rows", "tools", "turns"]
"""Which one: one answer to a task that is made, rows of data, tools that are called, or several turns."""
FORMS: tuple[Form, ...] = get_args(Form)
NAME_THERE = "my_env"
"""What all of them are called."""
SCHEMA = ("../../../../docs/settings.schema.json", f"{ROOT}/docs/settings.schema.json")
"""What their configurations name for editors: in this room, and wherever a user's folder lies."""
TRIED = ("__init__.py", "env.py", "test_env.py", "run.yaml", "rows.jsonl")
"""Files of an environment, in the order in which they are read; only one over rows has the last."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Written:
    """An environment that was written."""

    name: str
    form: Form
    files: tuple[Path, ...]

    @property
    def steps(self) -> list[tuple[str, str]]:
        """The commands that come next, to be given in the same folder, each with what it does."""
        data = f" --data {self.name}/rows.jsonl" if self.form == "rows" else ""
        pytest = f"PYTHONPATH={IMPORTS} {sys.executable} -P -m pytest -q --import-mode=append {self.name}"
        return [
            (f"temper envcheck --env {self.name}{data}", "plays its gold answers and its wrong ones"),
            (pytest, "runs its tests"),
            (f"temper run {self.name}/run.yaml --dry-run", "checks its configuration; without --dry-run it trains"),
        ]


def write_env(name: str, form: Form, folder: Path) -> Written:
    """Write the package `name` into a folder. Raise `ValueError` for a name that can't be one, or that is taken there."""
    _check(name, folder)
    source, made = Path(__file__).parent / form, folder / name
    texts = {file: (source / file).read_text(encoding="utf-8") for file in TRIED if (source / file).is_file()}
    made.mkdir()
    for file, text in texts.items():
        (made / file).write_text(_renamed(text, form, name), encoding="utf-8")
    return Written(name=name, form=form, files=tuple(made / file for file in texts))


def _renamed(text: str, form: Form, name: str) -> str:
    room = __name__.rpartition(".")[0]
    there = (f"{room}.{form}", f"{room}.{form}".removeprefix("temper.").replace(".", "/"), NAME_THERE)
    return re.sub("|".join(map(re.escape, there)), name, text).replace(*SCHEMA)  # whose folders keep their names


def _check(name: str, folder: Path) -> None:
    if not name.isidentifier() or not name.isascii() or keyword.iskeyword(name) or name.startswith("_"):
        raise ValueError(f"{name!r} can't be the name of a module; give letters, digits and _, a letter first")
    if yaml.safe_load(name) != name:
        raise ValueError(f"{name!r} means {yaml.safe_load(name)} in a configuration; give another name")
    if name in ENVIRONMENTS:
        raise ValueError(f"{name!r} is an environment of Temper's own; give another name")
    if (folder / name).exists() or (folder / f"{name}.py").exists():
        raise ValueError(f"{folder / name} is there already; give another name, or remove it")
    if importlib.util.find_spec(name) is not None:
        raise ValueError(f"{name!r} is a package of Temper's or of a library, which would hide it; give another name")
