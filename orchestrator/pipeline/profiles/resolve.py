"""Resolves the profile of a configuration and records the result.

    given --+-- has resolved settings (a run's config.yaml, a fork): these ----------------+
            +-- belongs to a trained run: its recorded settings ----------------------------+--> given, completed
            +-- else: resolved for the cluster and the model --------------------------------+

Another named profile (`profile=gpu80`) or another placement is resolved again.
"""

import os
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

from temper.learner.config import LearnerConfig, LoraConfig, OptimConfig
from temper.orchestrator.cluster.hardware import this_machine
from temper.orchestrator.cluster.machines import Hardware
from temper.orchestrator.config.run_config import ModelConfig, ProfileName, ResolvedProfile, RunConfig
from temper.orchestrator.config.schema import resolve_given, to_settings
from temper.orchestrator.config.text import RawConfig, get_value, read_value, with_value, without_key
from temper.orchestrator.pipeline.config import SCHEMA, Config, make_config, make_unresolved_config, read_run_settings
from temper.orchestrator.pipeline.estimate.assumptions import Assumptions
from temper.orchestrator.pipeline.estimate.cards import Site, nearest_card
from temper.orchestrator.pipeline.gguf_model import with_converted_model
from temper.orchestrator.pipeline.profiles.choices import (
    alternatives,
    choose_learning,
    choose_limits,
    choose_processes,
    choose_sampling,
    idle_gpus,
)
from temper.orchestrator.pipeline.profiles.inputs import (
    ProfiledSettings,
    ProfileInputs,
    default_value,
    profile_name,
    with_profile_gpus,
)
from temper.orchestrator.run.folder import RunDir
from temper.orchestrator.stages.registry import all_stages
from temper.rollout.weights.weight_files import require_complete

if TYPE_CHECKING:
    from temper.orchestrator.pipeline.estimate.model import PlannedModel

NAMES: tuple[ProfileName, ...] = get_args(ProfileName)
CHOICES = (choose_processes, choose_limits, choose_learning, choose_sampling)
"""In this order, since each depends on the results before it."""


def model_config(given: Mapping[str, Any]) -> ModelConfig:
    model: ModelConfig = to_settings(ModelConfig, given.get("model") or {}, under="model.")
    return model


def read_parameter_count(given: Mapping[str, Any]) -> int:
    """Return the parameters of a configuration's model by its settings or its files. Raise as `require_complete`."""
    model = model_config(given)
    if model.source is None:
        return model.fresh.parameters
    if model.source.gguf is not None:  # its header has no count of parameters
        return plan_parameter_count(given)
    return require_complete(model.source.folder)


def plan_parameter_count(given: Mapping[str, Any]) -> int:
    """Return the same by the plan, which reads only the model's `config.json`. Raise as `planned_model`."""
    from temper.orchestrator.pipeline.estimate.model import planned_model  # imports slowly

    return planned_model(model_config(given), LearnerConfig()).parameters


def query_hardware() -> Hardware:
    """Return the hardware of the cluster of RAY_ADDRESS, or of this machine if it is not set. Raise as `query_cluster`."""
    if "RAY_ADDRESS" not in os.environ:
        return Hardware(machines=(this_machine(),))
    from temper.orchestrator.cluster.cluster_hardware import query_cluster  # imports Ray

    return query_cluster()


def count_models(given: RawConfig, settings: ProfiledSettings) -> "tuple[PlannedModel, int]":
    """Return the model of a configuration as its learner would have it, and the parameters of its reference or teacher.

    Raise as `planned_model`.
    """
    # Imported for a GPU only, because the classes of models take seconds.
    from temper.orchestrator.pipeline.estimate.model import frozen_models, planned_model, reference_parameters

    lora: LoraConfig = to_settings(LoraConfig, get_value(given, "learner.lora") or {}, under="learner.lora.")
    learner = LearnerConfig(lora=lora, frozen=settings.value("learner.frozen"))
    model = planned_model(model_config(given), learner)
    frozen = frozen_models(settings.trained(), model)
    return model, reference_parameters(frozen, model, adapters=lora.rank > 0)


