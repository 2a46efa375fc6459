"""A run to simulate: its settings, the seconds of its parts, planned from the peaks of named GPUs, and lengths of answers."""

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from statistics import NormalDist

from temper.orchestrator.config.loop import LoopConfig
from temper.orchestrator.tools.preflight.plan.assumptions import Assumptions
from temper.orchestrator.tools.preflight.plan.plan import Plan, plan_of
from temper.orchestrator.tools.preflight.plan.step_time import Fleet

START_S = 120.0
"""Seconds of an engine's start in addition to reading the weights: processes, graphs, a first pass. Assumed."""
OF_TASK = 0.5
"""Assumed share of the log-length variance that answers to the same task have in common."""
MOST_TAIL = 3.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Speeds:
    """Seconds of an engine's pass, of a learner's step, of a push and of a start.

    `pass_s[n]` is a pass with n sequences, including their share of prompts. An engine has `len(pass_s) - 1` slots. A step
    takes `learn_fixed_s`, and `learn_token_s` per token. `prompt_tokens` of each sequence are not sampled.
    """

    pass_s: tuple[float, ...]
    learn_token_s: float
    learn_fixed_s: float
    publish_s: float
    load_s: float
    transport: str
    prompt_tokens: float
    start_s: float

    @property
    def places(self) -> int:
        """Sequences that an engine runs at once."""
        return len(self.pass_s) - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class LogNormal:
    """Log-normal lengths, drawn by ticket number, the same in every run. Answers to a task are correlated.

    `tail` is the standard deviation of the log length, 0 for equal lengths. Lengths are cut at `longest`. `mean` is the mean
    before the cut.
    """

    mean: float
    tail: float
    longest: float
    seed: int

    def of(self, ticket: int, answers: int) -> list[int]:
        """Return the lengths in tokens of so many answers to the task of a ticket."""
        draw = random.Random(f"{self.seed}/{ticket}")
        centre = math.log(self.mean) - self.tail**2 / 2
        task = centre + self.tail * math.sqrt(OF_TASK) * draw.gauss(0, 1)
        own = self.tail * math.sqrt(1 - OF_TASK)
        lengths = (math.exp(task + own * draw.gauss(0, 1)) for _ in range(answers))
        return [max(1, round(min(length, self.longest))) for length in lengths]


def with_mean(lengths: LogNormal, mean: float) -> LogNormal:
    """Return lengths whose mean after the cut is `mean`, by bisection. Raise `ValueError` if it is not below `longest`."""
    if mean >= lengths.longest:
        raise ValueError(
            f"the mean of {mean:,.0f} tokens is not below the longest answer of {lengths.longest:,.0f}; lower "
            f"--assume answer_tokens"
        )
    if not lengths.tail:
        return replace(lengths, mean=mean)
    low, high = mean, mean * math.exp(4 * lengths.tail**2 + 4)
    for _ in range(60):
        middle = math.sqrt(low * high)
        low, high = (middle, high) if cut_mean(replace(lengths, mean=middle)) < mean else (low, middle)
    return replace(lengths, mean=high)


def cut_mean(lengths: LogNormal) -> float:
    """Return the mean of log-normal lengths after the cut.

    E[min(X, c)] = E[X] Phi(d - s) + c (1 - Phi(d)), with s the standard deviation of the log and d = (log c - its mean) / s.
    """
    if not lengths.tail:
        return min(lengths.mean, lengths.longest)
    deviation, normal = lengths.tail, NormalDist()
    cut = (math.log(lengths.longest) - math.log(lengths.mean) + deviation**2 / 2) / deviation
    return lengths.mean * normal.cdf(cut - deviation) + lengths.longest * (1 - normal.cdf(cut))


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """A run to simulate, with the settings of its stage. `steps` are counted after `filling` warm-up steps."""

    loop: LoopConfig
    engines: int
    speeds: Speeds
    lengths: LogNormal
    kept: float = 1.0
    """Share of the groups with a signal."""
    steps: int = 8
    seed: int = 0

    def __post_init__(self) -> None:
        if self.steps < 1:
            raise ValueError(f"--steps {self.steps}: must be 1 or more")

    @property
    def filling(self) -> int:
        """Steps at the start that are not counted: nothing is in flight before them."""
        return self.loop.max_lag + 2


