"""The airline: one customer, fourteen tools over users, flights and reservations (tau-bench, Yao et al., 2024, airline)."""

from temper.envs.airline.database import TABLES, fresh
from temper.envs.airline.tools import TOOLS, Database
from temper.envs.service.domain import Domain
from temper.envs.service.env import ServiceEnv, definition
from temper.envs.service.tools import Action


def further(database: Database, user_id: str) -> Action:
    return {"name": "send_certificate", "arguments": {"user_id": user_id, "amount": 1}}


DOMAIN = Domain(
    id="airline",
    entry_point="temper.envs.airline.env:AirlineEnv",
    tables=TABLES,
    tools=TOOLS,
    fresh=fresh,
    further=further,
)


class AirlineEnv(ServiceEnv):
    """An agent books, changes and cancels flights for one customer. See `ServiceEnv`."""

    domain = DOMAIN


ENVIRONMENT = definition(DOMAIN)
