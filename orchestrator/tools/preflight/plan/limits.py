"""Limits that a run would exceed, each with a setting that helps.

The remedy for a rank is calculated: the rank fits with it. Other remedies name settings; plan again with new values.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from temper.learner.config import LearnerConfig
from temper.orchestrator.cluster.hardware import GIB
from temper.orchestrator.tools.preflight.plan.planner import Planner
from temper.rollout.weights.transports import AUTO

UNITS = ((2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB"))
LEAST = 0.1
"""Of a unit, below which the next smaller one is taken."""
LEAST_SHM = 2**30
"""Advised size of /dev/shm for Ray's objects and the processes of an engine. A container has 64 MiB."""
MOST_SHARE = 0.9
"""Largest sensible `rollout.engine.gpu_memory_utilization`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limit:
    """The amount of a resource that a run needs, and the amount that there is."""

    what: str
    needed: str
    has: str
    holds: bool
    remedy: str = ""
    """Settings that help; empty if it holds."""

    @property
    def line(self) -> str:
        """All of it but the mark, as one line."""
        has = f" of {self.has}" if self.has else ""
        return f"{self.what}: {self.needed}{has}" + (f": {self.remedy}" if self.remedy else "")


def size(nbytes: float) -> str:
    """Return bytes for people: `17.8 GiB`."""
    return next(
        (f"{nbytes / unit:,.1f} {name}" for unit, name in UNITS if nbytes >= LEAST * unit), f"{nbytes:,.0f} bytes"
    )


def run_limits(planner: Planner) -> list[Limit]:
    """Return every limit of a run."""
    found = [_gpus(planner)] if planner.gpu else []
    found += device_limits(planner)
    return [*found, *positions_limits(planner), main_memory_limit(planner), *push_limits(planner)]


def advised(planner: Planner) -> list[Limit]:
    """Return limits that a run may exceed; without the size of /dev/shm there are none."""
    return [] if planner.site.shm_bytes is None else [shm_limit(planner.site.shm_bytes)]


def device_limits(planner: Planner) -> list[Limit]:
    """Return the limits of the memory of ranks and engines on their devices."""
    found: list[Limit] = []
    if planner.rank is not None and planner.gpu:
        peak, room = planner.rank.peak, planner.rank_room
        remedy = "" if peak <= room else _rank_remedy(planner)
        found.append(_bytes("a rank's memory", needed=peak, has=room, remedy=remedy))
    if planner.engine is not None:
        found += _engine_limits(planner)
    return found


def _bytes(what: str, *, needed: float, has: float, remedy: str) -> Limit:
    return Limit(what=what, needed=size(needed), has=size(has), holds=needed <= has, remedy=remedy)


def _rank_remedy(planner: Planner) -> str:
    """Return the first settings with which a rank fits, the cheapest in time first; else the GPUs that hold it."""
    learner, changed = planner.config.learner, dict[str, Any]()
    for changes in _less_memory(learner, longest=planner.longest if planner.plays else 0):
        try:
            learner = replace(learner, **changes)
        except ValueError:  # these settings exclude each other
            continue
        changed |= changes
        if planner.rank_with(learner).peak <= planner.rank_room:
            return _in_words(changed)
    peak = planner.rank_with(learner).peak
    gib = math.ceil(planner.site.hardware.gpu_gib * peak / max(1.0, planner.rank_room))
    return f"GPUs of {gib} GiB" + (f" with {_in_words(changed)}" if changed else "")


def _less_memory(learner: LearnerConfig, *, longest: int) -> Iterator[dict[str, Any]]:
    """Yield settings that take less memory of a rank, each on top of those before."""
    if learner.ranks > 1 and learner.zero_stage < 3:
        yield {"zero_stage": 3}
    if max(longest, learner.micro_batch_tokens // 2) < learner.micro_batch_tokens:
        yield {"micro_batch_tokens": max(longest, learner.micro_batch_tokens // 2)}
    if learner.recompute != "full":
        yield {"shared_prompts": False, "recompute": "full"}
    if learner.logit_tokens > 1024:
        yield {"logit_tokens": 1024}
    if learner.offload == "none" and learner.zero_stage:
        yield {"offload": "cpu"}


def _in_words(changes: dict[str, Any]) -> str:
    values = {key: str(value).lower() if isinstance(value, bool) else value for key, value in changes.items()}
    return " ".join(f"learner.{key}={value}" for key, value in values.items())


def _engine_limits(planner: Planner) -> list[Limit]:
    engine, most = planner.engine, planner.config.rollout.engine.max_sequences
    assert engine is not None
    one = engine.pages.of_sequence(planner.longest)
    what = f"an engine's cache for a sequence of {planner.longest:,} tokens"
    if engine.sequences(planner.longest) < 1:
        has = max(0, engine.cache)
        return [Limit(what=what, needed=size(one), has=size(has), holds=False, remedy=_engine_remedy(planner))]
    limits = [Limit(what=what, needed=size(one), has=size(engine.cache), holds=True)]
    if engine.pages.state_pages:
        holds = engine.holds(most)
        remedy = "" if holds else f"rollout.engine.max_sequences={engine.blocks}"
        pages = "pages for rollout.engine.max_sequences"
        limits.append(Limit(what=pages, needed=f"{most:,}", has=f"{engine.blocks:,}", holds=holds, remedy=remedy))
    return limits


def _engine_remedy(planner: Planner) -> str:
    engine, config = planner.engine, planner.config.rollout.engine
    assert engine is not None
    one = engine.pages.of_sequence(planner.longest)
    shorter = "lower rollout.limits.total_tokens and rollout.engine.max_model_len"
    if not planner.gpu:
        return f"rollout.engine.memory_gib={-(-one // GIB)}, or {shorter}"
    needed = engine.weights + engine.overhead + one
    if config.gpu_memory_utilization < MOST_SHARE and needed <= MOST_SHARE * planner.gpu_bytes and not planner.halves:
        return f"rollout.engine.gpu_memory_utilization={MOST_SHARE}"
    if 2 * config.tensor_parallel <= planner.site.hardware.gpus_together:
        return f"rollout.engine.tensor_parallel={2 * config.tensor_parallel} with fewer rollout.workers, or {shorter}"
    return f"{shorter}, or GPUs of {math.ceil(needed / config.gpu_memory_utilization / GIB)} GiB"


def _gpus(planner: Planner) -> Limit:
    wanted, has = planner.wanted.on(planner.nodes), planner.site.hardware.gpus
    holds = wanted.fits(planner.nodes)
    fewer = "lower learner.ranks, rollout.workers or rollout.engine.tensor_parallel, or set placement=shared"
    return Limit(what="GPUs", needed=f"{wanted.gpus}", has=f"{has}", holds=holds, remedy="" if holds else fewer)


def positions_limits(planner: Planner) -> list[Limit]:
    """Return whether the model has a position for each token of an episode; empty if it names none."""
    longest, positions = planner.longest, planner.model.shape.positions
    if planner.engine is None or positions is None:
        return []
    holds = longest <= positions
    remedy = "" if holds else f"rollout.limits.total_tokens={positions} rollout.engine.max_model_len={positions}"
    what = "positions of the model"
    return [Limit(what=what, needed=f"{longest:,}", has=f"{positions:,}", holds=holds, remedy=remedy)]


def main_memory_limit(planner: Planner) -> Limit:
    """Return whether a machine's main memory has room for its processes."""
    peak, room = planner.host.peak, planner.site.hardware.memory_gib * GIB
    remedy = "" if peak <= room else _main_memory_remedy(planner)
    return _bytes("main memory of a machine", needed=peak, has=room, remedy=remedy)


