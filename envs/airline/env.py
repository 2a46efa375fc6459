"""The airline: one customer, fourteen tools over users, flights and reservations (tau-bench, Yao et al., 2024, airline)."""

from temper.envs.airline.domain import DOMAIN
from temper.envs.service.env import ServiceEnv, definition


class AirlineEnv(ServiceEnv):
    """An agent books, changes and cancels flights for one customer; see `ServiceEnv`."""

    domain = DOMAIN


ENVIRONMENT = definition(DOMAIN)
