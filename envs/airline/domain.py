"""The airline as a service, and what is wrong in it: actions with other arguments than those that were asked for."""

from collections.abc import Iterator
from typing import Any

from temper.envs.airline.database import CERTIFICATE, TABLES, Database, fresh
from temper.envs.airline.tools import TOOLS
from temper.envs.service.domain import Domain
from temper.envs.service.tools import Action

NO_METHOD = "credit_card_0"
NOBODY = {"first_name": "Nobody", "last_name": "Else", "dob": "1970-01-01"}


def alterations(database: Database, action: Action) -> Iterator[tuple[str, Action]]:
    """Yield an action with each stored argument changed, mostly to another that the airline has."""
    arguments = action["arguments"]
    changes: list[tuple[str, Any]] = [
        (key, arguments[key] + 1) for key in ("total_baggages", "nonfree_baggages", "amount") if key in arguments
    ]
    if "passengers" in arguments:
        changes.append(("passengers", [NOBODY, *arguments["passengers"][1:]]))
    if "flights" in arguments:
        changes.append(("flights", arguments["flights"][:-1]))
    if "payment_id" in arguments:
        changes += [("payment_id", other) for other in _other_methods(database, action)]
    if "payment_methods" in arguments:
        first, *others = arguments["payment_methods"]
        changes.append(("payment_methods", [first | {"payment_id": NO_METHOD}, *others]))
    if action["name"] == "book_reservation":
        changes.append(("insurance", "no" if arguments["insurance"] == "yes" else "yes"))
        changes.append(("origin", arguments["destination"]))
    for key, value in changes:
        yield f"{key} {value!r}", action | {"arguments": arguments | {key: value}}


def _other_methods(database: Database, action: Action) -> Iterator[str]:
    """Yield a method that does not exist and, of an action for which money changes hands, another one of the user's."""
    yield NO_METHOD
    reservation_id, payment_id = action["arguments"]["reservation_id"], action["arguments"]["payment_id"]
    before, after = database.reservation(reservation_id), database.copy()
    TOOLS.replay(after, [action])
    paid = after.reservation(reservation_id)
    if before is None or paid is None or paid["payment_history"] == before["payment_history"]:
        return
    methods = database.records.tables["users"][before["user_id"]]["payment_methods"]
    others = [key for key, method in methods.items() if key != payment_id and method["source"] != CERTIFICATE]
    yield from others[:1]


def further(database: Database, user_id: str) -> Action:
    """Return a certificate that nobody asked for."""
    return {"name": "send_certificate", "arguments": {"user_id": user_id, "amount": 1}}


DOMAIN = Domain(
    id="airline",
    entry_point="temper.envs.airline.env:AirlineEnv",
    tables=TABLES,
    tools=TOOLS,
    fresh=fresh,
    alterations=alterations,
    further=further,
)