def _main_memory_remedy(planner: Planner) -> str:
    learner, rollout = planner.config.learner, planner.config.rollout
    ways = ["learner.wire_dtype=bfloat16"] * (planner.push.copies > 0 and learner.wire_dtype == "float32")
    ways += ["a lower rollout.engine.memory_gib"] * (planner.plays and not planner.gpu)
    ways += ["fewer rollout.workers"] * (planner.plays and rollout.workers > 1)
    ways += ["learner.offload=none"] * (learner.offload == "cpu")
    ways += ["fewer learner.ranks"] * (planner.trains and learner.ranks > 1)
    return ", or ".join([*ways, f"machines with {math.ceil(planner.host.peak / GIB)} GiB of main memory"])


def push_limits(planner: Planner) -> list[Limit]:
    """Return whether pushes reach the engines and find room; empty for a run without any."""
    if not (planner.trains and planner.plays):
        return []
    push = planner.push
    what = f"a push by {push.transport}"
    if not push.lacks:
        kept = f"{size(push.copies * push.nbytes)} of the weights in main memory" if push.copies else ""
        return [Limit(what=what, needed=kept or "no copy of the weights", has="", holds=True)]
    why, _, remedy = push.lacks.partition("; ")
    if planner.config.learner.transport != AUTO:
        remedy = f"learner.transport={AUTO}" + (f", or {remedy}" if remedy else "")
    return [Limit(what=what, needed=why, has="", holds=False, remedy=remedy)]


def shm_limit(room: float) -> Limit:
    """Return whether /dev/shm has the advised size for Ray and engines of several processes."""
    remedy = "" if room >= LEAST_SHM else "make it larger (in a container --shm-size=8g)"
    what = "/dev/shm for Ray's objects and engines of several processes"
    return _bytes(what, needed=LEAST_SHM, has=room, remedy=remedy)
