"""Memory of a run's processes by part: a rank and an engine on their devices, a machine, pushes.

Weights, gradients and states of a rank depend on the ZeRO stage (Rajbhandari et al., "ZeRO: Memory Optimizations Toward
Training Trillion Parameter Models", section 3, 2020). If gradients are accumulated in float32, DeepSpeed has further tensors:
the whole gradient at stage 1, and its share from stage 2 on. Every stage but 0 has a float32 copy of the weights. The tensors
of CPU ranks were measured to match. Buckets, copies and offloaded gradients follow DeepSpeed 0.19, `runtime/zero/`:
see `_gradient_bytes`, `_bucket_bytes`, `_reduction_copies`, `_count_gathered` and `_engine_bytes`.

Keys, values and states of an engine are in vLLM's pages (Kwon et al., "Efficient Memory Management for Large Language Model
Serving with PagedAttention", 2023). In a hybrid, all layers have pages of the size of a Mamba-2 layer's states: a page of keys
holds as many tokens as fit. Layers form groups of the size of the rarer kind, and each group has separate pages for a sequence
(`vllm/v1/core/kv_cache_utils.py`, `vllm/platforms/interface.py` of 0.32).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from temper.learner.config import BUCKET, GATHER_BYTES, LearnerConfig, OptimConfig
from temper.orchestrator.cluster.machines import GIB, Hardware
from temper.orchestrator.cluster.transport_choice import ClusterFacts, TransportChoice, choose_transport
from temper.orchestrator.pipeline.estimate.layers import FLOAT32
from temper.rollout.engines.config import BLOCK_CPU, EngineConfig
from temper.rollout.weights.config import AHEAD, BROADCAST, BUCKET_BYTES, COPIES, CUDA_IPC, SHARED_MEMORY

if TYPE_CHECKING:  # counting a model imports its classes, which takes seconds
    from temper.orchestrator.pipeline.estimate.model import PlannedModel

RANK_OVERHEAD_GIB, ENGINE_OVERHEAD_GIB = 3.0, 2.0
"""GiB on a GPU in addition to all counted parts: CUDA's context, NCCL's buffers, fragments, and in an engine graphs."""
HOST_FILL = 0.9
"""Share of main memory that offloaded states and pushes may take."""
STORE_SHARE, STORE_MOST = 0.3, 200_000_000_000
"""Share of main memory that Ray's object store has by default, and its most bytes, in /dev/shm if that has as much."""
MOMENTS = 8
"""Bytes of AdamW's two moments."""
LIVE, PREFETCHED = 1_000_000_000, 50_000_000
"""DeepSpeed's defaults of `stage3_max_live_parameters` and `stage3_prefetch_bucket_size`."""
SUB_GROUP = 1_000_000_000
"""Parameters whose gradients stage 3 copies at once for an update: DeepSpeed's default `sub_group_size`."""
LOGIT_BYTES = 14
"""Bytes per scored token and vocabulary entry for the gradient of the logits.

They are logprobs, probabilities and gradient in float32, and the gradient in the output layer's type.
"""
READ = 3 * FLOAT32
"""Bytes per entry of an expert stack that is read: three float32 copies, because it is joined from single experts."""
BLOCK_GPU = 16
"""Tokens of a page on a GPU: of a model with nothing but attention, and the unit of a hybrid's."""
HYBRID_BLOCK_CPU = 128
"""The unit of a hybrid's pages on a CPU, in tokens."""
NEAR = 1.5
"""Ratio of the layer counts below which the rarer kind is padded to the commoner one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RankMemory:
    """Bytes of a rank by part. On a CPU they are main memory."""

    weights: int
    gradients: int
    optimiser: int
    """The states, and the float32 weights if the passes use another type."""
    buckets: int
    """Buffers of gradients that are reduced."""
    transfers: int
    """Peak bytes of transfers outside the middle of a pass.

    They are the copies of gradients for a reduction with the rest of the pass, or for an update, or the arriving parameters of
    a small model.
    """
    gathered: int
    """At stage 3, the gathered parameters in the middle of a pass."""
    reference: int
    """The weights of a reference or a teacher."""
    activations: int
    """Tensors that a pass of `pass_tokens` keeps for its backward pass."""
    logits: int
    """Logits with their gradient, or later the gradients inside an MLP if they have more bytes."""
    pass_tokens: int
    offloaded: int
    """Bytes in main memory instead, at `learner.offload=cpu`."""
    on_disk: int
    """Bytes on the disk instead, at nvme."""
    push: int
    """Copies of the weights that a push keeps on the device by `cuda_ipc`, or buckets by `broadcast`."""
    overhead: int
    loading: int
    """Bytes on a GPU while the model loads: its own part and copies of one tensor. A reference or a teacher loads after it."""
    reading: int
    """Bytes in main memory meanwhile: the copies of one tensor, and on a CPU, or at stage 3, the rank's part, which DeepSpeed
    joins there. On a CPU also the tensors of DeepSpeed's engine, if they have more bytes."""

    @property
    def states(self) -> int:
        """Bytes between two passes."""
        return self.weights + self.gradients + self.optimiser + self.reference + self.push + self.overhead

    @property
    def moved(self) -> int:
        """Bytes that are offloaded for an engine on a shared device: all but the overhead."""
        return self.states - self.overhead

    @property
    def passing(self) -> int:
        """Bytes in the middle of a pass, besides states and buckets."""
        return self.gathered + self.activations + self.logits

    @property
    def peak(self) -> int:
        """Bytes in the middle of a pass, during a transfer, or while the model is loaded."""
        return max(self.loading, self.states + self.buckets + max(self.passing, self.transfers))


