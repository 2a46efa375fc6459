"""Limits that a run would meet, each with the setting that mends it, found by trying the settings themselves."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from learner.config import LearnerConfig
from orchestrator.planning.memory.engine_memory import EngineMemory
from orchestrator.planning.memory.rank_memory import RankMemory
from rollout.engines.config import EngineConfig

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
    most_ranks: int,
    longest: int,
    again: Callable[[LearnerConfig], RankMemory],
) -> Limit:
    """Return whether a rank fits; `longest` are the tokens of a sequence that a pass has to hold, `again` says what it takes
    with other settings.
    """
    holds = rank.peak <= room
    remedies = _rank_remedies(learner, longest=longest, most_ranks=most_ranks)
    remedy = "" if holds else _first(remedies, lambda other: again(other).peak <= room)
    return Limit(what="a rank's memory", needed=size(rank.peak), has=size(room), holds=holds, remedy=remedy)


def _rank_remedies(learner: LearnerConfig, *, longest: int, most_ranks: int) -> Iterator[tuple[str, LearnerConfig]]:
    """Yield settings of the learner that take less memory, the cheapest in time first, each on top of those before."""
    told: list[str] = []
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
            or (name in ("zero_stage", "ranks") and now > value)
            or (name in ("logit_tokens", "micro_batch_tokens") and now < value)
        ):
            continue
        if name == "offload" and not learner.zero_stage:
            continue
        learner = replace(learner, **{name: value})  # type: ignore[arg-type]
        told = [one for one in told if not one.startswith(f"learner.{name}=")]
        told.append(f"learner.{name}={str(value).lower() if isinstance(value, bool) else value}")
        if name != "shared_prompts":
            yield " ".join(told), learner
    yield " ".join([*told, "learner.lora.rank=32"]), replace(learner, lora=replace(learner.lora, rank=32))


def _first(remedies: Iterator[tuple[str, LearnerConfig]], fits: Callable[[LearnerConfig], bool]) -> str:
    found = next((text for text, other in remedies if fits(other)), None)
    return found or "a smaller model, larger GPUs or more of them: no setting of the learner makes it fit"


def engine_limits(
    engine: EngineMemory,
    config: EngineConfig,
    *,
    length: int,
    gpu: bool,
    again: Callable[[EngineConfig], EngineMemory],
    most_processes: int,
) -> list[Limit]:
    """Return whether an engine holds its weights, a sequence as long as may be, and as many as `max_sequences`."""
    one = engine.sequences(length) >= 1
    remedy = "" if one else _engine_remedy(config, length=length, gpu=gpu, again=again, most=most_processes)
    room = engine.allowed - engine.weights - engine.overhead if gpu else engine.cache
    limits = [
        Limit(
            what=f"an engine's cache for a sequence of {length:,} tokens",
            needed=size(engine.pages.of_sequence(length)),
            has=size(max(0, room)),
            holds=one,
            remedy=remedy,
        )
    ]
    blocks = max(0, engine.cache) // max(1, engine.pages.bytes_each)
    if one and engine.pages.state_pages:  # vLLM does not start otherwise
        holds = config.max_sequences <= blocks
        limits.append(
            Limit(
                what="pages for rollout.engine.max_sequences",
                needed=f"{config.max_sequences:,}",
                has=f"{blocks:,}",
                holds=holds,
                remedy="" if holds else f"rollout.engine.max_sequences={blocks}",
            )
        )
    return limits


def _engine_remedy(
    config: EngineConfig, *, length: int, gpu: bool, again: Callable[[EngineConfig], EngineMemory], most: int
) -> str:
    if not gpu:
        needed = -(-again(config).pages.of_sequence(length) // 2**30)
        return f"rollout.engine.memory_gib={needed}"
    tried = [(f"rollout.engine.gpu_memory_utilization={share}", {"gpu_memory_utilization": share}) for share in (0.9,)]
    tensor = config.tensor_parallel * 2
    while tensor <= most:
        tried.append((f"rollout.engine.tensor_parallel={tensor}", {"tensor_parallel": tensor}))
        tensor *= 2
    for text, changes in tried:
        if again(replace(config, **changes)).sequences(length) >= 1:  # type: ignore[arg-type]
            return text
    return "larger GPUs, or lower rollout.limits.total_tokens and rollout.engine.max_model_len"
