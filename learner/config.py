"""Settings of the optimiser, and of the learner's ranks. For the loss see `learner/losses/config.py`."""

from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

from temper.envs.core.bounds import require_choice, require_fraction, require_not_negative, require_positive
from temper.envs.core.setting import free, immutable, scheduled
from temper.rollout.weights.config import AUTO, TRANSPORTS, WireDtype

Optimizer = Literal["adamw", "muon"]
Schedule = Literal["constant", "linear", "cosine"]
ZeroStage = Literal[0, 1, 2, 3]
Offload = Literal["none", "cpu", "nvme"]
Recomputed = Literal["none", "selective", "full"]
BUCKET = 500_000_000
"""Maximum number of parameters in a gradient bucket."""
GATHER_BYTES = 256 * 2**20
"""Bytes of parameters that are gathered (ZeRO-3) or merged with adapters at once, or one layer."""


@dataclass(frozen=True, kw_only=True)
class OptimConfig:
    """The optimiser, its learning-rate schedule, and gradient clipping."""

    kind: Optimizer = immutable("adamw")
    """adamw, or muon: Muon for the matrices inside the layers, of each expert too, AdamW for embeddings, output layer, routers
    and vectors. muon needs `learner.expert_parallel=1`, and `learner.offload` none or cpu."""
    learning_rate: float = scheduled(3e-4)
    """Highest learning rate of AdamW."""
    muon_learning_rate: float = scheduled(0.01)
    """Highest learning rate of Muon. It follows the same schedule. The spectral norm of a matrix's update is this rate times
    sqrt(max(1, rows / columns)) times 0.7 to 1.2, the singular values after five Newton-Schulz steps."""
    muon_momentum: float = scheduled(0.95)
    """Decay of Muon's running mean of the gradient."""
    warmup_steps: int = scheduled(10, unit="steps")
    """Optimiser steps over which the learning rate rises linearly. The first has 1 / warmup_steps of it."""
    schedule: Schedule = scheduled("constant")
    """After the warm-up: constant, linear or cosine. The last two reach `final_fraction` after the last step, so even with 0 it
    still trains."""
    final_fraction: float = scheduled(0.0)
    """Learning rate after the last step as a fraction of the highest. A constant schedule ignores it."""
    beta1: float = scheduled(0.9)
    """Decay of the gradient's running mean."""
    beta2: float = scheduled(0.999)
    """Decay of the squared gradient's running mean."""
    eps: float = scheduled(1e-8)
    """Added to the root of the squared gradient's running mean."""
    weight_decay: float = scheduled(0.0)
    """Decoupled decay per unit of learning rate, for matrices only (not for norms, biases, SSM vectors)."""
    grad_clip: float = scheduled(1.0)
    """Largest norm of the whole gradient. 0 turns clipping off."""
    ema_decay: float = scheduled(0.0)
    """Decay per update of an exponential moving average (EMA) of the weights, over about the last 1 / (1 - ema_decay) updates.
    Choose fewer than the stage has. `model.ema` uses it from a checkpoint. 0 is off. Needs `learner.offload` none or cpu."""

    def __post_init__(self) -> None:
        for name in ("learning_rate", "muon_learning_rate", "eps"):
            require_positive(f"optim.{name}", vars(self)[name])
        for name in ("warmup_steps", "weight_decay", "grad_clip"):
            require_not_negative(f"optim.{name}", vars(self)[name])
        for name in ("beta1", "beta2", "muon_momentum", "ema_decay"):
            if not 0 <= (value := vars(self)[name]) < 1:
                raise ValueError(f"optim.{name}={value}: must be at least 0 and below 1")
        require_fraction("optim.final_fraction", self.final_fraction)


@dataclass(frozen=True, kw_only=True)
class LoraConfig:
    """Low-rank adapters of the linear layers, trained instead of the weights. Engines compute with the sum of both.

    null trains the weights themselves.
    """

    NULL: ClassVar[dict[str, Any]] = {"rank": 0}
    """The settings that null stands for."""

    rank: int = immutable(0)
    """Rank of an adapter. 0 trains the weights themselves."""
    alpha: int = immutable(32)
    """An adapter is scaled by alpha / rank."""

    def __post_init__(self) -> None:
        require_not_negative("learner.lora.rank", self.rank)
        require_positive("learner.lora.alpha", self.alpha)

    @property
    def scale(self) -> float:
        """Factor of an adapter in the sum with its weight, 0 without adapters."""
        return self.alpha / self.rank if self.rank else 0.0


