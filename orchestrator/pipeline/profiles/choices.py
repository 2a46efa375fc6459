"""The choices of a profile: processes and their threads, lengths, how the learner computes, engines, steps and deadlines.

Memory is estimated: weights, gradients and the optimiser's state by ZeRO stage (Rajbhandari et al., "ZeRO: Memory
Optimizations Toward Training Trillion Parameter Models", 2020, section 3, with gradients in float32), and the activations
that a block keeps (Korthikanti et al., "Reducing Activation Recomputation in Large Transformer Models", 2022, eq. 2 without
attention's scores, which fused kernels don't keep).
"""

from temper.learner.config import Offload
from temper.orchestrator.pipeline.profiles.asked import (
    Place,
    ProfiledSettings,
    found,
    power_of_two,
    stages_with,
    usual_value,
)

ENGINE_FILL = 0.6
"""Share of the memory of an engine's GPUs that its weights may take: the rest is for states, keys and values."""
TOY_THREADS = 2
"""Threads beyond which the operations of a small model are no faster."""
MOST_THREADS = 16


def choose_processes(asked: ProfiledSettings, place: Place) -> None:
    """Choose ranks, engines and how many GPUs each of these has; on a CPU their threads and the engine's cache."""
    if place.gpu:
        _on_gpus(asked, place)
    else:
        _on_cpus(asked, place)