def rank_memory(
    model: "PlannedModel",
    learner: LearnerConfig,
    optims: Sequence[OptimConfig],
    *,
    pass_tokens: int,
    gpu: bool,
    reference: int = 0,
    push: int = 0,
    overhead: int = 0,
) -> RankMemory:
    """Return the memory of a rank whose longest pass has `pass_tokens`, with a reference of so many parameters.

    `optims` are the optimizers of the stages.
    """
    stage, trained = learner.zero_stage, model.trained
    elsewhere = model.parts.get("routed experts", 0) * (learner.expert_parallel - 1) // learner.expert_parallel
    held = model.parameters - elsewhere + (trained if learner.lora.rank else 0)
    width = 2 if learner.bf16 else FLOAT32
    share = learner.ranks if stage else 1
    split = learner.ranks if stage == 3 else 1
    away = learner.offload != "none"
    optimizer = max(optimizer_bytes(model, optim) for optim in optims)
    muon = any(optim.kind == "muon" for optim in optims)
    states = (FLOAT32 * trained // share if stage else 0) + optimizer // share
    gradients, gradients_away = _gradient_bytes(learner, trained, own=min(trained, held))
    weights, frozen = width * held // split, width * max(0, reference - elsewhere) // split
    all_away = away and stage == 3
    moved = (states + (weights + frozen if stage == 3 else width * trained // share)) if away else 0
    on_device, beside = (0, 0) if all_away else (weights, frozen)
    loaded = on_device + (gradients + (0 if away else states) + beside if reference else 0)
    tensor = min(model.largest_tensor, trained)
    rows = min(pass_tokens, learner.logit_tokens)
    # Logits in pieces keep the gradient of the output layer in float32 too.
    pieces = FLOAT32 * model.shape.vocabulary * model.shape.hidden if pass_tokens > rows else 0
    activations = pass_tokens * _token_activations(model, learner, width=width, gpu=gpu)
    inside = pass_tokens * width * max((3 if layer.gated else 2) * layer.mlp for layer in model.layers)
    gathered, arriving = (width * count for count in _count_gathered(model, learner, held, gpu=gpu))
    several_groups = muon or learner.expert_parallel > 1 or any(optim.weight_decay for optim in optims)
    built = _engine_bytes(
        learner, trained, weights=weights, width=width, gathered=arriving, several_groups=several_groups
    )
    # the sum of gradients stays in main memory, its copy for the update does not
    on_disk = moved + gradients_away // 2 if learner.offload == "nvme" else 0
    return RankMemory(
        weights=on_device,
        gradients=gradients,
        optimiser=0 if away else states,
        buckets=_bucket_bytes(learner, trained, tensor=tensor, width=width),
        transfers=max(
            _reduction_copies(learner, trained, tensor=tensor, width=width, gpu=gpu)
            + _kept_bytes(learner, trained, passing=activations + gathered),
            _update_copies(learner, trained) + (_orthogonalized_bytes(model, learner) if muon else 0),
            arriving,
        ),
        gathered=gathered,
        reference=beside,
        activations=activations,
        logits=max(LOGIT_BYTES * rows * model.shape.vocabulary + pieces, inside),
        pass_tokens=pass_tokens,
        offloaded=moved + gradients_away - on_disk,
        on_disk=on_disk,
        push=push,
        overhead=overhead,
        loading=overhead + loaded + (2 * FLOAT32 + width) * model.largest_tensor if gpu else 0,
        reading=max(
            (weights if stage == 3 or not gpu else 0) + _read_copies(model, learner, gpu=gpu) * model.largest_tensor,
            0 if gpu else built,
        ),
    )


def _read_copies(model: "PlannedModel", learner: LearnerConfig, *, gpu: bool) -> int:
    """Return the bytes per entry in main memory of a tensor that is read. On a CPU a single one is in the memory of the file.

    Stage 3 copies it (`Placement`). In bfloat16 it is rounded there, and compared in float32.
    """
    if gpu or any(layer.copies for layer in model.layers):
        return READ
    return FLOAT32 + 2 if learner.bf16 else FLOAT32 if learner.zero_stage == 3 else 0


def _engine_bytes(
    learner: LearnerConfig, trained: int, *, weights: int, width: int, gathered: int, several_groups: bool
) -> int:
    """Return the bytes on a CPU when DeepSpeed has built its engine, without moments.

    It joins the trained weights to one tensor and copies this rank's part in float32. Then it sets a gradient of zeros for this
    part (`initialize_optimizer_states`). At stage 3 the gradients of all passes follow, before a short pass gathers parameters.
    Stage 1 in bfloat16 keeps the gradients of all parameters instead. Offloading keeps the zeros. If bfloat16 rounds
    weights, the part is read again, from a file that is mapped into memory. In float32 the weights are in this memory until
    the last of `several_groups` is joined. Then the parts of the others are copied already. Adapters are in no file.
    """
    if not learner.zero_stage:
        return weights
    part, away = FLOAT32 * trained // learner.ranks, learner.offload != "none"
    read = part if learner.bf16 and not learner.lora.rank else 0
    if learner.zero_stage == 3:
        return weights + (3 if away else 2) * part + max(part, read, gathered)
    kept = FLOAT32 * trained if _has_joined_gradients(learner) else part if away else 0
    back = width * trained // learner.ranks if away else 0  # for the updated weights
    copied = part if several_groups and not learner.bf16 and not learner.lora.rank else 0
    return weights + back + max(width * trained + copied, part + max(part, kept + read))


def _count_gathered(model: "PlannedModel", learner: LearnerConfig, held: int, *, gpu: bool) -> tuple[int, int]:
    """Return the parameters that stage 3 has gathered in the middle of a pass, and while some arrive.

    Each module prefetches more until `LIVE` parameters are gathered. The next layer may exceed it. They arrive in one tensor
    (`_all_gather_dtype` of `partition_parameters.py`), from which each is copied. A small model arrives once, before a pass.
    One rank copies only offloaded parameters, one by one.
    """
    if learner.zero_stage < 3 or (learner.ranks == 1 and (learner.offload == "none" or not gpu)):
        return 0, 0
    together = min(held, max(PREFETCHED, model.largest_layer))
    kept = min(held, LIVE + model.largest_layer)
    arriving = kept + (together if learner.ranks > 1 else 0)
    return (kept if together == held else arriving), arriving


def _has_joined_gradients(learner: LearnerConfig) -> bool:
    """Return whether DeepSpeed's `BF16_Optimizer` accumulates all gradients in one float32 tensor, without buckets."""
    return learner.zero_stage == 1 and learner.bf16 and learner.offload == "none"


def _gradient_bytes(learner: LearnerConfig, trained: int, *, own: int) -> tuple[int, int]:
    """Return the bytes of the gradients of all passes on the device, and offloaded. The rank holds `own` of the parameters.

    Stages 1 and 2 offload them only before an update. Before it, stage 2 in float32 keeps a second
    sum in main memory (`accumulated_grads_in_cpu`), and in bfloat16 its part on the device
    (`_build_compact_grad_partition_buffer`). Stage 3 has a sum and a copy for the update.
    """
    part = FLOAT32 * trained // learner.ranks
    on_device = FLOAT32 * own if learner.zero_stage < 2 else part
    if learner.offload == "none":
        return on_device, 0
    if learner.zero_stage == 3 or (learner.zero_stage == 2 and not learner.bf16):
        return 0, 2 * part
    return on_device, part


def _bucket_bytes(learner: LearnerConfig, trained: int, *, tensor: int, width: int) -> int:
    """Return the bytes of DeepSpeed's bucket, which one rank has too, and of a tensor in transfer to main memory.

    Stage 2 fills it in the computing type (`setup_buckets`).
    """
    if not learner.zero_stage or _has_joined_gradients(learner):
        return 0
    passed = width * tensor if learner.offload != "none" and learner.zero_stage < 3 else 0
    return (width if learner.zero_stage == 2 else FLOAT32) * min(trained, BUCKET) + passed


def _reduction_copies(learner: LearnerConfig, trained: int, *, tensor: int, width: int, gpu: bool) -> int:
    """Return the bytes that DeepSpeed needs besides a bucket to reduce it. `tensor` is the largest one.

    Stage 0 joins gradients to one tensor until it exceeds a bucket (`allreduce_no_retain` of `runtime/engine.py`). Stage 1
    frees each gradient that is in the bucket, and collects its part in a new tensor. Stage 2 joins the slices of several ranks
    (`allreduce_and_scatter`), converts them to float32, and in float32 collects its part of each pass. Stage 3 orders them by
    rank (`reduce_scatter_coalesced`), and gloo copies them again. A tensor that exceeds a bucket is reduced alone.
    """
    stage, part = learner.zero_stage, FLOAT32 * trained // learner.ranks
    if stage == 0:
        return FLOAT32 * min(trained, BUCKET + tensor)
    if _has_joined_gradients(learner):
        return 0
    if stage == 1:
        return part if learner.bf16 else max(0, part - FLOAT32 * BUCKET)
    if stage == 3:
        each = FLOAT32 if gpu else 2 * FLOAT32
    else:
        each = width + FLOAT32 if learner.bf16 else FLOAT32 * min(1, learner.ranks - 1)
    copies = max(each * min(trained, BUCKET), (each + width) * tensor if tensor > BUCKET else 0)
    collected = part if stage == 2 and not learner.bf16 and learner.offload == "none" else 0
    return copies + collected if trained > BUCKET else max(copies, collected)


def _update_copies(learner: LearnerConfig, trained: int) -> int:
    """Return the bytes of stage 3's copy of gradients for an update. To write them to a disk, it collects them all."""
    if learner.zero_stage < 3 or learner.offload == "cpu":
        return 0
    part = trained // learner.ranks
    return FLOAT32 * (part if learner.offload == "nvme" else min(part, SUB_GROUP))


def _orthogonalized_bytes(model: "PlannedModel", learner: LearnerConfig) -> int:
    """Return the bytes of Newton-Schulz on a matrix. Above stage 0, a rank also gathers it, and sends parts of a batch.

    A batch has a matrix for each rank (`learner/engine/muon.py`). Stage 3 divides each evenly. At stages 1 and 2 they may
    all be in the partition of one rank.
    """
    if not learner.zero_stage:
        return FLOAT32 * model.newton_schulz_entries
    batch = model.largest_matrix * (1 if learner.zero_stage == 3 else learner.ranks)
    return FLOAT32 * (model.newton_schulz_entries + model.largest_matrix + min(batch, model.matrices // learner.ranks))


def _kept_bytes(learner: LearnerConfig, trained: int, *, passing: int) -> int:
    """Return the bytes of a pass that are kept when the first bucket is full. Stages 0 and 1 reduce after the pass."""
    if learner.zero_stage < 2 or trained <= BUCKET:
        return 0
    return passing * (trained - BUCKET) // trained


def optimizer_bytes(model: "PlannedModel", optim: OptimConfig) -> int:
    """Return the bytes of the optimizer's running means, and of the average of the weights."""
    ema = FLOAT32 * model.trained if optim.ema_decay else 0
    return MOMENTS * model.trained - _spared_bytes(model, optim) + ema


def _spared_bytes(model: "PlannedModel", optim: OptimConfig) -> int:
    """Return the bytes that Muon needs less than AdamW: it has one mean for the matrices inside the layers."""
    return MOMENTS // 2 * model.matrices if optim.kind == "muon" else 0


def copied_bytes(model: "PlannedModel", learner: LearnerConfig, optims: Sequence[OptimConfig], *, ranks: int) -> int:
    """Return the bytes of a checkpoint that `ranks` ranks copy to main memory. At stage 0, rank 0 copies all.

    While a rank copies the weights, it merges adapters into a bucket of them.
    """
    size = model.checkpoint_bytes - min(_spared_bytes(model, optim) for optim in optims)
    copying, of_all = (ranks, learner.ranks) if learner.zero_stage else (1, 1)
    merged = copying * min(model.saved_bytes, GATHER_BYTES) if learner.lora.rank else 0
    return max(size * copying // of_all, model.saved_bytes * copying // of_all + merged)


def pushed_bytes(model: "PlannedModel", learner: LearnerConfig) -> tuple[int, int]:
    """Return the bytes that pushes by shared memory send once, and in each version.

    Adapters in the type on the wire travel alone after the first push of the weights (`WeightSender.merge_reason`).
    """
    whole, computed = model.push_bytes[learner.wire_dtype], "bfloat16" if learner.bf16 else "float32"
    if learner.lora.rank and learner.wire_dtype == computed:
        return whole, (2 if learner.bf16 else FLOAT32) * model.trained
    return 0, whole


def _token_activations(model: "PlannedModel", learner: LearnerConfig, *, width: int, gpu: bool) -> int:
    """Return the bytes per token that a pass keeps.

    Recomputed layers keep their input only, and one layer at a time keeps all.
    """
    each = [layer.kept_bytes(width=width, gpu=gpu, scans=learner.recompute != "selective") for layer in model.layers]
    return width * model.shape.hidden * len(each) + max(each) if learner.recompute == "full" else sum(each)


@dataclass(frozen=True, slots=True, kw_only=True)
class Pages:
    """The layout of the cache of an engine's process."""

    bytes_each: int
    """Bytes of a page for all layers of a group."""
    tokens: int
    """Tokens of keys and values per page. 0 for a model without attention."""
    attention_groups: int
    state_pages: int
    """Pages of a sequence for its states, at any length."""

    def of_sequence(self, length: int) -> int:
        """Return the bytes of a sequence of so many tokens."""
        kept = self.attention_groups * -(-length // self.tokens) if self.tokens else 0
        return self.bytes_each * (kept + self.state_pages)


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineMemory:
    """Bytes of one process of an engine. On a CPU they are main memory."""

    processes: int
    weights: int
    overhead: int
    cache: int
    """Bytes left for keys, values and states. On a CPU, `rollout.engine.memory_gib`."""
    allowed: int
    """Bytes that it may use on its GPU. 0 on a CPU."""
    pages: Pages
    caches_prefixes: bool
    state_bytes: int
    """States of a sequence, exact, without the rest of their pages."""
    token_bytes: int
    """Keys and values of a token, likewise."""

    @property
    def peak(self) -> int:
        """Bytes of all parts."""
        return self.weights + self.overhead + max(0, self.cache)

    def sequences(self, length: int) -> int:
        """Return the number of sequences of so many tokens that fit."""
        return max(0, self.cache) // max(1, self.pages.of_sequence(length))

    @property
    def blocks(self) -> int:
        """Number of pages. A model with states needs a page for each of `max_sequences`, or vLLM does not start."""
        return max(0, self.cache) // max(1, self.pages.bytes_each)


def engine_memory(
    model: "PlannedModel", engine: EngineConfig, *, gpu_bytes: float, overhead: int, router_replay: bool
) -> EngineMemory:
    """Return the memory of an engine's process. `gpu_bytes` is the memory of its GPU, 0 on a CPU."""
    recorded = router_replay and (not gpu_bytes or engine.runner == "v1" or engine.pipeline_parallel > 1)
    cached_prefixes = engine.prefix_caching != "off" and not recorded  # vLLM's second runner records experts by itself
    width, tensor = 4 if engine.dtype == "float32" else 2, engine.tensor_parallel
    weights = width * model.parameters // engine.processes
    allowed = int(engine.gpu_memory_utilization * gpu_bytes)
    return EngineMemory(
        processes=engine.processes,
        weights=weights,
        overhead=overhead if gpu_bytes else 0,
        cache=allowed - weights - overhead if gpu_bytes else engine.memory_gib * 2**30,
        allowed=allowed,
        pages=pages_of(model, width=width, tensor=tensor, gpu=gpu_bytes > 0, cached_prefixes=cached_prefixes),
        caches_prefixes=cached_prefixes,
        state_bytes=sum(_state_bytes(model, width=width)) // tensor,
        token_bytes=sum(_token_bytes(model, width=width, tensor=tensor)),
    )


def pages_of(model: "PlannedModel", *, width: int, tensor: int, gpu: bool, cached_prefixes: bool) -> Pages:
    """Return the cache layout of a process with one of `tensor` parts of each layer."""
    tokens, states = _token_bytes(model, width=width, tensor=tensor), _state_bytes(model, width=width)
    if not states:
        block = BLOCK_GPU if gpu else BLOCK_CPU
        return Pages(bytes_each=block * sum(tokens), tokens=block, attention_groups=1, state_pages=0)
    block = BLOCK_GPU if gpu else HYBRID_BLOCK_CPU
    state, token = max(states) // tensor, max(tokens, default=0)
    if tokens:
        block *= -(-state // (block * token))
    few, many = sorted((len(tokens) or len(states), len(states)))
    group = many if many < NEAR * few else few
    copies = 2 if cached_prefixes else 1  # the current one, and the last one for prefixes
    return Pages(
        bytes_each=(block * token if tokens else state) * group,
        tokens=block if tokens else 0,
        attention_groups=-(-len(tokens) // group),
        state_pages=copies * -(-len(states) // group),
    )


def _token_bytes(model: "PlannedModel", *, width: int, tensor: int) -> list[int]:
    """Return the bytes of a token's keys and values per attention layer. Too few heads are replicated."""
    return [2 * width * max(layer.keys // tensor, layer.head_dim) for layer in model.layers if layer.queries]


def _state_bytes(model: "PlannedModel", *, width: int) -> list[int]:
    """Return the bytes of a sequence's states per Mamba-2 layer: scans in float32, convolutions in the weights' type."""
    kept = [layer for layer in model.layers if layer.mamba]
    return [FLOAT32 * layer.state + width * layer.mixed * (layer.kernel - 1) for layer in kept]


@dataclass(frozen=True, slots=True, kw_only=True)
class HostMemory:
    """Bytes of main memory on the machine of rank 0, with the other ranks and the engines on it."""

    reading: int
    """Bytes of the ranks while they load the model."""
    held: int
    """Bytes all the time: on a CPU weights, states and caches, on a GPU all that is offloaded or waits for its turn."""
    passes: int
    """Bytes of the passes of ranks on a CPU."""
    push: int
    """The copies of the weights for a push, with Ray's copy."""
    checkpoint: int
    """The copies of a checkpoint that the ranks write during training. Without space for them, the loop waits."""

    @property
    def peak(self) -> int:
        """Peak bytes without a checkpoint's copy, which is written in pieces if memory is short."""
        return max(self.reading, self.held + self.passes + self.push)

    @property
    def saving(self) -> int:
        """Bytes while a checkpoint's copy is written during training."""
        return self.held + self.passes + self.push + self.checkpoint


@dataclass(frozen=True, slots=True, kw_only=True)
class PushPlan:
    """A push of the whole weights."""

    transport: str
    why: str
    nbytes: int
    sent: int
    """Bytes of a push after the first: the adapters, if only they are pushed."""
    host_bytes: int
    """Bytes in main memory on the learner's machine: the alternating buffers, the weights once if adapters travel alone, and a
    copy in Ray's object store on several machines."""
    device_bytes: int
    """Bytes on the GPU of a sending rank: copies of the weights, or buckets, which an engine's process has too."""
    lacks: str
    """Why the push does not fit or does not reach the engines, with the remedy. Empty if it works."""


def plan_push(
    model: "PlannedModel",
    learner: LearnerConfig,
    hardware: Hardware,
    *,
    gpus: int,
    colocated: bool,
    shm_bytes: int | None,
) -> PushPlan:
    """Return the push of a run whose processes use `gpus` GPUs. `colocated` ones share them. /dev/shm may be unknown."""
    machines, memory = len(hardware.machines), int(hardware.memory_gib * GIB)
    store = min(STORE_SHARE * hardware.memory_gib * GIB, STORE_MOST)
    facts = ClusterFacts(
        machines=machines,
        gpus=gpus,
        colocated=colocated,
        memory=memory,
        object_store=int(store if shm_bytes is None else min(store, shm_bytes)),
    )
    nbytes, lacks = model.push_bytes[learner.wire_dtype], ""
    try:
        found = choose_transport(learner.transport, facts, nbytes=nbytes)
    except ValueError as error:
        lacks = str(error)
        found = _choice_anyway(learner.transport, facts)
    shared = found.transport == SHARED_MEMORY
    once, each = pushed_bytes(model, learner) if shared else (0, nbytes)
    tensor = model.largest_pushed_tensor * (FLOAT32 if learner.wire_dtype == "float32" else 2)
    bucket = min(nbytes, max(BUCKET_BYTES["cuda"], tensor)) if hardware.gpus else 0
    return PushPlan(
        transport=found.transport,
        why=found.why,
        nbytes=nbytes,
        sent=each,
        host_bytes=once + COPIES * each + (machines > 1) * (once + each) if shared else 0,
        device_bytes={CUDA_IPC: COPIES * nbytes, BROADCAST: AHEAD * bucket}.get(found.transport, 0),
        lacks=lacks,
    )


def _choice_anyway(transport: str, facts: ClusterFacts) -> TransportChoice:
    """Return the transport choice with unlimited memory, or the configured transport if it reaches no engine."""
    try:
        return choose_transport(transport, facts, nbytes=0)
    except ValueError:
        return TransportChoice(transport=transport, why=f"learner.transport={transport}")


def received_bytes(model: "PlannedModel", push: PushPlan, *, tensor_parallel: int) -> int:
    """Return the bytes that an engine's process needs for a push by `broadcast`, besides its share of the GPU. Otherwise 0.

    vLLM keeps the buckets of a layer with experts until it is complete, and then allocates the layer anew.
    """
    if push.transport != BROADCAST:
        return 0
    experts = 2 * model.experts_per_layer
    return push.device_bytes + experts + experts // tensor_parallel
