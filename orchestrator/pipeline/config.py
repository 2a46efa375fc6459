"""The configuration of a run: composed here, each part declared beside the code it configures."""

import math
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from envs.core.bounds import fraction
from envs.core.setting import Kind, identity, kinds, required, running, scheduled
from envs.sandbox.sandbox import SandboxConfig
from envs.source import EnvConfig, env_named
from learner.config import LearnerConfig, require_together
from learner.models.fresh import FreshModelConfig
from orchestrator.deadline import DeadlineConfig
from orchestrator.settings.distillation import DistillConfig
from orchestrator.settings.loop import LoopConfig, RlConfig
from orchestrator.pipeline.stage_list import Stage, instances, with_settings
from orchestrator.settings.supervised import DpoConfig, SelfSftConfig, SftConfig
from orchestrator.settings.text import flat_text, read_text, typed, write_text
from orchestrator.shaping import require_buffer_fits
from rollout.episodes.worker import RolloutConfig

STAGES_USUAL: list[Any] = ["init", "eval", "sft", "eval", "rl", "eval", "report"]


@dataclass(frozen=True, kw_only=True)
class ModelConfig:
    """Which model the run starts from."""

    path: str | None = identity(None)
    """A Hugging Face causal model directory; null makes a fresh small hybrid of the shape below."""
    fresh: FreshModelConfig = field(default_factory=FreshModelConfig)


@dataclass(frozen=True, kw_only=True)
class EvalConfig:
    """Evaluation on held-out tasks."""

    tasks: int = scheduled(64)
    """Held-out tasks of each environment."""
    samples: int = scheduled(4)
    """Answers to each task, the k of avg@k and pass@k."""
    timeout_s: float = running(600.0)
    """Deadline of answering the tasks once, in seconds; where they are answered under n budgets at once, n times that."""
    max_failures: float = running(0.5)
    """Highest share of failed episodes of one environment over its last 64, or over all; above it the stage ends."""
    budgets: list[int] = scheduled([])
    """Thinking budgets in tokens under which the same tasks are answered once more each."""
    budget_shares: list[float] = scheduled([])
    """Further budgets, as shares of the environment's median thought without a limit in the same evaluation."""
    no_thought: bool = scheduled(False)
    """Whether the tasks are also answered with thinking off."""
    low_effort: bool = scheduled(False)
    """Whether the tasks are also answered where the prompt asks for little thought."""

    def __post_init__(self) -> None:
        if self.tasks < 1 or self.samples < 1:
            raise ValueError(f"eval.tasks={self.tasks} and eval.samples={self.samples} must be at least 1")
        fraction("eval.max_failures", self.max_failures)
        for budget in self.budgets:
            if budget < 0:
                raise ValueError(f"eval.budgets has {budget}: a budget must be 0 or more tokens")
        for share in self.budget_shares:
            if not 0 < share < math.inf:
                raise ValueError(f"eval.budget_shares has {share}: a share of the median thought must be above 0")

    @property
    def has_curve(self) -> bool:
        """Whether there is more to measure than answers after unlimited thought."""
        return bool(self.budgets or self.budget_shares or self.no_thought or self.low_effort)


@dataclass(frozen=True, kw_only=True)
class TrackingConfig:
    """The MLflow experiment."""

    experiment: str = running("temper")
    """Name of the experiment."""
    uri: str | None = running(None)
    """Tracking server; null takes MLFLOW_TRACKING_URI, else a SQLite file beside the runs."""
    trajectories: bool = running(False)
    """Whether the last files of trajectories, prompts and answers in full, are uploaded beside the report."""


