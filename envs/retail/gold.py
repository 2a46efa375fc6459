"""Right and wrong turns in the shop, made from the actions that a task holds."""

from collections.abc import Iterator
from typing import Any

from envs.core.task import Task
from envs.core.turn_text import CALL_BLOCK, call_message, turn_text
from envs.retail.database import Database, Record, Shop
from envs.retail.rows import USER_REPLIES, Action, says, shop_of
from envs.retail.tools import TRANSFER, WRITING, replay
from envs.retail.tools_write import REASONS

NO_METHOD = "paypal_0"
CLOSING = "That is all. Good-bye."


def gold(task: Task) -> list[str]:
    """Return one call a turn, a text with all outputs, and as many good-byes as the user answers."""
    return _turns(task, task.spec["actions"])


def corruptions(task: Task) -> Iterator[tuple[str, list[str]]]:
    """Yield each writing action left out or altered, a further one, and each output left unsaid.

    Left alone are actions that are refused, that change nothing, or that are done over by another.
    """
    actions: list[Action] = task.spec["actions"]
    for index in effective_actions(task):
        label = f"{actions[index]['name']} ({index})"
        rest = [*actions[:index], *actions[index + 1 :]]
        yield f"{label} left out", _turns(task, rest)
        for name, altered in alterations(shop_of(task), actions[index]):
            yield f"{label} with {name}", _turns(task, [*actions[:index], altered, *actions[index + 1 :]])
    yield "one address more", _turns(task, [*actions, _further(task)])
    for output in task.spec["outputs"]:
        unsaid = _turns(task, actions, [other for other in task.spec["outputs"] if not says(other, output)])
        if not says("\n".join(CALL_BLOCK.sub("", turn) for turn in unsaid), output):
            yield f"output {output!r} unsaid", unsaid


def effective_actions(task: Task) -> list[int]:
    """Return the indices of the writing actions that leave a trace of their own in the database."""
    actions, shop = task.spec["actions"], shop_of(task)
    found = []
    for index, action in enumerate(actions):
        before, after = Database(shop), Database(shop)
        replay(before, actions[:index])
        replay(after, actions[: index + 1])
        others = [*actions[:index], *actions[index + 1 :]]
        if action["name"] in WRITING and not before.same_state(after) and not _done_over(action, index, others):
            found.append(index)
    return found


def _done_over(action: Action, index: int, others: list[Action]) -> bool:
    """Tell whether another action does the same, or a later one replaces the same address."""
    arguments = action["arguments"]
    same_address = [
        other
        for other in others[index:]
        if "address1" in arguments
        and other["name"] == action["name"]
        and all(other["arguments"].get(key) == arguments.get(key) for key in ("user_id", "order_id"))
    ]
    return bool(same_address) or action in others


def alterations(shop: Shop, action: Action) -> Iterator[tuple[str, Action]]:
    """Yield an action that the shop carries out with each stored argument changed, mostly to another that the shop has."""
    arguments = action["arguments"]
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


def _further(task: Task) -> Action:
    """Return a change of the user's address that no action makes."""
    database = Database(shop_of(task))
    replay(database, task.spec["actions"])
    user = database.user(task.spec["user_id"])
    assert user is not None
    address = user["address"] | {"address2": f"{user['address']['address2']} B"}
    return {"name": "modify_user_address", "arguments": {"user_id": task.spec["user_id"], **address}}


def _turns(task: Task, actions: list[Action], outputs: list[str] | None = None) -> list[str]:
    """Write the turns of these actions; a transfer, which ends the dialogue, comes last."""
    said = "\n".join(["Done.", *(task.spec["outputs"] if outputs is None else outputs)])
    turns = [_turn("", action) for action in actions if action["name"] != TRANSFER]
    transfers = [action for action in actions if action["name"] == TRANSFER]
    if transfers:
        return [*turns, _turn(said, transfers[0])]
    return [*turns, said, *[CLOSING] * USER_REPLIES]


def _turn(content: str, action: Action) -> str:
    calls = [call_message(action["name"], action["arguments"])]
    return turn_text({"content": content, "tool_calls": calls}, thinks=False)
