"""The shop's tools. The first ones change nothing. A refused call raises `Refusal` with its answer to the model.

A tool that changes the database checks everything first, so that a refused call changes nothing. Money is rounded to cents
at every sum. Replacements follow a fixed order, so the items of a call may come in any order.
"""

import inspect
import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from temper.envs.core.turn_text import BadCall, Call
from temper.envs.retail.database import GIFT_CARD, Database, Record
from temper.envs.tools.calculator import calculate as value_of

Action = dict[str, Any]
TRANSFER = "transfer_to_human_agents"
REASONS = ("no longer needed", "ordered by mistake")
ITEMS_MODIFIED = "pending (item modified)"
Swap = tuple[int, Record]


class Refusal(Exception):
    """A call that a tool refuses, with the answer to the model. Nothing was changed."""


def calculate(database: Database, *, expression: str) -> str:
    """Return the value rounded to cents, always with a decimal point."""
    try:
        return str(round(float(value_of(expression)), 2))
    except ValueError as error:
        raise Refusal(str(error)) from None


def get_user_details(database: Database, *, user_id: str) -> str:
    return json.dumps(require_record(database, "users", user_id))


def require_record(database: Database, table: str, key: str) -> Record:
    """Return the current record. Raise `Refusal` if there is none of this id."""
    record = database.find(table, key)
    if record is None:
        raise Refusal(f"{table.removesuffix('s')} not found")
    return record


def think(database: Database, *, thought: str) -> str:
    return ""


def transfer_to_human_agents(database: Database, *, summary: str) -> str:
    """End the dialogue. The environment does that."""
    return "Transfer successful"


def find_user_id_by_email(database: Database, *, email: str) -> str:
    user_id = database.records.emails.get(email.lower())
    if user_id is None:
        raise Refusal("user not found")
    return user_id


def find_user_id_by_name_zip(database: Database, *, first_name: str, last_name: str, zip: str) -> str:
    """Return the id of the user with this name, ignoring case, and this current zip code."""
    for user_id in database.records.names.get((first_name.lower(), last_name.lower()), ()):
        if require_record(database, "users", user_id)["address"]["zip"] == zip:
            return user_id
    raise Refusal("user not found")


def get_order_details(database: Database, *, order_id: str) -> str:
    return json.dumps(require_record(database, "orders", order_id))


def get_product_details(database: Database, *, product_id: str) -> str:
    return json.dumps(require_record(database, "products", product_id))


def list_all_product_types(database: Database) -> str:
    """Return the product ids by name, in name order, as JSON."""
    products = database.records.tables["products"].values()
    return json.dumps(dict(sorted((product["name"], product["product_id"]) for product in products)))


def cancel_pending_order(database: Database, *, order_id: str, reason: str) -> str:
    """Cancel an order. Each payment method gets its payments back, less refunds, a gift card immediately."""
    order = _order(database, order_id, status="pending", action="cancelled")
    if reason not in REASONS:
        raise Refusal("invalid reason")
    paid: dict[str, float] = {}
    for entry in order["payment_history"]:
        sign = 1 if entry["transaction_type"] == "payment" else -1
        method_id = entry["payment_method_id"]
        paid[method_id] = round(paid.get(method_id, 0.0) + sign * entry["amount"], 2)
    order = database.edit("orders", order_id)
    for method_id, amount in paid.items():
        if amount > 0:
            order["payment_history"].append(_entry("refund", amount, method_id))
            _charge(database, order, method_id, -amount)
    order["status"] = "cancelled"
    order["cancel_reason"] = reason
    return json.dumps(order)


def modify_pending_order_payment(database: Database, *, order_id: str, payment_method_id: str) -> str:
    """Move the only payment of an order to another method. A gift card must cover it."""
    order = _order(database, order_id, status="pending", action="modified")
    _payment_method(database, order, payment_method_id)
    first = order["payment_history"][0]
    if len(order["payment_history"]) > 1 or first["transaction_type"] != "payment":
        raise Refusal("there should be exactly one payment for a pending order")
    if first["payment_method_id"] == payment_method_id:
        raise Refusal("the new payment method should be different from the current one")
    amount, old_id = first["amount"], first["payment_method_id"]
    _require_balance(database, order, payment_method_id, amount)
    order = database.edit("orders", order_id)
    order["payment_history"] += [_entry("payment", amount, payment_method_id), _entry("refund", amount, old_id)]
    _charge(database, order, payment_method_id, amount)
    _charge(database, order, old_id, -amount)
    return json.dumps(order)


