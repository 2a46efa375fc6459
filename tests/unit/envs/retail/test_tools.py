"""The shop's tools on a small database."""

import json
from pathlib import Path
from typing import Any

import pytest
from support.tiny_shop import ADDRESS, NEW_ADDRESS, ORDERS, USERS, write_shop

from temper.envs.core.turn_text import Call
from temper.envs.retail.database import Database, open_shop
from temper.envs.retail.tools import Refusal, replay, run_call


@pytest.fixture
def database(tmp_path: Path) -> Database:
    return Database(open_shop(write_shop(tmp_path)))


def use(database: Database, name: str, **arguments: Any) -> Any:
    """Return the tool's answer, parsed if it is JSON."""
    text = run_call(database, Call(name=name, arguments=arguments))
    return json.loads(text) if text.startswith(("{", "[")) else text


def balance(database: Database, card: str) -> float:
    user = database.find("users", "ann_lee_1")
    assert user is not None
    return float(user["payment_methods"][card]["balance"])


def payment(kind: str, amount: float, method: str) -> dict[str, Any]:
    return {"transaction_type": kind, "amount": amount, "payment_method_id": method}


PAID_1 = payment("payment", 40.4, "gift_card_1")
"""The price of #W1: 10.10 + 10.10 + 20.20."""


def test_users_are_found_by_email_or_name_and_zip(database: Database) -> None:
    assert use(database, "find_user_id_by_email", email="ann.lee@EXAMPLE.com") == "ann_lee_1"
    assert use(database, "find_user_id_by_name_zip", first_name="BOB", last_name="ray", zip="80279") == "bob_ray_2"


def test_a_user_who_moved_is_found_by_the_new_zip_only(database: Database) -> None:
    use(database, "modify_user_address", user_id="bob_ray_2", **ADDRESS | {"zip": "10001"})
    assert use(database, "find_user_id_by_name_zip", first_name="Bob", last_name="Ray", zip="10001") == "bob_ray_2"
    with pytest.raises(Refusal, match="user not found"):
        use(database, "find_user_id_by_name_zip", first_name="Bob", last_name="Ray", zip="80279")


def test_a_cancelled_order_is_refunded_to_its_gift_card_at_once(database: Database) -> None:
    order = use(database, "cancel_pending_order", order_id="#W1", reason="no longer needed")
    assert order["status"] == "cancelled"
    assert order["cancel_reason"] == "no longer needed"
    assert order["payment_history"] == [PAID_1, payment("refund", 40.4, "gift_card_1")]
    assert balance(database, "gift_card_1") == 90.4
    assert balance(database, "gift_card_2") == 3
    assert use(database, "get_order_details", order_id="#W1") == order


def test_a_changed_payment_is_what_a_cancellation_refunds(database: Database) -> None:
    order = use(database, "modify_pending_order_payment", order_id="#W1", payment_method_id="paypal_1")
    moved = [payment("payment", 40.4, "paypal_1"), payment("refund", 40.4, "gift_card_1")]
    assert order["payment_history"] == [PAID_1, *moved]
    assert order["status"] == "pending"
    assert balance(database, "gift_card_1") == 90.4
    order = use(database, "cancel_pending_order", order_id="#W1", reason="ordered by mistake")
    assert order["payment_history"][3:] == [payment("refund", 40.4, "paypal_1")]
    assert balance(database, "gift_card_1") == 90.4


def test_a_gift_card_that_takes_over_a_payment_is_charged(tmp_path: Path) -> None:
    orders = {key: order | {"status": "pending"} for key, order in ORDERS.items()}
    (write_shop(tmp_path) / "orders.json").write_text(json.dumps(orders), encoding="utf-8")
    database = Database(open_shop(tmp_path))
    use(database, "modify_pending_order_payment", order_id="#W3", payment_method_id="gift_card_1")
    assert balance(database, "gift_card_1") == 29.8
    with pytest.raises(Refusal, match="insufficient gift card balance"):
        use(database, "modify_pending_order_payment", order_id="#W2", payment_method_id="gift_card_1")


def test_replaced_items_cost_the_difference(database: Database) -> None:
    swap = {"order_id": "#W1", "item_ids": ["100", "100"], "new_item_ids": ["101", "101"]}
    order = use(database, "modify_pending_order_items", payment_method_id="gift_card_1", **swap)
    assert [(item["item_id"], item["price"]) for item in order["items"]] == [
        ("101", 15.3),
        ("101", 15.3),
        ("200", 20.2),
    ]
    assert order["items"][0]["options"] == {"color": "blue"}
    assert order["payment_history"] == [PAID_1, payment("payment", 10.4, "gift_card_1")]
    assert order["status"] == "pending (item modified)"
    assert balance(database, "gift_card_1") == 39.6


