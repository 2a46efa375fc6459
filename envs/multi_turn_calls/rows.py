"""Multi-turn rows of the Berkeley Function-Calling Leaderboard, version 4, in the layout of its files.

A row has the user's `question` by turn and the `involved_classes` with their `initial_config`. In the category `miss_func`
a later turn without user text offers further functions (`missed_function`). Reference calls are texts of Python calls,
which are parsed and never run. They are stored by id in `possible_answer/` below the rows, and the function documents in the
package of the simulators.
"""

import ast
import functools
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from temper.envs.core.row_format import Row, field
from temper.envs.core.task import Message, Task, Tool
from temper.envs.data.jsonl import read_sound_rows
from temper.envs.multi_turn_calls.simulator_names import DOCUMENTS, MODULES
from temper.envs.multi_turn_calls.simulators import Scene
from temper.envs.tool_use.function_rows import messages_of
from temper.envs.tool_use.leaderboard_rows import answer_to, category_of, describe_function

CATEGORIES = tuple(f"multi_turn_{kind}" for kind in ("base", "miss_func", "miss_param", "long_context"))
ANSWERS = tuple(f"possible_answer/BFCL_v4_{category}.json" for category in CATEGORIES)
OFFER = "{functions}\nI have updated some more functions you can choose from. What about now?"
"""The user's message that offers more functions, in the leaderboard's form for models with functions as text."""


def is_dialogue(row: Row) -> bool:
    return "involved_classes" in row and category_of(row) in CATEGORIES


def load(row: Row, *, folder: Path, package: Path) -> Task:
    """Make a task of a row, with the answer below `folder` and the documents in `package`.

    Its spec has the scene, the later user turns, and the reference calls of each turn. Raise `ValueError` if one is
    missing.
    """
    category, classes = category_of(row), field(row, "involved_classes", list)
    for name in classes:
        if name not in MODULES:
            raise ValueError(f"field 'involved_classes' has {name!r}; use one of {', '.join(MODULES)}")
    documents = {document["name"]: document for name in classes for document in _documents(package, MODULES[name])}
    later = _withheld(row, documents)
    turns = _turns(
        row, {place: [describe_function(documents[name], None) for name in names] for place, names in later.items()}
    )
    answer = answer_to(str(row["id"]), category, folder)
    if len(answer) != len(turns):
        raise ValueError(
            f"{len(turns)} turns but reference calls of {len(answer)}; get both files from the same version"
        )
    withheld = {name for names in later.values() for name in names}
    return Task(
        messages=tuple(turns[0]),
        tools=tuple(describe_function(one, None) for name, one in documents.items() if name not in withheld),
        spec={
            "classes": classes,
            "config": row.get("initial_config", {}),
            "long_context": category.endswith("long_context"),
            "later": turns[1:],
            "reference": [[call_in(text, documents) for text in texts] for texts in answer],
        },
    )


def scene_of(task: Task) -> Scene:
    spec = task.spec
    return Scene(classes=tuple(spec["classes"]), config=spec["config"], long_context=spec["long_context"])


def _withheld(row: Row, documents: Mapping[str, Any]) -> dict[int, list[str]]:
    found = {int(place): names for place, names in row.get("missed_function", {}).items()}
    for name in (name for names in found.values() for name in names):
        if name not in documents:
            raise ValueError(f"field 'missed_function' has {name!r}, which is in none of the row's classes")
    return found


def _turns(row: Row, offered: Mapping[int, list[Tool]]) -> list[list[Message]]:
    turns: list[list[Message]] = []
    for place, messages in enumerate(field(row, "question", list)):
        if place in offered:
            if messages or not place:
                raise ValueError(
                    f"field 'question' must have no messages in turn {place}, in which functions are offered"
                )
            functions = json.dumps([tool["function"] for tool in offered[place]])
            turns.append([{"role": "user", "content": OFFER.format(functions=functions)}])
        else:
            turns.append(list(messages_of({"question": [messages]})))
    if not turns:
        raise ValueError("field 'question' has no turns")
    return turns


def call_in(text: str, documents: Mapping[str, Any]) -> dict[str, Any]:
    """Return the call of a text such as `cd(folder='docs')`. Positional arguments follow the order of the document.

    Raise `ValueError` for any other text. Nothing is executed.
    """
    try:
        return _call(ast.parse(text, mode="eval").body, documents)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise ValueError(
            f"the reference call {text!r:.120} is not a call of a known function with literals: {error}"
        ) from error


def _call(node: ast.expr, documents: Mapping[str, Any]) -> dict[str, Any]:
    match node:
        case ast.Call(func=ast.Name(id=name), args=values, keywords=words) if name in documents:
            known = list(documents[name]["parameters"]["properties"])
            given = [*zip(known, values, strict=False), *((word.arg, word.value) for word in words)]
            if len(values) <= len(known) and None not in dict(given) and len(dict(given)) == len(values) + len(words):
                return {"name": name, "arguments": {key: ast.literal_eval(value) for key, value in given}}
    raise ValueError(f"{ast.dump(node):.80}")


def _documents(package: Path, module: str) -> Sequence[dict[str, Any]]:
    path = package / DOCUMENTS / f"{module}.json"
    if not path.is_file():
        raise ValueError(f"{path} with the model's functions is missing; reinstall the package")
    return _read(path, path.stat().st_mtime_ns)


@functools.lru_cache(maxsize=32)
def _read(path: Path, _changed: int) -> Sequence[dict[str, Any]]:
    functions = list(read_sound_rows(path))
    for function in functions:
        field(function, "name", str)
    return functions
