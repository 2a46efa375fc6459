"""A function of a notebook or a script gets a file with all that it uses; what can't be written is refused."""

import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from support import user_functions

from temper.envs.core.function_source import name_of_function
from temper.envs.core.functions import load_function

NOTEBOOK = """
import math
from collections import Counter
from dataclasses import dataclass
import threading

LIMITS = {"least": 2, "words": ["a", "b"]}
LOCK = threading.Lock()

@dataclass
class Found:
    value: float

def helper(answer: str) -> Found:
    return Found(math.floor(len(answer)) + LIMITS["least"])

def twice(function):
    def inner(answer, row):
        return 2 * function(answer, row)
    return inner

def reward(answer: str, row: dict) -> float:
    unused = [helper(each) for each in Counter(answer)]
    return helper(answer).value

def locked(answer, row):
    with LOCK:
        return 1.0

wrapped = twice(reward)
nameless = lambda answer, row: 1.0
"""


@pytest.fixture
def cells(tmp_path: Path) -> Iterator[dict[str, Any]]:
    """The names of a notebook: its functions belong to `__main__` and have their sources."""
    file = tmp_path / "cell.py"
    file.write_text(NOTEBOOK)
    main, notebook = sys.modules["__main__"], ModuleType("__main__")
    sys.modules["__main__"] = notebook
    notebook.__file__ = str(file)
    exec(compile(NOTEBOOK, str(file), "exec"), vars(notebook))
    yield vars(notebook)
    sys.modules["__main__"] = main


def test_a_function_of_a_notebook_is_written_with_all_it_uses(cells: dict[str, Any], tmp_path: Path) -> None:
    name = name_of_function(cells["reward"], tmp_path / "inputs")
    assert load_function(name)("abc", {}) == 5.0
    assert name_of_function(cells["reward"], tmp_path / "inputs") == name


@pytest.mark.parametrize("function", ["locked", "wrapped", "nameless"])
def test_a_function_that_cant_be_written_is_refused(cells: dict[str, Any], function: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"module|def"):
        name_of_function(cells[function], tmp_path)


def test_an_importable_function_keeps_its_name(tmp_path: Path) -> None:
    assert name_of_function(user_functions.length, tmp_path) == "support.user_functions.length"
    assert name_of_function("mine.f", tmp_path) == "mine.f"
    assert list(tmp_path.iterdir()) == []
