"""Settings with a shorter step: another split of the GPUs between learner and engines, or no cached prefixes."""

from dataclasses import dataclass

from temper.orchestrator.pipeline.config import Config
from temper.orchestrator.tools.preflight.plan.planner import Planner
from temper.orchestrator.tools.preflight.plan.trials import ENGINE, GPUS, RANK, held, tried

WORTH = 0.98
"""Of the step's time: a split that gains less is not told of."""
FITS = frozenset((GPUS, RANK, ENGINE))
"""Limits without which a split is none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Split:
    """Ranks and engines, and the step that they make."""

    ranks: int
    engines: int
    step_s: float
    gain: float
    """Share of the step's time that is saved."""


def best_split(planner: Planner) -> Split | None:
    """Return the split of the same GPUs that fits, hits no limit that is kept now, and is fastest; None where there is none
    that is worth it, or where the rate of the learner was given, which says nothing of other numbers of ranks.

    Each engine has as many GPUs as it has now.
    """
    now, wanted, kept = planner.time(), planner.wanted, held(planner)
    whole = planner.halves or wanted.shared or planner.assumptions.trained_per_s > 0  # a rate of these ranks alone
    if now is None or not planner.gpu or whole:
        return None
    total, seconds = planner.site.hardware.gpus, {}
    for ranks in range(1, total - wanted.processes + 1):
        engines = (total - ranks) // wanted.processes
        other = tried(planner, {"learner.ranks": ranks, "rollout.workers": engines})
        time = other.time() if other is not None and held(other) >= FITS | kept else None
        if time is not None:
            seconds[ranks, engines] = time.step_s
    best = min(seconds, key=lambda split: seconds[split], default=(wanted.ranks, wanted.engines))
    if best == (wanted.ranks, wanted.engines) or (seconds[best] > WORTH * now.step_s and kept >= FITS):
        return None
    return Split(ranks=best[0], engines=best[1], step_s=seconds[best], gain=1 - seconds[best] / now.step_s)


def faster_uncached(planner: Planner) -> tuple[int, float] | None:
    """Return how many sequences of the mean length an engine of a hybrid holds if it caches no prefixes, and the seconds of
    generating then. None if that is not faster.

    With cached prefixes each sequence has a second copy of its states.
    """
    now, engine, most = planner.time(), planner.engine, planner.config.rollout.engine.max_sequences
    if now is None or engine is None or not engine.pages.cached_states:
        return None
    other = tried(planner, {"rollout.engine.prefix_caching": "off"})
    time = None if other is None else other.time()
    if other is None or other.engine is None or time is None or time.generate_s > WORTH * now.generate_s:
        return None
    return min(most, other.engine.sequences(planner.mean_length)), time.generate_s


def shared_evenly(config: Config, ranks: int) -> bool:
    """Return whether every supervised stage that is to run can share its batch among so many ranks."""
    parts = [part for one in config.instances if (part := config.settings(one)) is not None]
    return all(vars(part).get("batch_size", ranks) % ranks == 0 for part in parts)
