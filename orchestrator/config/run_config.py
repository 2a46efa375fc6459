"""Settings of a run outside of its stages. Every stage may read them."""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from temper.envs.config import EnvConfig
from temper.envs.core.bounds import (
    SettingError,
    refuse_variable,
    require_choice,
    require_not_negative,
    require_positive,
)
from temper.envs.core.setting import Kind, free, immutable, required, scheduled
from temper.envs.sandbox.sandbox import SandboxConfig
from temper.learner.config import LearnerConfig
from temper.learner.models.config import FreshModelConfig
from temper.orchestrator.config.model_source import ModelSource
from temper.orchestrator.config.text import packaged_file
from temper.orchestrator.loop.deadline import DeadlineConfig
from temper.orchestrator.run.checkpoint import CheckpointConfig
from temper.orchestrator.tracking.sinks.config import SINKS, WandbConfig
from temper.rollout.config import RolloutConfig
from temper.rollout.declared_turns import DeclaredTurns
from temper.rollout.engines.config import HEAD_DTYPE

if TYPE_CHECKING:
    from temper.envs.binding import BoundEnv

ProfileName = Literal[
    "auto", "cpu", "gpu16", "gpu24", "gpu32", "gpu40", "gpu48", "gpu80", "gpu96", "gpu141", "gpu180", "gpu270"
]
"""auto asks the cluster. The others name CPUs, or GPUs by their memory in GiB."""

Placement = Literal["dedicated", "colocated"]
"""dedicated: each engine and each rank has its own devices. colocated: an engine and a rank share devices, in phases."""


@dataclass(frozen=True, kw_only=True)
class ResolvedProfile:
    """Settings that a profile resolved. A run records them in its `config.yaml` and keeps them. You need not set them."""

    profile: ProfileName = free("auto")
    """The profile that was used; auto for none."""
    hardware: str = free("")
    """Hardware of the cluster, as text."""
    placement: Placement = free("dedicated")
    """The placement that was used."""
    idle_gpus: int = free(0)
    """GPUs without a process of the run."""
    settings: dict[str, Any] = free({})
    """The resolved settings by key, without user-set ones and defaults."""


@dataclass(frozen=True, kw_only=True)
class SupervisionConfig:
    """Supervision of the run's processes. A stuck process is inspected, ended and replaced."""

    heartbeat_s: float = free(2.0, unit="seconds")
    """Seconds between heartbeats of every process, and between updates of status.json."""
    silent_s: float = free(60.0, unit="seconds")
    """Seconds without an answer until a process counts as hung. An engine answers between its passes, so set more than one
    pass takes."""
    stalled_s: float = free(180.0, unit="seconds")
    """Seconds without progress until a working process counts as hung. Progress is a pass of the engine, a micro-batch, or a
    finished call of an environment. Set less than the deadlines of stages such as rl.timeout_s, or a hang ends the run."""
    restarts: int = free(3)
    """Restarts of each rollout worker, of the learner and of each judge's server within `window_s`. One more failure ends
    the run."""
    window_s: float = free(1800.0, unit="seconds")
    """Seconds over which restarts count."""

    def __post_init__(self) -> None:
        require_positive("supervision.heartbeat_s", self.heartbeat_s)
        require_positive("supervision.stalled_s", self.stalled_s)
        require_positive("supervision.window_s", self.window_s)
        require_not_negative("supervision.restarts", self.restarts)
        if self.silent_s <= self.heartbeat_s:
            raise ValueError(
                f"supervision.silent_s={self.silent_s} must be above supervision.heartbeat_s={self.heartbeat_s}, the time "
                f"between two heartbeats"
            )


USUAL_STAGES: list[Any] = ["init", "eval", "sft", "eval", "rl", "eval", "report"]


