"""The configuration of a run: composed here, each part declared beside the code it configures. OmegaConf stays here."""

import math
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import yaml
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from envs.catalog import configured
from envs.sandbox import SandboxConfig
from envs.setting import Kind, identity, kinds, required, running, scheduled
from envs.source import EnvConfig
from learner.bounds import fraction
from learner.config import LearnerConfig, OptimConfig, require_together
from learner.fresh_model import FreshModelConfig
from orchestrator.distillation import DistillConfig
from orchestrator.loop_config import LoopConfig, RlConfig
from orchestrator.own_answers import SelfSftConfig
from orchestrator.preferences import DpoConfig
from orchestrator.redaction import blanks, redacted, reference
from orchestrator.row_intake import require_positive
from orchestrator.sft_data import DEMONSTRATED, SftDataConfig
from orchestrator.shaping import require_buffer_fits
from rollout.worker import RolloutConfig

STAGES = ("init", "sft", "self_sft", "dpo", "rl", "distill", "eval", "report")


@dataclass(frozen=True, kw_only=True)
class ModelConfig:
    """Which model the run starts from."""

    path: str | None = identity(None)
    """A Hugging Face causal model directory; null makes a fresh small hybrid of the shape below."""
    fresh: FreshModelConfig = field(default_factory=FreshModelConfig)


@dataclass(frozen=True, kw_only=True)
class SftConfig:
    """Supervised fine-tuning on demonstrations, or on chat files."""

    steps: int = scheduled(300)
    """Optimiser steps."""
    batch_size: int = identity(64)
    """Samples in a step."""
    data: str | None = identity(None)
    """A JSONL file with `messages` in each row; null takes the environments' own demonstrations."""
    on_error: str = identity("raise")
    """What a malformed or too long row does, and a too long demonstration: raise, or skip (counted and reported)."""
    max_tokens: int | None = identity(None)
    """Longest sample, in tokens; nothing is cut. Null: the positions that the model's configuration names."""
    shares: dict[str, float] = scheduled({})
    """Shares of environments in this stage, where they differ from `envs.ID.share`."""
    thoughts: SftDataConfig = field(default_factory=SftDataConfig)
    """What is done to the thoughts."""
    checkpoint_every: int = running(200)
    """Steps between checkpoints; the last step always has one."""
    optim: OptimConfig = field(default_factory=OptimConfig)

    def __post_init__(self) -> None:
        if self.steps < 1 or self.batch_size < 1 or self.checkpoint_every < 1:
            raise ValueError(
                f"sft.steps={self.steps}, batch_size={self.batch_size} and "
                f"checkpoint_every={self.checkpoint_every} must be at least 1"
            )
        if self.on_error not in ("raise", "skip"):
            raise ValueError(f"sft.on_error={self.on_error!r} must be raise or skip")
        require_positive("sft.max_tokens", self.max_tokens)

    @property
    def modes(self) -> SftDataConfig:
        """What is done to the thoughts of the stage's samples."""
        if self.data is not None or self.thoughts.thinking is not None:
            return self.thoughts
        return replace(self.thoughts, thinking=DEMONSTRATED)


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
    """Whether the tasks are also answered with reasoning off."""
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
    stages: list[str] = scheduled(["init", "eval", "sft", "eval", "rl", "eval", "report"])
    """What the run does, in order; `eval` may stand several times."""
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

    def __post_init__(self) -> None:
        for stage in self.stages:
            if stage not in STAGES:
                raise ValueError(f"stages: {stage!r} is no stage; there are {', '.join(STAGES)}")
            self.require_stage(stage)
        if not self.envs:
            raise ValueError("envs is empty: name at least one environment, for example `envs: {math: {share: 1.0}}`")
        for name, env in self.envs.items():
            configured(env.kind or name, env.options)
        trained: dict[str, SftConfig | SelfSftConfig | DpoConfig | LoopConfig] = {
            "sft": self.sft,
            "self_sft": self.self_sft,
            "dpo": self.dpo,
            "rl": self.rl,
            "distill": self.distill,
        }
        for stage, part in trained.items():
            require_together(part.optim, self.learner)
            for env_id, share in part.shares.items():
                if env_id not in self.envs:
                    raise ValueError(f"{stage}.shares.{env_id}: not among the run's envs, {', '.join(self.envs)}")
                if not share >= 0:
                    raise ValueError(f"{stage}.shares.{env_id}={share} must be 0 or more")
        if not self.name or "/" in self.name:
            raise ValueError(f"name={self.name!r} must be a plain folder name")
        for stage, size in (
            ("sft", self.sft.batch_size),
            ("self_sft", self.self_sft.batch_size),
            ("dpo", self.dpo.batch_size),
        ):
            if size % self.learner.ranks:
                raise ValueError(
                    f"{stage}.batch_size={size} can't be shared by learner.ranks={self.learner.ranks}; "
                    f"take a multiple of the ranks"
                )
        require_buffer_fits(self.rl.shaping, turn_tokens=self.rollout.limits.turn_tokens)
        for loop in (self.rl, self.distill):
            require_room(loop.thinking.largest_budget if loop.thinking.budget else None, self.rollout)
            if loop.answers_per_step < self.learner.ranks:
                raise ValueError(
                    f"{loop.stage}: {loop.answers_per_step} answers in a step can't be shared by "
                    f"learner.ranks={self.learner.ranks}"
                )
        require_room(max(self.eval.budgets, default=None), self.rollout)

    @property
    def actors(self) -> int:
        """How many processes generate and train."""
        return self.rollout.workers + self.learner.ranks

    def require_stage(self, stage: str) -> None:
        """Raises `ValueError` where a stage could not run, which matters only where it is to run."""
        if stage == "distill":
            self.distill.teacher_dir()


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


