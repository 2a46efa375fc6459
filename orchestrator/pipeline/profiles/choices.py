"""The rules of a profile: processes and threads, lengths, memory and precision of the learner, engines, steps and deadlines.

Memory is estimated. Weights, gradients and the optimiser's state follow the ZeRO stage (Rajbhandari et al., "ZeRO: Memory
Optimizations Toward Training Trillion Parameter Models", 2020, section 3, with gradients in float32). A block's activations
follow Korthikanti et al., "Reducing Activation Recomputation in Large Transformer Models", 2022, eq. 2, without attention
scores, which fused kernels do not keep.
"""

from temper.learner.config import Offload
from temper.orchestrator.pipeline.profiles.inputs import (
    ProfiledSettings,
    ProfileInputs,
    default_value,
    get_value,
    power_of_two,
    stages_with,
)

ENGINE_FILL = 0.6
"""Share of the memory of an engine's GPUs for its weights. The rest is for states, keys and values."""
TOY_THREADS = 2
"""Threads beyond which a small model is not faster."""
MOST_THREADS = 16


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
    total, weights = max(1, inputs.hardware.gpus - inputs.judges), 2 * inputs.shape.parameters
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
"""Share of a rank's memory that weights, gradients and the optimiser's state may take."""
WEIGHTS, GRADIENTS, OPTIMIZER, EMA = 2, 4, 12, 4
"""Bytes a parameter: weights in bfloat16, gradients in float32, float32 weights with AdamW's two moments, and the average."""
KEPT, KEPT_RECOMPUTED = 34, 2
"""Bytes that a block keeps for the backward pass, per entry of a token's hidden state, without and with recomputation."""
LOGITS_SHARE = 0.06
"""Share of a rank's memory for logits in float32. Their gradient takes as much."""
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
        _partitioning(settings, inputs)
        _passes(settings, inputs)
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


def _partitioning(settings: ProfiledSettings, inputs: ProfileInputs) -> None:
    """Choose the lowest ZeRO stage whose states fit. If none does, move the optimiser's state to main memory.

    Expert parallelism runs at stage 2.
    """
    if not settings.value("learner.bf16"):
        return
    ranks, room = int(settings.value("learner.ranks")), STATES_FILL * inputs.gpu_bytes
    if settings.value("learner.expert_parallel") > 1:
        settings.choose("learner.zero_stage", 2)
        return
    fitting = [stage for stage in (1, 2, 3) if state_bytes(settings, inputs, stage=stage) <= room]
    stage = settings.choose("learner.zero_stage", fitting[0] if fitting else 3)
    state = _optimizer(settings) * inputs.shape.parameters
    spare = inputs.hardware.memory_gib * 2**30 * 0.6 * min(1.0, inputs.hardware.gpus_together / ranks)
    wanted: Offload = "cpu" if not fitting and stage and state <= spare else "none"
    settings.choose("learner.offload", wanted)


def state_bytes(settings: ProfiledSettings, inputs: ProfileInputs, *, stage: int) -> float:
    """Return a rank's bytes of weights, gradients and optimiser state. With adapters only the frozen weights count.

    With expert parallelism a rank holds a share of the experts. The partitions of their states have the same size.
    """
    count, ranks = inputs.shape.parameters, int(settings.value("learner.ranks"))
    if settings.value("learner.lora.rank"):
        return WEIGHTS * count / (ranks if stage == 3 else 1)
    optimizer = 0 if settings.value("learner.offload") == "cpu" else _optimizer(settings)
    whole = {0: WEIGHTS + GRADIENTS + optimizer, 1: WEIGHTS + GRADIENTS, 2: WEIGHTS, 3: 0}[stage]
    split = WEIGHTS + GRADIENTS + optimizer - whole
    experts = inputs.shape.expert_parameters
    held = count - experts + experts / int(settings.value("learner.expert_parallel"))
    return held * whole + count * split / ranks


def _optimizer(settings: ProfiledSettings) -> int:
    """Return the bytes per parameter of the optimiser's state, with the average of the weights if a stage keeps one."""
    for stage, own in settings.stages():
        decay = get_value(own, "optim.ema_decay") if stage.trains else 0
        if settings.value(f"{stage.name}.optim.ema_decay") if decay is None else decay:
            return OPTIMIZER + EMA
    return OPTIMIZER


