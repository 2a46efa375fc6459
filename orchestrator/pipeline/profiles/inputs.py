"""The inputs of a profile: user-set settings, and the hardware, the model and the processes of a run.

A rule sees the user-set settings and the results of earlier rules. A user-set setting overrides a rule.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from functools import cache
from typing import TYPE_CHECKING, Any, TypeVar, get_args

from temper.learner.config import LearnerConfig, OptimConfig
from temper.orchestrator.cluster.machines import Hardware
from temper.orchestrator.config.run_config import USUAL_STAGES, ProfileName, SupervisionConfig
from temper.orchestrator.config.schema import to_settings
from temper.orchestrator.config.text import RawConfig, get_value, with_value
from temper.orchestrator.loop.deadline import DeadlineConfig
from temper.orchestrator.pipeline.plan import instances
from temper.orchestrator.stages.registry import all_stages
from temper.orchestrator.stages.stage import Stage
from temper.rollout.config import RolloutConfig

if TYPE_CHECKING:
    from temper.orchestrator.pipeline.estimate.model import PlannedModel

T = TypeVar("T", bool, int, float, str)


@cache
def default_settings() -> RawConfig:
    """Return the defaults of the settings that a profile may resolve."""
    parts: dict[str, Any] = {
        "rollout": RolloutConfig(),
        "learner": LearnerConfig(),
        "supervision": SupervisionConfig(),
        "deadlines": DeadlineConfig(),
    }
    stages = {name: stage.settings() for name, stage in all_stages().items() if stage.settings is not None}
    return {name: asdict(part) for name, part in (parts | stages).items()}


def default_value(key: str) -> Any:
    """Return the default of a setting, None for a setting outside of profiles."""
    return get_value(default_settings(), key)


def stages_with(setting: str) -> tuple[str, ...]:
    return tuple(name for name in all_stages() if default_value(f"{name}.{setting}") is not None)


BY_PROFILE = """
    rollout.workers rollout.limits.turn_tokens rollout.limits.total_tokens rollout.limits.timeout_s
    rollout.engine.dtype rollout.engine.max_model_len rollout.engine.max_sequences rollout.engine.batched_tokens
    rollout.engine.prefix_caching rollout.engine.tensor_parallel rollout.engine.threads rollout.engine.memory_gib
    rollout.engine.gpu_memory_utilization learner.ranks learner.expert_parallel learner.zero_stage learner.bf16
    learner.offload learner.micro_batch_tokens learner.logit_tokens learner.recompute learner.threads
    learner.threads_during_generation learner.wire_dtype
"""
PROFILED = (
    *BY_PROFILE.split(),
    *(f"{stage}.optim.learning_rate" for stage in stages_with("optim.learning_rate")),
    *("rl.groups_per_step", "rl.group_size"),
    *(f"{stage}.timeout_s" for stage in stages_with("timeout_s")),
    *("supervision.stalled_s", "deadlines.start_s"),
)


class ProfiledSettings:
    """User-set settings and the resolved ones on top. A rule may depend on the results of earlier ones."""

    def __init__(self, given: Mapping[str, Any]) -> None:
        self._user_set = given
        self._chosen: dict[str, Any] = {}

    @property
    def resolved(self) -> dict[str, Any]:
        return {key: self.value(key) for key in PROFILED if not self.is_set(key)}

    def choose(self, key: str, value: T) -> T:
        """Resolve a setting unless the user sets it. Return its value. A user-set value of a wrong type is ignored."""
        assert key in PROFILED, f"{key} is not among the settings of profiles"
        given = get_value(self._user_set, key)
        if given is not None:
            return type(value)(given) if has_type_of(given, value) else value
        self._chosen[key] = value
        return value

    def options(self, key: str, *values: Any) -> list[Any]:
        """Return the user-set value alone, else these."""
        return [self.value(key)] if self.is_set(key) else [*values]

    def value(self, key: str) -> Any:
        """Return the user-set value, else the resolved one, else the default."""
        given, usual = get_value(self._user_set, key), default_value(key)
        return given if given is not None and has_type_of(given, usual) else self._chosen.get(key, usual)

    def is_set(self, key: str) -> bool:
        return get_value(self._user_set, key) is not None

    def is_complete(self) -> bool:
        """Return whether no setting of the listed stages is left to resolve."""
        unlisted = all_stages().keys() - {stage.name for stage, _ in self.stages()}
        return all(self.is_set(key) for key in PROFILED if key.partition(".")[0] not in unlisted)

    def stages(self) -> list[tuple[Stage[Any], Mapping[str, Any]]]:
        listed, known = self._user_set.get("stages"), all_stages()
        if not isinstance(listed, list):
            return [(known[name], {}) for name in default_settings() if name in known]
        return [(one.stage, one.overrides) for one in instances(listed)]

    def plays(self) -> bool:
        """Return whether a listed stage runs episodes, which need engines. Raise `ValueError` for wrong settings."""
        return any(stage.plays(self._settings(stage, own)) for stage, own in self.stages())

    def judges(self) -> int:
        """Return the number of models that the run serves to judges."""
        envs = self._user_set.get("envs")
        found = [get_value(env, "judge") for env in (envs.values() if isinstance(envs, Mapping) else ())]
        own = [one for one in found if isinstance(one, Mapping) and not (one.get("url") or one.get("classifier"))]
        return len({str(one.get("model")) for one in own}) if own and self.plays() else 0

    def trained(self) -> list[tuple[str, Any]]:
        """Return the names and the settings of the run's stages that train. Raise `ValueError` for wrong settings."""
        listed = self._user_set.get("stages")
        entries = instances(listed if isinstance(listed, list) else USUAL_STAGES)
        return [(one.stage.name, self._settings(one.stage, one.overrides)) for one in entries if one.stage.trains]

    def section(self, key: str, schema: type, changes: Mapping[str, Any]) -> Any:
        """Return a section with the resolved settings and changes that the user does not set.

        Raise `ValueError` if it is not valid.
        """
        whole = self._user_set
        for name, value in (self._chosen | {f"{key}.{name}": value for name, value in changes.items()}).items():
            whole = whole if self.is_set(name) else with_value(whole, name, value)
        return to_settings(schema, get_value(whole, key) or {}, under=f"{key}.")

    def _settings(self, stage: Stage[Any], own: Mapping[str, Any]) -> Any:
        if stage.settings is None:
            return None
        return to_settings(self.section(stage.name, stage.settings, {}), own, under=f"{stage.name}.")


