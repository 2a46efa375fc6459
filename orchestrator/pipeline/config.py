"""The configuration of a run: the settings of the run and a section for each stage with settings.

Each part is declared in the folder that it configures, by a class that imports nothing heavy. Parts of stages are in
`orchestrator/config/`.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, make_dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

from temper.envs.core.setting import field_hints, kinds
from temper.envs.presets.catalog import with_preset
from temper.orchestrator.config.fitting import check_colocated
from temper.orchestrator.config.keys import peer_key, require_known_keys
from temper.orchestrator.config.run_config import USUAL_STAGES, RunConfig
from temper.orchestrator.config.schema import complete, to_settings
from temper.orchestrator.config.text import (
    flat_text,
    get_value,
    read_layers,
    read_text,
    resolve_values,
    with_value,
    yaml_text,
)
from temper.orchestrator.pipeline.plan import instances, with_settings
from temper.orchestrator.stages.registry import all_stages
from temper.orchestrator.stages.stage import Stage, StageInstance
from temper.orchestrator.tracking.metric_names import SYSTEM

S = TypeVar("S")


def usual_sections() -> dict[str, Any]:
    """Return the default settings of each stage that has any."""
    return {name: stage.settings() for name, stage in all_stages().items() if stage.settings is not None}


@dataclass(frozen=True, kw_only=True)
class Config(RunConfig):
    """A whole run."""

    sections: Mapping[str, Any] = field(default_factory=usual_sections)
    """Settings by stage, which the instances of the stage may override."""

    def __post_init__(self) -> None:
        super().__post_init__()
        for instance in self.instances:
            if instance.name != instance.stage.name and instance.name in (*KNOWN, "metrics", "start", SYSTEM):
                raise ValueError(f"stages: {instance.name!r} is reserved; give the stage another name")
            self.require_stage(instance)

    @cached_property
    def instances(self) -> list[StageInstance]:
        return instances(self.stages)

    def section(self, settings: type[S]) -> S:
        return next(part for part in self.sections.values() if type(part) is settings)

    def settings(self, instance: StageInstance) -> Any:
        """Return the settings of an instance: its entry over its stage; None for a stage without any."""
        section = self.sections.get(instance.stage.name)
        if section is None and instance.overrides:
            raise ValueError(
                f"stages: the stage {instance.stage.name} has no settings; remove {dict(instance.overrides)}"
            )
        try:
            return (
                to_settings(section, instance.overrides, under=f"{instance.name}.") if instance.overrides else section
            )
        except ValueError as error:
            raise ValueError(f"stages, {instance.name}: {error}") from error

    def steps(self, of: StageInstance | Stage[Any]) -> int:
        settings = self.settings(of) if isinstance(of, StageInstance) else self.sections[of.name]
        steps: int = settings.steps
        return steps

    @property
    def keeps_ema(self) -> bool:
        """Whether a stage keeps an average of the weights."""
        return any(self.settings(one).optim.ema_decay for one in self.instances if one.stage.trains)

    def plays(self, instance: StageInstance) -> bool:
        return instance.stage.plays(self.settings(instance))

    def require_stage(self, instance: StageInstance) -> None:
        """Raise `ValueError` if an instance cannot run with its settings."""
        settings = self.settings(instance)
        instance.stage.fits(settings, self, instance.name if instance.overrides else instance.stage.name)
        if not self.envs and instance.stage.takes_tasks(settings):
            raise ValueError(f"envs is empty, and the stage {instance.name} {_without_envs(instance, settings)}")
        check_colocated(settings, self, instance.name)


def _without_envs(instance: StageInstance, settings: Any) -> str:
    one = "add one, for example `envs: {math: {share: 1.0}}`"
    if "data" in vars(settings):
        return f"has no {instance.stage.name}.data: set it to training rows, or {one}"
    return f"needs tasks of environments: {one}, or remove {instance.name} from stages"


SCHEMA = make_dataclass(
    "Configuration",
    [(name, type(part), field(default_factory=type(part))) for name, part in usual_sections().items()],
    bases=(RunConfig,),
    frozen=True,
    kw_only=True,
)
"""The schema of a configuration file: the sections of the stages and the settings of the run."""
KNOWN = tuple(each.name for each in fields(SCHEMA))
SHARED = tuple(each.name for each in fields(RunConfig))
KINDS = kinds(SCHEMA)
"""The effect of a change of each setting on a resumed run. `envs.*.share` is the share of every environment."""


def check_keys(given: Mapping[str, Any], *, is_complete: bool = True) -> None:
    """Raise `SettingError`, with a hint, for the first unknown key of a configuration.

    Only a complete configuration names its stages, so another one may have any section.
    """
    known: dict[str, Any] = field_hints(SCHEMA)
    stages = given.get("stages")
    entries = [entry for entry in stages if isinstance(entry, Mapping)] if isinstance(stages, list) else []
    for stage, settings in (pair for entry in entries for pair in entry.items()):
        if isinstance(settings, Mapping) and stage in known:
            name = str(settings.get("name", stage))
            known = {name: known[stage]} | known
            require_known_keys(known, {name: {key: value for key, value in settings.items() if key != "name"}})
    for name, value in given.items():
        stage = str(name).partition("-")[0]
        if name not in known and stage in all_stages():  # such as rl-2
            known = {name: known.get(stage, Any)} | known
        elif name not in known and not (is_complete or peer_key(str(name), value)):
            known = {name: Any} | known
    require_known_keys(known, given)


def load_config(path: Path, overrides: list[str]) -> Config:
    """Return the configuration of a YAML file with `key=value` overrides on top.

    Raise `FileNotFoundError` for a missing file, and `ValueError` with key, value and remedy for any other problem.
    """
    return make_config(read_text(path, overrides))


def load_unresolved_config(path: Path, overrides: list[str]) -> Config:
    """Return the same without the profile's settings, which need the cluster. Raise as `load_config`."""
    return make_unresolved_config(read_run_settings(path, overrides))


