"""A shop of two users, four orders and two products, small enough for manual calculation."""

import copy
import json
from pathlib import Path
from typing import Any

from support.bound import opened

from temper.envs.core.task import Task

ADDRESS = {
    "address1": "1 Oak Street",
    "address2": "Suite 2",
    "city": "Denver",
    "country": "USA",
    "state": "CO",
    "zip": "80279",
}
NEW_ADDRESS = {key: f"new {value}" for key, value in ADDRESS.items()}
VARIANTS = {
    "100": {"item_id": "100", "options": {"color": "red"}, "available": True, "price": 10.1},
    "101": {"item_id": "101", "options": {"color": "blue"}, "available": True, "price": 15.3},
    "102": {"item_id": "102", "options": {"color": "green"}, "available": False, "price": 9.0},
    "103": {"item_id": "103", "options": {"color": "gold"}, "available": True, "price": 500.0},
}
LAMPS = {"200": {"item_id": "200", "options": {"power": "5 W"}, "available": True, "price": 20.2}}
PRODUCTS = {
    "p1": {"name": "Mug", "product_id": "p1", "variants": VARIANTS},
    "p2": {"name": "Lamp", "product_id": "p2", "variants": LAMPS},
}
USERS = {
    "ann_lee_1": {
        "name": {"first_name": "Ann", "last_name": "Lee"},
        "address": ADDRESS,
        "email": "Ann.Lee@example.com",
        "payment_methods": {
            "gift_card_1": {"source": "gift_card", "balance": 50, "id": "gift_card_1"},
            "gift_card_2": {"source": "gift_card", "balance": 3, "id": "gift_card_2"},
            "paypal_1": {"source": "paypal", "id": "paypal_1"},
            "credit_card_1": {"source": "credit_card", "brand": "visa", "last_four": "1234", "id": "credit_card_1"},
        },
        "orders": ["#W1", "#W2", "#W3"],
    },
    "bob_ray_2": {
        "name": {"first_name": "Bob", "last_name": "Ray"},
        "address": ADDRESS,
        "email": "bob@example.com",
        "payment_methods": {"paypal_2": {"source": "paypal", "id": "paypal_2"}},
        "orders": ["#W4"],
    },
}
MUG = {"name": "Mug", "product_id": "p1", "item_id": "100", "price": 10.1, "options": {"color": "red"}}
LAMP = {"name": "Lamp", "product_id": "p2", "item_id": "200", "price": 20.2, "options": {"power": "5 W"}}


def order(number: int, user_id: str, status: str, items: list[dict[str, Any]], method: str) -> dict[str, Any]:
    """An order with a single payment."""
    amount = round(sum(item["price"] for item in items), 2)
    return {
        "order_id": f"#W{number}",
        "user_id": user_id,
        "address": ADDRESS,
        "items": items,
        "fulfillments": [],
        "status": status,
        "payment_history": [{"transaction_type": "payment", "amount": amount, "payment_method_id": method}],
    }


ORDERS = {
    "#W1": order(1, "ann_lee_1", "pending", [MUG, MUG, LAMP], "gift_card_1"),
    "#W2": order(2, "ann_lee_1", "delivered", [MUG, MUG, LAMP], "credit_card_1"),
    "#W3": order(3, "ann_lee_1", "processed", [LAMP], "paypal_1"),
    "#W4": order(4, "bob_ray_2", "pending", [MUG], "paypal_2"),
}
TOOLS = [{"type": "function", "function": {"name": "think", "parameters": {"type": "object", "properties": {}}}}]


CANCEL = ("cancel_pending_order", {"order_id": "#W4", "reason": "no longer needed"})
DETAILS = ("get_order_details", {"order_id": "#W4"})
TRANSFER = ("transfer_to_human_agents", {"summary": "help"})
INSTRUCTION = "You are Bob Ray. Cancel #W4 {now}."


def row(*actions: tuple[str, dict[str, Any]], outputs: tuple[str, ...] = ()) -> dict[str, Any]:
    made = [{"name": name, "kwargs": arguments} for name, arguments in actions]
    return {"user_id": "bob_ray_2", "instruction": INSTRUCTION, "actions": made, "outputs": list(outputs)}


def play(task: Task, *turns: str) -> dict[str, Any]:
    """Return the `info` of the last step, with `reward` and `truncated`. The episode must end with the last turn."""
    env = opened(task)
    for number, turn in enumerate(turns, start=1):
        _, reward, terminated, truncated, info = env.step(turn)
        assert (terminated or truncated) == (number == len(turns)), turn
    return info | {"reward": reward, "truncated": truncated}


def write_shop(folder: Path) -> Path:
    """Write the five files of the shop and return the folder."""
    tables = {"users": USERS, "orders": ORDERS, "products": PRODUCTS, "tools": TOOLS}
    for name, content in copy.deepcopy(tables).items():
        (folder / f"{name}.json").write_text(json.dumps(content), encoding="utf-8")
    (folder / "policy.md").write_text("Be kind.\n", encoding="utf-8")
    return folder