def has_type_of(given: object, value: object) -> bool:
    """Return whether a given value has the type of another one, if that is not None. An integer is also a float."""
    if value is None:
        return True
    kind = (int, float) if isinstance(value, float) else type(value)
    return isinstance(given, kind) and isinstance(given, bool) == isinstance(value, bool)


GPU_GIB: dict[ProfileName, int] = {
    name: int(name.removeprefix("gpu")) for name in get_args(ProfileName) if name.startswith("gpu")
}
"""Memory of a GPU by profile, smallest first."""
LACKING = 0.07
"""Share of a GPU's nominal memory that nvidia-smi may not report: a GPU with 45 GiB is sold as 48."""
TOY = 30_000_000
"""Parameters below which a model counts as one of `init`, trained in float32 with default learning rates."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfileInputs:
    """Hardware and model of a run."""

    hardware: Hardware
    parameters: int
    """Parameters of the model."""
    trains: bool
    plays: bool
    colocated: bool
    """Whether a rank and an engine share each GPU in phases."""
    judges: int = 0
    """Models that the run serves to judges, each on one more GPU."""
    model: "PlannedModel | None" = None
    """The counted model. None on CPUs."""
    reference: int = 0
    """Parameters of the largest reference or teacher."""
    optims: tuple[OptimConfig, ...] = (OptimConfig(),)
    """The optimizers of the stages that train."""

    @property
    def gpu(self) -> bool:
        return self.hardware.gpus > 0

    @property
    def toy(self) -> bool:
        return self.parameters < TOY

    @property
    def halves(self) -> bool:
        """Whether engine and learner each have half of the only GPU."""
        return self.hardware.gpus == 1 and self.trains and self.plays and not self.colocated

    @property
    def gpu_bytes(self) -> float:
        """GPU memory for one process: nine tenths of the GPU, or of its half."""
        return 0.9 * self.hardware.gpu_gib * 2**30 * (0.5 if self.halves else 1.0)


def profile_name(hardware: Hardware) -> ProfileName:
    """Return the profile of a cluster by its smallest GPU, or cpu without any."""
    if not hardware.gpus:
        return "cpu"
    fitting = [name for name, gib in GPU_GIB.items() if hardware.gpu_gib >= gib * (1 - LACKING)]
    return fitting[-1] if fitting else "gpu16"


def with_profile_gpus(hardware: Hardware, profile: ProfileName) -> Hardware:
    """Return the hardware with the GPU memory of a profile, and at least one GPU."""
    if profile == "cpu":
        return Hardware(machines=tuple(replace(machine, gpus=0, gpu_gib=0.0) for machine in hardware.machines))
    gib = float(GPU_GIB[profile])
    named = [replace(machine, gpu_gib=gib) if machine.gpus else machine for machine in hardware.machines]
    if not hardware.gpus:
        named[0] = replace(named[0], gpus=1, gpu_gib=gib)
    return Hardware(machines=tuple(named))


def power_of_two(number: float, *, least: int, most: int) -> int:
    """Return the largest power of two up to a number, within two bounds."""
    power = least
    while power * 2 <= min(number, most):
        power *= 2
    return power