def make_unresolved_config(given: dict[str, Any], *, bind: bool = True) -> Config:
    """Return the same of plain data. The longest sequence is the configured limit. `bind` as `make_config`."""
    longest = "rollout.engine.max_model_len"
    limit = get_value(given, "rollout.limits.total_tokens")
    if limit is not None and get_value(given, longest) is None:
        given = with_value(given, longest, limit)
    return make_config(given, bind=bind)


def read_run_settings(path: Path, overrides: list[str]) -> dict[str, Any]:
    """Return the unchecked settings of a YAML file with overrides on top. Settings of an instance are in its entry of
    `stages`.
    """
    given: dict[str, Any] = _by_instance(read_text(path, overrides))
    return given


def read_shown_settings(path: Path, overrides: list[str]) -> dict[str, Any]:
    """Return the same for a file whose secrets may be redacted. Raise as `read_layers`."""
    given: dict[str, Any] = _by_instance(read_layers(path, overrides))
    return given


def make_config(given: Any, *, bind: bool = True) -> Config:
    """Return the configuration of plain data from YAML. Raise `ValueError` as `load_config`.

    Errors of environments and judges are found at once by `bind`, which imports gymnasium, or else at their first use.
    """
    parts = vars(to_settings(SCHEMA, with_presets(_by_instance(given))))
    sections = {name: part for name, part in parts.items() if name not in SHARED}
    config = Config(**{name: parts[name] for name in SHARED}, sections=sections)
    if bind:
        _ = config.environments, config.judges
    return config


def save_config(config: Config, path: Path) -> None:
    """Write the resolved configuration as YAML without secrets."""
    path.write_text(yaml_text(as_file(config)), encoding="utf-8")


def flat_config(config: Config) -> dict[str, str]:
    """Return the configuration as `dotted.key: value` without secrets. Instances of stages have their names."""
    flat = flat_text(as_file(config)) | {"stages": ", ".join(instance.name for instance in config.instances)}
    for instance in config.instances:
        if instance.overrides or (instance.stage.trains and instance.name != instance.stage.name):
            flat |= flat_text(config.settings(instance), under=instance.name)
    return flat


def as_file(config: Config) -> Any:
    """Return the content of a configuration's file, an object of `SCHEMA`."""
    given = vars(config)
    return SCHEMA(**{name: given[name] for name in SHARED}, **config.sections)


def with_presets(given: Any) -> Any:
    """Return the settings with the settings of each environment's benchmark."""
    envs = given.get("envs")
    if not isinstance(envs, Mapping):
        return given
    return given | {"envs": {name: _with_preset(str(name), env) for name, env in envs.items()}}


def _with_preset(name: str, env: Any) -> Any:
    preset = env.get("preset") if isinstance(env, Mapping) else None
    if not isinstance(preset, str | int):  # the schema refuses other types
        return env
    return with_preset(name, {**env, **resolve_values({"preset": str(preset)}, under=f"envs.{name}.")})


def _by_instance(given: Any) -> Any:
    """Move settings under the name of an instance into its entry of `stages`.

    Raise `ValueError` for a plain value in place of a section, a list or a mapping.
    """
    complete(SCHEMA, given)
    others = {key: value for key, value in given.items() if key not in KNOWN}
    if not others:
        return given
    entries, named = with_settings(given.get("stages", USUAL_STAGES), others)
    return {key: value for key, value in given.items() if key not in named} | {"stages": entries}