def _passes(settings: ProfiledSettings, inputs: ProfileInputs) -> None:
    """Choose the tokens of a pass. Recompute whole layers if the longest sequence does not fit otherwise."""
    shape = inputs.shape
    longest = int(settings.value("rollout.limits.total_tokens")) / int(settings.value("learner.sequence_parallel"))
    logits = LOGITS_SHARE * inputs.gpu_bytes
    settings.choose("learner.logit_tokens", power_of_two(logits / (4 * shape.vocabulary), least=256, most=4096))
    states = state_bytes(settings, inputs, stage=int(settings.value("learner.zero_stage")))
    left = max(0.0, inputs.gpu_bytes - states - 2 * logits)
    plain = left / (KEPT * shape.hidden * shape.blocks)
    again = left / ((KEPT_RECOMPUTED * shape.blocks + KEPT) * shape.hidden)
    kind = settings.choose("learner.recompute", "none" if plain >= longest else "full")
    fitting = again if kind == "full" else plain
    settings.choose("learner.micro_batch_tokens", power_of_two(fitting, least=1024, most=32768))


def _rates(settings: ProfiledSettings, inputs: ProfileInputs) -> None:
    """Choose the learning rate of every stage by model size, ten times that for adapters. Small models keep the defaults."""
    if inputs.toy:
        return
    rates = next(rates for most, rates in RATES if inputs.shape.parameters < most)
    factor = ADAPTERS if settings.value("learner.lora.rank") else 1
    for stage in stages_with("optim.learning_rate"):
        rate = rates.get(stage, rates["supervised"])
        settings.choose(f"{stage}.optim.learning_rate", float(f"{rate * factor:.3g}"))


ENGINE_SHARE = 0.9
"""Share of a GPU's memory for an engine that has it alone."""
SHARED_SHARE = 0.85
"""The same if a rank shares the GPU, since it keeps some memory in the engine's phase too."""
OVERHEAD = 2 * 2**30
"""Bytes of an engine besides weights, states, keys and values: graphs, and the activations of a pass."""
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
    if inputs.gpu:
        room = SHORTER if inputs.hardware.gpu_gib < LARGE_GIB else LONGER
        total = min(room, inputs.shape.positions or room)
    total = settings.choose("rollout.limits.total_tokens", total)
    if inputs.gpu:
        settings.choose("rollout.limits.turn_tokens", max(1, total * 3 // 4))
    settings.choose("rollout.engine.max_model_len", total)


def choose_sampling(settings: ProfiledSettings, inputs: ProfileInputs) -> None:
    total = int(settings.value("rollout.limits.total_tokens"))
    _deadlines(settings, inputs, total=total)
    if inputs.gpu:
        _engine(settings, inputs, total=total)
        settings.choose("rl.groups_per_step", power_of_two(8 * inputs.hardware.gpus, least=16, most=128))
        settings.choose("rl.group_size", 16 if inputs.hardware.gpus > 1 else 8)


def _engine(settings: ProfiledSettings, inputs: ProfileInputs, *, total: int) -> None:
    """Choose an engine's share of its GPUs, and the sequences that fit there at a quarter of their longest length."""
    share = SHARED_SHARE if inputs.colocated else ENGINE_SHARE / 2 if inputs.halves else ENGINE_SHARE
    share = settings.choose("rollout.engine.gpu_memory_utilization", share)
    settings.choose("rollout.engine.batched_tokens", 8192 if inputs.hardware.gpu_gib < 75 else 16384)
    shape, tensor = inputs.shape, int(settings.value("rollout.engine.tensor_parallel"))
    width = 4 if settings.value("rollout.engine.dtype") == "float32" else 2
    room = share * inputs.hardware.gpu_gib * 2**30 * tensor - width * shape.parameters - OVERHEAD * tensor
    each = shape.state_bytes + shape.cache_bytes * (width / 2) * total / 4
    settings.choose("rollout.engine.max_sequences", power_of_two(room / max(each, 1), least=8, most=256))


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
