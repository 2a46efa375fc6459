"""Settings of the loss."""

from dataclasses import dataclass
from math import inf
from typing import TYPE_CHECKING, Literal

from temper.envs.core.bounds import require_choice, require_not_negative, require_positive
from temper.envs.core.setting import immutable
from temper.learner.losses.advantages import ADVANTAGES, NORMALISED_OVER_BATCH, check_advantage
from temper.learner.losses.custom_functions import CUSTOM, is_custom
from temper.learner.losses.surrogates import SURROGATES, check_surrogate

if TYPE_CHECKING:
    from temper.rollout.trajectory import TurnFault

Objective = Literal["policy", "nll", "distill", "dpo"]
Aggregation = Literal["token", "sequence", "constant"]
OldPolicy = Literal["trainer", "rollout"]
KlEstimate = Literal["k1", "k2", "k3"]
KlPlace = Literal["loss", "reward"]
DECOUPLED_RANGE = (0.0, 5.0)
"""Default token_range of the decoupled surrogate, as trainer / rollout."""


@dataclass(frozen=True, kw_only=True)
class LossConfig:
    """The objective: a surrogate of the policy objective with its corrections, or a supervised loss.

    Below, pi is the trainer's probability of a token, mu the engine's, A the advantage, r the policy ratio. DAPO is ppo with
    aggregation token, rl.shaping.overlong_buffer, and groups of zero advantage dropped.
    """

    objective: Objective = immutable("policy")
    """policy (reinforcement learning), nll (supervised: minus the log-probability of each trained token), distill (policy
    with the advantage log pi_teacher - log pi of each token) or dpo (preferred answers against others)."""
    beta: float = immutable(0.1)
    """Factor of DPO's log pi - log pi_ref. A smaller value lets pi move further from the reference."""
    advantage: str = immutable("rloo")
    """Reward minus a baseline: rloo (mean of the other answers), dr_grpo (mean of the group), grpo (the same, divided by the
    group's deviation), reinforce_pp (mean of the batch, divided by its deviation, REINFORCE++), reinforce_pp_baseline
    (mean of the group, divided by the batch's deviation), or a custom module.function from a group's rewards to their
    advantages. The batch's mean and deviation are over its tokens, after the KL term of kl_in=reward."""
    nested_weights: list[float] = immutable([])
    """Weights of the reward at each of thinking.nested_budgets and, last, without one, in the objective. Empty weighs all
    equally. Weights that grow with the budget, such as the budgets themselves, favour long reasoning (AnytimeReasoner)."""
    advantage_clip: float = immutable(20.0)
    """Largest absolute advantage."""
    malformed_thinking: float | None = immutable(None)
    """Advantage of a turn with malformed thinking, below 0. Null keeps the answer's advantage."""
    invalid_call: float | None = immutable(None)
    """Advantage of a turn with an invalid tool call, below 0. Null keeps the answer's advantage."""
    mask_truncated: bool = immutable(False)
    """Whether truncated answers carry no loss."""
    aggregation: Aggregation = immutable("token")
    """Equal weight in a batch for: token (mean over its tokens), sequence (mean over the means of episodes, required by gspo)
    or constant (sum over tokens, divided by the number of episodes times constant_length). An episode includes its branches
    and forced answers."""
    constant_length: int = immutable(0, unit="tokens")
    """Length in tokens that aggregation constant divides by, such as rollout.limits.turn_tokens."""
    surrogate: str = immutable("ppo")
    """The maximised objective: ppo (min(r A, clip(r) A)), gspo (the same with one ratio per sequence, needs aggregation
    sequence), cispo (clip(r) A log pi, clip(r) held constant), decoupled (ppo weighted by pi / mu, for old data),
    reinforce (r A without a clip), or a custom module.function with the signature of those in
    learner/losses/surrogates.py."""
    old_policy: OldPolicy | None = immutable(None)
    """The denominator of r: trainer (the policy before the batch's first update; r is 1 if there is only one) or rollout
    (mu). Null takes rollout for gspo and cispo, which rely on the clip, else trainer. In bfloat16 gspo needs trainer."""
    clip_low: float | None = immutable(None)
    """r is clipped below at 1 - clip_low. Null takes the default: 0.2, for gspo 0.0003, for cispo no bound."""
    clip_high: float | None = immutable(None)
    """r is clipped above at 1 + clip_high. Null takes the default: 0.28, for gspo 0.0004, for cispo 4."""
    dual_clip: float | None = immutable(None)
    """Largest r that multiplies a negative advantage, for ppo and decoupled. Null takes 3, 0 turns it off."""
    importance_cap: float | None = immutable(None)
    """Upper bound of the importance weight pi / mu of a token, 0 for none. Null takes 2, or none with a token_range or
    decoupled, whose weight is pi / mu inside the range. Not for decoupled or old_policy rollout."""
    importance_floor: float = immutable(0.0)
    """Lower bound of the importance weight."""
    token_range: list[float] = immutable([])
    """Tokens whose pi / mu is outside carry no loss, the others weigh pi / mu (IcePop), for example [0.5, 5]. Empty is off,
    for decoupled [0, 5]."""
    sequence_range: list[float] = immutable([])
    """Sequences whose geometric mean of pi / mu is outside carry no loss, for example [0.999, 1.002]. Empty is off."""
    error_guard: float = immutable(2.0)
    """Sequences whose exp(mean |log pi - log mu|) is above this carry no loss. 0 turns it off."""
    negative_guard: float = immutable(0.0)
    """Sequences with A < 0 whose mean of log mu - log pi, with the current pi, is above this carry no loss, usually 0.5. 0
    turns it off."""
    kl_coefficient: float = immutable(0.0)
    """Coefficient of the KL divergence from the stage's initial weights. 0 is off and loads no reference. Masked tokens pay
    it too."""
    kl: KlEstimate = immutable("k3")
    """KL estimate from d = log pi_ref - log pi: k1 (-d, in the reward only), k2 (d^2 / 2, with the gradient of the
    divergence in the loss) or k3 (exp(d) - d - 1)."""
    kl_in: KlPlace = immutable("loss")
    """Where the KL term applies: loss (a term for each token) or reward (each token's advantage loses the KL still to come)."""
    entropy_bonus: float = immutable(0.0)
    """Coefficient of the policy's entropy in nats, added to the objective. 0 is off."""

    def __post_init__(self) -> None:
        if is_custom(self.advantage):
            check_advantage(self.advantage)
        else:
            require_choice("loss.advantage", self.advantage, (*ADVANTAGES, CUSTOM))
        if is_custom(self.surrogate):
            check_surrogate(self.surrogate)
        else:
            require_choice("loss.surrogate", self.surrogate, (*SURROGATES, CUSTOM))
        self._check_ranges()
        require_positive("loss.beta", self.beta)
        require_positive("loss.advantage_clip", self.advantage_clip)
        require_not_negative("loss.importance_cap", self.cap)
        require_not_negative("loss.negative_guard", self.negative_guard)
        require_not_negative("loss.kl_coefficient", self.kl_coefficient)
        require_not_negative("loss.entropy_bonus", self.entropy_bonus)
        for name, value in (("malformed_thinking", self.malformed_thinking), ("invalid_call", self.invalid_call)):
            if value is not None and not value < 0:
                raise ValueError(f"loss.{name}={value}: must be below 0, or null to keep the advantage")
        self._check_bounds()
        self._check_combinations()
        self._check_unused()

    def _check_ranges(self) -> None:
        for name, bounds in (("token_range", self.token_range), ("sequence_range", self.sequence_range)):
            if bounds and not (len(bounds) == 2 and 0 <= bounds[0] < bounds[1]):
                raise ValueError(f"loss.{name}={bounds}: give the lowest and the highest value, or [] for none")

    def _check_bounds(self) -> None:
        if not 0 <= self.clip[0] <= 1:
            raise ValueError(f"loss.clip_low={self.clip_low}: must be between 0 and 1")
        require_not_negative("loss.clip_high", self.clip[1])
        if self.dual and self.dual <= 1:
            raise ValueError(f"loss.dual_clip={self.dual_clip}: must be above 1, or 0 for none")
        if not 0 <= self.importance_floor <= self.cap:
            raise ValueError(
                f"loss.importance_floor={self.importance_floor}: must be between 0 and loss.importance_cap={self.cap}"
            )
        if self.nested_weights and not (min(self.nested_weights) >= 0 and 0 < self.nested_weights[-1] < inf):
            raise ValueError(f"loss.nested_weights={self.nested_weights}: must be 0 or more, and the last one above 0")
        if self.error_guard and self.error_guard <= 1:
            raise ValueError(f"loss.error_guard={self.error_guard}: must be above 1, or 0 for none")

    def _check_combinations(self) -> None:
        if self.is_decoupled and self.against_rollout:
            raise ValueError(
                "loss.surrogate=decoupled with loss.old_policy=rollout: set loss.old_policy=trainer, or loss.surrogate=ppo"
            )
        if self.surrogate == "gspo" and self.aggregation != "sequence":
            raise ValueError(
                f"loss.surrogate=gspo with loss.aggregation={self.aggregation}: GSPO weighs all sequences equally; set "
                f"loss.aggregation=sequence"
            )
        if (self.aggregation == "constant") != (self.constant_length > 0):
            raise ValueError(
                f"loss.constant_length={self.constant_length} with loss.aggregation={self.aggregation}: it must be "
                f"above 0 for constant, and 0 for any other"
            )
        if self.objective == "policy" and self.kl == "k1" and self.kl_in == "loss" and self.kl_coefficient:
            raise ValueError(
                "loss.kl=k1 with loss.kl_in=loss: the mean of its gradient is always 0; set loss.kl=k2, or loss.kl_in=reward"
            )

    def _check_unused(self) -> None:
        if self.dual_clip and self.surrogate in ("gspo", "cispo", "reinforce"):
            raise ValueError(
                f"loss.dual_clip={self.dual_clip} with loss.surrogate={self.surrogate}: it has no dual clip; leave it out"
            )
        if self.surrogate == "reinforce" and (self.clip_low is not None or self.clip_high is not None):
            raise ValueError(
                f"loss.clip_low={self.clip_low} and loss.clip_high={self.clip_high} with loss.surrogate=reinforce: it has no "
                f"clip; leave them out, or set loss.surrogate=ppo"
            )
        if self.normalises_divergence and self.overrides:
            raise ValueError(
                f"loss.malformed_thinking={self.malformed_thinking} and loss.invalid_call={self.invalid_call} with "
                f"loss.advantage={self.advantage} and loss.kl_in=reward: these normalise the advantages of all tokens; "
                f"leave them out, or set loss.kl_in=loss"
            )
        weighted_by = "loss.surrogate=decoupled" if self.is_decoupled else "loss.old_policy=rollout"
        if self.importance_cap and (self.is_decoupled or self.against_rollout):
            raise ValueError(
                f"loss.importance_cap={self.importance_cap} with {weighted_by}: it weighs by pi / mu itself; leave it out"
            )

    @property
    def needs_reference(self) -> bool:
        """Whether a frozen reference model is loaded."""
        return self.kl_coefficient > 0 or self.objective in ("distill", "dpo")

    @property
    def needs_all_tokens(self) -> bool:
        """Whether a token of advantage 0 can change the loss: by its divergence, its entropy or a custom surrogate."""
        return self.objective != "policy" or self.needs_reference or self.entropy_bonus > 0 or is_custom(self.surrogate)

    @property
    def is_sampled(self) -> bool:
        """Whether the loss trains sampled answers, so that the sampling policy matters."""
        return self.objective in ("policy", "distill")

    @property
    def normalises_divergence(self) -> bool:
        """Whether the learner normalises advantages after it subtracts the divergence."""
        return self.advantage in NORMALISED_OVER_BATCH and self.kl_in == "reward" and self.kl_coefficient > 0

    @property
    def is_decoupled(self) -> bool:
        """Whether each token's weight is pi / mu itself, inside a range."""
        return self.surrogate == "decoupled"

    @property
    def against_rollout(self) -> bool:
        usual = "rollout" if self.surrogate in ("gspo", "cispo") else "trainer"
        return (self.old_policy or usual) == "rollout"

    @property
    def clip(self) -> tuple[float, float]:
        """Bounds of the policy ratio: 1 - the first and 1 + the second. A custom surrogate has ppo's defaults."""
        low, high = SURROGATES.get(self.surrogate, SURROGATES["ppo"]).clip
        return low if self.clip_low is None else self.clip_low, high if self.clip_high is None else self.clip_high

    @property
    def dual(self) -> float:
        """Largest ratio that multiplies a negative advantage, 0 for none."""
        return 3.0 if self.dual_clip is None else self.dual_clip

    @property
    def cap(self) -> float:
        """Upper bound of a token's weight pi / mu, 0 for none."""
        usual = 2.0 if self.token_bounds is None else 0.0
        return usual if self.importance_cap is None else self.importance_cap

    @property
    def token_bounds(self) -> tuple[float, float] | None:
        """Range of pi / mu. Tokens outside carry no loss."""
        if self.token_range:
            return self.token_range[0], self.token_range[1]
        return DECOUPLED_RANGE if self.is_decoupled else None

    @property
    def sequence_bounds(self) -> tuple[float, float] | None:
        """Range of the geometric mean of pi / mu. Sequences outside carry no loss."""
        return (self.sequence_range[0], self.sequence_range[1]) if self.sequence_range else None

    @property
    def overrides(self) -> "dict[TurnFault, float]":
        """Advantages that replace the answer's in turns with a fault."""
        from temper.rollout.trajectory import TurnFault  # imports numpy

        values = {TurnFault.THINKING: self.malformed_thinking, TurnFault.TOOL_CALL: self.invalid_call}
        return {fault: value for fault, value in values.items() if value is not None}
