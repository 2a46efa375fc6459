"""Plans of public models, which read only their `config.json`."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

from temper.orchestrator.cluster.machines import Hardware, Machine
from temper.orchestrator.tools.preflight.plan.assumptions import Assumptions
from temper.orchestrator.tools.preflight.plan.cards import Site, named_site
from temper.orchestrator.tools.preflight.plan.limits import Limit, run_limits
from temper.orchestrator.tools.preflight.plan.plan import Plan, plan_of, planned_config

EIGHT, TWO = Path("configs/recipes/eight_gpus.yaml"), Path("configs/recipes/two_hosts.yaml")
NANO_9B, NANO_30B = "nvidia/NVIDIA-Nemotron-Nano-9B-v2", "nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-BF16"
T = TypeVar("T")


def known(part: T | None) -> T:
    """A part of the plan, which must exist."""
    assert part is not None
    return part


def plan_on(gpus: str, model: Path, *given: str, recipe: Path = EIGHT, assumed: Sequence[str] = ("shm_gib=1",)) -> Plan:
    """The plan of a recipe on named GPUs, with the model of a folder."""
    return plan_of(
        recipe, [f"model.path={model}", *given], gpus=gpus, assumptions=Assumptions().with_overrides(assumed)
    )


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