@dataclass(frozen=True, kw_only=True)
class LearnerConfig:
    """How the learner is spread over processes and how it computes."""

    ranks: int = free(1)
    """Processes that share each batch, one per GPU or CPU share."""
    sequence_parallel: int = free(1)
    """Neighbouring ranks that share each sequence: a shard of the tokens each, and in attention and Mamba-2 layers a share of
    the heads. Must divide ranks and the model's heads, and needs shared_prompts=false."""
    expert_parallel: int = free(1)
    """Neighbouring ranks that share the experts of each layer: an equal number each. They send tokens to the owners of their
    experts. Must divide ranks and the model's experts, and needs zero_stage 1 or 2."""
    zero_stage: ZeroStage = free(0)
    """DeepSpeed partitions over the ranks: 0 nothing, 1 optimiser state, 2 gradients too, 3 parameters too."""
    bf16: bool = immutable(False)
    """Whether to compute in bfloat16 with float32 master weights. Needs zero_stage 1, 2 or 3."""
    offload: Offload = free("none")
    """Storage of ZeRO's partitions between uses: none (on the device), cpu (main memory, needs zero_stage 1, 2 or 3) or nvme
    (files under offload_dir, needs zero_stage 3)."""
    offload_dir: str | None = free(None)
    """Folder on a fast disk, for nvme."""
    frozen: list[str] = immutable([])
    """Regular expressions of parameter names that are not trained, for example [embed]."""
    lora: LoraConfig = field(default_factory=LoraConfig)
    micro_batch_tokens: int = free(8192, unit="tokens")
    """Tokens in one forward pass of a rank, padding included. A sequence longer than this times
    sequence_parallel runs alone."""
    logit_tokens: int = free(4096, unit="tokens")
    """Tokens whose logits exist at once. A pass with more tokens computes them in pieces, twice."""
    recompute: Recomputed = free("none")
    """Activations that the backward pass recomputes: none, selective (inside Mamba-2 scans; fused attention keeps none) or
    full (whole layers)."""
    threads: int = free(1)
    """CPU threads of a rank that has the machine to itself."""
    threads_during_generation: int = free(1)
    """CPU threads of a rank while engines generate on the same machine."""
    shared_prompts: bool = free(True)
    """Whether the answers to a prompt, or SFT rows that begin alike, share one pass over it, forward and backward, if that is
    faster."""
    train_router: bool = immutable(True)
    """Whether the routers of expert layers are trained. If not, they stay as loaded."""
    router_replay: bool = immutable(False)
    """Whether expert layers reuse the experts that the engine's routers chose."""
    float32_head: bool = immutable(False)
    """Whether the output layer multiplies in float32, in the learner and in the engines."""
    wire_dtype: WireDtype = immutable("float32")
    """Type of the weights in a push to the engines: float32, bfloat16 or float16."""
    transport: str = free(AUTO)
    """Transport of a weight push: shared_memory (through Ray's object store to other hosts), broadcast (in buckets from up
    to 8 ranks to all engines, by NCCL if each has its GPU, by gloo without GPUs), cuda_ipc (one engine on the learner's
    only GPU) or auto (chosen by the cluster, and logged)."""

    max_skipped: int = free(5, unit="steps")
    """Maximum of consecutive skipped steps before the run ends. A step is skipped if loss or gradient is not finite, or if
    no token is trained."""
    collective_timeout_s: float = free(600.0, unit="seconds")
    """Timeout of one collective operation between ranks, and of a broadcast to engines, in seconds."""

    @property
    def data_parallel(self) -> int:
        """Number of micro-batches that run at the same time."""
        return self.ranks // self.sequence_parallel

    def __post_init__(self) -> None:
        tokens_and_steps = ("micro_batch_tokens", "logit_tokens", "max_skipped", "collective_timeout_s")
        ranks = ("ranks", "sequence_parallel", "expert_parallel", "threads", "threads_during_generation")
        for name in (*tokens_and_steps, *ranks):
            require_positive(f"learner.{name}", vars(self)[name])
        self._check_partitioning()
        self._check_sequence_parallel()
        self._check_expert_parallel()
        self._check_passes()
        require_choice("learner.transport", self.transport, (AUTO, *TRANSPORTS))

    def _check_partitioning(self) -> None:
        """Raise `ValueError` if the ZeRO stage does not support these settings."""
        if self.bf16 and self.zero_stage == 0:
            raise ValueError("learner.bf16=true with learner.zero_stage=0: set learner.zero_stage to 1, 2 or 3")
        least = {"none": 0, "cpu": 1, "nvme": 3}[self.offload]
        if self.zero_stage < least:
            raise ValueError(
                f"learner.offload={self.offload} with learner.zero_stage={self.zero_stage}: set learner.zero_stage={least} "
                "or more"
            )
        if (self.offload == "nvme") != (self.offload_dir is not None):
            raise ValueError(
                f"learner.offload_dir={self.offload_dir} with learner.offload={self.offload}: nvme needs a folder, "
                f"other values need null"
            )

    def _check_sequence_parallel(self) -> None:
        """Raise `ValueError` if these settings do not support shards of sequences."""
        if self.ranks % self.sequence_parallel:
            raise ValueError(
                f"learner.ranks={self.ranks} is not divisible by learner.sequence_parallel={self.sequence_parallel}; take a "
                "multiple"
            )
        if self.sequence_parallel > 1 and self.shared_prompts:
            raise ValueError(
                f"learner.sequence_parallel={self.sequence_parallel} with learner.shared_prompts=true: the cache of a prompt "
                "is not split over ranks; set learner.shared_prompts=false"
            )

    def _check_expert_parallel(self) -> None:
        """Raise `ValueError` if these settings do not support expert parallelism."""
        if self.expert_parallel == 1:
            return
        if self.ranks % self.expert_parallel:
            raise ValueError(
                f"learner.ranks={self.ranks} is not divisible by learner.expert_parallel={self.expert_parallel}; take a "
                "multiple"
            )
        for fits, setting, remedy in (
            (self.zero_stage in (1, 2), f"zero_stage={self.zero_stage}", "zero_stage=2"),
            (self.offload == "none", f"offload={self.offload}", "offload=none"),
            (not self.lora.rank, f"lora.rank={self.lora.rank}", "lora=null"),
            (self.sequence_parallel == 1, f"sequence_parallel={self.sequence_parallel}", "sequence_parallel=1"),
        ):
            if not fits:
                raise ValueError(
                    f"learner.expert_parallel={self.expert_parallel} with learner.{setting} is not supported; set "
                    f"learner.{remedy}, or learner.expert_parallel=1"
                )

    def _check_passes(self) -> None:
        """Raise `ValueError` if the settings of forward and backward passes contradict each other."""
        if self.lora.rank and self.frozen:
            raise ValueError(
                f"learner.lora.rank={self.lora.rank} with learner.frozen={self.frozen}: LoRA freezes all other weights; "
                f"set learner.frozen=[]"
            )


def require_together(optim: OptimConfig, learner: LearnerConfig, *, setting: str = "optim") -> None:
    """Raise `ValueError` if the optimiser, named `setting` in messages, can't run with the learner's partitions."""
    if optim.kind == "muon" and learner.expert_parallel > 1:
        raise ValueError(
            f"{setting}.kind=muon with learner.expert_parallel={learner.expert_parallel} is not supported; set "
            f"{setting}.kind=adamw, or learner.expert_parallel=1"
        )
    if optim.ema_decay and learner.lora.rank and learner.bf16:
        raise ValueError(
            f"{setting}.ema_decay={optim.ema_decay} with learner.lora and learner.bf16=true is not supported, since the sum "
            f"with the weights would be rounded twice; set learner.bf16=false, or {setting}.ema_decay=0"
        )
    refused = {"kind=muon": "kind=adamw"} if optim.kind == "muon" else {}
    if optim.ema_decay:
        refused[f"ema_decay={optim.ema_decay}"] = "ema_decay=0"
    for value, remedy in refused.items() if learner.offload == "nvme" else ():
        raise ValueError(
            f"{setting}.{value} with learner.offload=nvme is not supported; set learner.offload=cpu, or {setting}.{remedy}"
        )