def scenarios(
    file: Path,
    overrides: Sequence[str],
    *,
    gpus: str | None,
    assumptions: Assumptions,
    engines: Sequence[int] | None,
    lags: Sequence[int] | None,
    tail: float,
    grow: bool,
    steps: int,
    seed: int,
) -> list[Scenario]:
    """Return every combination of `engines` and `lags`. None uses the configuration.

    `tail` is the standard deviation of the log of answer lengths. With `grow`, groups per step and ranks grow with the engines.
    Raise `FileNotFoundError` or `ValueError` for invalid input.
    """
    if min(engines or [1]) < 1:
        raise ValueError(f"--engines {min(engines or [1])}: must be 1 or more")
    if not 0 <= tail <= MOST_TAIL:
        raise ValueError(f"--tail {tail:g}: use a value from 0 (equal lengths) to {MOST_TAIL:g}")
    plan = plan_of(file, overrides, gpus=gpus, assumptions=assumptions)
    fleet = _require_fleet(plan)
    assert plan.loop is not None
    work, planned, settings = fleet.work, plan.wanted.engines, plan.config.settings(plan.loop)
    longest = max(work.answer_tokens, plan.longest - work.prompt_tokens)
    lengths = with_mean(LogNormal(mean=work.answer_tokens, tail=tail, longest=longest, seed=seed), work.answer_tokens)
    cases = []
    for count, lag in product(engines or [planned], lags or [settings.max_lag]):
        times = count / planned if grow else 1.0
        groups = max(1, round(times * settings.groups_per_step))
        over = settings.over_sampling if lag == settings.max_lag else None
        case = Scenario(
            loop=replace(settings, groups_per_step=groups, max_lag=lag, over_sampling=over),
            engines=count,
            speeds=_speeds(fleet, engines=count, times=times),
            lengths=lengths,
            kept=work.kept,
            steps=steps,
            seed=seed,
        )
        cases.append(case)
    return cases


def _require_fleet(plan: Plan) -> Fleet:
    """Return the ground of all rates. Raise `ValueError` if the plan names no GPUs, or the model does not fit on them."""
    if plan.work is None:
        raise ValueError("`stages` has neither rl nor distill, so there is no loop to simulate")
    if plan.wanted.colocated or plan.halves:
        raise ValueError("colocated engines and learner are not simulated; set placement=dedicated")
    if plan.fleet is None:
        raise ValueError(
            "the speeds of engines and learner are unknown; name GPUs that fit the model: --gpus 8xH100-80G"
        )
    return plan.fleet


def _speeds(planned: Fleet, *, engines: int, times: float) -> Speeds:
    """Return the speeds of so many engines, and of a step and learner of `times` the planned size.

    More ranks send more to each other, over more machines. All engines read the model from the same storage.
    """
    together = planned.learner.sequence_parallel * planned.learner.expert_parallel  # one of them is 1
    ranks = max(1, round(times * planned.learner.ranks / together)) * together
    processes = engines * planned.engine.processes
    fleet = replace(
        planned,
        engines=engines,
        learner=replace(planned.learner, ranks=ranks),
        gpus=ranks + processes,
        work=replace(planned.work, groups=max(1, round(times * planned.work.groups))),
    )
    rates = fleet.rates
    return Speeds(
        pass_s=(0.0, *(fleet.pass_s(batch) + batch * fleet.prompt_s for batch in range(1, fleet.places + 1))),
        learn_token_s=fleet.work.epochs / rates.trained_per_s,
        learn_fixed_s=rates.updates_s,
        publish_s=rates.publish_s,
        load_s=rates.load_s,
        transport=fleet.push.transport,
        prompt_tokens=fleet.work.prompt_tokens,
        start_s=START_S + processes * fleet.memory.weights / (fleet.assumed.storage_gbs * 1e9),
    )
