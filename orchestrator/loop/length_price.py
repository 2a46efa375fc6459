"""The price of thinking tokens, which rises while an environment keeps its accuracy."""

from collections.abc import Mapping
from dataclasses import dataclass

SMOOTHING = 0.8
"""Weight of the steps before in the running mean of the accuracy."""
TOKENS = 100
"""Thinking tokens that a price is for."""


@dataclass(slots=True)
class EnvPrice:
    """The price of one environment, with its running accuracy and the best one so far."""

    price: float = 0.0
    accuracy: float | None = None
    best: float = 0.0

    def add(self, accuracy: float, *, margin: float, rate: float) -> None:
        before = accuracy if self.accuracy is None else self.accuracy
        self.accuracy = SMOOTHING * before + (1 - SMOOTHING) * accuracy
        self.best = max(self.best, self.accuracy)
        self.price = max(0.0, self.price + rate * (self.accuracy - (self.best - margin)))


class LengthPrices:
    """A price for each environment: the dual variable of the constraint accuracy >= best accuracy - `margin`.

    It follows A-DLP (Su et al., "Thinking Fast and Right: Balancing Accuracy and Reasoning Length with Adaptive Rewards",
    2025), which has a fixed reference accuracy. Without a margin all prices are 0.
    """

    def __init__(self, margin: float | None, *, rate: float) -> None:
        self._margin = margin
        self._rate = rate
        self._envs: dict[str, EnvPrice] = {}

    def of(self, env: str) -> float:
        """Return the reward that `TOKENS` thinking tokens cost now."""
        return self._envs[env].price if env in self._envs else 0.0

    def add(self, metrics: Mapping[str, float]) -> dict[str, float]:
        """Read the metrics of a step. Return the new prices as metrics. The metrics of all steps so far restore the prices."""
        if self._margin is None:
            return {}
        found = {name.split("/")[1]: value for name, value in metrics.items() if is_accuracy(name)}
        for env, accuracy in found.items():
            self._envs.setdefault(env, EnvPrice()).add(accuracy, margin=self._margin, rate=self._rate)
        return {f"env/{env}/length_price": self.of(env) for env in found}


def is_accuracy(name: str) -> bool:
    return name.startswith("env/") and name.endswith("/correct") and name.count("/") == 2
