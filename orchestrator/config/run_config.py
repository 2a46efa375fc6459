"""The settings of a run without those of its stages, which every stage may read."""

from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

from temper.envs.binding import BoundEnv, EnvConfig, bind_all
from temper.envs.core.bounds import not_negative, one_of, positive
from temper.envs.core.setting import Kind, free, immutable, required, scheduled
from temper.envs.sandbox.sandbox import SandboxConfig
from temper.learner.config import LearnerConfig
from temper.learner.models.fresh import FreshModelConfig
from temper.orchestrator.config.model_source import ModelSource
from temper.orchestrator.loop.deadline import DeadlineConfig
from temper.orchestrator.run.checkpoint import CheckpointConfig
from temper.orchestrator.tracking.sinks.config import SINKS, TrackioConfig, WandbConfig
from temper.rollout.engines.config import HEAD_DTYPE
from temper.rollout.episodes.worker import RolloutConfig
from temper.rollout.tokenizer import DeclaredTurns

ProfileName = Literal[
    "auto", "cpu", "gpu16", "gpu24", "gpu32", "gpu40", "gpu48", "gpu80", "gpu96", "gpu141", "gpu180", "gpu270"
]
"""auto asks the cluster; the others say what it has: CPUs, or GPUs with so many GiB of memory each."""

Placement = Literal["dedicated", "colocated"]
"""dedicated: each engine and each rank has its own devices. colocated: an engine and a rank share devices, in phases."""


@dataclass(frozen=True, kw_only=True)
class ResolvedProfile:
    """What a profile set. A run writes it into its `config.yaml`, and goes on with it; nobody has to give it."""

    profile: ProfileName = free("auto")
    """The profile by which it was chosen; auto where nothing was."""
    hardware: str = free("")
    """What the cluster had, in words."""
    placement: Placement = free("dedicated")
    """The placement for which it was chosen."""
    idle_gpus: int = free(0)
    """How many of its GPUs the run leaves without a process."""
    settings: dict[str, Any] = free({})
    """The settings that were chosen, by key; those that were given, or are as they are without being told, are not here."""


@dataclass(frozen=True, kw_only=True)
class SupervisionConfig:
    """How the processes of a run are watched. One that is stuck is looked at, ended, and replaced as a dead one is."""

    heartbeat_s: float = free(2.0, unit="seconds")
    """Seconds between two looks at every process, and between two writings of status.json."""
    silent_s: float = free(60.0, unit="seconds")
    """Seconds without an answer after which a process counts as hung. An engine answers between its passes: longer than one
    of these may take."""
    stalled_s: float = free(180.0, unit="seconds")
    """Seconds after which a process that answers counts as hung, if it is at work and gets nothing done: no pass of the
    engine, no micro-batch, no call of an environment that has ended or has time left. Below the deadlines of stages, such as
    rl.timeout_s: a hang that is found later ends the run."""
    restarts: int = free(3)
    """How often a rollout worker, each by itself, and likewise the learner is started anew within `window_s`; one more death in
    its place ends the run."""
    window_s: float = free(1800.0, unit="seconds")
    """The seconds over which restarts are counted."""

    def __post_init__(self) -> None:
        positive("supervision.heartbeat_s", self.heartbeat_s)
        positive("supervision.stalled_s", self.stalled_s)
        positive("supervision.window_s", self.window_s)
        not_negative("supervision.restarts", self.restarts)
        if self.silent_s <= self.heartbeat_s:
            raise ValueError(
                f"supervision.silent_s={self.silent_s} must be above supervision.heartbeat_s={self.heartbeat_s}: a process is "
                f"asked once in that time"
            )


USUAL_STAGES: list[Any] = ["init", "eval", "sft", "eval", "rl", "eval", "report"]


@dataclass(frozen=True, kw_only=True)
class ModelConfig:
    """Which model the run starts from."""

    path: str | None = immutable(None)
    """A Hugging Face causal model directory, its name on the hub, or a GGUF file, which is converted into the run's folder;
    null makes a fresh small hybrid of the shape below."""
    revision: str | None = immutable(None)
    """Commit, tag or branch of a name on the hub; null is its newest state when the run begins."""
    chat_template: str | None = immutable(None)
    """A file with the chat template; null takes the model's own. A base model that has none needs it."""
    end_of_turn: list[str] = immutable([])
    """Tokens that end a turn; empty: what the chat template writes behind one, and the tokenizer's end of a sequence."""
    thinking_tags: list[str] = immutable([])
    """What opens and what closes a thought; empty: as the chat template writes one, if it does."""
    tool_calls: dict[str, Any] = immutable({})
    """How tool calls are written: `format`, the name of a known format, or a declaration of one in the notation of
    transformers' response templates. Empty: as the chat template writes one, if a known format reads that."""
    fresh: FreshModelConfig = field(default_factory=FreshModelConfig)

    def __post_init__(self) -> None:
        if self.declares and self.path is None:
            raise ValueError(
                "model.chat_template, model.end_of_turn, model.thinking_tags and model.tool_calls are for the model of "
                "model.path; without a path leave them out"
            )
        if self.revision is not None and self.path is None:
            raise ValueError(f"model.revision={self.revision} is that of model.path, which is not given")
        if self.thinking_tags and len(self.thinking_tags) != 2:
            raise ValueError(f"model.thinking_tags={self.thinking_tags}: give what opens a thought, and what closes it")

    @property
    def declares(self) -> bool:
        return bool(self.chat_template or self.end_of_turn or self.thinking_tags or self.tool_calls)

    def declared(self) -> DeclaredTurns:
        """Return what it says of the model's turns. Raise `FileNotFoundError` where the template's file is not there."""
        template = ""
        if self.chat_template is not None:
            file = Path(self.chat_template).expanduser()
            if not file.is_file():
                raise FileNotFoundError(
                    f"model.chat_template={self.chat_template} is no file; name one with a chat template"
                )
            template = file.read_text(encoding="utf-8")
        tags, ends = tuple(self.thinking_tags), tuple(self.end_of_turn)
        return DeclaredTurns(chat_template=template, end_of_turn=ends, thinking_tags=tags, tool_calls=self.tool_calls)

    @property
    def source(self) -> ModelSource | None:
        """Where the model comes from; None for a fresh one."""
        return None if self.path is None else ModelSource(path=self.path, revision=self.revision)


