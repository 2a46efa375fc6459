"""The rules of a profile: processes and threads, lengths, memory and precision of the learner, engines, steps and deadlines.

On GPUs the plan's estimate (`temper.orchestrator.pipeline.estimate`) decides whether a rank and an engine fit.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

from temper.learner.config import LearnerConfig
from temper.orchestrator.cluster.machines import GIB
from temper.orchestrator.config.loop import LoopConfig
from temper.orchestrator.config.text import get_value
from temper.orchestrator.pipeline.estimate.memory import (
    ENGINE_OVERHEAD_GIB,
    HOST_FILL,
    RANK_OVERHEAD_GIB,
    EngineMemory,
    PushPlan,
    RankMemory,
    engine_memory,
    plan_push,
    rank_memory,
    received_bytes,
)
from temper.orchestrator.pipeline.profiles.inputs import (
    ProfiledSettings,
    ProfileInputs,
    default_value,
    power_of_two,
    stages_with,
)
from temper.rollout.engines.config import EngineConfig

ENGINE_FILL = 0.6
"""Share of the memory of an engine's GPUs for its weights. The rest is for states, keys and values."""
TOY_THREADS = 2
"""Threads beyond which a small model is not faster."""
MOST_THREADS = 16
EXPERT_RANKS = 8
"""Ranks of a machine that may share the experts of a model."""


def alternatives(settings: ProfiledSettings, inputs: ProfileInputs) -> list[dict[str, Any]]:
    """Return the settings between which the plan decides, the defaults first.

    Experts may be shared if a machine has ranks enough. An engine of a hybrid without cached prefixes has pages for more
    sequences, but vLLM records experts only with them.
    """
    model = inputs.model
    if model is None:
        return [{}]
    divides = model.experts and not model.experts % EXPERT_RANKS
    can_share = inputs.trains and divides and inputs.hardware.gpus_together >= EXPERT_RANKS
    may_drop = inputs.plays and any(one.mamba for one in model.layers) and not settings.value("learner.router_replay")
    return [
        {"learner.expert_parallel": ranks, "rollout.engine.prefix_caching": caching}
        for ranks in settings.options("learner.expert_parallel", 1, *((EXPERT_RANKS,) if can_share else ()))
        for caching in settings.options("rollout.engine.prefix_caching", "auto", *(("off",) if may_drop else ()))
    ]


def choose_processes(settings: ProfiledSettings, inputs: ProfileInputs) -> None:
    """Choose ranks, engines and the GPUs of each, and on a CPU their threads and the engine's cache."""
    if inputs.gpu:
        _on_gpus(settings, inputs)
    else:
        _on_cpus(settings, inputs)


