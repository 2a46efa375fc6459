"""Plans for the command line, on named GPUs or on this cluster."""

from collections.abc import Sequence
from pathlib import Path

from temper.orchestrator.config.schema import resolve_given
from temper.orchestrator.pipeline.config import SCHEMA, Config, make_config, read_run_settings
from temper.orchestrator.pipeline.estimate.assumptions import Assumptions
from temper.orchestrator.pipeline.estimate.cards import Site, found_site, named_site
from temper.orchestrator.pipeline.estimate.model import PlannedModel, planned_model
from temper.orchestrator.pipeline.estimate.run_plan import Plan
from temper.orchestrator.pipeline.profiles.resolve import (
    choose_settings,
    plan_parameter_count,
    query_hardware,
    read_resolved,
    resolve_profile,
    with_choices,
    without_resolved,
)


def plan_of(path: Path, overrides: Sequence[str], *, gpus: str | None, assumptions: Assumptions) -> Plan:
    """Return the plan of a configuration file and its overrides, on the named GPUs or on this cluster.

    Raise `FileNotFoundError` or `ValueError` if the configuration, the hardware's name or the model is invalid.
    """
    site = site_of(gpus, assumptions)
    return Plan(*planned_config(path, overrides, site), site, assumptions)


def site_of(gpus: str | None, assumptions: Assumptions) -> Site:
    """Return the named hardware, or else the cluster's hardware. Raise `ValueError` for an unknown name."""
    if gpus is None:
        return found_site(query_hardware())
    return named_site(gpus, host_gib_per_gpu=assumptions.host_gib_per_gpu, shm_gib=assumptions.shm_gib)


def planned_config(path: Path, overrides: Sequence[str], site: Site) -> tuple[Config, PlannedModel]:
    """Return the configuration resolved for the hardware, and its model. Raise as `plan_of`.

    On named hardware the profile ignores its choice for an earlier run.
    """
    given = read_run_settings(path, list(overrides))
    if site.named:
        plain = without_resolved(given, read_resolved(given))
        whole = with_choices(
            plain, choose_settings(resolve_given(SCHEMA, plain), "auto", site.hardware, size=plan_parameter_count)
        )
    else:
        whole = resolve_profile(given, ask=lambda: site.hardware, size=plan_parameter_count, refuse=False)
    config = make_config(whole)
    return config, planned_model(config.model, config.learner, ema=config.keeps_ema)
