"""The shop's records, read once per process. An episode changes copies of the records that it touches.

A folder has a file `TABLE.json` per table (records by id), `tools.json` (schemas) and `policy.md` (the agent's
instructions), in the layout of tau-bench's retail domain.
"""

import copy
import functools
import json
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from temper.envs.core.task import Tool

Record = dict[str, Any]
Table = dict[str, Record]
TABLES = ("users", "orders", "products")
TOOLS, POLICY = "tools.json", "policy.md"
FILES = (*(f"{table}.json" for table in TABLES), TOOLS, POLICY)
GIFT_CARD = "gift_card"
CACHE_LOCK = threading.Lock()
"""Held while a folder is opened, so that concurrent threads read it once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shop:
    """The records of a folder, shared by all episodes and never changed."""

    tables: Mapping[str, Table]
    policy: str
    tools: tuple[Tool, ...]
    emails: Mapping[str, str]
    """The ids of the users by e-mail, in lower case."""
    names: Mapping[tuple[str, str], tuple[str, ...]]
    """The ids of the users by first and last name, in lower case."""


class Database:
    """One episode's view of the shop. Records from `edit` belong to this episode."""

    def __init__(self, records: Shop) -> None:
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

    def copy_initial(self) -> "Database":
        return Database(self.records)

    def is_same_state(self, other: "Database") -> bool:
        """Return whether two views of the same records are equal. Only records that either touched can differ."""
        assert self.records is other.records
        return all(
            self.find(table, key) == other.find(table, key)
            for table in self._own
            for key in {*self._own[table], *other._own[table]}
        )


def open_database(folder: Path) -> Database:
    """Return an unchanged database of the records of a folder. Raise `ValueError` if it can't be read."""
    with CACHE_LOCK:
        return Database(open_shop(folder))


@functools.lru_cache(maxsize=8)
def open_shop(folder: Path) -> Shop:
    tables = {table: _table(folder / f"{table}.json") for table in TABLES}
    policy, tools = _text(folder / POLICY), _tools(folder / TOOLS)
    users, orders, products = tables.values()
    _check_each(folder / "products.json", products, _check_product)
    _check_each(folder / "users.json", users, _check_user)
    _check_each(folder / "orders.json", orders, functools.partial(_check_order, users=users, products=products))
    names: dict[tuple[str, str], tuple[str, ...]] = {}
    for key, user in users.items():
        name = (user["name"]["first_name"].lower(), user["name"]["last_name"].lower())
        names[name] = (*names.get(name, ()), key)
    emails = {user["email"].lower(): key for key, user in reversed(users.items())}
    return Shop(tables=tables, policy=policy, tools=tools, emails=emails, names=names)


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        *files, last = FILES
        raise ValueError(
            f"the database has no readable {path} ({error.__class__.__name__}); set the option 'database' to "
            f"a folder with {', '.join(files)} and {last}"
        ) from error


def _json(path: Path) -> Any:
    try:
        return json.loads(_text(path))
    except RecursionError as error:
        raise ValueError(f"{path} is nested too deeply") from error
    except json.JSONDecodeError as error:
        raise ValueError(f"{path} is not valid JSON: {error}; download it again") from error


def _table(path: Path) -> Table:
    table = _json(path)
    if not isinstance(table, dict) or not all(isinstance(record, dict) for record in table.values()):
        raise ValueError(f"{path} must hold one JSON object of records by id")
    return table


def _tools(path: Path) -> tuple[Tool, ...]:
    tools = _json(path)
    if not isinstance(tools, list) or not all(isinstance(tool, dict) and "function" in tool for tool in tools):
        raise ValueError(f"{path} must hold a list of tool schemas with a field 'function'")
    return tuple(tools)


def _check_each(path: Path, table: Table, check: Callable[[Record], None]) -> None:
    """Read every field that a tool may need through `check`, so that no tool fails later."""
    for key, record in table.items():
        try:
            check(record)
        except (KeyError, TypeError, AttributeError, IndexError, ValueError) as error:
            raise ValueError(f"{path}: record {key!r} is broken: {error!r}; download it again") from error


def _check_product(product: Record) -> None:
    _ = product["name"] + product["product_id"]
    for variant in product["variants"].values():
        _ = variant["price"] + 0.0, variant["available"], variant["options"]


def _check_user(user: Record) -> None:
    _ = user["email"].lower(), user["name"]["first_name"].lower(), user["name"]["last_name"].lower()
    _ = user["address"]["zip"], user["orders"]
    for method in user["payment_methods"].values():
        _ = method["balance"] + 0.0 if method["source"] == GIFT_CARD else 0.0


def _check_order(order: Record, *, users: Table, products: Table) -> None:
    methods = users[order["user_id"]]["payment_methods"]
    _ = order["status"].lower(), order["address"], order["payment_history"][0]
    for item in order["items"]:
        _ = products[item["product_id"]]["variants"], item["item_id"], item["price"] + 0.0, item["options"]
    for entry in order["payment_history"]:
        _ = methods[entry["payment_method_id"]], entry["amount"] + 0.0, entry["transaction_type"]