def load_resolved_config(
    path: Path, overrides: list[str], *, ask: Callable[[], Hardware] = query_hardware, convert: bool = True
) -> Config:
    """Return a run's configuration with its profile resolved for the hardware and the model.

    A GGUF file is converted, or without `convert` only its header is read.
    """
    given = read_run_settings(path, overrides)
    make_unresolved_config(given)  # find errors before a model is converted
    return make_config(resolve_profile(with_converted_model(given, convert=convert), ask=ask))


def resolve_profile(
    given: RawConfig,
    *,
    ask: Callable[[], Hardware] = query_hardware,
    size: Callable[[RawConfig], int] = read_parameter_count,
    refuse: bool = True,
) -> RawConfig:
    """Return a configuration with the settings of its profile and their record.

    `ask` returns the hardware. `size` is of `choose_settings`. Raise `ValueError` or `FileNotFoundError` for a wrong profile or
    model, and with `refuse` for a run that does not fit its GPUs.
    """
    name = given.get("profile") or "auto"
    if name not in NAMES:
        raise ValueError(f"profile={name} is unknown; use one of {', '.join(NAMES)}")
    own = read_resolved(given)
    plain = without_resolved(given, own)
    recorded = recorded_profile(given) if own.profile == "auto" else own
    placement = get_value(plain, "placement") or "dedicated"
    if recorded is not None and name in ("auto", recorded.profile) and placement == recorded.placement:
        return with_choices(plain, recorded)
    seen = resolve_given(SCHEMA, plain)
    if ProfiledSettings(seen).is_complete():
        return given
    return with_choices(plain, choose_settings(seen, name, ask(), size=size, refuse=refuse))


def choose_settings(
    given: RawConfig,
    name: ProfileName,
    hardware: Hardware,
    *,
    size: Callable[[RawConfig], int] = read_parameter_count,
    count: "Callable[[RawConfig, ProfiledSettings], tuple[PlannedModel, int]]" = count_models,
    refuse: bool = False,
) -> ResolvedProfile:
    """Return the resolved settings of a profile on this hardware. auto takes the profile of the hardware.

    On GPUs `count` returns the counted model, and the parameters of its reference. On CPUs `size` returns the parameters.
    Raise `ValueError` with `refuse` if the run does not fit.
    """
    settings = ProfiledSettings(given)
    has = hardware if name in ("auto", profile_name(hardware)) else with_profile_gpus(hardware, name)
    counted: tuple[PlannedModel | None, int] = count(given, settings) if has.gpus else (None, 0)
    model, reference = counted
    inputs = ProfileInputs(
        hardware=has,
        parameters=size(given) if model is None else model.parameters,
        trains=any(stage.trains for stage, _ in settings.stages()),
        plays=settings.plays(),
        colocated=settings.value("placement") == "colocated",
        judges=settings.judges(),
        model=model,
        reference=reference,
        optims=tuple(own.optim for _, own in settings.trained()) or (OptimConfig(),),
    )
    found = [_resolved_with(given, inputs, changes) for changes in alternatives(settings, inputs)]
    if model is None:
        return found[0]
    best, lacks = _fastest(given, found, model, has)
    if refuse and lacks:
        raise ValueError(f"profile={best.profile}: {lacks}")
    return best


def _resolved_with(given: RawConfig, inputs: ProfileInputs, changes: Mapping[str, Any]) -> ResolvedProfile:
    """Return the settings that the rules choose after these changes."""
    settings = ProfiledSettings(given)
    for key, value in changes.items():
        settings.choose(key, value)
    for choose in CHOICES:
        choose(settings, inputs)
    return ResolvedProfile(
        profile=profile_name(inputs.hardware),
        hardware=inputs.hardware.describe(),
        placement="colocated" if inputs.colocated else "dedicated",
        idle_gpus=idle_gpus(settings, inputs),
        settings=settings.resolved,
    )


