"""What the learner can be told: optimiser, loss, and how it is spread over ranks."""

from dataclasses import dataclass

from rollout.trajectory import TurnFault

OPTIMIZERS = ("adamw", "muon")
SCHEDULES = ("constant", "linear", "cosine")
OBJECTIVES = ("policy", "nll")
AGGREGATIONS = ("token", "sequence")
ADVANTAGES = ("loo", "mean", "grpo")
WIRE_DTYPES = ("float32", "bfloat16", "float16")


@dataclass(frozen=True, kw_only=True)
class OptimConfig:
    """The optimiser, its learning-rate schedule, and gradient clipping."""

    kind: str = "adamw"
    """adamw, or muon: Muon for the matrices inside the layers, AdamW for embeddings, output layer and vectors."""
    learning_rate: float = 3e-4
    """Highest learning rate of AdamW."""
    muon_learning_rate: float = 0.01
    """Highest learning rate of Muon, the spectral norm of an update; it follows the same schedule."""
    muon_momentum: float = 0.95
    """Decay of Muon's running mean of the gradient."""
    warmup_steps: int = 10
    """Steps over which the learning rate rises linearly from 0."""
    schedule: str = "constant"
    """After the warm-up: constant, linear (to `final_fraction` at the last step) or cosine (likewise)."""
    final_fraction: float = 0.0
    """Learning rate at the last step as a fraction of the highest; without effect when constant."""
    beta1: float = 0.9
    """Decay of the gradient's running mean."""
    beta2: float = 0.999
    """Decay of the squared gradient's running mean."""
    eps: float = 1e-8
    """Added to the root of the squared gradient's running mean."""
    weight_decay: float = 0.0
    """Decoupled decay per unit of learning rate, for matrices only (not for norms, biases, SSM vectors)."""
    grad_clip: float = 1.0
    """Largest norm of the whole gradient; 0 turns clipping off."""

    def __post_init__(self) -> None:
        _one_of("optim.kind", self.kind, OPTIMIZERS)
        _one_of("optim.schedule", self.schedule, SCHEDULES)
        _positive("optim.learning_rate", self.learning_rate)
        _positive("optim.muon_learning_rate", self.muon_learning_rate)
        _positive("optim.eps", self.eps)
        _not_negative("optim.warmup_steps", self.warmup_steps)
        _not_negative("optim.weight_decay", self.weight_decay)
        _not_negative("optim.grad_clip", self.grad_clip)
        for name, value in (("beta1", self.beta1), ("beta2", self.beta2), ("muon_momentum", self.muon_momentum)):
            if not 0 <= value < 1:
                raise ValueError(f"optim.{name}={value}: must be at least 0 and below 1")
        if not 0 <= self.final_fraction <= 1:
            raise ValueError(f"optim.final_fraction={self.final_fraction}: must lie between 0 and 1")


