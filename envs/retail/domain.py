"""The shop as a service, and what is wrong in it: actions with other arguments than those that were asked for."""

from collections.abc import Iterator
from typing import Any

from temper.envs.retail.database import TABLES, Database, Shop, fresh
from temper.envs.retail.tools import TOOLS
from temper.envs.retail.tools_write import REASONS
from temper.envs.service.domain import Domain
from temper.envs.service.records import Record
from temper.envs.service.tools import Action

NO_METHOD = "paypal_0"


def alterations(database: Database, action: Action) -> Iterator[tuple[str, Action]]:
    """Yield an action that the shop carries out with each stored argument changed, mostly to another that the shop has."""
    arguments, shop = action["arguments"], database.shop
    order = shop.orders.get(arguments.get("order_id", ""), {})
    changes: list[tuple[str, Any]] = []
    if "reason" in arguments:
        changes += [("reason", reason) for reason in REASONS if reason != arguments["reason"]]
    if "address1" in arguments:
        changes += [(key, f"{arguments[key]}9") for key in ("address1", "address2", "city", "state", "country", "zip")]
    if "payment_method_id" in arguments:
        methods = [*shop.users[order["user_id"]]["payment_methods"], NO_METHOD]
        changes += [("payment_method_id", other) for other in methods if other != arguments["payment_method_id"]]
    if "new_item_ids" in arguments:
        changes += [("new_item_ids", other) for other in _other_variants(shop, order, arguments)]
    elif "item_ids" in arguments:
        changes += [("item_ids", other) for other in _other_items(order, arguments["item_ids"])]
    for key, value in changes:
        yield f"{key} {value!r}", action | {"arguments": arguments | {key: value}}


def _other_variants(shop: Shop, order: Record, arguments: dict[str, Any]) -> Iterator[list[str]]:
    """Yield the new items, each in turn replaced by another variant that is available."""
    products = {item["item_id"]: item["product_id"] for item in order["items"]}
    new_ids = arguments["new_item_ids"]
    for position, item_id in enumerate(arguments["item_ids"]):
        variants = shop.products[products[item_id]]["variants"].items()
        others = [new_id for new_id, variant in variants if variant["available"] and new_id not in new_ids]
        yield from ([*new_ids[:position], other, *new_ids[position + 1 :]] for other in others[:1])


def _other_items(order: Record, item_ids: list[str]) -> Iterator[list[str]]:
    """Yield the items with one more of the order, and with one less."""
    others = [item["item_id"] for item in order["items"] if item["item_id"] not in item_ids]
    yield from ([*item_ids, other] for other in others[:1])
    if len(item_ids) > 1:
        yield item_ids[1:]


def further(database: Database, user_id: str) -> Action:
    """Return a change of the user's address."""
    user = database.user(user_id)
    assert user is not None
    address = user["address"] | {"address2": f"{user['address']['address2']} B"}
    return {"name": "modify_user_address", "arguments": {"user_id": user_id, **address}}


DOMAIN = Domain(
    id="retail",
    entry_point="temper.envs.retail.env:RetailEnv",
    tables=TABLES,
    tools=TOOLS,
    fresh=fresh,
    alterations=alterations,
    further=further,
)
