"""The shop's tools that change nothing. A refused call raises `Refusal` with what the model is told."""

import json

from temper.envs.retail.database import Database
from temper.envs.service.tools import Refusal


def find_user_id_by_email(database: Database, *, email: str) -> str:
    """Return the id of the user, letter case ignored."""
    user_id = database.shop.emails.get(email.lower())
    if user_id is None:
        raise Refusal("user not found")
    return user_id


def find_user_id_by_name_zip(database: Database, *, first_name: str, last_name: str, zip: str) -> str:
    """Return the id of the user of this name, letter case ignored, whose present zip code this is."""
    for user_id in database.shop.names.get((first_name.lower(), last_name.lower()), ()):
        user = database.user(user_id)
        if user is not None and user["address"]["zip"] == zip:
            return user_id
    raise Refusal("user not found")


def get_order_details(database: Database, *, order_id: str) -> str:
    """Return the order as JSON."""
    order = database.order(order_id)
    if order is None:
        raise Refusal("order not found")
    return json.dumps(order)


def get_product_details(database: Database, *, product_id: str) -> str:
    """Return the product with all its variants as JSON."""
    product = database.shop.products.get(product_id)
    if product is None:
        raise Refusal("product not found")
    return json.dumps(product)


def list_all_product_types(database: Database) -> str:
    """Return the product ids by name, in the order of the names, as JSON."""
    products = database.shop.products.values()
    return json.dumps(dict(sorted((product["name"], product["product_id"]) for product in products)))