def test_the_order_in_which_items_are_named_does_not_matter(database: Database) -> None:
    other = Database(database.records)
    forward = {"item_ids": ["100", "200", "100"], "new_item_ids": ["101", "200", "103"]}
    backward = {"item_ids": ["100", "200", "100"], "new_item_ids": ["103", "200", "101"]}
    for view, swap in ((database, forward), (other, backward)):
        use(view, "modify_pending_order_items", order_id="#W1", payment_method_id="paypal_1", **swap)
        use(view, "exchange_delivered_order_items", order_id="#W2", payment_method_id="paypal_1", **swap)
    assert database.is_same_state(other)


def test_an_exchange_is_noted_and_nothing_is_paid(database: Database) -> None:
    swap = {"order_id": "#W2", "item_ids": ["200", "100"], "new_item_ids": ["200", "101"]}
    order = use(database, "exchange_delivered_order_items", payment_method_id="gift_card_1", **swap)
    noted = {
        "status": "exchange requested",
        "exchange_items": ["100", "200"],
        "exchange_new_items": ["101", "200"],
        "exchange_payment_method_id": "gift_card_1",
        "exchange_price_difference": 5.2,
    }
    assert order == ORDERS["#W2"] | noted
    assert balance(database, "gift_card_1") == 50


@pytest.mark.parametrize("method", ["credit_card_1", "gift_card_2"])
def test_a_return_goes_to_the_original_method_or_a_gift_card(database: Database, method: str) -> None:
    items = {"order_id": "#W2", "item_ids": ["200", "100"]}
    order = use(database, "return_delivered_order_items", payment_method_id=method, **items)
    noted = {"status": "return requested", "return_items": ["100", "200"], "return_payment_method_id": method}
    assert order == ORDERS["#W2"] | noted
    assert balance(database, "gift_card_2") == 3


def test_addresses_are_replaced_each_on_its_own(database: Database) -> None:
    assert use(database, "modify_pending_order_address", order_id="#W1", **NEW_ADDRESS)["address"] == NEW_ADDRESS
    user = database.find("users", "ann_lee_1")
    assert user is not None
    assert user["address"] == ADDRESS
    assert use(database, "modify_user_address", user_id="ann_lee_1", **NEW_ADDRESS)["address"] == NEW_ADDRESS


SWAP = {"order_id": "#W1", "item_ids": ["100"], "new_item_ids": ["101"], "payment_method_id": "paypal_1"}
EXCHANGE = SWAP | {"order_id": "#W2"}
RETURN = {"order_id": "#W2", "item_ids": ["100"], "payment_method_id": "credit_card_1"}
CANCEL = {"order_id": "#W1", "reason": "no longer needed"}
PAY = {"order_id": "#W1", "payment_method_id": "paypal_1"}


