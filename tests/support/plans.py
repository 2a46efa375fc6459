"""Plans of public models, counted from their `config.json`."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

from support.public_models import PUBLIC
from transformers import AutoConfig

from temper.learner.config import LearnerConfig, LoraConfig
from temper.orchestrator.cluster.machines import Hardware, Machine
from temper.orchestrator.config.text import get_value, overridden, resolve_values
from temper.orchestrator.pipeline.config import make_config, read_run_settings
from temper.orchestrator.pipeline.estimate.assumptions import Assumptions
from temper.orchestrator.pipeline.estimate.cards import Site, named_site
from temper.orchestrator.pipeline.estimate.limits import Limit, run_limits
from temper.orchestrator.pipeline.estimate.model import PlannedModel, count_model, frozen_models, reference_parameters
from temper.orchestrator.pipeline.estimate.run_plan import Plan
from temper.orchestrator.pipeline.profiles.inputs import ProfiledSettings
from temper.orchestrator.pipeline.profiles.resolve import choose_settings, with_choices
from temper.orchestrator.tools.preflight.plan.plan import planned_config, site_of

EIGHT, TWO = Path("configs/recipes/eight_gpus.yaml"), Path("configs/recipes/two_hosts.yaml")
NANO_9B, NANO_30B = "nvidia/NVIDIA-Nemotron-Nano-9B-v2", "nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-BF16"
T = TypeVar("T")


def known(part: T | None) -> T:
    """A part of the plan, which must exist."""
    assert part is not None
    return part


@cache
def public_model(name: str, *, bf16: bool = False, lora: int = 0, ema: bool = False) -> PlannedModel:
    """A public model, trained in whole or by adapters of this rank. It is counted once, which takes seconds."""
    learner = LearnerConfig(zero_stage=1 if bf16 else 0, bf16=bf16, lora=LoraConfig(rank=lora))
    return count_model(AutoConfig.for_model(**PUBLIC[name][0]), learner, name=name, ema=ema)


def plan_on(
    gpus: str,
    name: str,
    *given: str,
    recipe: Path | Mapping[str, Any] = EIGHT,
    assumed: Sequence[str] = ("shm_gib=1",),
    refuse: bool = False,
) -> Plan:
    """The plan of a recipe or of settings on named GPUs, with a public model. `refuse` is of `choose_settings`."""
    assumptions = Assumptions().with_overrides(assumed)
    site = site_of(gpus, assumptions)
    overrides = [f"model.path={name}", *given]
    plain = read_run_settings(recipe, overrides) if isinstance(recipe, Path) else overridden({**recipe}, overrides)

    def count(given: Mapping[str, Any], settings: ProfiledSettings) -> tuple[PlannedModel, int]:
        lora = int(get_value(given, "learner.lora.rank") or 0)
        model = public_model(name, lora=lora)
        return model, reference_parameters(frozen_models(settings.trained(), model), model, adapters=lora > 0)

    found = choose_settings(resolve_values(plain), "auto", site.hardware, count=count, refuse=refuse)
    config = make_config(with_choices(plain, found))
    model = public_model(name, bf16=config.learner.bf16, lora=config.learner.lora.rank, ema=config.keeps_ema)
    return Plan(config, model, site, assumptions)


def demo_on(memory_gib: float, *given: str, gpu_gib: float = 0.0) -> Plan:
    """The plan of the demo on two cores with so much main memory, and two GPUs with so much memory, if any."""
    machine = Machine(gpus=2 if gpu_gib else 0, gpu_gib=gpu_gib, memory_gib=memory_gib, cpus=2)
    site = Site(hardware=Hardware(machines=(machine,)), card=None, shm_bytes=2**34)
    return Plan(*planned_config(Path("configs/demo.yaml"), given, site), site, Assumptions())


def with_learner(plan: Plan, gpus: str = "8xH100-80G", **learner: object) -> Plan:
    """The same plan on these GPUs with other settings of the learner, and an engine on each remaining GPU."""
    site = named_site(gpus, host_gib_per_gpu=128.0, shm_gib=1.0)
    config = replace(plan.config, learner=replace(plan.config.learner, **learner))  # type: ignore[arg-type]
    config = replace(config, rollout=replace(config.rollout, workers=max(1, site.hardware.gpus - config.learner.ranks)))
    return Plan(config, plan.model, site, plan.assumptions)


def hit(plan: Plan, what: str = "a rank's memory") -> Limit:
    """The limit of this name, which the plan exceeds."""
    (limit,) = [one for one in run_limits(plan) if one.what == what]
    assert not limit.holds
    return limit