def _fastest(
    given: RawConfig, found: Sequence[ResolvedProfile], model: "PlannedModel", hardware: Hardware
) -> tuple[ResolvedProfile, str]:
    """Return the profile with the shortest step by the plan, and the limits that it exceeds. Those that fit come first.

    Without a loop it is the one with the lowest ZeRO stage. Settings that a run refuses have no plan.
    """
    # Imported for a GPU only, because the classes of models take seconds.
    from temper.orchestrator.pipeline.estimate.limits import lacking
    from temper.orchestrator.pipeline.estimate.run_plan import Plan

    site = Site(hardware=hardware, card=nearest_card(hardware.gpu_gib), shm_bytes=None)
    rated: list[tuple[tuple[float, ...], ResolvedProfile, str]] = []
    for one in found:
        try:
            plan = Plan(make_config(with_choices(given, one)), model, site, Assumptions())
        except ValueError:
            continue
        time, learner, lacks = plan.time, plan.config.learner, lacking(plan, given)
        seconds = (0.0, 0.0) if time is None else (time.step_s, time.generate_s + time.load_s)
        rate = (1.0,) if lacks else (0.0, *seconds, learner.offload != "none", learner.zero_stage)
        rated.append((rate, one, lacks))
    _, best, lacks = min(rated, key=lambda one: one[0], default=((), found[0], ""))
    return best, lacks


def without_resolved(given: RawConfig, own: ResolvedProfile) -> RawConfig:
    """Return a configuration without earlier resolved settings. Values that differ from them are user-set."""
    plain = {key: value for key, value in given.items() if key not in ("profile", "resolved")}
    for key, value in own.settings.items():
        if get_value(plain, key) == value:
            plain = without_key(plain, key)
    return plain


def with_choices(plain: RawConfig, resolved: ResolvedProfile) -> RawConfig:
    """Return a configuration with the resolved settings that the user does not set, and their record."""
    settings = {key: value for key, value in resolved.settings.items() if get_value(plain, key) is None}
    whole = plain
    for key, value in settings.items():
        whole = with_value(whole, key, value)
    return {**whole, "profile": resolved.profile, "resolved": asdict(replace(resolved, settings=settings))}


def recorded_profile(given: Mapping[str, Any]) -> ResolvedProfile | None:
    """Return the recorded settings of the run of this name; None before it has trained, since they may still change."""
    name, runs_dir = given.get("name"), given.get("runs_dir", "runs")
    if not isinstance(name, str) or not isinstance(runs_dir, str):
        return None
    folder = RunDir(Path(runs_dir) / name)
    if not folder.config.is_file() or not folder.trained_instances():
        return None
    recorded = read_value(folder.config, "resolved")
    return None if recorded is None else read_resolved({"resolved": recorded})


def read_resolved(given: Mapping[str, Any]) -> ResolvedProfile:
    resolved: ResolvedProfile = to_settings(ResolvedProfile, given.get("resolved") or {}, under="resolved.")
    return resolved


def profile_notes(config: RunConfig, stages: Collection[str]) -> list[str]:
    """Return notes on the profile and the settings of `stages` and of the run that it changed, by section."""
    resolved = config.resolved
    if resolved.profile == "auto":
        return []
    sections: dict[str, list[str]] = {}
    for key, value in resolved.settings.items():
        section, _, name = key.rpartition(".")
        top = key.partition(".")[0]
        if value != default_value(key) and (top in stages or top not in all_stages()):
            sections.setdefault(section, []).append(
                f"{name}={str(value).lower() if isinstance(value, bool) else value}"
            )
    lines = [f"  {section}: {' '.join(pairs)}" for section, pairs in sections.items()]
    sets = "sets" if lines else "changes nothing"
    if resolved.idle_gpus:
        lines.append(
            f"  idle GPUs: {resolved.idle_gpus}, with learner.ranks={config.learner.ranks} and "
            f"rollout.workers={config.rollout.workers}"
        )
    return [f"profile {resolved.profile} ({resolved.hardware}) {sets}", *lines]
