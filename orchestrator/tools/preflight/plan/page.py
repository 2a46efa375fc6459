"""A plan as a page for people, or as JSON."""

import json
from collections.abc import Iterator
from dataclasses import asdict
from textwrap import wrap
from typing import Any

from temper.orchestrator.pipeline.estimate.limits import Limit, advised_limits, limit_text, run_limits, size
from temper.orchestrator.pipeline.estimate.run_plan import Plan
from temper.orchestrator.pipeline.estimate.step_time import StepTime

PARTS = (
    *("hardware", "gpus", "model", "rank", "rank_free_memory", "engine", "longest", "sequences", "mean_length", "host"),
    *("host_free_memory", "push", "time", "left_out", "assumptions"),
)
"""Parts of a plan in JSON."""
SUMS = {
    "model": ("checkpoint_bytes",),
    "rank": ("states", "peak"),
    "engine": ("peak",),
    "host": ("peak", "saving"),
    "time": ("limited_by", "sampled_per_s", "hours", "tokens"),
}
"""Calculated properties that JSON has in addition to the fields of a part."""


def as_json(plan: Plan) -> str:
    """Return a plan as one JSON object."""
    found: dict[str, Any] = {"run": plan.config.name, "ranks": plan.wanted.ranks, "engines": plan.wanted.engines}
    found |= {name: getattr(plan, name) for name in PARTS}
    for name, sums in SUMS.items():
        if (part := found[name]) is not None:
            found[name] = asdict(part) | {one: getattr(part, one) for one in sums}
    for name, limits in (("limits", run_limits(plan)), ("advised", advised_limits(plan))):
        found[name] = [asdict(one) | {"holds": one.holds} for one in limits]
    return json.dumps(found, indent=1, allow_nan=False, default=asdict)


def page(plan: Plan) -> Iterator[str]:
    """Yield the lines of a plan for people."""
    model, rank, engine, limits = plan.model, plan.rank, plan.engine, run_limits(plan)
    gpus = f" on {plan.gpus + plan.wanted.judges} GPUs" if plan.gpus else ""
    judges = f", {plan.wanted.judges} judges" if plan.wanted.judges else ""
    yield f"{plan.config.name} on {plan.hardware}: {plan.wanted.ranks} ranks, {plan.wanted.engines} engines{judges}{gpus}"
    yield f"model        {model.name} ({model.kind}): {model.parameters:,} parameters"
    parts = ", ".join(f"{name} {count:,}" for name, count in model.parts.items())
    yield from wrap(f"parts        {parts}", width=120, subsequent_indent=" " * 13)
    if rank is not None:
        off_peak = ("gathered", "activations", "logits") if rank.transfers > rank.passing else ("transfers",)
        aside = ("pass_tokens", "loading", "reading", *off_peak)
        bytes_by_part = {name: count for name, count in asdict(rank).items() if name not in aside}
        loading = f"; {size(rank.loading)} during loading" if rank.loading else ""
        more = f"; passes of {rank.pass_tokens:,} tokens{loading}"
        yield from _memory("a rank", bytes_by_part, peak=rank.peak, room=plan.rank_free_memory, more=more)
    if engine is not None:
        bytes_by_part = {"weights": engine.weights, "overhead": engine.overhead, "cache": max(0, engine.cache)}
        longest, mean = plan.sequences
        more = f"; {longest:,} sequences of {plan.longest:,} tokens, {mean:,} of {plan.mean_length:,}"
        yield from _memory("an engine", bytes_by_part, peak=engine.peak, room=engine.allowed, more=more)
    yield from _memory("main memory", asdict(plan.host), peak=plan.host.peak, room=plan.host_free_memory, more="")
    if rank is not None:
        yield f"push         {plan.push.nbytes:,} bytes by {plan.push.transport} ({plan.push.why})"
        parts = f"{model.saved_bytes:,} of the model, at most {model.state_bytes:,} of the optimiser"
        yield f"checkpoint   {model.checkpoint_bytes:,} bytes: {parts}"
    yield from _time(plan)
    yield ""
    yield from (_limit_line(one, "FAIL") for one in limits)
    yield from (_limit_line(one, "warn") for one in advised_limits(plan))
    yield ""
    pairs = " ".join(f"{name}={value:g}" for name, value in asdict(plan.assumptions).items())
    yield from wrap(f"assumed: {pairs}", width=110, subsequent_indent=" " * 9, break_on_hyphens=False)
    failing = sum(not one.holds for one in limits)
    yield f"{failing} of {len(limits)} limits would be hit" if failing else "no limit would be hit"


def _memory(name: str, parts: dict[str, int], *, peak: int, room: int, more: str) -> Iterator[str]:
    """Yield the peak of a process, and its parts."""
    yield (f"{name:12} {size(peak)}" + (f" of {size(room)}" if room else "") + more)
    yield f"{'':12} {', '.join(f'{part} {size(nbytes)}' for part, nbytes in parts.items() if nbytes)}"


def _time(plan: Plan) -> Iterator[str]:
    time = plan.time
    if time is None:
        yield "seconds      not known: only for rl and distill, on GPUs that --gpus names and that hold the model"
        return
    work = time.work
    phases = f", phases {_s(time.phase_s)}" if time.phase_s else ""
    yield (
        f"a step       {_s(time.step_s)} of {work.stage}: generate {_s(time.generate_s)}, load {_s(time.load_s)}, "
        f"learn {_s(time.learn_s)}, publish {_s(time.publish_s)}{phases}; limited by {time.limited_by}"
    )
    yield f"tokens       {work.sampled:,.0f} sampled and {work.trained:,.0f} trained per step"
    yield f"all steps    {work.steps:,} of {work.stage}: {hours_text(time)}, {time.tokens:,.0f} sampled tokens"
    if plan.left_out:
        yield f"             not in seconds and hours: {', '.join(plan.left_out)}"


def hours_text(time: StepTime) -> str:
    """Return the range of the hours of all steps, with a decimal below ten: `26 to 59 h`."""
    fewest, most = time.hours
    return f"{fewest:,.{int(fewest < 10)}f} to {most:,.{int(most < 10)}f} h"


def _s(seconds: float) -> str:
    return f"{seconds:,.0f} s" if seconds >= 10 else f"{seconds:,.2f} s"


def _limit_line(limit: Limit, mark: str) -> str:
    return f"{'ok  ' if limit.holds else mark}  {limit_text(limit)}"
