"""The plan of a run: what its processes take of memory, disk and time, and which limits it would meet."""

import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from temper.learner.config import LearnerConfig
from temper.orchestrator.cluster.hardware import GIB, ask_hardware
from temper.orchestrator.config.text import resolved
from temper.orchestrator.pipeline.config import Config, given_text, make_config
from temper.orchestrator.pipeline.profiles.settled import (
    choice,
    chosen_in,
    completed,
    model_in,
    settled,
    without_chosen,
)
from temper.orchestrator.tools.preflight.plan.assumptions import Assumptions
from temper.orchestrator.tools.preflight.plan.cards import Site, named_site
from temper.orchestrator.tools.preflight.plan.limits import Limit
from temper.orchestrator.tools.preflight.plan.memory.engine_memory import EngineMemory
from temper.orchestrator.tools.preflight.plan.memory.host_memory import HostMemory
from temper.orchestrator.tools.preflight.plan.memory.push import PushPlan
from temper.orchestrator.tools.preflight.plan.memory.rank_memory import RankMemory
from temper.orchestrator.tools.preflight.plan.model import PlannedModel, planned_model
from temper.orchestrator.tools.preflight.plan.planner import Planner
from temper.orchestrator.tools.preflight.plan.run_limits import advised, run_limits
from temper.orchestrator.tools.preflight.plan.seconds.rates import Rates
from temper.orchestrator.tools.preflight.plan.seconds.step_time import StepTime
from temper.orchestrator.tools.preflight.plan.split import Split, best_split, faster_uncached

SHM = Path("/dev/shm")


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What a run would take."""

    run: str
    hardware: str
    placement: str
    ranks: int
    engines: int
    gpus: int
    """GPUs that its processes have; 0 on CPUs."""
    model: PlannedModel
    rank: RankMemory | None
    """None for a run that trains nothing."""
    rank_room: int
    """Memory of the device of a rank, or of the part that it has of it; 0 on a CPU."""
    engine: EngineMemory | None
    """None for a run that plays nothing."""
    longest: int
    """Tokens of the longest sequence of an episode."""
    sequences: tuple[int, int]
    """How many of the longest sequences an engine holds, and how many of the mean length; at most `max_sequences`."""
    mean_length: int
    host: HostMemory
    host_room: int
    """Main memory of the smallest machine, in bytes."""
    push: PushPlan
    shm_bytes: int | None
    checkpoint_s: float
    """Seconds in which a checkpoint's files are written."""
    looped: bool
    """Whether a stage runs the loop."""
    time: StepTime | None
    """None where no stage runs the loop, or nothing says how fast the hardware is."""
    left_out: tuple[str, ...]
    """The stages that `time`, `cost` and the deadlines are not of: all that train or play but the first that runs the loop."""
    split: Split | None
    """A better one than this, if there is any."""
    uncached: tuple[int, float] | None
    """Sequences of the mean length that an engine holds without cached prefixes, and the seconds of generating then. None if
    that is not faster."""
    cost: float | None
    """Of all steps of the stage that `time` is of, at the price of a GPU hour that was given."""
    limits: tuple[Limit, ...]
    advised: tuple[Limit, ...]
    """What a run may do with less of."""
    assumptions: Assumptions


def plan_of(
    path: Path, overrides: Sequence[str], *, gpus: str | None, assumptions: Assumptions, price: float | None = None
) -> Plan:
    """Return the plan of a configuration file with what lies over it, on the GPUs that are named, or on the cluster there is.

    `price` is that of a GPU hour. Raise `FileNotFoundError` or `ValueError` where the configuration, the hardware's name or the
    model is none.
    """
    site = site_of(gpus, assumptions)
    config, model = planned_config(path, overrides, site)
    return make_plan(Planner(config, model, site, assumptions), price=price)


def site_of(gpus: str | None, assumptions: Assumptions) -> Site:
    """Return the hardware that is named, else that of the cluster. Raise `ValueError` for a name that is none."""
    if gpus is not None:
        return named_site(gpus, host_gib_per_gpu=assumptions.host_gib_per_gpu, shm_gib=assumptions.shm_gib)
    room = shutil.disk_usage(SHM).total if SHM.is_dir() else None
    return Site(hardware=ask_hardware(), card=None, shm_bytes=room, named=False)


def planned_config(path: Path, overrides: Sequence[str], site: Site) -> tuple[Config, PlannedModel]:
    """Return the configuration as it would be on the hardware, and its model; raise as `plan_of`.

    Named hardware is chosen for anew, whatever was chosen for a run of that name before.
    """
    given = given_text(path, list(overrides))
    shape = planned_model(model_in(resolved(given)), LearnerConfig()).shape
    if site.named:
        plain = without_chosen(given, chosen_in(given))
        whole = completed(plain, choice(resolved(plain), "auto", site.hardware, shape))
    else:
        whole = settled(given, ask=lambda: site.hardware, shape=lambda seen: shape)
    config = make_config(whole)
    return config, planned_model(config.model, config.learner)


def make_plan(planner: Planner, *, rates: Rates | None = None, price: float | None = None) -> Plan:
    """Return the plan of what is worked out, with rates that were measured, else those of the GPUs."""
    time, config, site = planner.time(rates), planner.config, planner.site
    most = config.rollout.engine.max_sequences
    lengths = (planner.longest, planner.mean_length)
    fitting = [min(most, planner.engine.sequences(n)) if planner.engine is not None else 0 for n in lengths]
    trained = planner.model.checkpoint_bytes if planner.trains else 0
    return Plan(
        run=config.name,
        hardware=site.hardware.in_words() + (f" ({site.card.name})" if site.card else ""),
        placement="halves of one GPU" if planner.halves else config.placement,
        ranks=planner.wanted.ranks,
        engines=planner.wanted.engines,
        gpus=planner.gpus,
        model=planner.model,
        rank=planner.rank,
        rank_room=int(planner.rank_room),
        engine=planner.engine,
        longest=planner.longest,
        sequences=(fitting[0], fitting[1]),
        mean_length=planner.mean_length,
        host=planner.host,
        host_room=int(site.hardware.memory_gib * GIB),
        push=planner.push,
        shm_bytes=site.shm_bytes,
        checkpoint_s=trained / (planner.assumptions.disk_gbs * 1e9),
        looped=planner.loop is not None,
        time=time,
        left_out=planner.left_out if time is not None else (),
        split=best_split(planner) if rates is None else None,
        uncached=faster_uncached(planner) if rates is None else None,
        cost=None if price is None or time is None else price * planner.gpus * time.hours,
        limits=tuple(run_limits(planner, time)),
        advised=tuple(advised(planner)),
        assumptions=planner.assumptions,
    )