@dataclass(frozen=True, kw_only=True)
class ModelConfig:
    """The first model of the run."""

    path: str | None = immutable(None)
    """A Hugging Face causal model directory, its name on the hub, or a GGUF file, which the run converts: its path,
    or `package:NAME` of an installed package. null creates a small hybrid model of the shape below."""
    revision: str | None = immutable(None)
    """Commit, tag or branch of a name on the hub; null is the newest commit at the start of the run."""
    chat_template: str | None = immutable(None)
    """A file with the chat template, of yours or of the package (`configs/...`). null uses the model's own. A base model
    without one needs it."""
    end_of_turn: list[str] = immutable([])
    """Tokens that end a turn. Empty: the chat template's end of turn and the tokenizer's end of sequence."""
    thinking_tags: list[str] = immutable([])
    """Opening and closing tag of reasoning. Empty: the tags of the chat template, if any."""
    tool_calls: dict[str, Any] = immutable({})
    """Format of tool calls: `format`, the name of a known format, or a declaration in the notation of transformers' response
    templates. Empty: the known format that reads the chat template's calls, if any."""
    ema: bool = immutable(False)
    """Whether to use the moving average of a checkpoint's weights (`optim.ema_decay`). path is the checkpoint."""
    fresh: FreshModelConfig = field(default_factory=FreshModelConfig)

    def __post_init__(self) -> None:
        if self.path is not None:
            refuse_variable("model.path", self.path)
        if self.ema and self.path is None:
            raise ValueError("model.ema=true needs model.path; set it to a checkpoint, or remove model.ema")
        if self.ema and self.declares:
            raise ValueError(
                "model.ema=true: a checkpoint has its own chat template and tags; remove model.chat_template, "
                "model.end_of_turn, model.thinking_tags and model.tool_calls"
            )
        if self.declares and self.path is None:
            raise ValueError(
                "model.chat_template, model.end_of_turn, model.thinking_tags and model.tool_calls need model.path; set it, "
                "or remove them"
            )
        if self.revision is not None and self.path is None:
            raise ValueError(f"model.revision={self.revision} needs model.path; set it, or remove the revision")
        if self.thinking_tags and len(self.thinking_tags) != 2:
            raise ValueError(f"model.thinking_tags={self.thinking_tags}: give the opening and the closing tag")

    @property
    def declares(self) -> bool:
        return bool(self.chat_template or self.end_of_turn or self.thinking_tags or self.tool_calls)

    def declared(self) -> DeclaredTurns:
        """Return the declared turns. Raise `FileNotFoundError` for a missing template file."""
        template = ""
        if self.chat_template is not None:
            named = Path(self.chat_template).expanduser()
            file = packaged_file(named) or named
            if not file.is_file():
                raise FileNotFoundError(
                    f"model.chat_template={self.chat_template} is no file; name one with a chat template"
                )
            template = file.read_text(encoding="utf-8")
        tags, ends = tuple(self.thinking_tags), tuple(self.end_of_turn)
        return DeclaredTurns(chat_template=template, end_of_turn=ends, thinking_tags=tags, tool_calls=self.tool_calls)

    @property
    def source(self) -> ModelSource | None:
        """Source of the model, None for a fresh one."""
        return None if self.path is None else ModelSource(path=self.path, revision=self.revision)


@dataclass(frozen=True, kw_only=True)
class TrackingConfig:
    """The MLflow experiment and further tracking backends."""

    experiment: str = free("temper")
    """Name of the experiment."""
    uri: str | None = free(None)
    """Tracking server; null uses MLFLOW_TRACKING_URI, else a SQLite file in runs_dir."""
    trajectories: bool = free(False)
    """Upload the last trajectory files, with full prompts and answers, along with the report."""
    traces: int | None = free(None)
    """Episodes of each trajectory file that become traces, with full prompts and answers. null is 8 for a SQLite file and 0
    for a server, since they would leave this machine."""
    stages: bool = free(True)
    """Whether each stage has a nested run with its metrics, settings and duration."""

    registered_model: str | None = free(None)
    """Registered model whose newest version is the run's last checkpoint, by path without a copy. "" for none. null is
    temper-NAME for a SQLite file and none for a server, which refuses local paths."""
    system_s: float = free(30.0, unit="seconds")
    """Seconds between samples of the driver machine's CPUs, memory, GPUs and power. 0 for none."""
    also: list[str] = free([])
    """Further tracking backends: `wandb` or none."""
    wandb: WandbConfig = field(default_factory=WandbConfig)

    def __post_init__(self) -> None:
        for place in self.also:
            require_choice("tracking.also", place, SINKS)
        if len(set(self.also)) < len(self.also):
            raise ValueError(f"tracking.also={self.also}: name each place once")
        if self.traces is not None and self.traces < 0:
            raise ValueError(f"tracking.traces={self.traces} must be 0 or more episodes of a file")
        require_not_negative("tracking.system_s", self.system_s)
        name = self.registered_model
        if name and (not name.strip() or name in (".", "..") or "/" in name or ":" in name):
            raise ValueError(
                f"tracking.registered_model={name!r}: MLflow refuses names with / or :, blank names, . and ..; use "
                f"another one, such as team-math, or an empty one to register no model"
            )


NAME_BYTES = 255
"""Longest name of a folder on the usual file systems."""


