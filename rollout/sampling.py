"""Sampling parameters. Each work item has its own, so one engine serves several configurations.

Tokens are sampled from softmax(logits / temperature). `top_k` keeps the k likeliest tokens. `top_p` keeps the smallest set
of likeliest tokens with that total probability (Holtzman et al., "The Curious Case of Neural Text Degeneration", 2020).
`min_p` keeps tokens at least that likely relative to the likeliest one (Nguyen et al., "Turning Up the Heat: Min-p
Sampling", 2025). The rest is renormalized. Temperature 0 takes the likeliest token.
"""

from dataclasses import asdict, dataclass
from typing import Any

from temper.envs.core.setting import scheduled

COLDEST = 0.01
"""Lowest temperature that vLLM applies: it raises lower values to this one."""


@dataclass(frozen=True, kw_only=True)
class Sampling:
    """How answers are sampled."""

    temperature: float = scheduled(1.0)
    """Divisor of the logits. 0 is greedy: always the likeliest token."""
    top_p: float = scheduled(1.0)
    """Total probability of the likeliest tokens that may be sampled; 1 keeps all."""
    top_k: int = scheduled(0)
    """Number of likeliest tokens that may be sampled; 0 keeps all."""
    min_p: float = scheduled(0.0, unit="share")
    """Lowest probability of a token that may be sampled, relative to the likeliest one; 0 keeps all."""
    max_tokens: int | None = scheduled(None, unit="tokens")
    """Most tokens of a turn, thinking and answer; null is rollout.limits.turn_tokens, plus a thinking budget if there is
    one.
    """
    stop: list[str] = scheduled([])
    """Texts that end a turn. The answer ends before them."""

    def __post_init__(self) -> None:
        if not (self.temperature == 0 or COLDEST <= self.temperature < float("inf")):
            raise ValueError(f"sampling.temperature={self.temperature} must be 0 (greedy), or {COLDEST} or more")
        if not 0 < self.top_p <= 1:
            raise ValueError(f"sampling.top_p={self.top_p} must be above 0 and at most 1, which keeps all tokens")
        if self.top_k < 0:
            raise ValueError(f"sampling.top_k={self.top_k} must be a number of tokens, or 0 for all")
        if not 0 <= self.min_p <= 1:
            raise ValueError(f"sampling.min_p={self.min_p} must be between 0, which keeps all tokens, and 1")
        if self.max_tokens is not None and self.max_tokens < 1:
            raise ValueError(f"sampling.max_tokens={self.max_tokens} must be 1 or more, or null")
        if "" in self.stop:
            raise ValueError('sampling.stop contains "", which is in every answer; remove it')
        if self.greedy and self.truncates:
            raise ValueError(
                f"sampling.temperature=0 with top_p={self.top_p}, top_k={self.top_k} and min_p={self.min_p}: greedy "
                f"sampling ignores them; remove them"
            )

    @property
    def greedy(self) -> bool:
        return self.temperature == 0

    @property
    def truncates(self) -> bool:
        """Whether some tokens with nonzero probability can't be sampled."""
        return self.top_p < 1 or self.top_k > 0 or self.min_p > 0

    @property
    def varies(self) -> bool:
        """Whether two answers to a task may differ."""
        return not self.greedy and self.top_k != 1

    def distinct_answers(self, samples: int) -> int:
        """Return the answers to ask for: `samples`, or 1 if all would be the same."""
        return samples if self.varies else 1

    def require_varied(self, samples: int, *, setting: str, count: str) -> None:
        """Raise `ValueError` if several answers to a task would be equal. `setting` and `count` name both in the message."""
        if samples > 1 and not self.varies:
            only = f"temperature={self.temperature:g}" if self.greedy else f"top_k={self.top_k}"
            more = "the temperature above 0" if self.greedy else "another top_k"
            raise ValueError(
                f"{setting}.{only} with {count}={samples}: all answers to a task would be the same; set {count}=1, or {more}"
            )

    def cut_at_stop_string(self, text: str) -> str:
        """Return the text before the first stop string."""
        places = [place for stop in self.stop if (place := text.find(stop)) >= 0]
        return text[: min(places)] if places else text


PLAIN = Sampling()
"""Plain softmax of the logits."""


def sampling_to_json(sampling: Sampling) -> dict[str, Any]:
    """Return the arguments that differ from `PLAIN`, as JSON data."""
    usual = asdict(PLAIN)
    return {name: value for name, value in asdict(sampling).items() if value != usual[name]}
