"""One point of the curve of accuracy against thinking budget, as an evaluation stores it. Light: it is read by `compare`."""

from dataclasses import asdict, dataclass
from math import nan, sqrt
from typing import Any

from envs.core.thinking_mode import Mode, Thinking

Z95 = 1.96
"""Half-width of the 95 % interval of a normal distribution, in standard deviations."""
ORDER = (Mode.OFF, Mode.LOW_EFFORT, Mode.BUDGET, Mode.UNLIMITED)


@dataclass(frozen=True, slots=True, kw_only=True)
class CurvePoint:
    """The answers of one environment under one mode of thinking. Lengths are in tokens, shares between 0 and 1.

    Measures are over the answers with a score; NaN where there is none.
    """

    mode: Mode
    budget: int | None = None
    """Budget in tokens, None in the modes that have none."""
    share: float | None = None
    """The budget as a share of the median thought without a limit, where it was asked for so."""
    tasks: int
    samples: int
    """Answers with a score, over all tasks."""
    failures: int = 0
    """Answers without a score, for reasons outside the model."""
    accuracy: float
    """Mean over tasks of the share of right answers."""
    accuracy_low: float
    """The same where answers without a score count as wrong."""
    stderr: float
    """Standard error of the accuracy over tasks."""
    well_formed: float
    """Share of turns that close their thought exactly once and have no tag in the answer."""
    closed: dict[str, float]
    """Shares of turns by how the thought was closed: itself, line_end, abrupt, never."""
    thought_tokens: float
    """Mean thought of an episode."""
    thought_tokens_turn: float
    """Mean thought of a turn."""
    thought_tokens_median: float
    """Median thought of a turn."""
    answer_tokens: float
    """Mean answer of an episode."""
    answer_tokens_turn: float
    """Mean answer of a turn."""
    overshoot: float
    """Mean over turns of the thought beyond the budget."""
    overshoot_max: int
    """Largest thought beyond the budget."""
    truncated: float
    """Share of episodes that ran into the token limit."""

    @classmethod
    def read(cls, raw: dict[str, Any]) -> "CurvePoint":
        """The point that `as_json` wrote. Raises `KeyError`, `TypeError` or `ValueError` for anything else."""
        known: dict[str, Any] = {name: value for name, value in raw.items() if name in cls.__dataclass_fields__}
        given = {name: measured(value) for name, value in known.items() if name not in ("budget", "share")}
        return cls(**{**known, **given, "mode": Mode(raw["mode"])})

    def as_json(self) -> dict[str, Any]:
        """The point as plain data, with its interval."""
        return asdict(self) | {"mode": self.mode.value, "interval": list(self.interval)}

    @property
    def label(self) -> str:
        """One word for tables and metrics: the mode, or `budget-64`."""
        return Thinking(mode=self.mode, budget=self.budget).label

    @property
    def place(self) -> tuple[int, int, float]:
        """Where it stands in a curve: off, low effort, budgets from small to large, unlimited."""
        return ORDER.index(self.mode), self.budget or 0, self.share or 0.0

    @property
    def interval(self) -> tuple[float, float]:
        """The 95 % confidence interval of the accuracy, the wider of two; NaN without a score.

        The normal one over tasks takes account of answers to the same task being alike, but has no width where all
        tasks have the same accuracy; Wilson's over samples has one even where all answers are right.
        """
        if not self.samples:
            return nan, nan
        half = Z95 * self.stderr
        normal = max(0.0, self.accuracy - half), min(1.0, self.accuracy + half)
        return max(normal, wilson_interval(self.accuracy, self.samples), key=lambda ends: ends[1] - ends[0])


def measured(value: Any) -> Any:
    """What a file holds of a measure: null is NaN, in what it lists too."""
    if isinstance(value, dict):
        return {name: measured(inner) for name, inner in value.items()}
    return nan if value is None else value


def wilson_interval(share: float, count: int) -> tuple[float, float]:
    """The 95 % interval of a share of `count` trials, 1 or more; it holds the share, whatever the rounding.

    Wilson, Probable Inference, the Law of Succession, and Statistical Inference, JASA 22 (1927).
    """
    square = Z95**2 / count
    middle = (share + square / 2) / (1 + square)
    half = Z95 * sqrt(share * (1 - share) / count + square / (4 * count)) / (1 + square)
    return max(0.0, min(share, middle - half)), min(1.0, max(share, middle + half))
