"""What the learner can be told: optimiser, loss, and how it is spread over ranks."""

from dataclasses import dataclass, field

from rollout.trajectory import TurnFault

OPTIMIZERS = ("adamw", "muon")
SCHEDULES = ("constant", "linear", "cosine")
OBJECTIVES = ("policy", "nll")
ADVANTAGES = ("loo", "mean", "grpo", "reinforce_pp", "reinforce_pp_baseline")
USUAL_CLIPS = {
    "ppo": (0.2, 0.28),
    "gspo": (3e-4, 4e-4),
    "cispo": (1.0, 4.0),
    "decoupled": (0.2, 0.28),
    "reinforce": (1.0, float("inf")),
}
"""The surrogates, and where each bounds the policy ratio unless told otherwise: 1 - the first to 1 + the second."""
OLD_POLICIES = ("trainer", "rollout")
AGGREGATIONS = ("token", "sequence", "constant")
KL_ESTIMATES = ("k1", "k2", "k3")
KL_PLACES = ("loss", "reward")
DECOUPLED_RANGE = (0.0, 5.0)
"""The range of trainer / rollout outside of which decoupled drops a token."""
WIRE_DTYPES = ("float32", "bfloat16", "float16")
CARRIERS = ("shared_memory", "ray")


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
    """The objective: a surrogate of the policy's objective with its corrections, or the negative log-likelihood.

    Below, pi is the trainer's probability of a token, mu that of the engine that sampled it, A the advantage, r the
    policy ratio. DAPO is ppo with aggregation token, rl.shaping.overlong_buffer, and groups without signal dropped.
    """

    objective: str = "policy"
    """policy (reinforcement learning) or nll (supervised: minus the log-probability of each trained token)."""
    advantage: str = "loo"
    """Reward minus a baseline: loo (mean of the other answers, RLOO), mean (mean of the group, Dr. GRPO), grpo (likewise,
    divided by the group's deviation), reinforce_pp (mean of the batch, divided by its deviation, REINFORCE++),
    reinforce_pp_baseline (mean of the group, divided by the batch's deviation)."""
    advantage_clip: float = 20.0
    """Largest absolute advantage."""
    malformed_thought: float | None = None
    """Advantage of a turn whose thought is malformed, in place of its own; null keeps its own."""
    invalid_call: float | None = None
    """Advantage of a turn with an invalid tool call, in place of its own; null keeps its own."""
    mask_truncated: bool = False
    """Whether answers that ran into the token limit carry no loss."""
    aggregation: str = "token"
    """What weighs the same in a batch: token (mean over its tokens), sequence (mean over means), constant (sum over
    tokens, divided by the number of sequences times constant_length)."""
    constant_length: int = 0
    """The length in tokens that aggregation constant divides by, such as rollout.limits.turn_tokens."""
    surrogate: str = "ppo"
    """What is maximised: ppo (min(r A, clip(r) A)), gspo (the same with one ratio per sequence, made for aggregation
    sequence), cispo (clip(r) A log pi, clip(r) held constant), decoupled (ppo with the weight pi / mu, for old data),
    reinforce (r A without a clip)."""
    old_policy: str | None = None
    """What r compares pi with: trainer (the policy that starts the update: r is 1, as a batch is used once) or rollout
    (mu); null takes rollout for gspo and cispo, whose point is the clip, and else trainer."""
    clip_low: float | None = None
    """r is clipped below at 1 - clip_low; null takes what is usual: 0.2, for gspo 0.0003, for cispo no bound."""
    clip_high: float | None = None
    """r is clipped above at 1 + clip_high; null takes what is usual: 0.28, for gspo 0.0004, for cispo 4."""
    dual_clip: float = 3.0
    """Largest r that a negative advantage is multiplied by, for ppo and decoupled; 0 turns it off."""
    importance_cap: float = 2.0
    """Upper bound of the weight pi / mu of a token; 0 turns the weight off. Not for decoupled or old_policy rollout."""
    importance_floor: float = 0.0
    """Lower bound of that weight."""
    token_range: list[float] = field(default_factory=list)
    """Tokens whose pi / mu lies outside carry no loss (IcePop), for example [0.5, 5]; empty is off, for decoupled [0, 5]."""
    sequence_range: list[float] = field(default_factory=list)
    """Sequences whose geometric mean of pi / mu lies outside carry no loss, for example [0.999, 1.002]; empty is off."""
    error_guard: float = 2.0
    """Sequences whose exp(mean |log pi - log mu|) is above this carry no loss; 0 turns it off."""
    negative_guard: float = 0.0
    """Sequences with A < 0 whose mean of log mu - log pi is above this carry no loss, usually 0.5; 0 turns it off."""
    kl_coefficient: float = 0.0
    """Price of diverging from the weights that the stage began with; 0 is off, and then no reference is held."""
    kl: str = "k3"
    """Estimate of the divergence from d = log pi_ref - log pi: k1 (-d), k2 (d^2 / 2) or k3 (exp(d) - d - 1)."""
    kl_in: str = "loss"
    """Where it is paid: loss (a term for each token) or reward (each token's advantage loses what is still to come)."""
    entropy_bonus: float = 0.0
    """Coefficient of the policy's entropy, in nats, which is added to the objective; 0 is off."""

    def __post_init__(self) -> None:
        _one_of("loss.objective", self.objective, OBJECTIVES)
        _one_of("loss.advantage", self.advantage, ADVANTAGES)
        _one_of("loss.aggregation", self.aggregation, AGGREGATIONS)
        _one_of("loss.surrogate", self.surrogate, tuple(USUAL_CLIPS))
        _one_of("loss.kl", self.kl, KL_ESTIMATES)
        _one_of("loss.kl_in", self.kl_in, KL_PLACES)
        if self.old_policy is not None:
            _one_of("loss.old_policy", self.old_policy, OLD_POLICIES)
        if self.decoupled and self.against_rollout:
            raise ValueError("loss.surrogate=decoupled with loss.old_policy=rollout: take trainer, or surrogate=ppo")
        _positive("loss.advantage_clip", self.advantage_clip)
        _not_negative("loss.importance_cap", self.importance_cap)
        _not_negative("loss.negative_guard", self.negative_guard)
        _not_negative("loss.kl_coefficient", self.kl_coefficient)
        _not_negative("loss.entropy_bonus", self.entropy_bonus)
        for name, value in (("malformed_thought", self.malformed_thought), ("invalid_call", self.invalid_call)):
            if value is not None and not value < 0:
                raise ValueError(f"loss.{name}={value}: must be below 0, or null to keep the advantage")
        if (self.aggregation == "constant") != (self.constant_length > 0):
            raise ValueError(
                f"loss.constant_length={self.constant_length} with loss.aggregation={self.aggregation}: it must be "
                f"above 0 for constant, and 0 for any other"
            )
        self._check_bounds()

    def _check_bounds(self) -> None:
        if not 0 <= self.clip[0] <= 1:
            raise ValueError(f"loss.clip_low={self.clip_low}: must lie between 0 and 1")
        _not_negative("loss.clip_high", self.clip[1])
        if self.dual_clip and self.dual_clip <= 1:
            raise ValueError(f"loss.dual_clip={self.dual_clip}: must be above 1, or 0 for none")
        if not 0 <= self.importance_floor <= self.importance_cap:
            raise ValueError(
                f"loss.importance_floor={self.importance_floor}: must lie between 0 and "
                f"loss.importance_cap={self.importance_cap}"
            )
        for name, bounds in (("token_range", self.token_range), ("sequence_range", self.sequence_range)):
            if bounds and not (len(bounds) == 2 and 0 <= bounds[0] < bounds[1]):
                raise ValueError(f"loss.{name}={bounds}: give the lowest and the highest value, or [] for none")
        if self.error_guard and self.error_guard <= 1:
            raise ValueError(f"loss.error_guard={self.error_guard}: must be above 1, or 0 for none")

    @property
    def decoupled(self) -> bool:
        """Whether each token's weight is pi / mu itself, inside of a range."""
        return self.surrogate == "decoupled"

    @property
    def against_rollout(self) -> bool:
        """Whether the policy ratio is pi / mu."""
        usual = "rollout" if self.surrogate in ("gspo", "cispo") else "trainer"
        return (self.old_policy or usual) == "rollout"

    @property
    def clip(self) -> tuple[float, float]:
        """The policy ratio is held between 1 - the first and 1 + the second."""
        low, high = USUAL_CLIPS[self.surrogate]
        return low if self.clip_low is None else self.clip_low, high if self.clip_high is None else self.clip_high

    @property
    def token_bounds(self) -> tuple[float, float] | None:
        """The range of pi / mu outside of which a token carries no loss."""
        if self.token_range:
            return self.token_range[0], self.token_range[1]
        return DECOUPLED_RANGE if self.decoupled else None

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
    shared_prompts: bool = True
    """Whether the answers to a prompt share one pass over it, forward and backward, where that is faster."""
    train_router: bool = True
    """Whether the routers of expert layers are trained; else they stay as they were loaded."""
    router_replay: bool = False
    """Whether expert layers use the experts that the engine chose, as its routers recorded them."""
    wire_dtype: str = "float32"
    """Type in which weights are pushed to the engines: float32, bfloat16 or float16."""
    carrier: str = "shared_memory"
    """What a weight push travels by: shared_memory (engines on this host) or ray (Ray's object store: several hosts)."""
    sparse_push: bool = False
    """Whether only the weights that changed travel, where that is fewer bytes; each end then keeps a copy."""

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
        _one_of("learner.carrier", self.carrier, CARRIERS)


def require_together(optim: OptimConfig, learner: LearnerConfig) -> None:
    """Raises `ValueError` where the optimiser can't run on a learner spread like this."""
    if optim.kind == "muon" and learner.zero_stage:
        raise ValueError(
            f"optim.kind=muon with learner.zero_stage={learner.zero_stage}: above stage 0 DeepSpeed clips Muon's update "
            f"instead of the gradient; set learner.zero_stage=0 or optim.kind=adamw"
        )


def require_reference_fits(loss: LossConfig, learner: LearnerConfig) -> None:
    """Raises `ValueError` where each rank would have to hold a whole reference beside its part of the model."""
    if loss.kl_coefficient and learner.zero_stage == 3:
        raise ValueError(
            f"loss.kl_coefficient={loss.kl_coefficient} with learner.zero_stage=3: a rank holds its reference whole; "
            f"set learner.zero_stage to 0, 1 or 2, or loss.kl_coefficient=0"
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
