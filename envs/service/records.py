"""The records of a service, read once per process. An episode changes copies of the records that it touches.

A folder has a file `TABLE.json` per table (records by id), `tools.json` (schemas) and `policy.md` (the agent's
instructions), in the layout of tau-bench's domains.
"""

import copy
import json
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, Self, TypeVar

from temper.envs.core.task import Tool

Record = dict[str, Any]
Table = dict[str, Record]
TOOLS, POLICY = "tools.json", "policy.md"
OPENING = threading.Lock()
"""Held while a folder is opened, so that concurrent threads read it once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Records:
    """The records of a folder, shared by all episodes and never changed."""

    tables: Mapping[str, Table]
    policy: str
    tools: tuple[Tool, ...]


R = TypeVar("R", bound=Records)


class Database(Generic[R]):
    """One episode's view of records with a table `users`. Records from `edit` and `add` belong to this episode."""

    def __init__(self, records: R) -> None:
        self.records = records
        self._own: dict[str, Table] = {name: {} for name in records.tables}

    def find(self, table: str, key: str) -> Record | None:
        """Return the current record, read-only, or None if there is none."""
        return self._own[table].get(key) or self.records.tables[table].get(key)

    def edit(self, table: str, key: str) -> Record:
        """Return an existing record to change."""
        own = self._own[table]
        if key not in own:
            own[key] = copy.deepcopy(self.records.tables[table][key])
        return own[key]

    def add(self, table: str, key: str, record: Record) -> None:
        assert self.find(table, key) is None
        self._own[table][key] = record

    def before(self) -> Self:
        return type(self)(self.records)

    def same_state(self, other: "Database[R]") -> bool:
        """Return whether two views of the same records are equal. Only records that either touched can differ."""
        assert self.records is other.records
        return all(
            self.find(table, key) == other.find(table, key)
            for table in self._own
            for key in {*self._own[table], *other._own[table]}
        )


def companions(tables: tuple[str, ...]) -> tuple[str, ...]:
    return (*(f"{table}.json" for table in tables), TOOLS, POLICY)


def read_records(folder: Path, tables: tuple[str, ...]) -> Records:
    return Records(
        tables={table: _table(folder / f"{table}.json", tables) for table in tables},
        policy=_text(folder / POLICY, tables),
        tools=_tools(folder / TOOLS, tables),
    )


def check_each(path: Path, table: Table, check: Callable[[Record], None]) -> None:
    """Read every field that a tool may need through `check`, so that no tool fails later."""
    for key, record in table.items():
        try:
            check(record)
        except (KeyError, TypeError, AttributeError, IndexError, ValueError) as error:
            raise ValueError(f"{path}: record {key!r} is broken: {error!r}; download it again") from error


def _text(path: Path, tables: tuple[str, ...]) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        *files, last = companions(tables)
        raise ValueError(
            f"the database has no readable {path} ({error.__class__.__name__}); set the option 'database' to "
            f"a folder with {', '.join(files)} and {last}"
        ) from error


def _json(path: Path, tables: tuple[str, ...]) -> Any:
    try:
        return json.loads(_text(path, tables))
    except RecursionError as error:
        raise ValueError(f"{path} is nested too deeply") from error
    except json.JSONDecodeError as error:
        raise ValueError(f"{path} is not valid JSON: {error}; download it again") from error


def _table(path: Path, tables: tuple[str, ...]) -> Table:
    table = _json(path, tables)
    if not isinstance(table, dict) or not all(isinstance(record, dict) for record in table.values()):
        raise ValueError(f"{path} must hold one JSON object of records by id")
    return table


def _tools(path: Path, tables: tuple[str, ...]) -> tuple[Tool, ...]:
    tools = _json(path, tables)
    if not isinstance(tools, list) or not all(isinstance(tool, dict) and "function" in tool for tool in tools):
        raise ValueError(f"{path} must hold a list of tool schemas with a field 'function'")
    return tuple(tools)
