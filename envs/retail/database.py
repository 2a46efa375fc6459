"""The shop's database: read once per process, and changed by an episode through copies of the records it touches.

A folder holds `users.json`, `orders.json` and `products.json` (records by id), `tools.json` (schemas) and `policy.md`
(the agent's instructions), as tau-bench's retail domain has them.
"""

import copy
import functools
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from envs.core.task import Tool

Record = dict[str, Any]
Table = dict[str, Record]
GIFT_CARD = "gift_card"


@dataclass(frozen=True, slots=True, kw_only=True)
class Shop:
    """What a folder holds; shared by all episodes and never changed. `emails` and `names` are in lower case."""

    users: Table
    orders: Table
    products: Table
    policy: str
    tools: tuple[Tool, ...]
    emails: Mapping[str, str]
    names: Mapping[tuple[str, str], tuple[str, ...]]


class Database:
    """One episode's view of a shop: records that `edit_user` and `edit_order` give are this episode's own."""

    def __init__(self, shop: Shop) -> None:
        self.shop = shop
        self._users: Table = {}
        self._orders: Table = {}

    def user(self, user_id: str) -> Record | None:
        """Return the user as it is now, to read only."""
        return self._users.get(user_id) or self.shop.users.get(user_id)

    def order(self, order_id: str) -> Record | None:
        """Return the order as it is now, to read only."""
        return self._orders.get(order_id) or self.shop.orders.get(order_id)

    def edit_user(self, user_id: str) -> Record:
        """Return the user, which is there, to change."""
        if user_id not in self._users:
            self._users[user_id] = copy.deepcopy(self.shop.users[user_id])
        return self._users[user_id]

    def edit_order(self, order_id: str) -> Record:
        """Return the order, which is there, to change."""
        if order_id not in self._orders:
            self._orders[order_id] = copy.deepcopy(self.shop.orders[order_id])
        return self._orders[order_id]

    def same_state(self, other: "Database") -> bool:
        """Tell whether all records of two views of one shop are equal; only those that either touched can differ."""
        assert self.shop is other.shop
        return all(self.user(key) == other.user(key) for key in {*self._users, *other._users}) and all(
            self.order(key) == other.order(key) for key in {*self._orders, *other._orders}
        )


@functools.lru_cache(maxsize=8)
def open_shop(folder: Path) -> Shop:
    """Return the shop of a folder. Raise `ValueError` that names the file where one is missing or broken."""
    users, orders, products = (_table(folder / f"{name}.json") for name in ("users", "orders", "products"))
    _check_each(folder / "products.json", products, _check_product)
    _check_each(folder / "users.json", users, _check_user)
    _check_each(folder / "orders.json", orders, functools.partial(_check_order, users=users, products=products))
    names: dict[tuple[str, str], tuple[str, ...]] = {}
    for key, user in users.items():
        name = (user["name"]["first_name"].lower(), user["name"]["last_name"].lower())
        names[name] = (*names.get(name, ()), key)
    return Shop(
        users=users,
        orders=orders,
        products=products,
        policy=_text(folder / "policy.md"),
        tools=_tools(folder / "tools.json"),
        emails={user["email"].lower(): key for key, user in reversed(users.items())},
        names=names,
    )


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(
            f"the shop's database has no readable {path} ({error.__class__.__name__}); the option 'database' names "
            f"a folder with users.json, orders.json, products.json, tools.json and policy.md"
        ) from error


def _json(path: Path) -> Any:
    try:
        return json.loads(_text(path))
    except RecursionError as error:
        raise ValueError(f"{path} is nested too deeply") from error
    except json.JSONDecodeError as error:
        raise ValueError(f"{path} is not JSON: {error}; get it again from its source") from error


def _table(path: Path) -> Table:
    table = _json(path)
    if not isinstance(table, dict) or not all(isinstance(record, dict) for record in table.values()):
        raise ValueError(f"{path} must hold one JSON object with a record by each id")
    return table


def _tools(path: Path) -> tuple[Tool, ...]:
    tools = _json(path)
    if not isinstance(tools, list) or not all(isinstance(tool, dict) and "function" in tool for tool in tools):
        raise ValueError(f"{path} must hold a list of tool schemas with a field 'function'")
    return tuple(tools)


def _check_each(path: Path, table: Table, check: Callable[[Record], None]) -> None:
    """Read every field that a tool may need, so that no tool fails later."""
    for key, record in table.items():
        try:
            check(record)
        except (KeyError, TypeError, AttributeError, IndexError) as error:
            raise ValueError(f"{path}: record {key!r} is broken: {error!r}; get it again from its source") from error


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
