"""What the command `plan` answers: a plan, or a run beside its plan."""

import json
from collections.abc import Sequence
from dataclasses import asdict
from math import isfinite
from pathlib import Path

from temper.orchestrator.run.folder import RunDir
from temper.orchestrator.tools.preflight.plan.assumptions import Assumptions
from temper.orchestrator.tools.preflight.plan.comparison import PlanComparison, compare_with, lines
from temper.orchestrator.tools.preflight.plan.page import page
from temper.orchestrator.tools.preflight.plan.plan import Plan, make_plan, planned_config, site_of
from temper.orchestrator.tools.preflight.plan.planner import Planner
from temper.orchestrator.tools.preflight.plan.seconds.probe import probed
from temper.orchestrator.tools.preflight.plan.seconds.rates import Rates

SUMS = {
    "model": ("checkpoint_bytes",),
    "rank": ("states", "peak"),
    "engine": ("peak",),
    "host": ("peak", "saving"),
    "time": ("limited_by", "sampled_per_s", "hours", "tokens"),
}
"""What is worked out from the fields of a plan's parts, by part."""


def answer_plan(
    file: Path,
    overrides: Sequence[str],
    *,
    gpus: str | None,
    assumptions: Assumptions,
    price: float | None,
    probe: bool,
    as_json: bool,
) -> tuple[str, bool]:
    """Return the plan of a configuration as text, and whether no limit would be hit.

    Raise `FileNotFoundError` or `ValueError` for what is wrong with what was given.
    """
    if probe and gpus is not None:
        raise ValueError(f"--probe measures this machine, not --gpus {gpus}; leave one of them out")
    if price is not None and not (isfinite(price) and price >= 0):
        raise ValueError(f"--price {price:g}: must be a number of 0 or more")
    planner = _planner(file, overrides, gpus=gpus, assumptions=assumptions)
    model = planner.config.model.source
    rates = _rates(planner, None if model is None else model.folder) if probe else None
    plan = make_plan(planner, rates=rates, price=price)
    text = _json(_of_plan(plan)) if as_json else "\n".join(page(plan))
    return text, all(limit.holds for limit in plan.limits)


def answer_comparison(run: Path, *, assumptions: Assumptions, probe: bool, as_json: bool) -> str:
    """Return a run beside its plan as text. Raise `FileNotFoundError` or `ValueError` where there is no such run yet."""
    folder = RunDir(run)
    if not folder.config.is_file():
        raise FileNotFoundError(f"{run} is no run's folder: it has no {folder.config.name}")
    planner = _planner(folder.config, [], gpus=None, assumptions=assumptions)
    newest = folder.state().model
    if probe and newest is None:
        raise ValueError(f"{run} has no model yet, with which this machine could be measured; leave --probe out")
    rates = _rates(planner, None if newest is None else run / newest) if probe else planner.rates
    found = compare_with(planner, folder, rates)
    return _json(_of_comparison(found)) if as_json else "\n".join(lines(found))


def _planner(file: Path, overrides: Sequence[str], *, gpus: str | None, assumptions: Assumptions) -> Planner:
    site = site_of(gpus, assumptions)
    config, model = planned_config(file, overrides, site)
    return Planner(config, model, site, assumptions)


def _rates(planner: Planner, model: Path | None) -> Rates:
    if planner.loop is None:
        raise ValueError("--probe measures steps of rl or distill, and `stages` lists neither; leave it out")
    return probed(planner.config, planner.loop, model)


def _json(found: dict[str, object]) -> str:
    return json.dumps(found, indent=1, allow_nan=False)


def _of_plan(plan: Plan) -> dict[str, object]:
    """Return a plan's fields, and of its parts the sums that they answer when asked."""
    found = asdict(plan)
    for name, sums in SUMS.items():
        part = getattr(plan, name)
        if part is not None:
            found[name] |= {one: getattr(part, one) for one in sums}
    return found


def _of_comparison(found: PlanComparison) -> dict[str, object]:
    figures = [asdict(one) | {"error": one.error} for one in found.figures]
    return asdict(found) | {"figures": figures}
