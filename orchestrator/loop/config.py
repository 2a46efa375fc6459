"""Settings of the loop's watches and of rewards for length."""

import math
from dataclasses import asdict, dataclass, field

from temper.envs.core.bounds import require_fraction, require_not_negative
from temper.envs.core.setting import free, immutable

FASTEST_RISE = 0.05
"""Highest rise of the adaptive penalty in a step. The running accuracy shows a fall after about 5 steps, and by then the
penalty has risen by at most half of its largest value."""


@dataclass(frozen=True, kw_only=True)
class ShapingConfig:
    """Rewards for length. Each term is off by default."""

    thinking_length: float = immutable(0.0)
    """Weight of a short reasoning, relative to the other answers of its group. A wrong answer gains nothing. 0 is off."""
    answer_length: float = immutable(0.0)
    """Weight of a short answer, relative to the other answers of its group. 0 is off."""
    shortest_bonus: float = immutable(0.0)
    """Bonus for the shortest reasoning and the shortest answer of a group, if right and among its best fifth. Needs a weight
    above 0."""
    effort_slope: float = immutable(0.0, unit="share")
    """Largest gain of a short answer to a low-effort prompt, as a share of its reward. 0 is off."""
    effort_penalty: float = immutable(1.0)
    """Loss of an answer to such a prompt for each `effort_tokens / effort_slope` tokens too many."""
    effort_tokens: int = immutable(3000, unit="tokens")
    """Length in tokens from which an answer to such a prompt loses reward."""
    overlong_buffer: int = immutable(0, unit="tokens")
    """Tokens before rollout.limits.turn_tokens over which the longest turn of an answer loses more and more. 0 is off."""
    overlong_factor: float = immutable(1.0)
    """Loss at the limit. Tasks with a thinking budget are exempt, since their turns have other limits."""
    solve_rate_penalty: float = immutable(0.0)
    """Penalty of 100 thinking tokens in a group with right answers only. It is multiplied by the group's share of right
    answers, which counts as at least one answer (ALP). 0 is off."""
    accuracy_margin: float | None = immutable(None, unit="share")
    """Accepted drop of an environment's mean accuracy below its best, for shorter thinking. Within it the penalty of thinking
    tokens rises, below it the penalty falls (A-DLP). Null is off."""
    penalty_step: float = immutable(1.0)
    """Change of the penalty in a step, for each 1.0 of accuracy above the bound. An answer with as many thinking tokens as the
    mean of the first step loses the penalty, others lose in proportion, at most 0.5. Needs accuracy_margin."""

    def __post_init__(self) -> None:
        for name, value in asdict(self).items():
            require_not_negative(f"rl.shaping.{name}", value or 0.0)
        if self.accuracy_margin is not None:
            require_fraction("rl.shaping.accuracy_margin", self.accuracy_margin)
        elif self.penalty_step != 1.0:
            raise ValueError(
                f"rl.shaping.penalty_step={self.penalty_step} has no effect without accuracy_margin; set both"
            )
        if self.effort_tokens < 1:
            raise ValueError(f"rl.shaping.effort_tokens={self.effort_tokens} must be 1 or more")

    @property
    def penalty_rise(self) -> float:
        """Largest rise of the adaptive penalty in a step."""
        return self.penalty_step * (self.accuracy_margin or 0.0)


def require_buffer_fits(shaping: ShapingConfig, *, turn_tokens: int) -> None:
    """Raise `ValueError` if the penalty would apply to turns of every length."""
    if shaping.overlong_buffer > turn_tokens:
        raise ValueError(
            f"rl.shaping.overlong_buffer={shaping.overlong_buffer} must be at most "
            f"rollout.limits.turn_tokens={turn_tokens}"
        )


@dataclass(frozen=True, kw_only=True)
class Band:
    """Bounds of a metric. Without low and high it is not watched."""

    low: float | None = free(None)
    """Lowest value without an alarm."""
    high: float | None = free(None)
    """Highest value without an alarm."""
    alarm_after: int = free(1, unit="steps")
    """Consecutive steps outside the band until an alarm. At most `stop_after`, if that is set."""
    stop_after: int = free(0, unit="steps")
    """Consecutive steps outside the band until the stage saves and ends. 0: alarms only."""

    def problem(self, value: float) -> str:
        """Describe the problem of a value; "" inside the band. A non-finite value is outside."""
        if not math.isfinite(value):
            return "is not finite"
        if self.low is not None and value < self.low:
            return f"is below low={self.low}"
        if self.high is not None and value > self.high:
            return f"is above high={self.high}"
        return ""

    @property
    def is_watched(self) -> bool:
        return self.low is not None or self.high is not None

    @property
    def alarm_at(self) -> int:
        """Consecutive steps outside the band until an alarm."""
        return min(self.alarm_after, self.stop_after or self.alarm_after)


@dataclass(frozen=True, kw_only=True)
class BandsConfig:
    """Bands of step metrics. Two have default bounds, for problems that prevent all learning."""

    kl: Band = field(default_factory=Band)
    """KL divergence from the reference or the teacher, train/kl. Needs a reference or a teacher."""
    entropy: Band = field(default_factory=Band)
    """Mean surprise of the sampled tokens in nats, train/entropy."""
    mismatch_abs: Band = field(default_factory=Band)
    """Mean absolute difference between the log-probabilities of trainer and engine, train/mismatch_abs."""
    truncated: Band = field(default_factory=lambda: Band(high=0.5, alarm_after=3))
    """Share of truncated answers, rollout/truncated."""
    nonzero_advantage: Band = field(default_factory=lambda: Band(low=0.1, alarm_after=3))
    """Share of groups with different rewards, rollout/nonzero_advantage."""

    @property
    def by_name(self) -> dict[str, Band]:
        return {name: vars(self)[name] for name in METRICS}

    def check(self, setting: str, *, has_reference: bool) -> None:
        """Raise `ValueError` for an impossible band, or for a band of an unmeasured metric."""
        for name, band in self.by_name.items():
            require_not_negative(f"{setting}.{name}.stop_after", band.stop_after)
            if band.alarm_after < 1:
                raise ValueError(f"{setting}.{name}.alarm_after={band.alarm_after} must be at least 1")
            if band.low is not None and band.high is not None and band.low > band.high:
                raise ValueError(
                    f"{setting}.{name}.low={band.low} is above high={band.high}; exchange them, or set the default one to null"
                )
            if band.stop_after and not band.is_watched:
                raise ValueError(f"{setting}.{name}.stop_after={band.stop_after} needs a bound; set low or high")
        if self.kl.is_watched and not has_reference:
            stage = setting.removesuffix(".bands")
            raise ValueError(
                f"{setting}.kl needs a reference: set {stage}.loss.kl_coefficient above 0, or remove the band"
            )


METRICS = {
    "kl": "train/kl",
    "entropy": "train/entropy",
    "mismatch_abs": "train/mismatch_abs",
    "truncated": "rollout/truncated",
    "nonzero_advantage": "rollout/nonzero_advantage",
}
"""The metric of each band."""