def modify_pending_order_items(
    database: Database, *, order_id: str, item_ids: list[str], new_item_ids: list[str], payment_method_id: str
) -> str:
    """Replace items by other variants of the same product, once. The difference is paid or refunded."""
    order = _order(database, order_id, status="pending", action="modified")
    swaps = _swaps(database, order, item_ids, new_item_ids)
    difference = _difference(order, swaps)
    _require_balance(database, order, payment_method_id, difference)
    order = database.edit("orders", order_id)
    kind = "payment" if difference > 0 else "refund"
    order["payment_history"].append(_entry(kind, abs(difference), payment_method_id))
    _charge(database, order, payment_method_id, difference)
    for position, variant in swaps:
        new = {"item_id": variant["item_id"], "price": variant["price"], "options": dict(variant["options"])}
        order["items"][position].update(new)
    order["status"] = ITEMS_MODIFIED
    return json.dumps(order)


def exchange_delivered_order_items(
    database: Database, *, order_id: str, item_ids: list[str], new_item_ids: list[str], payment_method_id: str
) -> str:
    """Request an exchange. Items, difference and payment method are recorded, nothing is paid yet."""
    order = _order(database, order_id, status="delivered", action="exchanged")
    difference = _difference(order, _swaps(database, order, item_ids, new_item_ids))
    _require_balance(database, order, payment_method_id, difference)
    order = database.edit("orders", order_id)
    order["status"] = "exchange requested"
    order["exchange_items"] = sorted(item_ids)
    order["exchange_new_items"] = sorted(new_item_ids)
    order["exchange_payment_method_id"] = payment_method_id
    order["exchange_price_difference"] = difference
    return json.dumps(order)


def return_delivered_order_items(
    database: Database, *, order_id: str, item_ids: list[str], payment_method_id: str
) -> str:
    """Request a return. The refund goes to the original payment method or a gift card, later."""
    order = _order(database, order_id, status="delivered", action="returned")
    method = _payment_method(database, order, payment_method_id)
    if method["source"] != GIFT_CARD and payment_method_id != order["payment_history"][0]["payment_method_id"]:
        raise Refusal("payment method should be either the original payment method or a gift card")
    _positions(order, item_ids)
    order = database.edit("orders", order_id)
    order["status"] = "return requested"
    order["return_items"] = sorted(item_ids)
    order["return_payment_method_id"] = payment_method_id
    return json.dumps(order)


def modify_pending_order_address(
    database: Database, *, order_id: str, address1: str, address2: str, city: str, state: str, country: str, zip: str
) -> str:
    _order(database, order_id, status="pending", action="modified")
    order = database.edit("orders", order_id)
    order["address"] = _address(address1, address2, city, state, country, zip)
    return json.dumps(order)


def modify_user_address(
    database: Database, *, user_id: str, address1: str, address2: str, city: str, state: str, country: str, zip: str
) -> str:
    """Replace the default address of a user. Orders keep their addresses."""
    require_record(database, "users", user_id)
    user = database.edit("users", user_id)
    user["address"] = _address(address1, address2, city, state, country, zip)
    return json.dumps(user)


def _order(database: Database, order_id: str, *, status: str, action: str) -> Record:
    order = require_record(database, "orders", order_id)
    if order["status"] != status:
        raise Refusal(f"non-{status} order cannot be {action}")
    return order


def _payment_method(database: Database, order: Record, method_id: str) -> Record:
    user = require_record(database, "users", order["user_id"])
    method: Record | None = user["payment_methods"].get(method_id)
    if method is None:
        raise Refusal("payment method not found")
    return method


def _require_balance(database: Database, order: Record, method_id: str, amount: float) -> None:
    """Raise `Refusal` if the payment method does not exist, or is a gift card that does not cover the amount."""
    method = _payment_method(database, order, method_id)
    if method["source"] == GIFT_CARD and method["balance"] < amount:
        raise Refusal("insufficient gift card balance to pay the amount")


