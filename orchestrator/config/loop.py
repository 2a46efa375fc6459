"""What a stage that runs the loop can be told: its common settings, and those of reinforcement learning."""

from dataclasses import dataclass, field, replace
from typing import ClassVar

from temper.envs.core.bounds import fraction
from temper.envs.core.setting import free, immutable, scheduled
from temper.envs.core.thinking_mode import ThinkingMix
from temper.learner.config import OptimConfig
from temper.learner.losses.advantages import NORMALISED_OVER_BATCH
from temper.learner.losses.config import LossConfig
from temper.learner.losses.custom_functions import is_custom
from temper.orchestrator.loop.shaping import ShapingConfig
from temper.orchestrator.loop.watches import Band, BandsConfig
from temper.rollout.sampling import Sampling


@dataclass(frozen=True, kw_only=True)
class LoopConfig:
    """A stage in which the model samples answers and is trained on them. `stage` is its name, also in messages."""

    stage: ClassVar[str]
    min_answers: ClassVar[int] = 1
    """Answers to a task without which there is nothing to learn from it."""

    steps: int = scheduled(100, unit="steps")
    """Steps: batches that are sampled and trained on, each followed by a push of the weights."""
    groups_per_step: int = scheduled(24)
    """Groups that are trained on in a step."""
    group_size: int = scheduled(8)
    """Answers to each task."""
    updates_per_step: int = immutable(1, unit="steps")
    """Optimiser steps that a batch is split into: mini-batches of whole groups, or of answers where groups are too few."""
    epochs: int = immutable(1)
    """How often a batch is gone over, each time split into other mini-batches; updates_per_step times epochs are the optimiser
    steps of a step. If both are above 1, the pass for the old policy's log-probabilities is made once for each epoch."""
    shares: dict[str, float] = scheduled({}, unit="share")
    """Shares of environments in this stage, where they differ from `envs.NAME.share`."""
    thinking: ThinkingMix = field(default_factory=ThinkingMix)
    """Shares of the modes of thinking among the tasks; the answers to one task share its mode."""
    max_lag: int = scheduled(1)
    """How many versions a group may be behind when it is trained on; 0 is synchronous. From 2 on the loss needs a bound on
    old data: token_range, sequence_range, old_policy rollout, or several updates a step."""
    over_sampling: float | None = scheduled(None, unit="share")
    """Groups in flight beyond those of a step, as a share of groups_per_step; null is max_lag. Where it is below max_lag a step
    takes the first that are finished, and the slowest go on into later ones, up to max_lag versions behind (partial rollouts);
    the mean lag is at most this, or that of one group where it is less than one."""
    max_failures: float = free(0.5, unit="share")
    """Highest share of failed episodes of one environment over its last 64; above it the run halts."""
    checkpoint_every: int = free(25, unit="steps")
    """Steps between checkpoints; the last step always has one."""
    eval_every: int = free(0, unit="steps")
    """Steps between evaluations of the weights on held-out tasks while the stage goes on; before its first step and after its
    last one too. 0 makes none."""
    eval_tasks: int = scheduled(64)
    """Held-out tasks of each environment in these evaluations, the same ones each time."""
    eval_samples: int = scheduled(1)
    """Answers to each of these tasks."""
    eval_sampling: Sampling = field(default_factory=Sampling)
    """How these answers are drawn."""
    sampling: Sampling = field(default_factory=Sampling)
    """How the answers that are trained on are drawn: temperature and stop alone. The learner computes pi at the same
    temperature, and so a reference and a teacher. A turn that a text of `stop` ended is trained as it was sampled: the end of a
    turn is neither taught nor unlearnt by it."""
    timeout_s: float = free(300.0, unit="seconds")
    """Deadline of each wait in the loop, in seconds: for the next group to be finished, or for the learner's step."""
    bands: BandsConfig = field(default_factory=BandsConfig)
    """Where some numbers should be; outside there is an alarm."""
    loss: LossConfig = field(default_factory=LossConfig)
    optim: OptimConfig = field(default_factory=OptimConfig)

    def __post_init__(self) -> None:
        stage = self.stage
        fraction(f"{stage}.max_failures", self.max_failures)
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
                f"{stage}.thinking.budget={self.thinking.budget} without budgets: give {stage}.thinking.budgets, for "
                f"example [16, 32], or budget_range"
            )
        if not 1 <= self.updates_per_step <= self.answers_per_step or self.epochs < 1:
            raise ValueError(
                f"{stage}.updates_per_step={self.updates_per_step} must lie between 1 and the {self.answers_per_step} answers "
                f"of a step, epochs={self.epochs} must be at least 1"
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
                f"{stage}.over_sampling={self.over_sampling} must be above 0 and at most {stage}.max_lag={self.max_lag}, the "
                f"versions within which all that is in flight has to be trained on; raise max_lag, or take null"
            )

    @property
    def watched_bands(self) -> BandsConfig:
        """The bands; where groups of equal rewards teach too, that of the signal has no bound unless one is given."""
        advantage, usual = self.loss.advantage, BandsConfig().nonzero_advantage
        equal_teach = advantage in NORMALISED_OVER_BATCH or is_custom(advantage)
        return (
            replace(self.bands, nonzero_advantage=Band())
            if equal_teach and self.bands.nonzero_advantage == usual
            else self.bands
        )

    def _require_clips_act(self) -> None:
        """Raise `ValueError` where a clip is set, or a surrogate chosen for its clip, and the policy ratio is 1 throughout."""
        stage, loss = self.stage, self.loss
        clips = {"clip_low": loss.clip_low, "clip_high": loss.clip_high, "dual_clip": loss.dual_clip or None}
        chosen = [f"{stage}.loss.{name}={value}" for name, value in clips.items() if value is not None]
        if loss.surrogate in ("gspo", "cispo", "decoupled"):
            chosen.append(f"{stage}.loss.surrogate={loss.surrogate}")
        if self.updates > 1 or loss.against_rollout or is_custom(loss.surrogate) or not (chosen and loss.is_sampled):
            return
        rollout = "" if loss.decoupled else f"or {stage}.loss.old_policy=rollout (the ratio to the sampling policy), "
        raise ValueError(
            f"{' and '.join(chosen)} can't act: a batch makes one update, and the ratio to the trainer before it is 1; set "
            f"{stage}.updates_per_step or {stage}.epochs above 1, {rollout}or leave it out"
        )

    def _check_sampling(self) -> None:
        """Raise `ValueError` for sampling from which nothing can be learnt by ratios of probabilities.

        A truncated distribution mu is normalised over other tokens than pi, so pi / mu is not 1 for equal models. It would have
        to be trained under the masks of the sampling (DeepSeek-AI, "DeepSeek-V3.2: Pushing the Frontier of Open Large Language
        Models", "Keep Sampling Mask", 2025), which are as large as the vocabulary for each token.
        """
        sampling, setting = self.sampling, f"{self.stage}.sampling"
        if sampling.truncates:
            raise ValueError(
                f"{setting}.top_p={sampling.top_p}, top_k={sampling.top_k}, min_p={sampling.min_p}: what is left out of "
                f"sampling is not left out of the learner's probabilities, and their ratio would mean nothing; leave them out "
                f"and lower {setting}.temperature"
            )
        if sampling.greedy:
            raise ValueError(
                f"{setting}.temperature=0: a token that is certain has no probability to be trained, and all answers to a task "
                f"would be the same; set it above 0"
            )
        if sampling.max_tokens is not None:
            raise ValueError(
                f"{setting}.max_tokens={sampling.max_tokens}: what shapes rewards and masks answers that were cut off goes by "
                f"the limit of a turn; set rollout.limits.turn_tokens"
            )

    @property
    def updates(self) -> int:
        return self.updates_per_step * self.epochs

    @property
    def slots(self) -> int:
        """Groups that are in flight at once."""
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

    max_replaced_groups: int = scheduled(64)
    """Most groups without signal that are dropped and replaced in a step: those of equal rewards before shaping, but for
    reinforce_pp and reinforce_pp_baseline, which learn from them, and by an advantage of one's own those that it gives nothing
    but 0. 0 drops none, so that rewards for length act in groups that are all right too."""
    shaping: ShapingConfig = field(default_factory=ShapingConfig)
    """Rewards for short thoughts and answers."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.loss.objective != "policy":
            other = "sft or rft" if self.loss.objective == "nll" else self.loss.objective
            raise ValueError(
                f"rl.loss.objective={self.loss.objective} ignores the rewards; take policy, and name the stage {other} in "
                f"`stages` for that objective"
            )