@dataclass(frozen=True, kw_only=True)
class LossConfig:
    """The objective: a clipped policy loss with advantages and importance weights, or the negative log-likelihood."""

    objective: str = "policy"
    """policy (reinforcement learning) or nll (supervised: minus the log-probability of each trained token)."""
    advantage: str = "loo"
    """Baseline: loo (mean of the other answers), mean (mean of the group), grpo (mean, divided by the deviation)."""
    advantage_clip: float = 20.0
    """Largest absolute advantage."""
    malformed_thought: float | None = None
    """Advantage of a turn whose thought is malformed, in place of its own; null keeps its own."""
    invalid_call: float | None = None
    """Advantage of a turn with an invalid tool call, in place of its own; null keeps its own."""
    mask_truncated: bool = False
    """Whether answers that ran into the token limit carry no loss."""
    aggregation: str = "token"
    """What weighs the same in a batch: token (mean over its tokens) or sequence (mean over means)."""
    clip_low: float = 0.2
    """The policy ratio is clipped below at 1 - clip_low."""
    clip_high: float = 0.28
    """The policy ratio is clipped above at 1 + clip_high."""
    dual_clip: float = 3.0
    """Largest policy ratio that a negative advantage is multiplied by; 0 turns it off."""
    importance_cap: float = 2.0
    """Upper bound of the weight trainer probability / rollout probability of a token."""
    importance_floor: float = 0.0
    """Lower bound of that weight."""
    error_guard: float = 2.0
    """Sequences whose exp(mean |trainer - rollout log-probability|) is above this carry no loss; 0 turns it off."""

    def __post_init__(self) -> None:
        _one_of("loss.objective", self.objective, OBJECTIVES)
        _one_of("loss.advantage", self.advantage, ADVANTAGES)
        _one_of("loss.aggregation", self.aggregation, AGGREGATIONS)
        _positive("loss.advantage_clip", self.advantage_clip)
        _positive("loss.importance_cap", self.importance_cap)
        for name, value in (("malformed_thought", self.malformed_thought), ("invalid_call", self.invalid_call)):
            if value is not None and not value < 0:
                raise ValueError(f"loss.{name}={value}: must be below 0, or null to keep the advantage")
        if not 0 <= self.clip_low < 1:
            raise ValueError(f"loss.clip_low={self.clip_low}: must be at least 0 and below 1")
        _not_negative("loss.clip_high", self.clip_high)
        if self.dual_clip and self.dual_clip <= 1:
            raise ValueError(f"loss.dual_clip={self.dual_clip}: must be above 1, or 0 for none")
        if not 0 <= self.importance_floor <= self.importance_cap:
            raise ValueError(
                f"loss.importance_floor={self.importance_floor}: must lie between 0 and "
                f"loss.importance_cap={self.importance_cap}"
            )
        if self.error_guard and self.error_guard <= 1:
            raise ValueError(f"loss.error_guard={self.error_guard}: must be above 1, or 0 for none")

    @property
    def overrides(self) -> dict[TurnFault, float]:
        """The advantages that turns with a fault get in place of their own."""
        values = {TurnFault.THOUGHT: self.malformed_thought, TurnFault.TOOL_CALL: self.invalid_call}
        return {fault: value for fault, value in values.items() if value is not None}


@dataclass(frozen=True, kw_only=True)
class LearnerConfig:
    """How the learner is spread over processes and how it computes."""

    ranks: int = 1
    """Processes that share each batch, one per GPU or CPU share."""
    zero_stage: int = 0
    """What DeepSpeed partitions over the ranks: 0 nothing, 1 optimiser state, 2 gradients too, 3 parameters too."""
    bf16: bool = False
    """Whether to compute in bfloat16 (with float32 master weights); needs zero_stage 1, 2 or 3."""
    micro_batch_tokens: int = 8192
    """Tokens in one forward pass of a rank, padding included; a longer sequence has a pass of its own."""
    threads: int = 1
    """CPU threads of a rank that has the machine to itself."""
    threads_beside: int = 1
    """CPU threads of a rank while engines generate beside it; threads that fight for a core cost ten times their work."""
    wire_dtype: str = "float32"
    """Type in which weights are pushed to the engines: float32, bfloat16 or float16."""

    def __post_init__(self) -> None:
        for name, value in (
            ("ranks", self.ranks),
            ("micro_batch_tokens", self.micro_batch_tokens),
            ("threads", self.threads),
            ("threads_beside", self.threads_beside),
        ):
            _positive(f"learner.{name}", value)
        if self.zero_stage not in (0, 1, 2, 3):
            raise ValueError(f"learner.zero_stage={self.zero_stage}: must be 0, 1, 2 or 3")
        if self.bf16 and self.zero_stage == 0:
            raise ValueError("learner.bf16=true with learner.zero_stage=0: set zero_stage to 1, 2 or 3")
        _one_of("learner.wire_dtype", self.wire_dtype, WIRE_DTYPES)


def require_together(optim: OptimConfig, learner: LearnerConfig) -> None:
    """Raises `ValueError` where the optimiser can't run on a learner spread like this."""
    if optim.kind == "muon" and learner.zero_stage:
        raise ValueError(
            f"optim.kind=muon with learner.zero_stage={learner.zero_stage}: above stage 0 DeepSpeed clips Muon's update "
            f"instead of the gradient; set learner.zero_stage=0 or optim.kind=adamw"
        )


def _one_of(name: str, value: str, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise ValueError(f"{name}={value!r}: choose one of {', '.join(choices)}")


def _positive(name: str, value: float) -> None:
    if not value > 0:
        raise ValueError(f"{name}={value}: must be above 0")


def _not_negative(name: str, value: float) -> None:
    if not value >= 0:
        raise ValueError(f"{name}={value}: must be 0 or more")
