"""Limits that a run would meet, each with the setting that mends it, found by trying the settings themselves."""

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from temper.learner.config import LearnerConfig
from temper.orchestrator.tools.preflight.plan.memory.engine_memory import EngineMemory
from temper.orchestrator.tools.preflight.plan.memory.rank_memory import RankMemory
from temper.rollout.engines.config import EngineConfig

UNITS = ((2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB"))
LEAST = 0.1
"""Of a unit, below which the next smaller one is taken."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limit:
    """What is needed of something, and what there is."""

    what: str
    needed: str
    has: str
    holds: bool
    remedy: str = ""
    """Settings that mend it; empty where it holds."""


def size(nbytes: float) -> str:
    """Return bytes for people: `17.8 GiB`."""
    return next(
        (f"{nbytes / unit:,.1f} {name}" for unit, name in UNITS if nbytes >= LEAST * unit), f"{nbytes:,.0f} bytes"
    )


def rank_limit(
    rank: RankMemory,
    learner: LearnerConfig,
    *,
    room: float,
    gpu_gib: float,
    most_ranks: int,
    longest: int,
    again: Callable[[LearnerConfig], RankMemory],
    allowed: Callable[[LearnerConfig], bool],
) -> Limit:
    """Return whether a rank fits; `longest` are the tokens of a sequence that a pass has to hold, `again` says what it takes
    with other settings, `allowed` whether the run may have them. `room` is what it may fill of a GPU of `gpu_gib`.
    """
    holds = rank.peak <= room
    remedies = _rank_remedies(learner, longest=longest, most_ranks=most_ranks, allowed=allowed)
    remedy = "" if holds else _least_remedy(rank, remedies, again, room=room, gpu_gib=gpu_gib)
    return Limit(what="a rank's memory", needed=size(rank.peak), has=size(room), holds=holds, remedy=remedy)


def _least_remedy(
    now: RankMemory,
    remedies: Iterator[tuple[str, LearnerConfig]],
    again: Callable[[LearnerConfig], RankMemory],
    *,
    room: float,
    gpu_gib: float,
) -> str:
    """Return the first settings with which a rank fits, else the smallest GPUs that hold it, with the fewest settings."""
    sizes = [(math.ceil(gpu_gib * now.peak / max(1.0, room)), "")]
    for text, other in remedies:
        peak = again(other).peak
        if peak <= room:
            return text
        sizes.append((math.ceil(gpu_gib * peak / max(1.0, room)), f" with {text}"))
    gib, settings = min(sizes, key=lambda one: one[0])
    return f"GPUs of {gib} GiB{settings}"


def _rank_remedies(
    learner: LearnerConfig, *, longest: int, most_ranks: int, allowed: Callable[[LearnerConfig], bool]
) -> Iterator[tuple[str, LearnerConfig]]:
    """Yield settings of the learner that take less memory, the cheapest in time first, each on top of those before."""
    told: list[str] = []
    alone = max(learner.ranks, most_ranks) == 1  # which has nobody to share with, at any stage
    for name, value in (
        ("zero_stage", 2),
        ("zero_stage", 3),
        ("micro_batch_tokens", max(longest, learner.micro_batch_tokens // 2)),
        ("shared_prompts", False),
        ("recompute", "full"),
        ("logit_tokens", 1024),
        ("ranks", most_ranks),
        ("offload", "cpu"),
    ):
        now = vars(learner)[name]
        if (
            now == value
            or (name == "zero_stage" and now and alone)
            or (name in ("zero_stage", "ranks") and now > value)
            or (name in ("logit_tokens", "micro_batch_tokens") and now < value)
        ):
            continue
        if name == "offload" and not learner.zero_stage:
            continue
        folder = {"offload_dir": None} if name == "offload" else {}
        other = _with(learner, {name: value, **folder})
        if other is None or not allowed(other):
            continue
        learner = other
        told = [one for one in told if not one.startswith(f"learner.{name}=")]
        told.append(f"learner.{name}={str(value).lower() if isinstance(value, bool) else value}")
        if name != "shared_prompts":
            yield " ".join(told), learner
    adapters = _with(learner, {"lora": replace(learner.lora, rank=32)})
    if adapters is not None and allowed(adapters):
        yield " ".join([*told, "learner.lora.rank=32"]), adapters


def _with(learner: LearnerConfig, changes: Mapping[str, Any]) -> LearnerConfig | None:
    """Return the settings with others in their place; None where they refuse each other."""
    try:
        return replace(learner, **changes)
    except ValueError:
        return None


def engine_limits(
    engine: EngineMemory, config: EngineConfig, *, length: int, gpu: bool, remedy: Callable[[], str]
) -> list[Limit]:
    """Return whether an engine holds its weights, a sequence as long as may be, and as many as `max_sequences`; `remedy` says
    what mends it where there is no room for one sequence.
    """
    one = engine.sequences(length) >= 1
    room = engine.allowed - engine.weights - engine.overhead if gpu else engine.cache
    limits = [
        Limit(
            what=f"an engine's cache for a sequence of {length:,} tokens",
            needed=size(engine.pages.of_sequence(length)),
            has=size(max(0, room)),
            holds=one,
            remedy="" if one else remedy(),
        )
    ]
    if one and engine.pages.state_pages:
        holds = engine.holds(config.max_sequences)
        limits.append(
            Limit(
                what="pages for rollout.engine.max_sequences",
                needed=f"{config.max_sequences:,}",
                has=f"{engine.blocks:,}",
                holds=holds,
                remedy="" if holds else f"rollout.engine.max_sequences={engine.blocks}",
            )
        )
    return limits
