"""Settings of the stages that run the loop: reinforcement learning and distillation."""

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import ClassVar

from temper.envs.core.bounds import require_fraction
from temper.envs.core.setting import free, immutable, scheduled
from temper.envs.core.thinking_mode import NestedThinkingMix, ThinkingMix
from temper.learner.config import OptimConfig
from temper.learner.losses.advantages import NORMALISED_OVER_BATCH
from temper.learner.losses.config import LossConfig
from temper.learner.losses.custom_functions import is_custom
from temper.orchestrator.config.model_source import ModelSource
from temper.orchestrator.loop.config import Band, BandsConfig, ShapingConfig
from temper.rollout.sampling import Sampling


@dataclass(frozen=True, kw_only=True)
class LoopConfig:
    """A stage that samples answers and trains on them. `stage` is its name, also in messages."""

    stage: ClassVar[str]
    min_answers: ClassVar[int] = 1
    """Fewest answers of a group that can be trained."""

    steps: int = scheduled(100, unit="steps")
    """Steps. Each samples a batch, trains on it and pushes the weights."""
    groups_per_step: int = scheduled(24)
    """Groups of a step."""
    group_size: int = scheduled(8)
    """Answers to each task."""
    updates_per_step: int = immutable(1, unit="steps")
    """Optimiser steps for a batch: mini-batches of whole groups, or of answers if there are too few groups."""
    epochs: int = immutable(1)
    """Passes over a batch, each with other mini-batches. A step makes updates_per_step times epochs optimiser steps. If both
    are above 1, each epoch recomputes the old policy's log-probabilities."""
    shares: dict[str, float] = scheduled({}, unit="share")
    """Shares of environments in this stage, instead of `envs.NAME.share`."""
    thinking: ThinkingMix = field(default_factory=ThinkingMix)
    """Shares of the thinking modes among the tasks. The answers to a task share its mode."""
    max_lag: int = scheduled(1)
    """Most versions between the admission and the training of a group. 0 is synchronous. From 2 on the loss needs a trust
    region: token_range, sequence_range, old_policy rollout, or several updates a step."""
    over_sampling: float | None = scheduled(None, unit="share")
    """Groups in flight beyond one step, as a share of groups_per_step; null is max_lag. Below max_lag a step takes the first
    finished groups, and the slowest continue into later steps (partial rollouts). The mean lag is at most this share, or one
    group."""
    max_failures: float = free(0.5, unit="share")
    """Highest share of failed episodes of one environment over its last 64. Above it the run ends."""
    checkpoint_every: int = free(25, unit="steps")
    """Steps between checkpoints. The last step always has one."""
    eval_every: int = free(0, unit="steps")
    """Steps between evaluations on held-out tasks during the stage, plus one before the first step and one after the last. 0:
    none."""
    eval_tasks: int = scheduled(64)
    """Held-out tasks of each environment in these evaluations, always the same ones."""
    eval_samples: int = scheduled(1)
    """Answers to each of these tasks. One if the sampling is greedy, because all would be the same."""
    eval_sampling: Sampling = field(default_factory=Sampling)
    """Sampling of these answers."""
    sampling: Sampling = field(default_factory=Sampling)
    """Sampling of the training answers: only temperature and stop. The learner, its reference and a teacher use the same
    temperature. A text of `stop` that ends a turn is trained as sampled, so the end of the turn is not trained."""
    timeout_s: float = free(300.0, unit="seconds")
    """Deadline of each wait in the loop, in seconds: for the next finished group, or for the learner's step."""
    bands: BandsConfig = field(default_factory=BandsConfig)
    """Bands of step metrics. A metric outside raises an alarm."""
    loss: LossConfig = field(default_factory=LossConfig)
    optim: OptimConfig = field(default_factory=OptimConfig)

    def __post_init__(self) -> None:
        stage = self.stage
        require_fraction(f"{stage}.max_failures", self.max_failures)
        if self.steps < 1 or self.groups_per_step < 1 or self.checkpoint_every < 1:
            raise ValueError(
                f"{stage}.steps={self.steps}, groups_per_step={self.groups_per_step} and "
                f"checkpoint_every={self.checkpoint_every} must be at least 1"
            )
        if self.group_size < self.min_answers:
            why = ": a baseline needs other answers" if self.min_answers > 1 else ""
            raise ValueError(f"{stage}.group_size={self.group_size} must be at least {self.min_answers}{why}")
        if self.thinking.budget and not self.thinking.names_budgets:
            raise ValueError(
                f"{stage}.thinking.budget={self.thinking.budget} without budgets: set {stage}.thinking.budgets, for example "
                f"[16, 32], or budget_range"
            )
        if not 1 <= self.updates_per_step <= self.answers_per_step or self.epochs < 1:
            raise ValueError(
                f"{stage}.updates_per_step={self.updates_per_step} must be between 1 and the {self.answers_per_step} answers "
                f"of a step, epochs={self.epochs} at least 1"
            )
        self.bands.check(f"{stage}.bands", has_reference=self.loss.needs_reference)
        self._require_clips_act()
        self._check_sampling()
        if self.eval_every < 0 or self.eval_tasks < 1 or self.eval_samples < 1:
            raise ValueError(
                f"{stage}.eval_every={self.eval_every} must be 0 or more, eval_tasks={self.eval_tasks} and "
                f"eval_samples={self.eval_samples} at least 1"
            )
        if self.max_lag < 0 or self.timeout_s <= 0:
            raise ValueError(f"{stage}.max_lag={self.max_lag} must be 0 or more, timeout_s={self.timeout_s} above 0")
        if self.over_sampling is not None and not 0 < self.over_sampling <= self.max_lag:
            raise ValueError(
                f"{stage}.over_sampling={self.over_sampling} must be above 0 and at most {stage}.max_lag={self.max_lag}; raise "
                f"max_lag, or set null"
            )

    @property
    def eval_answers_per_task(self) -> int:
        """`eval_samples`, or 1 if all answers to a task would be the same."""
        return self.eval_sampling.distinct_answers(self.eval_samples)

    @property
    def watched_bands(self) -> BandsConfig:
        """The bands. If groups of equal rewards can be trained, nonzero_advantage has no default bound."""
        advantage, usual = self.loss.advantage, BandsConfig().nonzero_advantage
        equal_teach = advantage in NORMALISED_OVER_BATCH or is_custom(advantage)
        return (
            replace(self.bands, nonzero_advantage=Band())
            if equal_teach and self.bands.nonzero_advantage == usual
            else self.bands
        )

    def _require_clips_act(self) -> None:
        """Raise `ValueError` for a clip, or a clipping surrogate, if the policy ratio is always 1."""
        stage, loss = self.stage, self.loss
        clips = {"clip_low": loss.clip_low, "clip_high": loss.clip_high, "dual_clip": loss.dual_clip or None}
        chosen = [f"{stage}.loss.{name}={value}" for name, value in clips.items() if value is not None]
        if loss.surrogate in ("gspo", "cispo", "decoupled"):
            chosen.append(f"{stage}.loss.surrogate={loss.surrogate}")
        if self.updates > 1 or loss.against_rollout or is_custom(loss.surrogate) or not (chosen and loss.is_sampled):
            return
        rollout = (
            "" if loss.is_decoupled else f"or {stage}.loss.old_policy=rollout (the ratio to the sampling policy), "
        )
        raise ValueError(
            f"{' and '.join(chosen)} has no effect: a batch makes one update, so the policy ratio is 1; set "
            f"{stage}.updates_per_step or {stage}.epochs above 1, {rollout}or remove it"
        )

    def _check_sampling(self) -> None:
        """Raise `ValueError` for sampling that breaks the probability ratios of training.

        A truncated distribution mu is normalised over other tokens than pi, so pi / mu is not 1 for equal models. Training
        would need the sampling masks (DeepSeek-AI, "DeepSeek-V3.2: Pushing the Frontier of Open Large Language Models", "Keep
        Sampling Mask", 2025), as large as the vocabulary for each token.
        """
        sampling, setting = self.sampling, f"{self.stage}.sampling"
        if sampling.truncates:
            raise ValueError(
                f"{setting}.top_p={sampling.top_p}, top_k={sampling.top_k}, min_p={sampling.min_p}: the learner's "
                f"probabilities are not truncated, so their ratio would be wrong; remove them and lower "
                f"{setting}.temperature"
            )
        if sampling.greedy:
            raise ValueError(
                f"{setting}.temperature=0: all answers to a task would be the same, with probability 1; set it above 0"
            )
        if sampling.max_tokens is not None:
            raise ValueError(
                f"{setting}.max_tokens={sampling.max_tokens}: rewards and masks of truncated answers use the limit of a turn; "
                f"set rollout.limits.turn_tokens"
            )

    @property
    def updates(self) -> int:
        return self.updates_per_step * self.epochs

    @property
    def slots(self) -> int:
        """Groups in flight at once."""
        beyond = self.max_lag if self.over_sampling is None else self.over_sampling
        return self.groups_per_step + (max(1, round(beyond * self.groups_per_step)) if beyond else 0)

    @property
    def answers_per_step(self) -> int:
        return self.groups_per_step * self.group_size