@dataclass(frozen=True, kw_only=True)
class Config:
    """A whole run."""

    name: str = field(metadata=required(Kind.RUNNING))
    """Name of the run and of its folder."""
    seed: int = identity(1)
    """Everything random derives from it."""
    runs_dir: str = running("runs")
    """Folder that holds the runs."""
    stages: list[Any] = scheduled(STAGES_USUAL)
    """What the run does, in order. A stage may stand several times, with a name and settings of its own:
    `- rl: {name: rl_tools, steps: 100}`, whose settings the command line calls rl_tools.steps and so on."""
    envs: dict[str, EnvConfig] = field(default_factory=dict)
    """The environments by id, with their shares and data."""
    model: ModelConfig = field(default_factory=ModelConfig)
    sft: SftConfig = field(default_factory=SftConfig)
    self_sft: SelfSftConfig = field(default_factory=SelfSftConfig)
    dpo: DpoConfig = field(default_factory=DpoConfig)
    rl: RlConfig = field(default_factory=RlConfig)
    distill: DistillConfig = field(default_factory=DistillConfig)
    eval: EvalConfig = field(default_factory=EvalConfig)
    rollout: RolloutConfig = field(default_factory=RolloutConfig)
    learner: LearnerConfig = field(default_factory=LearnerConfig)
    sandbox: SandboxConfig = field(default_factory=SandboxConfig)
    tracking: TrackingConfig = field(default_factory=TrackingConfig)
    deadlines: DeadlineConfig = field(default_factory=DeadlineConfig)

    def __post_init__(self) -> None:
        require_name(self.name)
        if not self.envs:
            raise ValueError("envs is empty: name at least one environment, for example `envs: {math: {share: 1.0}}`")
        for name, env in self.envs.items():
            env_named(name, env)
        given = {stage.name: self.settings(stage) for stage in self.instances if stage.given}
        for name, part in (self.sections | given).items():
            self._require_part(name, part)
        for stage in self.instances:
            if stage.name != stage.stage and stage.name in (*self.__dataclass_fields__, "metrics", "start"):
                raise ValueError(
                    f"stages: {stage.name!r} can't be the name of a stage, it means something else already"
                )
            self.require_stage(stage)

    def _require_part(self, name: str, part: Any) -> None:
        """Raises `ValueError` where the settings of a stage do not go with the rest."""
        if isinstance(part, EvalConfig):
            require_room(max(part.budgets, default=None), self.rollout)
            return
        require_together(part.optim, self.learner)
        for env_id, share in part.shares.items():
            if env_id not in self.envs:
                raise ValueError(f"{name}.shares.{env_id}: not among the run's envs, {', '.join(self.envs)}")
            if not share >= 0:
                raise ValueError(f"{name}.shares.{env_id}={share} must be 0 or more")
        if not isinstance(part, LoopConfig):
            if part.batch_size % self.learner.ranks:
                raise ValueError(
                    f"{name}.batch_size={part.batch_size} can't be shared by learner.ranks={self.learner.ranks}; "
                    f"take a multiple of the ranks"
                )
            return
        if isinstance(part, RlConfig):
            require_buffer_fits(part.shaping, turn_tokens=self.rollout.limits.turn_tokens)
        require_room(part.thinking.largest_budget if part.thinking.budget else None, self.rollout)
        if part.answers_per_step < self.learner.ranks:
            raise ValueError(
                f"{name}: {part.answers_per_step} answers in a step can't be shared by learner.ranks={self.learner.ranks}"
            )

    @property
    def sections(self) -> dict[str, Any]:
        """The settings that an instance of each stage has where its entry gives no others."""
        return {
            "sft": self.sft,
            "self_sft": self.self_sft,
            "dpo": self.dpo,
            "rl": self.rl,
            "distill": self.distill,
            "eval": self.eval,
        }

    @cached_property
    def instances(self) -> list[Stage]:
        """What `stages` lists, each with its name."""
        return instances(self.stages)

    def settings(self, stage: Stage) -> Any:
        """The settings of an instance: those of its stage, and over them those of its entry; None for a stage without any."""
        section = self.sections.get(stage.stage)
        if section is None and stage.given:
            raise ValueError(f"stages: the stage {stage.stage} takes no settings of its own, not {dict(stage.given)}")
        try:
            return typed(section, stage.given, under=f"{stage.name}.") if stage.given else section
        except ValueError as error:
            raise ValueError(f"stages, {stage.name}: {error}") from error

    @property
    def actors(self) -> int:
        """How many processes generate and train."""
        return self.rollout.workers + self.learner.ranks

    def require_stage(self, stage: Stage) -> None:
        """Raises `ValueError` where a stage could not run, which matters only where it is to run."""
        settings = self.settings(stage)
        if isinstance(settings, DistillConfig):
            settings.teacher_dir()


KINDS = kinds(Config)
"""What a change of each setting means to a run that goes on; `envs.*.share` is that of every environment."""


def require_room(budget: int | None, rollout: RolloutConfig) -> None:
    """Raises `ValueError` where an episode's tokens do not hold the largest budget and an answer."""
    if budget is None:
        return
    answer = rollout.thought.answer_tokens or rollout.limits.turn_tokens
    needed = budget + rollout.thought.grace + answer
    if needed > rollout.limits.total_tokens:
        raise ValueError(
            f"a thinking budget of {budget} tokens, {rollout.thought.grace} of grace and {answer} for "
            f"the answer do not fit into rollout.limits.total_tokens={rollout.limits.total_tokens}; raise it, or lower "
            f"the budget or rollout.thought.answer_tokens"
        )


def require_name(name: str) -> None:
    """Raises `ValueError` where a name would not be that of a folder inside of another one."""
    if not name or name in (".", "..") or any(mark in name for mark in ("/", "\\", "\0")) or name != name.strip():
        raise ValueError(
            f"name={name!r} must be a plain folder name, such as demo-2: no path, no separator, not . or .."
        )


def load_config(path: Path, overrides: list[str]) -> Config:
    """The configuration of a YAML file with `key=value` overrides on top.

    Raises `FileNotFoundError` for a missing file and `ValueError`, with the key, the value and what would be right, for
    anything else.
    """
    config = typed(Config, _by_instance(read_text(path, overrides)))
    assert isinstance(config, Config)
    return config


def save_config(config: Config, path: Path) -> None:
    """Write the resolved configuration as YAML, without its secrets."""
    write_text(config, path)


def flat_config(config: Config) -> dict[str, str]:
    """The configuration as `dotted.key: value` without its secrets, for the tracker and for comparison.

    Instances of stages stand under their names.
    """
    flat = flat_text(config) | {"stages": ", ".join(stage.name for stage in config.instances)}
    for stage in config.instances:
        if stage.given or (stage.trains and stage.name != stage.stage):
            flat |= flat_text(config.settings(stage), under=stage.name)
    return flat


def _by_instance(given: Any) -> Any:
    """What was given, with what stands under the name of an instance moved into its entry of `stages`."""
    others = {key: value for key, value in given.items() if key not in Config.__dataclass_fields__}
    if not others:
        return given
    entries, named = with_settings(given.get("stages", STAGES_USUAL), others)
    return {key: value for key, value in given.items() if key not in named} | {"stages": entries}
