"""The effect of a command, without starting, writing or downloading anything and without joining a cluster."""

import os
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from temper.envs.core.setting import Kind
from temper.envs.data.hub import cache_alone
from temper.orchestrator.cluster.machines import Hardware
from temper.orchestrator.config.text import RawConfig
from temper.orchestrator.pipeline.config import Config, make_config, make_unresolved_config
from temper.orchestrator.pipeline.continuation import Changes, allowed_changes
from temper.orchestrator.pipeline.data_files import to_convert, to_download
from temper.orchestrator.pipeline.finding import warnings_of
from temper.orchestrator.pipeline.fork import checked_fork
from temper.orchestrator.pipeline.gguf_model import with_converted_model
from temper.orchestrator.pipeline.plan import plan
from temper.orchestrator.pipeline.prepare import Prepared, prepare_run, wanted_processes
from temper.orchestrator.pipeline.profiles.resolve import profile_notes, query_hardware, resolve_profile
from temper.orchestrator.pipeline.settings_checks import check_settings, check_stages
from temper.orchestrator.run.checkpoint import steps as steps_in
from temper.orchestrator.run.redaction import blank_text
from temper.orchestrator.stages.stage import StageInstance

Would = Literal["is done", "begins", "resumes"]
UNCHECKED = "problems of this machine, models, data and rewards: `temper doctor FILE` finds them, as the start does"


