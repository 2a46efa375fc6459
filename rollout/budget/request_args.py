"""How a request tells the engine where a thought ends: the extra arguments that its logits processor reads."""

import json
from collections.abc import Mapping
from http import HTTPStatus
from typing import Any

from temper.rollout.budget.rule import ThoughtLimit

BUDGET, GRACE, BEGUN, CLOSING = "thinking_budget", "thinking_grace", "thinking_begun", "thinking_closing"


class RefusedRequest(ValueError):
    """A request that is not answered, the status that says so, and the key at fault where one is."""

    def __init__(
        self, message: str, *, status: HTTPStatus = HTTPStatus.BAD_REQUEST, parameter: str | None = None
    ) -> None:
        super().__init__(message)
        self.status = status
        self.parameter = parameter


def extra_args(limit: ThoughtLimit, *, begun: int = 0) -> dict[str, Any]:
    """Return the extra arguments of a request under a limit, whose turn began with so many tokens of its prompt."""
    return {BUDGET: limit.tokens, GRACE: limit.grace} | ({BEGUN: begun} if begun else {})


def check_extra_args(given: Mapping[str, Any]) -> None:
    """Raise `RefusedRequest` for what should be a number of tokens and is none, and for a closing.

    What closes a thought is the engine's to know: the model has it for its own words.
    """
    for name in (BUDGET, GRACE, BEGUN):
        value = given.get(name, 0)
        if isinstance(value, bool) or not isinstance(value, int) or value < 0:
            raise RefusedRequest(
                f"{name} is {shown(value)}; it must be a whole number of tokens, 0 or more", parameter=name
            )
    if CLOSING in given:
        raise RefusedRequest(
            f"{CLOSING} is {shown(given[CLOSING])}; it is the server's own, leave it out", parameter=CLOSING
        )


def shown(value: object) -> str:
    """Return a value as the client wrote it, shortened."""
    text = json.dumps(value)
    return text if len(text) <= 80 else f"{text[:77]}..."