@dataclass(frozen=True, kw_only=True)
class TrackingConfig:
    """The MLflow experiment, and further places to which a run reports."""

    experiment: str = free("temper")
    """Name of the experiment."""
    uri: str | None = free(None)
    """Tracking server; null takes MLFLOW_TRACKING_URI, else a SQLite file beside the runs."""
    trajectories: bool = free(False)
    """Whether the last files of trajectories, prompts and answers in full, are uploaded beside the report."""
    traces: int | None = free(None)
    """Episodes of each file of trajectories that are shown as traces, prompts and answers in full; null is 8 in a SQLite file,
    and 0 at a server, since they would leave this machine."""
    stages: bool = free(True)
    """Whether each stage has a nested run of its own, with its metrics a second time, its settings and its duration."""

    registered_model: str | None = free(None)
    """Name of the registered model of which the run's last checkpoint becomes the newest version, by its path: nothing is
    copied; empty for none. null is temper-NAME in a SQLite file and none at a server, which refuses paths of machines."""
    system_s: float = free(30.0, unit="seconds")
    """Seconds between two looks at processors, memory, GPUs and power of the driver's machine; 0 for none."""
    also: list[str] = free([])
    """Where the run reports beside MLflow: wandb, trackio or both."""
    wandb: WandbConfig = field(default_factory=WandbConfig)
    trackio: TrackioConfig = field(default_factory=TrackioConfig)

    def __post_init__(self) -> None:
        for place in self.also:
            one_of("tracking.also", place, SINKS)
        if len(set(self.also)) < len(self.also):
            raise ValueError(f"tracking.also={self.also}: name each place once")
        if self.traces is not None and self.traces < 0:
            raise ValueError(f"tracking.traces={self.traces}: give how many episodes of a file are shown, 0 for none")
        not_negative("tracking.system_s", self.system_s)
        name = self.registered_model
        if name and (not name.strip() or name in (".", "..") or "/" in name or ":" in name):
            raise ValueError(
                f"tracking.registered_model={name!r}: MLflow takes no name with / or : in it, none of blanks alone, and "
                f"neither . nor ..; give another one, such as team-math, or an empty one to register no model"
            )


@dataclass(frozen=True, kw_only=True)
class RunConfig:
    """A run without the settings of its stages."""

    name: str = field(metadata=required(Kind.FREE))
    """Name of the run and of its folder."""
    profile: ProfileName = free("auto")
    """What the settings that depend on the hardware are chosen for, where they are not given: auto asks the cluster, cpu and
    gpu80 (GPUs of 80 GiB) say what it has."""
    resolved: ResolvedProfile = field(default_factory=ResolvedProfile)
    """What the profile set, as the run recorded it."""
    seed: int = immutable(1)
    """Everything random derives from it."""
    runs_dir: str = free("runs")
    """Folder that holds the runs."""
    stages: list[Any] = scheduled(USUAL_STAGES)
    """What the run does, in order. A stage may stand several times, with a name and settings of its own:
    `- rl: {name: rl_tools, steps: 100}`, whose settings the command line calls rl_tools.steps and so on."""
    placement: Placement = free("dedicated")
    """Devices of engines and ranks. dedicated: each has its own, or half of the only GPU. colocated: an engine and a rank share
    each device and work in phases. The engine sleeps while the learner works. The learner's weights and states are in main
    memory while the engine samples."""
    envs: dict[str, EnvConfig] = field(default_factory=dict)
    """The environments by id, with their shares and data; none where no stage takes tasks of them."""
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
        if self.placement == "colocated" and self.rollout.engine.processes > 1:
            raise ValueError(
                f"rollout.engine: an engine of {self.rollout.engine.processes} processes with placement=colocated: it has one "
                f"device, that of its rank; set tensor_parallel and pipeline_parallel to 1, or placement=dedicated"
            )

        if HEAD_DTYPE in self.rollout.engine.extra.get("hf_overrides", {}):
            raise ValueError(
                f"rollout.engine.extra.hf_overrides.{HEAD_DTYPE}: the learner's output layer would compute in another type; "
                "set learner.float32_head=true, which sets both"
            )

    @cached_property
    def environments(self) -> dict[str, BoundEnv]:
        return bind_all(self.envs)

    @property
    def actors(self) -> int:
        return self.rollout.processes + self.learner.ranks


def require_name(name: str) -> None:
    if not name or name in (".", "..") or any(mark in name for mark in ("/", "\\", "\0")) or name != name.strip():
        raise ValueError(
            f"name={name!r} must be a plain folder name, such as demo-2: no path, no separator, not . or .."
        )
