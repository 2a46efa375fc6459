"""The seconds of a step, of a run, and what that costs.

With G for generating, L for batches, learning and publishing, and D for the load that pauses the engines, a step takes
G + L + D where `max_lag` is 0. Above it both sides work at once: max(G + D, L) where each has devices of its own. Halves of one
GPU compute by turns: there both sides add up at any lag. Sides that share cores, or what cores share, slow each other down: see
`overlapped`.
"""

from dataclasses import dataclass

from temper.orchestrator.tools.preflight.plan.seconds.rates import Rates, Slowdown
from temper.orchestrator.tools.preflight.plan.seconds.work import Work


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTime:
    """Seconds of a step of the loop by part; parts of both sides overlap above `max_lag` 0."""

    rates: Rates
    work: Work
    generate_s: float
    batch_s: float
    """What the driver takes to make the batches, before the learner begins."""
    learn_s: float
    publish_s: float
    load_s: float
    shift_s: float
    """What learner and engines take to give each other the devices that they share."""
    step_s: float
    longest_s: float
    """What the longest answer takes."""

    @property
    def limited_by(self) -> str:
        """Which side the other waits for."""
        learner_s = self.batch_s + self.learn_s + self.publish_s
        return "generating" if self.generate_s + self.load_s >= learner_s else "learning"

    @property
    def sampled_per_s(self) -> float:
        """Sampled tokens a second, over all engines and the whole step."""
        return self.work.sampled / self.step_s

    @property
    def hours(self) -> float:
        """What all steps take, without evaluations and starts."""
        return self.work.steps * self.step_s / 3600

    @property
    def tokens(self) -> float:
        """Tokens that are sampled in all."""
        return self.work.steps * self.work.sampled


def step_time(rates: Rates, work: Work, *, engines: int, one_device: bool = False, shift_s: float = 0.0) -> StepTime:
    """Return the seconds of a step that so many engines sample for; `one_device`: learner and engine are halves of one GPU."""
    longest_s = work.longest_answer * rates.token_s
    together = work.sampled / engines / rates.sampled_per_s
    generate_s = together if work.lag else max(together, longest_s)
    learn_s = work.epochs * work.trained / rates.trained_per_s + rates.updates_s
    first, second = generate_s + rates.load_s, rates.batch_s + learn_s + rates.publish_s
    step_s, slower = first + second + shift_s, Slowdown()
    if work.lag and not one_device:
        step_s, slower = overlapped(first, second, rates.slowdown)
    return StepTime(
        rates=rates,
        work=work,
        generate_s=generate_s * slower.engines,
        batch_s=rates.batch_s * slower.learner,
        learn_s=learn_s * slower.learner,
        publish_s=rates.publish_s * slower.learner,
        load_s=rates.load_s * slower.engines,
        shift_s=shift_s,
        step_s=step_s,
        longest_s=longest_s,
    )


def overlapped(engines_s: float, learner_s: float, slowdown: Slowdown) -> tuple[float, Slowdown]:
    """Return the seconds of a step of sides that work at once, and how many times as long as alone each takes in it.

    `engines_s` and `learner_s` are what each takes alone. In steady state the side that takes longer beside the other is never
    idle, and the other works only beside it: for its slowdown times its own seconds, of which the first loses all but
    1 / its own slowdown.
    """
    engines, learner = slowdown.engines, slowdown.learner
    if engines_s * engines >= learner_s * learner:
        step_s = engines_s + learner_s * learner * (1 - 1 / engines)
        return step_s, Slowdown(engines=step_s / engines_s, learner=learner)
    step_s = learner_s + engines_s * engines * (1 - 1 / learner)
    return step_s, Slowdown(engines=engines, learner=step_s / learner_s)
