"""Limits that a run would exceed, each with a remedy.

The remedy for a rank is calculated: the rank fits with it. Other remedies name settings. Plan again with new values.
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from temper.learner.config import LearnerConfig
from temper.orchestrator.cluster.machines import GIB
from temper.orchestrator.config.text import get_value
from temper.orchestrator.pipeline.estimate.memory import HOST_FILL, EngineMemory, received_bytes
from temper.orchestrator.pipeline.estimate.run_plan import Plan
from temper.rollout.weights.config import AUTO, BROADCAST

UNITS = ((2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB"))
LEAST = 0.1
"""Amounts below this many units use the next smaller unit."""
LEAST_SHM = 2**30
"""Advised size of /dev/shm for Ray's objects and the processes of an engine. A container has 64 MiB."""
RANK = "a rank's memory"
BY_HAND = ("learner.zero_stage", "learner.recompute", "learner.micro_batch_tokens")
"""With these the user takes the risk of a rank that does not fit by the estimate."""
GRAPH, GRAPHS = 512, {"B200-180G": 1024}
"""Most sequences that vLLM captures by default, and by card (`VllmConfig._set_cudagraph_sizes`)."""
MOST_SHARE = 0.9
"""Largest sensible `rollout.engine.gpu_memory_utilization`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limit:
    """The needed and the available amount of a resource."""

    what: str
    needed: str
    has: str = ""
    remedy: str = ""
    """Settings that help. Empty if the limit holds."""

    @property
    def holds(self) -> bool:
        """Whether the run keeps it."""
        return not self.remedy


def size(nbytes: float) -> str:
    """Return bytes for people: `17.8 GiB`."""
    return next(
        (f"{nbytes / unit:,.1f} {name}" for unit, name in UNITS if nbytes >= LEAST * unit), f"{nbytes:,.0f} bytes"
    )


def run_limits(plan: Plan) -> list[Limit]:
    """Return every limit of a run."""
    return [*_gpu_limits(plan), *memory_limits(plan), *push_limits(plan)]


def lacking(plan: Plan, given: Mapping[str, Any]) -> str:
    """Return why a run does not fit, with the remedies. Empty if it does, or if a user set a rank by hand."""
    by_hand = all(get_value(given, key) is not None for key in BY_HAND)
    failing = [one for one in run_limits(plan) if not one.holds and not (by_hand and one.what == RANK)]
    further = f", or set {', '.join(BY_HAND)} to try it" if any(one.what == RANK for one in failing) else ""
    return "; ".join(map(limit_text, failing)) + further


def limit_text(limit: Limit) -> str:
    """Return a limit as text: `a rank's memory: 90.1 GiB of 79.6 GiB: learner.recompute=full`."""
    has = f" of {limit.has}" if limit.has else ""
    return f"{limit.what}: {limit.needed}{has}" + (f": {limit.remedy}" if limit.remedy else "")


def advised_limits(plan: Plan) -> list[Limit]:
    """Return limits that a run may exceed: the size of /dev/shm if it is known, features of a card, and sizes of graphs."""
    shm = [] if plan.site.shm_bytes is None else [shm_limit(plan.site.shm_bytes)]
    return [*shm, *_card_limits(plan), *_graph_limits(plan)]


def _card_limits(plan: Plan) -> Iterator[Limit]:
    """Yield the features that the run needs and its card does not have."""
    card, learner, engine = plan.site.card, plan.config.learner, plan.config.rollout.engine
    if card is not None and not card.has_cuda_13:
        remedy = "the GPU stack does not run there; choose a card of NVIDIA from Turing on"
        yield Limit(what=card.name, needed="CUDA 13", remedy=remedy)
    elif card is not None and not card.has_bfloat16 and (learner.bf16 or engine.dtype == "bfloat16"):
        remedy = "set learner.bf16=false learner.wire_dtype=float32 rollout.engine.dtype=float32"
        yield Limit(what=card.name, needed="bfloat16", remedy=remedy)


def _graph_limits(plan: Plan) -> Iterator[Limit]:
    """Yield whether CUDA graphs cover all sequences of an engine. Larger batches decode without them."""
    most, extra = plan.config.rollout.engine.max_sequences, plan.config.rollout.engine.extra
    largest = GRAPHS.get("" if plan.site.card is None else plan.site.card.name, GRAPH)
    if plan.gpu and plan.plays and most > largest and not any("cudagraph" in name for name in extra):
        remedy = f"rollout.engine.extra={{max_cudagraph_capture_size: {most}}}"
        yield Limit(what="sequences in a CUDA graph", needed=f"{most:,}", has=f"{largest:,}", remedy=remedy)


def memory_limits(plan: Plan) -> list[Limit]:
    """Return the limits of the memory of ranks and engines, of positions, and of the main memory of a machine."""
    limits = []
    if plan.rank is not None and plan.gpu:
        peak, room = plan.rank.peak, plan.rank_free_memory
        remedy = "" if peak <= room else _rank_remedy(plan)
        limits.append(Limit(what=RANK, needed=size(peak), has=size(room), remedy=remedy))
    if plan.engine is not None:
        limits += [*_engine_limits(plan, plan.engine), *_bucket_limits(plan, plan.engine), *_position_limits(plan)]
    peak, room = plan.host.peak, plan.host_free_memory
    remedy = "" if peak <= room else _main_memory_remedy(plan)
    return [*limits, Limit(what="main memory of a machine", needed=size(peak), has=size(room), remedy=remedy)]


def _gpu_limits(plan: Plan) -> list[Limit]:
    if not plan.gpu:
        return []
    wanted = plan.wanted.resolve_for(plan.nodes)
    fewer = "lower learner.ranks, rollout.workers or rollout.engine.tensor_parallel, or set placement=colocated"
    remedy = "" if wanted.fits(plan.nodes) else fewer
    return [Limit(what="GPUs", needed=f"{wanted.all_gpus}", has=f"{plan.site.hardware.gpus}", remedy=remedy)]


def _rank_remedy(plan: Plan) -> str:
    """Return the first settings with which a rank fits, the fastest first, or else the number of GPUs that fit it."""
    learner, changed = plan.config.learner, dict[str, Any]()
    for changes in _less_memory(learner, longest=plan.longest_shard(learner)):
        less = replace(learner, **changes)
        if less.offload != learner.offload:
            host = Plan(replace(plan.config, learner=less), plan.model, plan.site, plan.assumptions).host
            if host.peak > HOST_FILL * plan.host_free_memory:
                continue
        learner = less
        changed |= changes
        if plan.rank_with(learner).peak <= plan.rank_free_memory:
            return _settings_text(changed)
    gib = math.ceil(plan.site.hardware.gpu_gib * plan.rank_with(learner).peak / max(1, plan.rank_free_memory))
    return f"GPUs of {gib} GiB" + (f" with {_settings_text(changed)}" if changed else "")


def _less_memory(learner: LearnerConfig, *, longest: int) -> Iterator[dict[str, Any]]:
    """Yield settings that reduce a rank's memory, each on top of the earlier ones."""
    spread = learner.expert_parallel > 1  # then neither stage 3 nor offload works
    if learner.ranks > 1 and learner.zero_stage < 3 and not spread:
        yield {"zero_stage": 3}
    shorter = max(longest, learner.micro_batch_tokens // 2)
    if shorter < learner.micro_batch_tokens:
        yield {"micro_batch_tokens": shorter}
    if learner.recompute != "full":
        yield {"recompute": "full"}
    if learner.logit_tokens > 1024:
        yield {"logit_tokens": 1024}
    if learner.offload == "none" and learner.zero_stage and not spread:
        yield {"offload": "cpu"}


def _settings_text(changes: dict[str, Any]) -> str:
    values = {key: str(value).lower() if isinstance(value, bool) else value for key, value in changes.items()}
    return " ".join(f"learner.{key}={value}" for key, value in values.items())


def _engine_limits(plan: Plan, engine: EngineMemory) -> Iterator[Limit]:
    fits = engine.sequences(plan.longest) >= 1
    yield Limit(
        what=f"an engine's cache for a sequence of {plan.longest:,} tokens",
        needed=size(engine.pages.of_sequence(plan.longest)),
        has=size(max(0, engine.cache)),
        remedy="" if fits else _engine_remedy(plan, engine),
    )
    if fits and engine.pages.state_pages:
        most = plan.config.rollout.engine.max_sequences
        remedy = "" if most <= engine.blocks else f"rollout.engine.max_sequences={engine.blocks}"
        pages = "pages for rollout.engine.max_sequences"
        yield Limit(what=pages, needed=f"{most:,}", has=f"{engine.blocks:,}", remedy=remedy)


def _bucket_limits(plan: Plan, engine: EngineMemory) -> Iterator[Limit]:
    """Yield the limit of a push's buckets: the GPU memory that vLLM leaves free."""
    if plan.gpu and plan.trains and plan.push.transport == BROADCAST:
        needed = received_bytes(plan.model, plan.push, tensor_parallel=plan.config.rollout.engine.tensor_parallel)
        room = int(plan.gpu_bytes) - engine.allowed
        share = math.floor(100 * (1 - needed / plan.gpu_bytes)) / 100
        remedy = "" if needed <= room else f"rollout.engine.gpu_memory_utilization={share}"
        yield Limit(what="buckets of a push", needed=size(needed), has=size(room), remedy=remedy)


def _engine_remedy(plan: Plan, engine: EngineMemory) -> str:
    config, one = plan.config.rollout.engine, engine.pages.of_sequence(plan.longest)
    shorter = "lower rollout.limits.total_tokens and rollout.engine.max_model_len"
    if not plan.gpu:
        return f"rollout.engine.memory_gib={-(-one // GIB)}, or {shorter}"
    needed = engine.weights + engine.overhead + one
    if config.gpu_memory_utilization < MOST_SHARE and needed <= MOST_SHARE * plan.gpu_bytes and not plan.halves:
        return f"rollout.engine.gpu_memory_utilization={MOST_SHARE}"
    if 2 * config.tensor_parallel <= plan.site.hardware.gpus_together:
        return f"rollout.engine.tensor_parallel={2 * config.tensor_parallel} with fewer rollout.workers, or {shorter}"
    return f"{shorter}, or GPUs of {math.ceil(needed / config.gpu_memory_utilization / GIB)} GiB"


def _position_limits(plan: Plan) -> Iterator[Limit]:
    """Yield whether the model has enough positions for an episode, if it has a limit."""
    longest, positions = plan.longest, plan.model.shape.positions
    if positions is not None:
        fewer = f"rollout.limits.total_tokens={positions} rollout.engine.max_model_len={positions}"
        remedy = "" if longest <= positions else fewer
        yield Limit(what="positions of the model", needed=f"{longest:,}", has=f"{positions:,}", remedy=remedy)


def _main_memory_remedy(plan: Plan) -> str:
    learner, rollout = plan.config.learner, plan.config.rollout
    ways = ["learner.wire_dtype=bfloat16"] * (plan.push.host_bytes > 0 and learner.wire_dtype == "float32")
    ways += ["a lower rollout.engine.memory_gib"] * (plan.plays and not plan.gpu)
    ways += ["fewer rollout.workers"] * (plan.plays and rollout.workers > 1)
    ways += ["learner.offload=none"] * (learner.offload == "cpu")
    ways += ["fewer learner.ranks"] * (plan.trains and learner.ranks > 1)
    return ", or ".join([*ways, f"machines with {math.ceil(plan.host.peak / GIB)} GiB of main memory"])


def push_limits(plan: Plan) -> list[Limit]:
    """Return whether pushes reach the engines and fit into memory. Empty for a run without pushes."""
    if not (plan.trains and plan.plays):
        return []
    push, what = plan.push, f"a push by {plan.push.transport}"
    if not push.lacks:
        copies = f"{size(push.host_bytes)} of the weights in main memory"
        return [Limit(what=what, needed=copies if push.host_bytes else "no copy of the weights")]
    why, _, remedy = push.lacks.partition("; ")
    if plan.config.learner.transport != AUTO:
        remedy = f"learner.transport={AUTO}" + (f", or {remedy}" if remedy else "")
    return [Limit(what=what, needed=why, remedy=remedy)]


def shm_limit(room: float) -> Limit:
    """Return whether /dev/shm has the advised size for Ray and engines of several processes."""
    remedy = "" if room >= LEAST_SHM else "make it larger (in a container --shm-size=8g)"
    what = "/dev/shm for Ray's objects and engines of several processes"
    return Limit(what=what, needed=size(LEAST_SHM), has=size(room), remedy=remedy)