def _charge(database: Database, order: Record, method_id: str, amount: float) -> None:
    """Take an amount from a gift card, or add a negative one. Other methods have no balance here."""
    if _payment_method(database, order, method_id)["source"] == GIFT_CARD:
        method = database.edit("users", order["user_id"])["payment_methods"][method_id]
        method["balance"] = round(method["balance"] - amount, 2)


def _entry(kind: str, amount: float, method_id: str) -> Record:
    return {"transaction_type": kind, "amount": amount, "payment_method_id": method_id}


def _positions(order: Record, item_ids: list[str]) -> list[int]:
    """Return a position among the order's items for each id. A repeated id takes two items."""
    if not item_ids:
        raise Refusal("no item given")
    free: dict[str, list[int]] = {}
    for position, item in reversed(list(enumerate(order["items"]))):
        free.setdefault(item["item_id"], []).append(position)
    if any(count > len(free.get(item_id, ())) for item_id, count in Counter(item_ids).items()):
        raise Refusal("some item not found in the order")
    return [free[item_id].pop() for item_id in item_ids]


def _swaps(database: Database, order: Record, item_ids: list[str], new_item_ids: list[str]) -> list[Swap]:
    if len(item_ids) != len(new_item_ids):
        raise Refusal("the number of items to be exchanged should match")
    pairs = sorted(zip(item_ids, new_item_ids, strict=True))
    swaps = []
    for position, (_, new_id) in zip(_positions(order, [item_id for item_id, _ in pairs]), pairs, strict=True):
        variant = database.records.tables["products"][order["items"][position]["product_id"]]["variants"].get(new_id)
        if variant is None or not variant["available"]:
            raise Refusal("some new item is not available or of another product")
        swaps.append((position, variant))
    return swaps


def _difference(order: Record, swaps: list[Swap]) -> float:
    return round(sum(variant["price"] - order["items"][position]["price"] for position, variant in swaps), 2)


def _address(address1: str, address2: str, city: str, state: str, country: str, zip: str) -> Record:
    given = {"address1": address1, "address2": address2, "city": city}
    return given | {"country": country, "state": state, "zip": zip}


WRITING: dict[str, Callable[..., str]] = {
    tool.__name__: tool
    for tool in (
        cancel_pending_order,
        exchange_delivered_order_items,
        modify_pending_order_address,
        modify_pending_order_items,
        modify_pending_order_payment,
        modify_user_address,
        return_delivered_order_items,
    )
}
TOOLS = WRITING | {
    tool.__name__: tool
    for tool in (
        calculate,
        find_user_id_by_email,
        find_user_id_by_name_zip,
        get_order_details,
        get_product_details,
        get_user_details,
        list_all_product_types,
        think,
        transfer_to_human_agents,
    )
}
ARGUMENTS = {
    name: {key: known.annotation for key, known in inspect.signature(tool).parameters.items() if key != "database"}
    for name, tool in TOOLS.items()
}
"""The types of each tool's arguments, texts or lists of texts. All are required."""


def run_call(database: Database, call: Call | BadCall) -> str:
    """Return the tool's answer. Raise `Refusal`, with nothing changed, for an unreadable or refused call."""
    if isinstance(call, BadCall):
        raise Refusal(call.error.removeprefix("error: "))
    if call.name not in TOOLS:
        raise Refusal("unknown tool")
    _check_arguments(ARGUMENTS[call.name], call.arguments)
    return TOOLS[call.name](database, **call.arguments)


def replay(database: Database, actions: Sequence[Action]) -> list[int]:
    """Execute actions (`name`, `arguments`) in order and return the indices of the refused ones."""
    refused = []
    for index, action in enumerate(actions):
        try:
            run_call(database, Call(name=action["name"], arguments=action["arguments"]))
        except Refusal:
            refused.append(index)
    return refused


def _check_arguments(types: Mapping[str, Any], arguments: Mapping[str, Any]) -> None:
    for key, kind in types.items():
        if key not in arguments:
            raise Refusal(f"missing argument {key}")
        texts = [arguments[key]] if kind is str else arguments[key]
        if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
            raise Refusal(f"{key} must be {'a string' if kind is str else 'a list of strings'}")
    if len(arguments) > len(types):
        raise Refusal(f"unknown argument; there are {', '.join(types) or 'none'}")
