"""The inputs of a profile: the given settings, and the hardware, the model and the processes of a run.

A choice sees the given settings and the choices before it. A given setting overrides a choice.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from functools import cache
from typing import Any, TypeVar, get_args

from temper.learner.config import LearnerConfig
from temper.learner.models.shape import ModelShape
from temper.orchestrator.cluster.hardware import Hardware, Machine
from temper.orchestrator.config.run_config import ProfileName, SupervisionConfig
from temper.orchestrator.config.schema import typed
from temper.orchestrator.loop.deadline import DeadlineConfig
from temper.orchestrator.pipeline.plan import instances
from temper.orchestrator.stages.stage import Stage, all_stages
from temper.rollout.episodes.worker import RolloutConfig

T = TypeVar("T", bool, int, float, str)
RawConfig = dict[str, Any]
"""A configuration as a YAML file would have it."""


@cache
def default_settings() -> RawConfig:
    """Return the defaults of the settings that a profile may choose."""
    parts: dict[str, Any] = {
        "rollout": RolloutConfig(),
        "learner": LearnerConfig(),
        "supervision": SupervisionConfig(),
        "deadlines": DeadlineConfig(),
    }
    stages = {name: stage.settings() for name, stage in all_stages().items() if stage.settings is not None}
    return {name: asdict(part) for name, part in (parts | stages).items()}


def get_value(given: Mapping[str, Any], key: str) -> Any:
    """Return the value under a dotted key; None if there is none."""
    value: Any = given
    for word in key.split("."):
        value = value.get(word) if isinstance(value, Mapping) else None
    return value


def default_value(key: str) -> Any:
    """Return the default of a setting; None for one that no profile uses."""
    return get_value(default_settings(), key)


def stages_with(setting: str) -> tuple[str, ...]:
    return tuple(name for name in all_stages() if default_value(f"{name}.{setting}") is not None)


BY_PROFILE = """
    rollout.workers rollout.limits.turn_tokens rollout.limits.total_tokens rollout.limits.timeout_s
    rollout.engine.dtype rollout.engine.max_model_len rollout.engine.max_sequences rollout.engine.batched_tokens
    rollout.engine.tensor_parallel rollout.engine.threads rollout.engine.memory_gib rollout.engine.gpu_memory_utilization
    learner.ranks learner.zero_stage learner.bf16 learner.offload learner.micro_batch_tokens learner.logit_tokens
    learner.recompute learner.threads learner.threads_during_generation learner.shared_prompts learner.wire_dtype