@dataclass(frozen=True, kw_only=True)
class RlConfig(LoopConfig):
    """Reinforcement learning on the mixture of environments."""

    stage: ClassVar[str] = "rl"
    min_answers: ClassVar[int] = 2

    thinking: NestedThinkingMix = field(default_factory=NestedThinkingMix)
    """Shares of the thinking modes among the tasks. The answers to a task share its mode."""
    max_replaced_groups: int = scheduled(64)
    """Most groups with zero advantage that are replaced in a step (dynamic sampling). Their rewards before shaping are all
    equal. reinforce_pp and reinforce_pp_baseline train them. A custom advantage decides itself. 0 replaces none, so that
    length rewards act in groups of right answers too."""
    shaping: ShapingConfig = field(default_factory=ShapingConfig)
    """Rewards for short reasoning and answers."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self._check_nested_budgets()
        if self.loss.objective != "policy":
            other = "sft or rft" if self.loss.objective == "nll" else self.loss.objective
            raise ValueError(
                f"rl.loss.objective={self.loss.objective} ignores rewards; set policy, or use the stage {other} in `stages` "
                f"for that objective"
            )

    def _check_nested_budgets(self) -> None:
        """Raise `ValueError` for weights of other budgets, and for settings that would mix the rewards of different budgets."""
        nested, loss, shaping = self.thinking.nested_budgets, self.loss, self.shaping
        budgets, weights = f"rl.thinking.nested_budgets={nested}", loss.nested_weights
        if weights and len(weights) != len(nested) + 1:
            raise ValueError(
                f"rl.loss.nested_weights={weights} with {budgets}: give a weight for each budget, and a last one for no budget"
            )
        if not nested:
            return
        if loss.advantage == "grpo" or is_custom(loss.advantage):
            raise ValueError(
                f"{budgets} with rl.loss.advantage={loss.advantage}: its advantages have another scale than rewards; set rloo, "
                f"dr_grpo or reinforce_pp_baseline"
            )
        if shaping.thinking_length or shaping.answer_length:
            raise ValueError(
                f"{budgets} with rl.shaping.thinking_length={shaping.thinking_length} and answer_length="
                f"{shaping.answer_length}: these do not apply to forced answers; set solve_rate_penalty or accuracy_margin"
            )


@dataclass(frozen=True, kw_only=True)
class DistillConfig(LoopConfig):
    """On-policy distillation: a teacher scores each token that the model samples. Rewards are only measured."""

    stage: ClassVar[str] = "distill"

    teacher: ModelSource | None = immutable(None)
    """A model with the same tokenizer vocabulary, a directory or a name on the hub. It stays frozen in memory with the model.
    """
    loss: LossConfig = field(default_factory=lambda: LossConfig(objective="distill", kl="k1"))
    """As for rl. `kl` is the estimate of the metric train/kl, in nats a token."""
    bands: BandsConfig = field(default_factory=lambda: BandsConfig(nonzero_advantage=Band()))  # rewards are not trained
    """Bands of step metrics. A metric outside raises an alarm."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.loss.objective != "distill":
            raise ValueError(f"distill.loss.objective={self.loss.objective} must be distill")
        loss, usual = self.loss, LossConfig()
        for name, value, without in (
            ("advantage", loss.advantage, usual.advantage),
            ("malformed_thinking", loss.malformed_thinking, usual.malformed_thinking),
            ("invalid_call", loss.invalid_call, usual.invalid_call),
            ("kl_coefficient", loss.kl_coefficient, usual.kl_coefficient),
        ):
            if value != without:
                raise ValueError(
                    f"distill.loss.{name}={value} has no effect, since a teacher scores the tokens; remove it"
                )

    def teacher_dir(self) -> Path:
        """Return the folder of the teacher. Raise `ValueError` without one."""
        if self.teacher is None:
            raise ValueError(
                "the stage distill needs distill.teacher: a model directory with the model's own tokenizer"
            )
        return self.teacher.folder
