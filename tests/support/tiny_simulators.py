"""A package of simulators with the layout of the function-calling leaderboard, with a file system of four methods."""

import json
from pathlib import Path
from typing import Any

from temper.envs.multi_turn_calls.simulator_names import DOCUMENTS, PACKAGE, ROOM

SOURCE = '''
import copy


class GorillaFileSystem:
    """Folders in a folder; `_looks` is no part of its state."""

    def __init__(self):
        self.names = []
        self._looks = 0

    def _load_scenario(self, scenario, long_context=False):
        if scenario.get("broken"):
            raise RuntimeError("this scenario can't be loaded")
        self.names = list(scenario.get("names", [])) + ["long"] * long_context

    def mkdir(self, name):
        if name in self.names:
            return {"error": f"{name} is there already"}
        self.names.append(name)
        return None

    def ls(self):
        self._looks += 1
        return {"names": sorted(self.names)}

    def rm(self, name, often=1):
        if often > 1:
            raise ValueError("once is enough")
        self.names.remove(name)
        return f"{name} is gone"

    def wait(self):
        while True:
            pass
'''


def _document(method: str, **arguments: str) -> str:
    properties = {key: {"type": kind, "description": f"The {key}."} for key, kind in arguments.items()}
    parameters = {"type": "dict", "properties": properties, "required": list(properties)[:1]}
    return json.dumps({"name": method, "description": f"Does {method}.", "parameters": parameters})


DOCUMENT = [
    _document("mkdir", name="string"),
    _document("ls"),
    _document("rm", name="string", often="integer"),
    _document("wait"),
]
MODULE = f"{ROOM.replace('.', '/')}/gorilla_file_system.py"
FILES = {MODULE: SOURCE, f"{PACKAGE}/{DOCUMENTS}/gorilla_file_system.json": "\n".join(DOCUMENT)}
"""The files of the package by relative path."""
ASKED = ["Make the folder docs.", "What is there?"]
REFERENCE = [["mkdir(name='docs')"], ["ls()"]]


def write_simulators(folder: Path, source: str = SOURCE) -> Path:
    """Write the package below a folder and return the folder."""
    for name, text in (FILES | {MODULE: source}).items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return folder


def dialogue(
    category: str, asked: list[str] | None = None, reference: list[list[str]] | None = None, **more: Any
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return a row and its answer. An empty turn of the user has no message."""
    row = {
        "id": f"{category}_0",
        "question": [[{"role": "user", "content": text}] if text else [] for text in asked or ASKED],
        "initial_config": {"GorillaFileSystem": {"names": ["old"]}},
        "path": ["GorillaFileSystem.mkdir"],
        "involved_classes": ["GorillaFileSystem"],
    }
    return row | more, {"id": row["id"], "ground_truth": reference or REFERENCE}