@pytest.mark.parametrize(
    ("name", "arguments", "reason"),
    [
        ("find_user_id_by_email", {"email": "nobody@example.com"}, "user not found"),
        ("find_user_id_by_name_zip", {"first_name": "Ann", "last_name": "Ray", "zip": "80279"}, "user not found"),
        ("find_user_id_by_name_zip", {"first_name": "Ann", "last_name": "Lee", "zip": "1"}, "user not found"),
        ("get_user_details", {"user_id": "nobody"}, "user not found"),
        ("get_order_details", {"order_id": "W1"}, "order not found"),
        ("get_product_details", {"product_id": "100"}, "product not found"),
        ("calculate", {"expression": "__import__('os')"}, "only numbers"),
        ("calculate", {"expression": "1 / 0"}, "division by zero"),
        ("cancel_pending_order", CANCEL | {"order_id": "#W9"}, "order not found"),
        ("cancel_pending_order", CANCEL | {"order_id": "#W2"}, "non-pending order"),
        ("cancel_pending_order", CANCEL | {"order_id": "#W3"}, "non-pending order"),
        ("cancel_pending_order", CANCEL | {"reason": "too dear"}, "invalid reason"),
        ("modify_pending_order_payment", PAY | {"order_id": "#W2"}, "non-pending order"),
        ("modify_pending_order_payment", PAY | {"payment_method_id": "paypal_2"}, "payment method not found"),
        ("modify_pending_order_payment", PAY | {"payment_method_id": "gift_card_1"}, "should be different"),
        ("modify_pending_order_payment", PAY | {"payment_method_id": "gift_card_2"}, "insufficient"),
        ("modify_pending_order_items", SWAP | {"order_id": "#W2"}, "non-pending order"),
        ("modify_pending_order_items", SWAP | {"item_ids": ["101"]}, "not found in the order"),
        ("modify_pending_order_items", SWAP | {"item_ids": ["100"] * 3, "new_item_ids": ["101"] * 3}, "not found"),
        ("modify_pending_order_items", SWAP | {"new_item_ids": ["101", "101"]}, "number of items"),
        ("modify_pending_order_items", SWAP | {"item_ids": [], "new_item_ids": []}, "no item given"),
        ("modify_pending_order_items", SWAP | {"new_item_ids": ["102"]}, "not available or of another product"),
        ("modify_pending_order_items", SWAP | {"new_item_ids": ["200"]}, "not available or of another product"),
        ("modify_pending_order_items", SWAP | {"payment_method_id": "paypal_2"}, "payment method not found"),
        ("modify_pending_order_items", SWAP | {"payment_method_id": "gift_card_2"}, "insufficient"),
        ("exchange_delivered_order_items", EXCHANGE | {"order_id": "#W1"}, "non-delivered order"),
        ("exchange_delivered_order_items", EXCHANGE | {"item_ids": ["101"]}, "not found in the order"),
        ("exchange_delivered_order_items", EXCHANGE | {"new_item_ids": []}, "number of items"),
        ("exchange_delivered_order_items", EXCHANGE | {"new_item_ids": ["102"]}, "not available"),
        ("exchange_delivered_order_items", EXCHANGE | {"new_item_ids": ["200"]}, "of another product"),
        ("exchange_delivered_order_items", EXCHANGE | {"payment_method_id": "none"}, "payment method not found"),
        ("exchange_delivered_order_items", EXCHANGE | {"payment_method_id": "gift_card_2"}, "insufficient"),
        ("return_delivered_order_items", RETURN | {"order_id": "#W3"}, "non-delivered order"),
        ("return_delivered_order_items", RETURN | {"item_ids": ["200", "200"]}, "not found in the order"),
        ("return_delivered_order_items", RETURN | {"item_ids": []}, "no item given"),
        ("return_delivered_order_items", RETURN | {"payment_method_id": "paypal_1"}, "original payment method"),
        ("return_delivered_order_items", RETURN | {"payment_method_id": "paypal_2"}, "payment method not found"),
        ("modify_pending_order_address", ADDRESS | {"order_id": "#W2"}, "non-pending order"),
        ("modify_user_address", ADDRESS | {"user_id": "nobody"}, "user not found"),
        ("cancel_pending_order", {"order_id": "#W1"}, "missing argument reason"),
        ("cancel_pending_order", CANCEL | {"urgent": "yes"}, "unknown argument"),
        ("cancel_pending_order", CANCEL | {"order_id": 1}, "order_id must be a string"),
        ("cancel_pending_order", CANCEL | {"order_id": ["#W1"]}, "order_id must be a string"),
        ("return_delivered_order_items", RETURN | {"item_ids": "100"}, "item_ids must be a list of strings"),
        ("return_delivered_order_items", RETURN | {"item_ids": [100]}, "item_ids must be a list of strings"),
        ("modify_user_address", ADDRESS | {"user_id": "ann_lee_1", "zip": 80279}, "zip must be a string"),
        ("list_all_product_types", {"page": "1"}, "unknown argument; there are none"),
        ("delete_order", {"order_id": "#W1"}, "unknown tool"),
    ],
)
def test_a_refused_call_says_why_and_changes_nothing(
    database: Database, name: str, arguments: dict[str, Any], reason: str
) -> None:
    with pytest.raises(Refusal, match=reason):
        use(database, name, **arguments)
    assert database.is_same_state(Database(database.records))
    assert database.records.tables["orders"] == ORDERS
    assert database.records.tables["users"] == USERS


def test_an_order_with_modified_items_is_closed(database: Database) -> None:
    use(database, "modify_pending_order_items", **SWAP)
    for name, arguments in (
        ("cancel_pending_order", CANCEL),
        ("modify_pending_order_items", SWAP),
        ("modify_pending_order_payment", PAY),
        ("modify_pending_order_address", ADDRESS | {"order_id": "#W1"}),
    ):
        with pytest.raises(Refusal, match="non-pending order"):
            use(database, name, **arguments)


def test_exchanges_and_payment_changes_happen_once(database: Database) -> None:
    use(database, "exchange_delivered_order_items", **EXCHANGE)
    with pytest.raises(Refusal, match="non-delivered order"):
        use(database, "return_delivered_order_items", **RETURN)
    use(database, "modify_pending_order_payment", **PAY)
    with pytest.raises(Refusal, match="exactly one payment"):
        use(database, "modify_pending_order_payment", **PAY | {"payment_method_id": "credit_card_1"})


def test_views_of_one_shop_do_not_touch_each_other(database: Database) -> None:
    other = Database(database.records)
    actions = [{"name": "cancel_pending_order", "arguments": CANCEL}] * 2
    assert replay(database, actions) == [1]
    assert not database.is_same_state(other)
    assert not other.is_same_state(database)
    assert replay(other, actions[:1]) == []
    assert database.is_same_state(other)
    assert database.records.tables["orders"] == ORDERS


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("users.json", None, "option 'database'"),
        ("policy.md", None, "option 'database'"),
        ("orders.json", "{", "orders.json"),
        ("products.json", "[]", "products.json"),
        ("orders.json", '{"#W1": {"user_id": "nobody"}}', "'#W1'"),
        ("tools.json", '{"a": 1}', "tools.json"),
    ],
)
def test_a_broken_database_is_named(tmp_path: Path, name: str, content: str | None, message: str) -> None:
    path = write_shop(tmp_path) / name
    path.unlink()
    if content is not None:
        path.write_text(content, encoding="utf-8")
    with pytest.raises(ValueError, match=message) as caught:
        open_shop(tmp_path)
    assert str(path) in str(caught.value)
