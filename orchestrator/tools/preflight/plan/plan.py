"""The plan of a run: memory, disk and time of its processes, and the limits that it would exceed."""

import json
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from textwrap import wrap

from temper.learner.config import LearnerConfig
from temper.orchestrator.cluster.hardware import GIB, ask_hardware
from temper.orchestrator.cluster.node_facts import SHM
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
from temper.orchestrator.tools.preflight.plan.limits import Limit, advised, run_limits, size
from temper.orchestrator.tools.preflight.plan.memory.engine_memory import EngineMemory
from temper.orchestrator.tools.preflight.plan.memory.host_memory import HostMemory, PushPlan
from temper.orchestrator.tools.preflight.plan.memory.rank_memory import RankMemory
from temper.orchestrator.tools.preflight.plan.model import PlannedModel, planned_model
from temper.orchestrator.tools.preflight.plan.planner import Planner
from temper.orchestrator.tools.preflight.plan.step_time import StepTime

SUMS = {
    "model": ("checkpoint_bytes",),
    "rank": ("states", "peak"),
    "engine": ("peak",),
    "host": ("peak", "saving"),
    "time": ("limited_by", "sampled_per_s", "hours", "tokens"),
}
"""Calculated properties that JSON has in addition to the fields of a plan's parts, by part."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The resources of a run."""

    run: str
    hardware: str
    ranks: int
    engines: int
    gpus: int
    """GPUs of its processes; 0 on CPUs."""
    model: PlannedModel
    rank: RankMemory | None
    """None for a run that trains nothing."""
    rank_room: int
    """Memory of a rank's device, or of its part of it; 0 on a CPU."""
    engine: EngineMemory | None
    """None for a run that plays nothing."""
    longest: int
    """Tokens of the longest sequence of an episode."""
    sequences: tuple[int, int]
    """Longest sequences that an engine holds, and sequences of the mean length; at most `max_sequences`."""
    mean_length: int
    host: HostMemory
    host_room: int
    """Main memory of the smallest machine, in bytes."""
    push: PushPlan
    time: StepTime | None
    """None without a stage that runs the loop, or without named GPUs."""
    left_out: tuple[str, ...]
    """The stages that `time` leaves out: all that train or play but the first that runs the loop."""
    limits: tuple[Limit, ...]
    advised: tuple[Limit, ...]
    """Limits that a run may exceed."""
    assumptions: Assumptions

    def json(self) -> str:
        """Return all of it as one JSON object."""
        found = asdict(self)
        for name, sums in SUMS.items():
            part = getattr(self, name)
            if part is not None:
                found[name] |= {one: getattr(part, one) for one in sums}
        return json.dumps(found, indent=1, allow_nan=False)


def plan_of(path: Path, overrides: Sequence[str], *, gpus: str | None, assumptions: Assumptions) -> Plan:
    """Return the plan of a configuration file and its overrides, on the named GPUs or on this cluster.

    Raise `FileNotFoundError` or `ValueError` if the configuration, the hardware's name or the model is invalid.
    """
    site = site_of(gpus, assumptions)
    config, model = planned_config(path, overrides, site)
    return make_plan(Planner(config, model, site, assumptions))


def site_of(gpus: str | None, assumptions: Assumptions) -> Site:
    """Return the named hardware, else that of the cluster. Raise `ValueError` for an unknown name."""
    if gpus is not None:
        return named_site(gpus, host_gib_per_gpu=assumptions.host_gib_per_gpu, shm_gib=assumptions.shm_gib)
    room = shutil.disk_usage(SHM).total if SHM.is_dir() else None
    return Site(hardware=ask_hardware(), card=None, shm_bytes=room, named=False)