"""
PROFILED = (
    *BY_PROFILE.split(),
    *(f"{stage}.optim.learning_rate" for stage in stages_with("optim.learning_rate")),
    *("rl.groups_per_step", "rl.group_size"),
    *(f"{stage}.timeout_s" for stage in stages_with("timeout_s")),
    *("supervision.stalled_s", "deadlines.start_s"),
)


class ProfiledSettings:
    """A configuration that is given, and what is chosen on top of it. A choice goes by what others came to."""

    def __init__(self, given: Mapping[str, Any]) -> None:
        self._user_set = given
        self._chosen: dict[str, Any] = {}

    @property
    def resolved(self) -> dict[str, Any]:
        return {key: self.value(key) for key in PROFILED if not self.is_set(key)}

    def choose(self, key: str, value: T) -> T:
        """Choose a value for a setting, unless it is given; return its value now. A given value of a wrong type is ignored."""
        assert key in PROFILED, f"{key} is not among the settings that a profile chooses"
        given = get_value(self._user_set, key)
        if given is not None:
            return type(value)(given) if has_type_of(given, value) else value
        self._chosen[key] = value
        return value

    def value(self, key: str) -> Any:
        """Return the value of a setting: given, else chosen, else the default."""
        given, usual = get_value(self._user_set, key), default_value(key)
        return given if given is not None and has_type_of(given, usual) else self._chosen.get(key, usual)

    def is_set(self, key: str) -> bool:
        return get_value(self._user_set, key) is not None

    def is_complete(self) -> bool:
        """Return whether nothing is left to choose for the stages that are listed."""
        unlisted = all_stages().keys() - {stage.name for stage, _ in self.stages()}
        return all(self.is_set(key) for key in PROFILED if key.partition(".")[0] not in unlisted)

    def stages(self) -> list[tuple[Stage[Any], Mapping[str, Any]]]:
        listed, known = self._user_set.get("stages"), all_stages()
        if not isinstance(listed, list):
            return [(known[name], {}) for name in default_settings() if name in known]
        return [(one.stage, one.overrides) for one in instances(listed)]

    def plays(self) -> bool:
        """Return whether a listed stage plays episodes, which needs engines. Raise `ValueError` for wrong settings."""
        return any(stage.plays(self._settings(stage, own)) for stage, own in self.stages())

    def _settings(self, stage: Stage[Any], own: Mapping[str, Any]) -> Any:
        if stage.settings is None:
            return None
        given = self._user_set.get(stage.name)
        section = typed(stage.settings, given if isinstance(given, Mapping) else {}, under=f"{stage.name}.")
        return typed(section, own, under=f"{stage.name}.")

    def any_stage(self, key: str, value: object) -> bool:
        """Return whether a setting of the stages has this value in any that is listed, such as `optim.kind`."""
        return any(
            get_value(given, key) == value or get_value(self._user_set, f"{stage.name}.{key}") == value
            for stage, given in self.stages()
        )


def with_value(given: Mapping[str, Any], key: str, value: object) -> RawConfig:
    word, _, rest = key.partition(".")
    below = given.get(word)
    return {**given, word: with_value(below if isinstance(below, Mapping) else {}, rest, value) if rest else value}


def without_key(given: Mapping[str, Any], key: str) -> RawConfig:
    word, _, rest = key.partition(".")
    below = given.get(word)
    kept = {name: value for name, value in given.items() if name != word}
    return {**kept, word: without_key(below, rest)} if rest and isinstance(below, Mapping) else kept


def has_type_of(given: object, value: object) -> bool:
    """Return whether what is given is of the type of a value, if there is one; a whole number is one with a fraction too."""
    if value is None:
        return True
    kind = (int, float) if isinstance(value, float) else type(value)
    return isinstance(given, kind) and isinstance(given, bool) == isinstance(value, bool)


GPU_GIB: dict[ProfileName, int] = {
    name: int(name.removeprefix("gpu")) for name in get_args(ProfileName) if name.startswith("gpu")
}
"""Memory of a GPU by profile, the smallest first."""
LACKING = 0.07
"""Share of the memory in a GPU's name that nvidia-smi may not count: 45 GiB are a GPU of 48."""
TOY = 30_000_000
"""Parameters below which a model is one that `init` makes, and is trained in float32 by the usual learning rates."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfileInputs:
    """Hardware and model of a run."""

    hardware: Hardware
    shape: ModelShape
    trains: bool
    plays: bool
    colocated: bool
    """Whether a rank and an engine use each GPU in phases."""

    @property
    def gpu(self) -> bool:
        return self.hardware.gpus > 0

    @property
    def toy(self) -> bool:
        return self.shape.parameters < TOY

    @property
    def halves(self) -> bool:
        """Whether engine and learner have half of the only GPU each, all the time."""
        return self.hardware.gpus == 1 and self.trains and self.plays and not self.colocated

    @property
    def gpu_bytes(self) -> float:
        """Memory of a GPU that one process may fill: nine tenths of it, or of its half."""
        return 0.9 * self.hardware.gpu_gib * 2**30 * (0.5 if self.halves else 1.0)


def make_inputs(hardware: Hardware, shape: ModelShape, asked: ProfiledSettings) -> ProfileInputs:
    return ProfileInputs(
        hardware=hardware,
        shape=shape,
        trains=any(stage.trains for stage, _ in asked.stages()),
        plays=asked.plays(),
        colocated=asked.value("placement") == "colocated",
    )


def profile_name(hardware: Hardware) -> ProfileName:
    """Return the profile of a cluster by its smallest GPU, or cpu if it has none."""
    if not hardware.gpus:
        return "cpu"
    fitting = [name for name, gib in GPU_GIB.items() if hardware.gpu_gib >= gib * (1 - LACKING)]
    return fitting[-1] if fitting else "gpu16"


def with_profile_gpus(hardware: Hardware, profile: ProfileName) -> Hardware:
    """Return the hardware as a profile says it is: as many GPUs as there are, at least one, of so much memory."""
    if profile == "cpu":
        return Hardware(machines=tuple(replace(machine, gpus=0, gpu_gib=0.0) for machine in hardware.machines))
    gib = float(GPU_GIB[profile])
    named = [_of_size(machine, gib) for machine in hardware.machines]
    if not hardware.gpus:
        named[0] = replace(named[0], gpus=1, gpu_gib=gib)
    return Hardware(machines=tuple(named))


def _of_size(machine: Machine, gib: float) -> Machine:
    return replace(machine, gpu_gib=gib) if machine.gpus else machine


def power_of_two(number: float, *, least: int, most: int) -> int:
    """Return the largest power of two that is no larger, between two of them."""
    power = least
    while power * 2 <= min(number, most):
        power *= 2
    return power
