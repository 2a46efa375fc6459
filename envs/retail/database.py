"""The shop's database: users, orders and products in the layout of tau-bench's retail domain."""

import functools
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from temper.envs.service import records as service
from temper.envs.service.records import OPENING, Record, Records, Table, check_each, read_records

TABLES = ("users", "orders", "products")
GIFT_CARD = "gift_card"


@dataclass(frozen=True, slots=True, kw_only=True)
class Shop(Records):
    """The records of a folder, with indices of users by e-mail and by name, in lower case."""

    emails: Mapping[str, str]
    names: Mapping[tuple[str, str], tuple[str, ...]]


Database = service.Database[Shop]


@functools.lru_cache(maxsize=8)
def open_shop(folder: Path) -> Shop:
    read = read_records(folder, TABLES)
    users, orders, products = (read.tables[table] for table in TABLES)
    check_each(folder / "products.json", products, _check_product)
    check_each(folder / "users.json", users, _check_user)
    check_each(folder / "orders.json", orders, functools.partial(_check_order, users=users, products=products))
    names: dict[tuple[str, str], tuple[str, ...]] = {}
    for key, user in users.items():
        name = (user["name"]["first_name"].lower(), user["name"]["last_name"].lower())
        names[name] = (*names.get(name, ()), key)
    return Shop(
        tables=read.tables,
        policy=read.policy,
        tools=read.tools,
        emails={user["email"].lower(): key for key, user in reversed(users.items())},
        names=names,
    )


def fresh(folder: Path) -> Database:
    with OPENING:
        return Database(open_shop(folder))


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