def planned_config(path: Path, overrides: Sequence[str], site: Site) -> tuple[Config, PlannedModel]:
    """Return the configuration as it would be on the hardware, and its model; raise as `plan_of`.

    On named hardware the profile chooses anew, whatever it chose for an earlier run.
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


def make_plan(planner: Planner) -> Plan:
    """Return the plan of a configuration on a hardware."""
    time, config, site = planner.time(), planner.config, planner.site
    most = config.rollout.engine.max_sequences
    lengths = (planner.longest, planner.mean_length)
    fitting = [min(most, planner.engine.sequences(n)) if planner.engine is not None else 0 for n in lengths]
    return Plan(
        run=config.name,
        hardware=site.hardware.in_words() + (f" ({site.card.name})" if site.card else ""),
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
        time=time,
        left_out=planner.left_out if time is not None else (),
        limits=tuple(run_limits(planner)),
        advised=tuple(advised(planner)),
        assumptions=planner.assumptions,
    )


def page(plan: Plan) -> Iterator[str]:
    """Yield the lines of a plan for people."""
    gpus = f" on {plan.gpus} GPUs" if plan.gpus else ""
    yield f"{plan.run} on {plan.hardware}: {plan.ranks} ranks, {plan.engines} engines{gpus}"
    yield f"model        {plan.model.name} ({plan.model.kind}): {plan.model.parameters:,} parameters"
    yield from wrap(f"parts        {_counts(plan.model.parts)}", width=120, subsequent_indent=" " * 13)
    if plan.rank is not None:
        rank = {name: nbytes for name, nbytes in asdict(plan.rank).items() if name not in ("pass_tokens", "loading")}
        loading = f"; {size(plan.rank.loading)} while the model is loaded" if plan.rank.loading else ""
        passes = f"; passes of {plan.rank.pass_tokens:,} tokens{loading}"
        yield from _memory("a rank", rank, peak=plan.rank.peak, room=plan.rank_room, more=passes)
    if plan.engine is not None:
        engine = {"weights": plan.engine.weights, "overhead": plan.engine.overhead, "cache": max(0, plan.engine.cache)}
        held = (
            f"{plan.sequences[0]:,} sequences of {plan.longest:,} tokens, {plan.sequences[1]:,} of {plan.mean_length:,}"
        )
        yield from _memory("an engine", engine, peak=plan.engine.peak, room=plan.engine.allowed, more=f"; {held}")
    yield from _memory("main memory", asdict(plan.host), peak=plan.host.peak, room=plan.host_room, more="")
    if plan.rank is not None:
        yield f"push         {plan.push.nbytes:,} bytes by {plan.push.transport} ({plan.push.why})"
        model, state = plan.model.saved_bytes, plan.model.state_bytes
        yield f"checkpoint   {model + state:,} bytes: {model:,} of the model, at most {state:,} of the optimiser"
    yield from _time(plan)
    yield ""
    yield from limit_lines(plan.limits, plan.advised)
    pairs = [f"{name}={value:g}" for name, value in asdict(plan.assumptions).items()]
    yield ""
    yield from wrap(f"assumed: {' '.join(pairs)}", width=110, subsequent_indent=" " * 9, break_on_hyphens=False)
    failing = sum(not one.holds for one in plan.limits)
    yield f"{failing} of {len(plan.limits)} limits would be hit" if failing else "no limit would be hit"


def _memory(name: str, parts: dict[str, int], *, peak: int, room: int, more: str) -> Iterator[str]:
    """Yield the peak of a process, and its parts."""
    yield f"{name:12} {size(peak)}" + (f" of {size(room)}" if room else "") + more
    yield f"{'':12} {', '.join(f'{part} {size(nbytes)}' for part, nbytes in parts.items() if nbytes)}"


def _counts(parts: dict[str, int]) -> str:
    return ", ".join(f"{name} {count:,}" for name, count in parts.items())


def _time(plan: Plan) -> Iterator[str]:
    time = plan.time
    if time is None:
        yield "seconds      not known: only for rl and distill, on GPUs that --gpus names and that hold the model"
        return
    rates, work = time.rates, time.work
    shifts = f", shifts {_s(time.shift_s)}" if time.shift_s else ""
    yield (
        f"a step       {_s(time.step_s)} of {work.stage}: generate {_s(time.generate_s)}, load {_s(time.load_s)}, "
        f"learn {_s(time.learn_s)}, publish {_s(time.publish_s)}{shifts}; limited by {time.limited_by}"
    )
    yield (
        f"tokens       {work.sampled:,.0f} sampled and {work.trained:,.0f} trained a step; {rates.sampled_per_s:,.0f} a "
        f"second by an engine, {rates.trained_per_s:,.0f} by the learner"
    )
    yield (
        f"learner      {rates.flops_used:.0%} of the peak, recomputed layers included; the first push takes "
        f"{_s(rates.first_push_s)} more; the longest answer takes {_s(time.longest_s)}"
    )
    hours = f"{time.hours:,.1f} h, {time.hours * plan.gpus:,.0f} GPU hours, {time.tokens:,.0f} sampled tokens"
    yield f"all steps    {work.steps:,} of {work.stage}: {hours}"
    if plan.left_out:
        yield f"             not in seconds and hours: {', '.join(plan.left_out)}"


def _s(seconds: float) -> str:
    return f"{seconds:,.0f} s" if seconds >= 10 else f"{seconds:,.2f} s"


def limit_lines(limits: Sequence[Limit], advised: Sequence[Limit]) -> list[str]:
    """Return the limits of a run and the advised ones, each with its remedy if it does not hold."""
    marked = [*((one, "FAIL") for one in limits), *((one, "warn") for one in advised)]
    return [f"{'ok  ' if one.holds else mark}  {one.line}" for one, mark in marked]
