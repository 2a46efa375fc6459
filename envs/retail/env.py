"""The shop: one customer, sixteen tools over users, orders and products (tau-bench, Yao et al., 2024, retail)."""

from temper.envs.retail.database import TABLES, Database, fresh
from temper.envs.retail.tools import TOOLS
from temper.envs.service.domain import Domain
from temper.envs.service.env import ServiceEnv, definition
from temper.envs.service.tools import Action, require_record


def further(database: Database, user_id: str) -> Action:
    user = require_record(database, "users", user_id)
    address = user["address"] | {"address2": f"{user['address']['address2']} B"}
    return {"name": "modify_user_address", "arguments": {"user_id": user_id, **address}}


DOMAIN = Domain(
    id="retail",
    entry_point="temper.envs.retail.env:RetailEnv",
    tables=TABLES,
    tools=TOOLS,
    fresh=fresh,
    further=further,
)


class RetailEnv(ServiceEnv):
    """An agent cancels, changes, exchanges and returns one customer's orders. See `ServiceEnv`."""

    domain = DOMAIN


ENVIRONMENT = definition(DOMAIN)