@dataclass(frozen=True, slots=True, kw_only=True)
class StagePreview:
    """The effect on one entry of `stages`."""

    name: str
    stage: str
    would: Would
    steps: int
    """The configured steps, 0 for a stage without steps."""
    after: int
    """The step of its newest checkpoint, 0 without one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Preview:
    """The effect of a command."""

    run: Path
    exists: bool
    stages: tuple[StagePreview, ...]
    """Finished stages, then stages ahead."""
    ranks: int | None
    engines: int | None
    gpus_each: int | None
    """GPUs of an engine, if any."""
    judges: int | None
    """Models that the run serves to judges. All four are None if the profile cannot be resolved here."""
    changed: dict[str, tuple[str | None, str | None]]
    """Changed settings since the last start: old and new value. Empty if the profile cannot be resolved here."""
    downloads: tuple[str, ...]
    unknown: tuple[str, ...]
    """Unknown and unchecked facts."""
    conversions: tuple[str, ...] = ()
    """GGUF files of models to convert."""
    notes: tuple[str, ...]
    """Notes of the start: settings of the profile, and limits that may be met."""


class NotKnownHereError(Exception):
    """The profile needs facts that are not available here."""


def preview_of(given: RawConfig, *, only: str | None = None) -> Preview:
    """Return the effect of a run of plain data. Raise as its start would for wrong settings and missing files."""
    with cache_alone():
        given = with_converted_model(given, convert=False)
        plain = make_unresolved_config(given)
        downloads = to_download(plain)
        try:
            config = make_config(resolve_profile(given, ask=lambda: _hardware_here(plain, downloads)))
        except NotKnownHereError as error:
            return preview(plain, only=only, downloads=downloads, unknown=str(error))
        return preview(config, only=only, downloads=downloads)


def preview_of_fork(source: Path, at: str, overrides: list[str]) -> Preview:
    """Return the effect of a fork. Raise as `checked_fork`."""
    with cache_alone():
        made = checked_fork(source, at, overrides)
        state, config, own = made.state(str(made.checkpoint)), made.config, made.instance.name
        steps = {one.name: config.steps(one) for one in config.instances if one.stage.trains}
        planned = plan(config.instances, state, steps=steps)
        ready = Prepared(folder=made.target, planned=planned, reads=True, model=state.model)
        after = {**state.done, own: made.step}
        found = _preview(config, ready, done=state.done, after=after, downloads=(), unknown="")
    return replace(found, changed=_listed(made.found))


def _hardware_here(config: Config, downloads: Sequence[str]) -> Hardware:
    """Return the local hardware. Raise `NotKnownHereError` for a run on a cluster, or a model to download."""
    goes_by = [f"the model {config.model.path}"] if f"model {config.model.path}" in downloads else []
    goes_by += ["the cluster of RAY_ADDRESS, which is not joined"] if "RAY_ADDRESS" in os.environ else []
    if goes_by:
        raise NotKnownHereError(f"settings of the profile, which depend on {' and on '.join(goes_by)}")
    return query_hardware()


def preview(config: Config, *, only: str | None = None, downloads: Sequence[str] = (), unknown: str = "") -> Preview:
    """Return the effect of a run of all stages, or of the stage `only`. Raise as its start would."""
    ready = prepare_run(config, only=only, here=not downloads and not to_convert(config))
    done = ready.folder.state().done if only is None else ()
    trained = [one.name for one in config.instances if one.stage.trains]
    after = {name: max(steps_in(ready.folder.checkpoints(name)), default=0) for name in trained}
    found = _preview(config, ready, done=done, after=after, downloads=downloads, unknown=unknown)
    if unknown:  # the profile's settings would all differ
        return found
    return replace(found, changed=_listed(allowed_changes(config, ready.folder, reads=ready.reads)))


def _preview(
    config: Config,
    ready: Prepared,
    *,
    done: Collection[str],
    after: Mapping[str, int],
    downloads: Sequence[str],
    unknown: str,
) -> Preview:
    names = {one.name for one in ready.ahead}
    past = [one for one in config.instances if one.name not in names and one.name in done]
    stages = [_stage(one, "is done", config, after) for one in past]
    stages += [_stage(one, "begins", config, after) for one in ready.ahead]
    wanted = wanted_processes(config, ready.ahead)
    return Preview(
        run=ready.folder.root,
        exists=ready.folder.config.is_file(),
        stages=tuple(stages),
        ranks=None if unknown else wanted.ranks,
        engines=None if unknown else wanted.engines,
        gpus_each=None if unknown else wanted.processes,
        judges=None if unknown else wanted.judges,
        changed={},
        downloads=tuple(downloads),
        conversions=tuple(map(str, to_convert(config))),
        unknown=tuple(filter(None, (unknown, UNCHECKED))),
        notes=tuple(map(blank_text, _notes(config, ready, profile_resolved=not unknown))),
    )


def _notes(config: Config, ready: Prepared, *, profile_resolved: bool) -> list[str]:
    """Return the notes of the start that need only settings. Raise as the start would for wrong ones."""
    check_stages(config, ready.ahead)
    found = check_settings(config, ready.ahead, profile_resolved=profile_resolved)
    notes = profile_notes(config, {one.stage.name for one in ready.ahead})
    return [*notes, *warnings_of(found), *ready.planned.notes]


def _listed(found: dict[Kind, Changes]) -> Changes:
    return found[Kind.IMMUTABLE] | found[Kind.SCHEDULE] | found[Kind.FREE]


def _stage(one: StageInstance, would: Would, config: Config, after: Mapping[str, int]) -> StagePreview:
    step = after.get(one.name, 0)
    return StagePreview(
        name=one.name,
        stage=one.stage.name,
        would="resumes" if step and would == "begins" else would,
        steps=config.steps(one) if one.stage.trains else 0,
        after=step,
    )


def lines(found: Preview) -> list[str]:
    said = [f"{found.run}: {'resumes' if found.exists else 'a new run'}", *found.notes]
    said += [f"would be downloaded: {name} (no such folder, so taken as a hub name)" for name in found.downloads]
    said += [f"would be converted: model {file}" for file in found.conversions]
    said += [f"not known here: {text}" for text in found.unknown]
    said += [f"changed: {key}: {before} -> {now}" for key, (before, now) in found.changed.items()]
    wide = max((len(one.name) for one in found.stages), default=0)
    said += [f"  {one.name:{wide}}  {_in_words(one)}" for one in found.stages]
    processes = (found.ranks, "rank(s)"), (found.engines, "engine(s)"), (found.judges, "judge(s)")
    counts = [f"{number} {noun}" for number, noun in processes if number]
    said += [f"processes: {', '.join(counts)}"] if counts else []
    return said


def _in_words(one: StagePreview) -> str:
    if not one.steps:
        return one.would
    if one.would == "begins":
        return f"begins: {one.steps} steps"
    return f"{one.would} after step {one.after}" + (f" of {one.steps}" if one.would == "resumes" else "")