def load_config(path: Path, overrides: list[str]) -> Config:
    """The configuration of a YAML file with `key=value` overrides on top.

    Raises `FileNotFoundError` for a missing file and `ValueError`, with the key, the value and what would be right, for
    anything else.
    """
    if not path.is_file():
        raise FileNotFoundError(f"no configuration file {path}; shipped ones are in configs/")
    for override in overrides:
        if "=" not in override:
            raise ValueError(f"override {override!r} is not of the form key=value, for example rl.steps=10")
    try:
        given = OmegaConf.merge(OmegaConf.load(path), OmegaConf.from_dotlist(overrides))
        _require_secrets(OmegaConf.to_container(given), path)
        merged = OmegaConf.merge(OmegaConf.structured(Config), given)
        config = OmegaConf.to_object(merged)
    except yaml.YAMLError as error:
        raise ValueError(f"{path} is not valid YAML: {error}") from error
    except OmegaConfBaseException as error:
        raise ValueError(_explain(error)) from error
    assert isinstance(config, Config)
    return config


def save_config(config: Config, path: Path) -> None:
    """Write the resolved configuration as YAML, without its secrets."""
    shown = redacted(_plain(config), hidden=reference)
    path.write_text(OmegaConf.to_yaml(OmegaConf.create(shown)), encoding="utf-8")


def flat_config(config: Config) -> dict[str, str]:
    """The configuration as `dotted.key: value` without its secrets, for the tracker and for comparison."""
    return dict(_flatten(redacted(_plain(config)), ""))


def _plain(config: Config) -> Any:
    return OmegaConf.to_container(OmegaConf.structured(config))


def _require_secrets(given: Any, path: Path) -> None:
    """Raises `ValueError` where a run's own file is used and a secret in it was blanked."""
    if missing := blanks(given):
        raise ValueError(
            f"{path} holds a run's configuration without its secrets: give {', '.join(missing)} again, best as "
            f"'{missing[0]}=${{oc.env:NAME}}' from the environment variable NAME"
        )


def _flatten(value: Any, prefix: str) -> list[tuple[str, str]]:
    if isinstance(value, dict):
        return [pair for key, inner in value.items() for pair in _flatten(inner, f"{prefix}.{key}" if prefix else key)]
    return [(prefix, str(value))]


def _explain(error: OmegaConfBaseException) -> str:
    """OmegaConf's first line, with the nearest existing keys where the key is unknown."""
    first = str(error).splitlines()[0]
    known = getattr(error, "object_type", None)
    fields = list(getattr(known, "__dataclass_fields__", {}))
    near = get_close_matches(str(error.key), fields, n=1)
    hint = f"; did you mean {near[0]!r}?" if near else f"; known keys are {', '.join(fields)}" if fields else ""
    return f"configuration key {error.full_key or error.key}: {first}{hint}"
