"""The split of the GPUs between learner and engines with the shortest step."""

from collections.abc import Iterator
from dataclasses import dataclass, replace

from orchestrator.pipeline.config import Config
from orchestrator.planning.planner import Planner

WORTH = 0.98
"""Of the step's time: a split that gains less is not told of."""
MOST = 16
"""Numbers of ranks that are tried, spread evenly."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Split:
    """Ranks and engines, and the step that they make."""

    ranks: int
    engines: int
    step_s: float
    gain: float
    """Share of the step's time that is saved."""


def best_split(planner: Planner) -> Split | None:
    """Return the split of the same GPUs that fits and is fastest; None where there is none that is worth it,
    or where the rate of the learner was given, which says nothing of other numbers of ranks.

    Each engine has as many GPUs as it has now.
    """
    now = planner.time()
    whole = (
        planner.halves or planner.wanted.shared or planner.assumptions.trained_per_s > 0
    )  # a rate of these ranks alone
    if now is None or not planner.gpu or whole:
        return None
    now_split = (planner.wanted.ranks, planner.wanted.engines)
    others = [other for other in _others(planner) if (other.wanted.ranks, other.wanted.engines) != now_split]
    tried = [(planned.time(), planned) for planned in others if fits(planned)]
    timed = [(time.step_s, planned) for time, planned in tried if time is not None]
    step_s, best = min(timed, key=lambda one: one[0], default=(now.step_s, planner))
    if best is planner or (step_s > WORTH * now.step_s and fits(planner)):
        return None
    gain = 1 - step_s / now.step_s
    return Split(ranks=best.wanted.ranks, engines=best.wanted.engines, step_s=step_s, gain=gain)


def fits(planner: Planner) -> bool:
    """Return whether ranks and engines have room, and the GPUs are enough."""
    rank, engine = planner.rank, planner.engine
    return (
        planner.wanted.fits(planner.nodes)
        and (rank is None or rank.peak <= planner.rank_room)
        and (engine is None or engine.sequences(planner.longest) >= 1)
    )


def _others(planner: Planner) -> Iterator[Planner]:
    total, each = planner.site.hardware.gpus, planner.wanted.processes
    counts = range(1, total - each + 1)
    for ranks in counts[:: max(1, len(counts) // MOST)]:
        engines = (total - ranks) // each
        if engines and shared_evenly(planner.config, ranks):
            yield Planner(_with(planner.config, ranks, engines), planner.model, planner.site, planner.assumptions)


def shared_evenly(config: Config, ranks: int) -> bool:
    """Return whether every supervised stage can share its batch among so many ranks."""
    parts = [*config.sections.values(), *(config.settings(one) for one in config.instances if one.given)]
    return all(vars(part).get("batch_size", ranks) % ranks == 0 for part in parts)


def _with(config: Config, ranks: int, engines: int) -> Config:
    return replace(
        config,
        learner=replace(config.learner, ranks=ranks),
        rollout=replace(config.rollout, workers=engines),
    )