def _on_gpus(settings: ProfiledSettings, inputs: ProfileInputs) -> None:
    """Divide the GPUs: half of them learn and the others sample. Ranks are a power of two.

    Colocated ranks and engines are equal in number.
    """
    total, weights = max(1, inputs.hardware.gpus - inputs.judges), 2 * inputs.parameters
    most = 1 if inputs.colocated else inputs.hardware.gpus_together
    tensor = 1
    while 2 * tensor <= most and weights > ENGINE_FILL * inputs.gpu_bytes * tensor:
        tensor *= 2
    both = inputs.trains and inputs.plays and total > 1 and not inputs.colocated
    ranks = total // 2 if both else total if inputs.trains else 1
    ranks = settings.choose("learner.ranks", _sharing(settings, power_of_two(ranks, least=1, most=total)))
    left = total - ranks if both else ranks if inputs.colocated and inputs.trains else total
    tensor = settings.choose("rollout.engine.tensor_parallel", power_of_two(min(tensor, left), least=1, most=total))
    processes = tensor * int(settings.value("rollout.engine.pipeline_parallel"))
    if inputs.plays:
        settings.choose("rollout.workers", max(1, left // processes))
    cores = inputs.hardware.cpus // min(ranks, inputs.hardware.gpus_together)
    settings.choose("learner.threads", _threads(cores, inputs))
    settings.choose("learner.threads_during_generation", _threads(cores // 2, inputs))


def idle_gpus(settings: ProfiledSettings, inputs: ProfileInputs) -> int:
    """Return the number of GPUs without a rank, an engine or a judge."""
    parallel = int(settings.value("rollout.engine.tensor_parallel")) * int(
        settings.value("rollout.engine.pipeline_parallel")
    )
    ranks = int(settings.value("learner.ranks")) * inputs.trains
    engines = int(settings.value("rollout.workers")) * parallel * inputs.plays
    used = max(ranks, engines) if inputs.colocated or inputs.halves else ranks + engines
    return max(0, inputs.hardware.gpus - inputs.judges - used)


def _sharing(settings: ProfiledSettings, ranks: int) -> int:
    """Return the largest number of ranks, up to `ranks`, that divides the batch of every listed supervised stage."""
    batches = [
        get_value(own, "batch_size") or settings.value(f"{stage.name}.batch_size") for stage, own in settings.stages()
    ]
    while any(isinstance(batch, int) and batch % ranks for batch in batches):
        ranks //= 2
    return ranks


def _on_cpus(settings: ProfiledSettings, inputs: ProfileInputs) -> None:
    """Give all cores to the ranks and to the engines at once, since waiting threads sleep (measured on two cores).

    Ranks and engines of a toy model share the cores: its threads wait more than they work.
    """
    cores = inputs.hardware.cpus
    ranks, workers = settings.choose("learner.ranks", 1), settings.choose("rollout.workers", 1)
    processes = workers * int(settings.value("rollout.engine.tensor_parallel"))
    settings.choose("learner.threads", _threads(cores // ranks, inputs))
    during = _threads((cores // 2 if inputs.toy else cores) // ranks, inputs)
    during = settings.choose("learner.threads_during_generation", during)
    left = cores - during * ranks if inputs.toy and inputs.trains else cores
    settings.choose("rollout.engine.threads", _threads(left // processes, inputs))
    settings.choose("rollout.engine.memory_gib", max(1, min(16, int(inputs.hardware.memory_gib / 16 / workers))))


def _threads(cores: int, inputs: ProfileInputs) -> int:
    return max(1, min(cores, TOY_THREADS if inputs.toy else MOST_THREADS))


STATES_FILL = 0.6
"""Most of a rank's memory for its tensors between two passes, if that is possible."""
LOGITS_SHARE = 0.06
"""Share of a rank's memory for logits in float32. Their gradient takes as much."""
LEAST_PASS, MOST_PASS, LEAST_LOGITS = 1024, 32768, 256
"""Bounds of the tokens of a pass, and of the logits that exist at once."""
CPU_PASS = 2048
"""Tokens in one pass of a rank on a CPU."""
RATES = (
    (300e6, {"rl": 1e-5, "supervised": 1e-4, "dpo": 5e-6}),
    (5e9, {"rl": 2e-6, "supervised": 2e-5, "dpo": 1e-6}),
    (float("inf"), {"rl": 1e-6, "supervised": 1e-5, "dpo": 5e-7}),
)
"""Common learning rates of AdamW by parameters: 1e-6 in reinforcement learning of 7 to 32 B (DeepSeekMath, 2024, and DAPO,
2025), about 1e-5 supervised and 5e-7 in DPO of 8 B (Tulu 3, 2024). They are starting points, not tuned. An unlisted stage
uses the supervised rate."""
ADAPTERS = 10
"""Learning rate of adapters, as a multiple of full training (Schulman et al., "LoRA Without Regret", 2025)."""


def choose_learning(settings: ProfiledSettings, inputs: ProfileInputs) -> None:
    _precision(settings, inputs)
    if inputs.gpu:
        _memory(settings, inputs)
    else:
        settings.choose("learner.micro_batch_tokens", CPU_PASS)
    _rates(settings, inputs)


def _precision(settings: ProfiledSettings, inputs: ProfileInputs) -> None:
    """Choose bfloat16 for learner, engines and pushes on GPUs, and float32 for small models and at ZeRO stage 0."""
    plain = not inputs.gpu or inputs.toy
    stage = settings.value("learner.zero_stage") if settings.is_set("learner.zero_stage") else None
    bf16 = settings.choose("learner.bf16", not plain and stage != 0)
    settings.choose("rollout.engine.dtype", "bfloat16" if bf16 else "float32")
    settings.choose("learner.wire_dtype", "bfloat16" if bf16 else "float32")


def _memory(settings: ProfiledSettings, inputs: ProfileInputs) -> None:
    """Choose the ZeRO stage, the place of its states and the passes of a rank, and the share of its engines.

    The first layout whose states leave `1 - STATES_FILL` for passes is taken, or else the first that fits at all. States are
    offloaded if none does. Of the passes the first that fit are taken. If nothing fits, those with the least memory are.
    """
    layouts, passes = _layouts(settings, inputs), _passes(settings, inputs)
    learners = [one for layout in layouts if (one := _learner(settings, layout)) is not None]
    _engine_share(settings, inputs, learners)
    room, own = rank_room(settings, inputs), settings.is_set("learner.offload")
    ranks = [(one, rank_of(settings, inputs, one)) for one in learners]
    held = [(one, rank) for one, rank in ranks if own or _has_host_memory(rank, one, inputs)]
    usual = layouts[0].get("offload", "none")
    order = [(away, fill) for away in (False, True) for fill in (STATES_FILL, 1.0)]
    kept = [
        one
        for away, fill in order
        for one, rank in held
        if (one.offload != usual) == away and rank.states <= fill * room
    ]
    tries = (replace(one, **tried) for one in kept for tried in passes)
    found = next((one for one in tries if rank_of(settings, inputs, one).peak <= room), None)
    least = (asdict(held[-1][0]) if held else layouts[0]) | passes[-1]
    chosen = least if found is None else asdict(found)
    for key in (*layouts[0], *passes[0]):
        settings.choose(f"learner.{key}", chosen[key])


def _layouts(settings: ProfiledSettings, inputs: ProfileInputs) -> list[dict[str, Any]]:
    """Return the layouts of a rank's states, the fastest first. Shared experts need stage 1 or 2 (`LearnerConfig`)."""
    if not settings.value("learner.bf16"):
        return [{}]
    spread = settings.value("learner.expert_parallel") > 1
    stages = settings.options("learner.zero_stage", 1, 2, *(() if spread else (3,)))
    offloads = settings.options("learner.offload", "none", *(() if spread else ("cpu",)))
    last = [{"zero_stage": stages[-1], "offload": offload} for offload in offloads[1:]]
    return [*({"zero_stage": stage, "offload": offloads[0]} for stage in stages), *last]


def _passes(settings: ProfiledSettings, inputs: ProfileInputs) -> list[dict[str, Any]]:
    """Return the passes of a rank, the fastest first: whole layers are recomputed only if the longest sequence needs it."""
    assert inputs.model is not None
    longest = int(settings.value("rollout.limits.total_tokens")) // int(settings.value("learner.sequence_parallel"))
    room = LOGITS_SHARE * inputs.gpu_bytes / (4 * inputs.model.shape.vocabulary)
    logits = power_of_two(room, least=LEAST_LOGITS, most=4096)
    lengths = [MOST_PASS >> times for times in range((MOST_PASS // LEAST_PASS).bit_length())]
    whole = [tokens for tokens in lengths if 2 * tokens > longest] or lengths[:1]
    tried = {"none": whole, "full": whole if inputs.plays else lengths, "selective": whole}
    return [
        {"logit_tokens": pieces, "recompute": recompute, "micro_batch_tokens": tokens}
        for pieces in settings.options("learner.logit_tokens", logits, LEAST_LOGITS)
        for recompute in settings.options("learner.recompute", "none", "full")
        for tokens in settings.options("learner.micro_batch_tokens", *tried.get(recompute, whole))
    ]


def _learner(settings: ProfiledSettings, layout: Mapping[str, Any]) -> LearnerConfig | None:
    """Return the learner with a layout, None if the user's settings do not allow it."""
    try:
        found: LearnerConfig = settings.section("learner", LearnerConfig, layout)
    except ValueError:
        return None
    return found


def _has_host_memory(rank: RankMemory, learner: LearnerConfig, inputs: ProfileInputs) -> bool:
    """Return whether main memory has room for the offloaded states of all ranks of a machine, and for a push."""
    together = min(learner.ranks, inputs.hardware.gpus_together)
    pushed = _push(inputs, learner).host_bytes if inputs.plays else 0
    return not rank.offloaded or together * rank.offloaded + pushed <= HOST_FILL * inputs.hardware.memory_gib * GIB


def rank_room(settings: ProfiledSettings, inputs: ProfileInputs) -> float:
    """Return the bytes of a rank: its GPU, without the share of an engine that is always there."""
    share = settings.value("rollout.engine.gpu_memory_utilization") if inputs.halves else 0.0
    return (1.0 - float(share)) * inputs.hardware.gpu_gib * GIB


def rank_of(settings: ProfiledSettings, inputs: ProfileInputs, learner: LearnerConfig) -> RankMemory:
    """Return the memory of a rank by the plan's estimate."""
    assert inputs.model is not None
    longest = -(-int(settings.value("rollout.limits.total_tokens")) // learner.sequence_parallel)
    return rank_memory(
        inputs.model,
        learner,
        inputs.optims,
        pass_tokens=max(learner.micro_batch_tokens, longest if inputs.plays else 0),
        gpu=True,
        reference=inputs.reference,
        push=_push(inputs, learner).device_bytes if inputs.plays else 0,
        overhead=int(RANK_OVERHEAD_GIB * GIB),
    )


def _push(inputs: ProfileInputs, learner: LearnerConfig) -> PushPlan:
    assert inputs.model is not None
    gpus = 1 if inputs.halves else inputs.hardware.gpus
    shared = inputs.colocated or inputs.halves
    return plan_push(inputs.model, learner, inputs.hardware, gpus=gpus, colocated=shared, shm_bytes=None)


def _engine_share(settings: ProfiledSettings, inputs: ProfileInputs, learners: Sequence[LearnerConfig]) -> None:
    """Choose an engine's share of its GPUs, which leaves a push its memory."""
    share = SHARED_SHARE if inputs.colocated else ENGINE_SHARE / 2 if inputs.halves else ENGINE_SHARE
    if inputs.trains and inputs.plays and learners and inputs.model is not None:
        tensor = int(settings.value("rollout.engine.tensor_parallel"))
        needed = received_bytes(inputs.model, _push(inputs, learners[0]), tensor_parallel=tensor)
        share = min(share, math.floor(100 * (1 - needed / (inputs.hardware.gpu_gib * GIB))) / 100)
    settings.choose("rollout.engine.gpu_memory_utilization", max(share, 0.1))


def _rates(settings: ProfiledSettings, inputs: ProfileInputs) -> None:
    """Choose the learning rate of every stage by model size, ten times that for adapters. Small models keep the defaults."""
    if inputs.toy:
        return
    rates = next(rates for most, rates in RATES if inputs.parameters < most)
    factor = ADAPTERS if settings.value("learner.lora.rank") else 1
    for stage in stages_with("optim.learning_rate"):
        rate = rates.get(stage, rates["supervised"])
        settings.choose(f"{stage}.optim.learning_rate", float(f"{rate * factor:.3g}"))


ENGINE_SHARE = 0.9
"""Share of a GPU's memory for an engine that has it alone."""
SHARED_SHARE = 0.85
"""The same if a rank shares the GPU, since it keeps some memory in the engine's phase too."""
LARGE_GIB = 44
"""Memory of a GPU in GiB from which episodes are `LONGER`, a little below 48."""
SHORTER, LONGER = 8192, 16384
"""Tokens of an episode."""
SLOW = 8.0
"""Lowest tokens a second of one episode, for its deadline."""
GPU_EPISODE_S, GPU_START_S = 300.0, 1200.0
"""Lowest deadlines of an episode and of a start on GPUs, where engines capture graphs and compile."""


def choose_limits(settings: ProfiledSettings, inputs: ProfileInputs) -> None:
    """Choose the tokens of a turn and of an episode. The engine's longest sequence is an episode."""
    total = int(default_value("rollout.limits.total_tokens"))
    if inputs.model is not None:
        room = SHORTER if inputs.hardware.gpu_gib < LARGE_GIB else LONGER
        total = min(room, inputs.model.shape.positions or room)
    total = settings.choose("rollout.limits.total_tokens", total)
    if inputs.gpu:
        settings.choose("rollout.limits.turn_tokens", max(1, total * 3 // 4))
    settings.choose("rollout.engine.max_model_len", total)


def choose_sampling(settings: ProfiledSettings, inputs: ProfileInputs) -> None:
    total = int(settings.value("rollout.limits.total_tokens"))
    _deadlines(settings, inputs, total=total)
    if inputs.gpu:
        settings.choose("rl.groups_per_step", power_of_two(8 * inputs.hardware.gpus, least=16, most=128))
        settings.choose("rl.group_size", 16 if inputs.hardware.gpus > 1 else 8)
        _engine(settings, inputs, total=total)


USUAL_SEQUENCES, MOST_SEQUENCES = 256, 1024
"""Sequences of an engine that are chosen even if fewer are in flight, and the most that are chosen."""


def _engine(settings: ProfiledSettings, inputs: ProfileInputs, *, total: int) -> None:
    """Choose the sequences that fit into an engine at a quarter of their longest length, up to those in flight."""
    settings.choose("rollout.engine.batched_tokens", 8192 if inputs.hardware.gpu_gib < 75 else 16384)
    loops = [own for _, own in settings.trained() if isinstance(own, LoopConfig)]
    workers = max(1, settings.value("rollout.workers"))  # 0 is refused later
    in_flight = math.ceil(max((loop.slots * loop.group_size for loop in loops), default=0) / workers)
    wanted = power_of_two(2 * in_flight - 1, least=USUAL_SEQUENCES, most=MOST_SEQUENCES)  # rounded up
    engine = engine_of(settings, inputs)
    fitting = wanted if engine is None else max(8, engine.sequences(total // 4) // 8 * 8)
    pages = engine.blocks if engine is not None and engine.pages.state_pages else wanted
    settings.choose("rollout.engine.max_sequences", max(1, min(pages, fitting, wanted)))


def engine_of(settings: ProfiledSettings, inputs: ProfileInputs) -> EngineMemory | None:
    """Return the memory of an engine's process by the plan's estimate. None if the user's settings are not valid."""
    assert inputs.model is not None
    try:
        engine: EngineConfig = settings.section("rollout.engine", EngineConfig, {})
    except ValueError:
        return None
    replay = bool(settings.value("learner.router_replay"))
    room, overhead = inputs.hardware.gpu_gib * GIB, int(ENGINE_OVERHEAD_GIB * GIB)
    return engine_memory(inputs.model, engine, gpu_bytes=room, overhead=overhead, router_replay=replay)


def _deadlines(settings: ProfiledSettings, inputs: ProfileInputs, *, total: int) -> None:
    """Choose the deadline of an episode by its length, and longer ones for the waits on it."""
    least = float(default_value("rollout.limits.timeout_s")) if not inputs.gpu else GPU_EPISODE_S
    episode = settings.choose("rollout.limits.timeout_s", max(least, float(round(total / SLOW))))
    stalled = float(default_value("supervision.stalled_s"))
    stalled = settings.choose("supervision.stalled_s", max(stalled, float(round(1.3 * episode))))
    for stage in stages_with("timeout_s"):
        waits = float(default_value(f"{stage}.timeout_s"))
        settings.choose(f"{stage}.timeout_s", max(waits, float(round(1.5 * stalled))))
    if inputs.gpu:
        settings.choose("deadlines.start_s", GPU_START_S)
