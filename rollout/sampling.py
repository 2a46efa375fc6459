"""How a token is drawn from what the model says of it. It travels with a ticket, so that one engine serves several ways.

Of the logits z of a token: softmax(z / temperature), of which `top_k` keeps the likeliest tokens, `top_p` the smallest set of
likeliest tokens that holds so much probability (Holtzman et al., "The Curious Case of Neural Text Degeneration", 2020) and
`min_p` those that are at least so likely compared with the likeliest one (Nguyen et al., "Turning Up the Heat: Min-p
Sampling", 2025); what is left is normalised again. At temperature 0 the likeliest token is taken.
"""

from dataclasses import asdict, dataclass
from typing import Any

from temper.envs.core.setting import scheduled

COLDEST = 0.01
"""The lowest temperature at which vLLM samples; below it raises what it is given."""


@dataclass(frozen=True, kw_only=True)
class Sampling:
    """How answers are sampled."""

    temperature: float = scheduled(1.0)
    """What the logits are divided by; 0 is greedy: always the likeliest token."""
    top_p: float = scheduled(1.0)
    """Probability that the likeliest tokens which may be drawn have together; 1 keeps all."""
    top_k: int = scheduled(0)
    """How many of the likeliest tokens may be drawn; 0 is all."""
    min_p: float = scheduled(0.0, unit="share")
    """Least probability of a token that may be drawn, as a share of the likeliest one's; 0 keeps all."""
    max_tokens: int | None = scheduled(None, unit="tokens")
    """Most tokens of a turn, thought and answer; null is rollout.limits.turn_tokens, a thought with a budget not counted."""
    stop: list[str] = scheduled([])
    """Texts that end a turn as soon as the model has said one; the answer ends before it."""

    def __post_init__(self) -> None:
        if not (self.temperature == 0 or COLDEST <= self.temperature < float("inf")):
            raise ValueError(f"sampling.temperature={self.temperature} must be 0 (greedy), or {COLDEST} or more")
        if not 0 < self.top_p <= 1:
            raise ValueError(f"sampling.top_p={self.top_p} must be above 0 and at most 1, which keeps all tokens")
        if self.top_k < 0:
            raise ValueError(f"sampling.top_k={self.top_k} must be a number of tokens, or 0 for all")
        if not 0 <= self.min_p <= 1:
            raise ValueError(f"sampling.min_p={self.min_p} must lie between 0, which keeps all tokens, and 1")
        if self.max_tokens is not None and self.max_tokens < 1:
            raise ValueError(f"sampling.max_tokens={self.max_tokens} must be 1 or more, or null")
        if "" in self.stop:
            raise ValueError('sampling.stop has "", which every answer holds; leave it out')
        if self.greedy and self.truncates:
            raise ValueError(
                f"sampling.temperature=0 with top_p={self.top_p}, top_k={self.top_k} and min_p={self.min_p}: the likeliest "
                f"token is taken whatever they are; leave them out"
            )

    @property
    def greedy(self) -> bool:
        """Whether the likeliest token is always taken."""
        return self.temperature == 0

    @property
    def truncates(self) -> bool:
        """Whether some tokens can't be drawn that the model finds possible."""
        return self.top_p < 1 or self.top_k > 0 or self.min_p > 0

    def cut_at_stop_string(self, text: str) -> str:
        """Return a turn's text up to the first stop string in it."""
        places = [place for stop in self.stop if (place := text.find(stop)) >= 0]
        return text[: min(places)] if places else text


PLAIN = Sampling()
"""Softmax of the logits as they are."""


def sampling_to_json(sampling: Sampling) -> dict[str, Any]:
    """Return the arguments of `Sampling` that are not as in `PLAIN`, as plain JSON data."""
    usual = asdict(PLAIN)
    return {name: value for name, value in asdict(sampling).items() if value != usual[name]}