@dataclass(frozen=True, kw_only=True)
class RunConfig:
    """A run without the settings of its stages."""

    name: str = field(metadata=required(Kind.FREE))
    """Name of the run and of its folder."""
    profile: ProfileName = free("auto")
    """Hardware for which unset settings are resolved. auto asks the cluster. cpu and gpu80 (GPUs of 80 GiB) name it."""
    resolved: ResolvedProfile = field(default_factory=ResolvedProfile)
    """The settings that the profile resolved, recorded by the run."""
    seed: int = immutable(1)
    """Seed of all random numbers."""
    runs_dir: str = free("runs")
    """Folder of all runs."""
    stages: list[Any] = scheduled(USUAL_STAGES)
    """Stages of the run, in order. A stage may appear several times, with a name and settings: `- rl: {name: rl_tools, steps:
    100}`. On the command line its settings are rl_tools.steps and so on."""
    placement: Placement = free("dedicated")
    """Devices of engines and ranks. dedicated: each has its own, or half of the only GPU. colocated: an engine and a rank share
    each device and work in phases. The engine sleeps while the learner works. The learner's weights and states are in main
    memory while the engine samples."""
    envs: dict[str, EnvConfig] = field(default_factory=dict)
    """Environments by id, with their shares and data. Empty if no stage needs tasks."""
    model: ModelConfig = field(default_factory=ModelConfig)
    rollout: RolloutConfig = field(default_factory=RolloutConfig)
    learner: LearnerConfig = field(default_factory=LearnerConfig)
    sandbox: SandboxConfig = field(default_factory=SandboxConfig)
    tracking: TrackingConfig = field(default_factory=TrackingConfig)
    checkpoints: CheckpointConfig = field(default_factory=CheckpointConfig)
    deadlines: DeadlineConfig = field(default_factory=DeadlineConfig)
    supervision: SupervisionConfig = field(default_factory=SupervisionConfig)

    def __post_init__(self) -> None:
        require_name(self.name)
        for name in self.envs:
            require_name(name, key="envs", blanks=False)
        refuse_variable("runs_dir", self.runs_dir)
        if self.runs_dir.startswith("~"):
            raise SettingError("runs_dir", self.runs_dir, "only a shell replaces ~; write ${oc.env:HOME}")
        if self.placement == "colocated" and self.rollout.engine.processes > 1:
            raise ValueError(
                f"rollout.engine has {self.rollout.engine.processes} processes with placement=colocated, which has one device "
                f"an engine; set tensor_parallel and pipeline_parallel to 1, or placement=dedicated"
            )

        overrides = self.rollout.engine.extra.get("hf_overrides") or {}
        if not isinstance(overrides, Mapping):
            raise SettingError(
                "rollout.engine.extra.hf_overrides", overrides, "must be a mapping of the model's config, such as {}"
            )
        if HEAD_DTYPE in overrides:
            raise ValueError(
                f"rollout.engine.extra.hf_overrides.{HEAD_DTYPE} would differ from the learner's output layer; set "
                "learner.float32_head=true, which sets both"
            )

    @cached_property
    def environments(self) -> "dict[str, BoundEnv]":
        from temper.envs.binding import bind_all  # imports gymnasium, after the settings are checked

        return bind_all(self.envs)

    @cached_property
    def judges(self) -> dict[str, ModelSource]:
        """The models that the run serves to its judges, by `judge.model`. Raise `ValueError` if one does not exist."""
        found = {}
        for name, env in self.envs.items():
            if env.judge is not None and env.judge.is_served_by_run:
                found[env.judge.model] = source = ModelSource(path=env.judge.model)
                if not (source.on_hub or source.gguf or (source.place / "config.json").is_file()):
                    raise ValueError(
                        f"envs.{name}.judge.model={source.path} is no model directory, no hub name and no package; set "
                        f"judge.url for a model on a server"
                    )
        return found

    @property
    def actors(self) -> int:
        return self.rollout.processes + self.learner.ranks


def require_name(name: str, *, key: str = "name", blanks: bool = True) -> None:
    """Raise `SettingError` with the key unless `name` can be a folder's name. Without `blanks` it may have none inside."""
    refuse_variable(key, name)
    if (size := len(os.fsencode(name))) > NAME_BYTES:
        raise SettingError(key, f"{name[:20]}...", f"has {size} bytes, and a folder's name has at most {NAME_BYTES}")
    if not name.isprintable():
        raise SettingError(key, ascii(name), "must have no control characters, and be valid UTF-8")
    plain = name == name.strip() if blanks else name.split() == [name]
    if not plain or name in ("", ".", "..") or any(mark in name for mark in ("/", "\\", "\0")):
        raise SettingError(
            key, repr(name), "must be a plain folder name, such as demo-2, without separators, and not . or .."
        )