def _on_gpus(asked: ProfiledSettings, place: Place) -> None:
    """Share the GPUs: half of them learn and the others sample, each with its own. Ranks are a power of two.

    If ranks and engines share GPUs, there are as many of both.
    """
    total, weights = place.hardware.gpus, 2 * place.shape.parameters
    most = 1 if place.colocated else place.hardware.gpus_together
    tensor = 1
    while 2 * tensor <= most and weights > ENGINE_FILL * place.gpu_bytes * tensor:
        tensor *= 2
    both = place.trains and place.plays and total > 1 and not place.colocated
    ranks = total // 2 if both else total if place.trains else 1
    ranks = asked.take("learner.ranks", _sharing(asked, power_of_two(ranks, least=1, most=total)))
    left = total - ranks if both else ranks if place.colocated and place.trains else total
    tensor = asked.take("rollout.engine.tensor_parallel", power_of_two(min(tensor, left), least=1, most=total))
    processes = tensor * int(asked.value("rollout.engine.pipeline_parallel"))
    if place.plays:
        asked.take("rollout.workers", max(1, left // processes))
    _threads_of_ranks(asked, place, together=min(ranks, place.hardware.gpus_together))


def idle_gpus(asked: ProfiledSettings, place: Place) -> int:
    """Return how many GPUs get neither a rank nor an engine."""
    parallel = int(asked.value("rollout.engine.tensor_parallel")) * int(asked.value("rollout.engine.pipeline_parallel"))
    ranks = int(asked.value("learner.ranks")) * place.trains
    engines = int(asked.value("rollout.workers")) * parallel * place.plays
    used = max(ranks, engines) if place.colocated or place.halves else ranks + engines
    return max(0, place.hardware.gpus - used)


def _sharing(asked: ProfiledSettings, ranks: int) -> int:
    """Return as many ranks, or so few that every supervised stage that is listed can share its batch among them."""
    batches = [found(own, "batch_size") or asked.value(f"{stage.name}.batch_size") for stage, own in asked.stages()]
    while any(isinstance(batch, int) and batch % ranks for batch in batches):
        ranks //= 2
    return ranks


def _on_cpus(asked: ProfiledSettings, place: Place) -> None:
    """Share the cores: half of them learn while engines sample, else all of them."""
    cores = place.hardware.cpus
    ranks, workers = asked.take("learner.ranks", 1), asked.take("rollout.workers", 1)
    processes = workers * int(asked.value("rollout.engine.tensor_parallel"))
    beside = _threads_of_ranks(asked, place, together=ranks)
    left = cores - beside * ranks if place.trains else cores
    asked.take("rollout.engine.threads", _threads(left // processes, place))
    asked.take("rollout.engine.memory_gib", max(1, min(16, int(place.hardware.memory_gib / 16 / workers))))


def _threads_of_ranks(asked: ProfiledSettings, place: Place, *, together: int) -> int:
    """Choose the threads of each rank of a machine: all cores, or half of them while engines generate. Return the latter."""
    cores = place.hardware.cpus
    asked.take("learner.threads", _threads(cores // together, place))
    return asked.take("learner.threads_beside", _threads(cores // 2 // together, place))


def _threads(cores: int, place: Place) -> int:
    return max(1, min(cores, TOY_THREADS if place.toy else MOST_THREADS))


STATES_FILL = 0.6
"""Share of a rank's memory that weights, gradients and the optimiser's state may take."""
WEIGHTS, GRADIENTS, MOMENTS = 2, 4, 12
"""Bytes a parameter: weights in bfloat16, gradients in float32, and float32 weights with AdamW's two moments."""
KEPT, KEPT_RECOMPUTED = 34, 2
"""Bytes that a block keeps of each entry of a token's hidden state for the backward pass, and where it is computed again."""
LOGITS_SHARE = 0.06
"""Share of a rank's memory that logits may take, in float32; their gradient takes as much."""
CPU_PASS = 2048
"""Tokens in one pass of a rank on a CPU."""
RATES = (
    (300e6, {"rl": 1e-5, "supervised": 1e-4, "dpo": 5e-6}),
    (5e9, {"rl": 2e-6, "supervised": 2e-5, "dpo": 1e-6}),
    (float("inf"), {"rl": 1e-6, "supervised": 1e-5, "dpo": 5e-7}),
)
"""Learning rates of AdamW by parameters, as they are usual: 1e-6 in reinforcement of 7 to 32 B (DeepSeekMath, 2024; DAPO,
2025), about 1e-5 supervised and 5e-7 in DPO of 8 B (Tulu 3, 2024). Where to begin, not what was found best here. A stage that
is not named learns as a supervised one does."""
ADAPTERS = 10
"""Times the learning rate of full training that adapters take (Schulman et al., "LoRA Without Regret", 2025)."""


def choose_learning(asked: ProfiledSettings, place: Place) -> None:
    _precision(asked, place)
    if place.gpu:
        _partitioning(asked, place)
        _passes(asked, place)
    else:
        asked.take("learner.micro_batch_tokens", CPU_PASS)
    _rates(asked, place)


def _precision(asked: ProfiledSettings, place: Place) -> None:
    """Choose bfloat16 for learner, engines and pushes on GPUs, float32 for small models and where Muon, at stage 0, asks it."""
    plain = not place.gpu or place.toy or asked.any_stage("optim.kind", "muon")
    stage = asked.value("learner.zero_stage") if asked.gives("learner.zero_stage") else None
    bf16 = asked.take("learner.bf16", not plain and stage != 0)
    asked.take("rollout.engine.dtype", "bfloat16" if bf16 else "float32")
    asked.take("learner.wire_dtype", "bfloat16" if bf16 else "float32")


def _partitioning(asked: ProfiledSettings, place: Place) -> None:
    """Choose the lowest ZeRO stage whose states fit. If none does, move the optimiser's state to main memory."""
    if not asked.value("learner.bf16"):
        return
    ranks, room = int(asked.value("learner.ranks")), STATES_FILL * place.gpu_bytes
    fitting = [stage for stage in (1, 2, 3) if state_bytes(asked, place, stage=stage) <= room]
    stage = asked.take("learner.zero_stage", fitting[0] if fitting else 3)
    moments = MOMENTS * place.shape.parameters
    spare = place.hardware.memory_gib * 2**30 * 0.6 * min(1.0, place.hardware.gpus_together / ranks)
    wanted: Offload = "cpu" if not fitting and stage and moments <= spare else "none"
    asked.take("learner.offload", wanted)


def state_bytes(asked: ProfiledSettings, place: Place, *, stage: int) -> float:
    """Return a rank's bytes of weights, gradients and optimiser state. With adapters only the frozen weights count."""
    count, ranks = place.shape.parameters, int(asked.value("learner.ranks"))
    if asked.value("learner.lora.rank"):
        return WEIGHTS * count / (ranks if stage == 3 else 1)
    moments = 0 if asked.value("learner.offload") == "cpu" else MOMENTS
    whole = {0: WEIGHTS + GRADIENTS + moments, 1: WEIGHTS + GRADIENTS, 2: WEIGHTS, 3: 0}[stage]
    colocated = WEIGHTS + GRADIENTS + moments - whole
    return count * (whole + colocated / ranks)


def _passes(asked: ProfiledSettings, place: Place) -> None:
    """Choose the tokens of a pass, and whole layers computed again where the longest sequence would not fit otherwise."""
    shape, longest = place.shape, int(asked.value("rollout.limits.total_tokens"))
    logits = LOGITS_SHARE * place.gpu_bytes
    asked.take("learner.logit_tokens", power_of_two(logits / (4 * shape.vocabulary), least=256, most=4096))
    states = state_bytes(asked, place, stage=int(asked.value("learner.zero_stage")))
    left = max(0.0, place.gpu_bytes - states - 2 * logits)
    plain = left / (KEPT * shape.hidden * shape.blocks)
    again = left / ((KEPT_RECOMPUTED * shape.blocks + KEPT) * shape.hidden)
    kind = asked.take("learner.recompute", "none" if plain >= longest else "full")
    if kind == "full":
        asked.take("learner.shared_prompts", False)
    fitting = again if kind == "full" else plain
    asked.take("learner.micro_batch_tokens", power_of_two(fitting, least=1024, most=32768))


def _rates(asked: ProfiledSettings, place: Place) -> None:
    """Choose the learning rate of every stage by the size of the model, ten times that for adapters; small ones keep theirs."""
    if place.toy:
        return
    rates = next(rates for most, rates in RATES if place.shape.parameters < most)
    factor = ADAPTERS if asked.value("learner.lora.rank") else 1
    for stage in stages_with("optim.learning_rate"):
        rate = rates.get(stage, rates["supervised"])
        asked.take(f"{stage}.optim.learning_rate", float(f"{rate * factor:.3g}"))


ENGINE_SHARE = 0.9
"""Share of a GPU's memory that an engine takes which has it to itself."""
SHARED_SHARE = 0.85
"""The same if a rank shares the GPU, since it keeps some memory in the engine's phase too."""
OVERHEAD = 2 * 2**30
"""Bytes of an engine in addition to weights, states, keys and values: graphs, and the values of a pass."""
LARGE_GIB = 44
"""Memory of a GPU from which on episodes are `LONGER`: that of one of 48, as it is counted."""
SHORTER, LONGER = 8192, 16384
"""Tokens of an episode."""
SLOW = 8.0
"""Tokens a second of one episode, at the least: what its deadline goes by."""
GPU_EPISODE_S, GPU_START_S = 300.0, 1200.0
"""The least for an episode on GPUs, and for a start there: engines capture graphs and compile."""


def choose_limits(asked: ProfiledSettings, place: Place) -> None:
    """Choose the tokens of a turn and of an episode. The engine's longest sequence is an episode."""
    total = int(usual_value("rollout.limits.total_tokens"))
    if place.gpu:
        room = SHORTER if place.hardware.gpu_gib < LARGE_GIB else LONGER
        total = min(room, place.shape.positions or room)
    total = asked.take("rollout.limits.total_tokens", total)
    if place.gpu:
        asked.take("rollout.limits.turn_tokens", max(1, total * 3 // 4))
    asked.take("rollout.engine.max_model_len", total)


def choose_sampling(asked: ProfiledSettings, place: Place) -> None:
    total = int(asked.value("rollout.limits.total_tokens"))
    _deadlines(asked, place, total=total)
    if place.gpu:
        _engine(asked, place, total=total)
        asked.take("rl.groups_per_step", power_of_two(8 * place.hardware.gpus, least=16, most=128))
        asked.take("rl.group_size", 16 if place.hardware.gpus > 1 else 8)


def _engine(asked: ProfiledSettings, place: Place, *, total: int) -> None:
    """Choose an engine's share of its GPUs, and how many sequences have room there, each a quarter as long as may be."""
    share = SHARED_SHARE if place.colocated else ENGINE_SHARE / 2 if place.halves else ENGINE_SHARE
    share = asked.take("rollout.engine.gpu_memory_utilization", share)
    asked.take("rollout.engine.batched_tokens", 8192 if place.hardware.gpu_gib < 75 else 16384)
    shape, tensor = place.shape, int(asked.value("rollout.engine.tensor_parallel"))
    width = 4 if asked.value("rollout.engine.dtype") == "float32" else 2
    room = share * place.hardware.gpu_gib * 2**30 * tensor - width * shape.parameters - OVERHEAD * tensor
    each = shape.state_bytes + shape.cache_bytes * (width / 2) * total / 4
    asked.take("rollout.engine.max_sequences", power_of_two(room / max(each, 1), least=8, most=256))


def _deadlines(asked: ProfiledSettings, place: Place, *, total: int) -> None:
    """Choose deadlines: an episode's by its length, and longer ones for those that wait for it."""
    least = float(usual_value("rollout.limits.timeout_s")) if not place.gpu else GPU_EPISODE_S
    episode = asked.take("rollout.limits.timeout_s", max(least, float(round(total / SLOW))))
    stalled = float(usual_value("supervision.stalled_s"))
    stalled = asked.take("supervision.stalled_s", max(stalled, float(round(1.3 * episode))))
    for stage in stages_with("timeout_s"):
        waits = float(usual_value(f"{stage}.timeout_s"))
        asked.take(f"{stage}.timeout_s", max(waits, float(round(1.5 * stalled))))
    if place.gpu:
        asked.take("deadlines.start_s", GPU_START_S)
