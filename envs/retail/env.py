"""The shop: one customer, sixteen tools over users, orders and products (tau-bench, Yao et al., 2024, retail)."""

from temper.envs.retail.domain import DOMAIN
from temper.envs.service.env import ServiceEnv, definition


class RetailEnv(ServiceEnv):
    """An agent cancels, changes, exchanges and returns what one customer ordered; see `ServiceEnv`."""

    domain = DOMAIN


ENVIRONMENT = definition(DOMAIN)
