"""Resume of a run with changed settings. Each setting's kind decides whether its change is allowed."""

import shutil
from collections.abc import Iterable
from dataclasses import replace
from functools import cache

from temper.envs.config import EnvConfig
from temper.envs.core.setting import Kind, kind_of
from temper.orchestrator.config.text import flat_text, read_value
from temper.orchestrator.pipeline.config import KINDS, KNOWN, SCHEMA, Config, flat_config, save_config
from temper.orchestrator.pipeline.data_files import MISSING, content
from temper.orchestrator.pipeline.rate_change import rate_change
from temper.orchestrator.run.checkpoint import place, resumed_step
from temper.orchestrator.run.folder import RunDir, RunState
from temper.orchestrator.run.metrics_log import MetricsLog, read_metrics

CHANGED = "changed"
ENVS = "envs"
SAMPLED_BY = ("tasks", "samples", "sampling", "shares")
"""Settings of a stage that affect the answers it samples to train on."""
FIRST_MODEL = {"model.path", "model.revision"}
Changes = dict[str, tuple[str | None, str | None]]
"""Settings by dotted name with old and new value; None for a missing one."""


def fingerprint(config: Config) -> dict[str, str]:
    """Return the settings, with file contents in place of paths: a moved file is no change, a modified one is."""
    return flat_config(config) | content(config)


def fingerprint_now(config: Config, folder: RunDir, *, reads: bool = True) -> dict[str, str]:
    """Return the fingerprint of a resumed run. A missing file that no stage ahead reads keeps its old entry."""
    state, now = folder.state(), fingerprint(config)
    gone = {key for key in now if now[key] == MISSING and key in state.fingerprint}
    same_model = bool(gone & FIRST_MODEL) and read_value(folder.config, "model.path") == config.model.path
    return now | {key: state.fingerprint[key] for key in gone if _needs_no_more(key, state, reads, same_model)}


def changes(config: Config, before: dict[str, str], now: dict[str, str]) -> dict[Kind, Changes]:
    stages = {one.name: one.stage.name for one in config.instances}
    found: dict[Kind, Changes] = {kind: {} for kind in Kind}
    defaults, known = default_settings(), {_section(key) for key in before}
    for key in sorted(before | now):
        if key not in before and _section(key) in known and now[key] == defaults.get(_declared_key(key, stages)):
            continue  # a setting that the version of the last start did not have
        if before.get(key) != now.get(key):
            found[_kind(key, stages)][key] = before.get(key), now.get(key)
    return found


@cache
def default_settings() -> dict[str, str]:
    """Return the defaults of all settings. `envs.*` has those of every environment."""
    return flat_text(SCHEMA(name="run")) | flat_text(EnvConfig(), under=f"{ENVS}.*")


def _section(key: str) -> str:
    """Return the section, the environment or the instance of a setting, "" for a setting of the run."""
    return ".".join(key.split(".")[: 2 if key.startswith(f"{ENVS}.") else 1]) if "." in key else ""


def _declared_key(key: str, stages: dict[str, str]) -> str:
    """Return the key of a setting's declaration."""
    owner, _, rest = key.partition(".")
    if owner == ENVS:
        return f"{ENVS}.*.{rest.partition('.')[2]}"
    return f"{stages.get(owner, owner)}.{rest}" if rest else key


def _kind(key: str, stages: dict[str, str]) -> Kind:
    return kind_of(KINDS, _declared_key(key, stages))


def allowed_changes(config: Config, folder: RunDir, *, reads: bool = True) -> dict[Kind, Changes]:
    """Return the changes by kind since the run's last start, none for a new run.

    Settings without any training may change: the settings of a stage without a checkpoint, and all settings of a run without
    one. Files may be missing if no stage ahead `reads` them. Raise `ValueError` for changes that need another run.
    """
    state = folder.state()
    if not state.fingerprint:
        return {kind: {} for kind in Kind}
    trained = folder.trained_instances()
    found = changes(config, state.fingerprint, fingerprint_now(config, folder, reads=reads))
    other = found[Kind.IMMUTABLE]
    fixed = {key: change for key, change in other.items() if _is_fixed(key, change, config, state, trained)}
    if fixed:
        raise ValueError(
            f"{folder.root} was trained with {_listed(fixed)}; {_remedy(fixed)}, or start another run: with name=, or from a "
            f"checkpoint with `temper fork`"
        )
    return found


def check_continuation(config: Config, folder: RunDir, *, reads: bool = True) -> list[str]:
    """Record the configuration of a run, and its changes since the last start. Return notes on their effects.

    A stage without a checkpoint samples its answers again if the changes affect them. A run without any checkpoint starts
    again. Raise `ValueError` as `allowed_changes`.
    """
    state = folder.state()
    now = fingerprint_now(config, folder, reads=reads)
    if not state.fingerprint:
        save_config(config, folder.config)
        folder.store(replace(state, fingerprint=now))
        return []
    trained = folder.trained_instances()
    found = allowed_changes(config, folder, reads=reads)
    if _begins_anew(found, config, state, trained):
        state = _afresh(folder)
    _forget_answers(found, folder, trained)
    notes: list[str] = []
    if trained and (what := select_recorded(found, config, state)):
        name = next(reversed(trained))
        step = resumed_step(folder.checkpoints(name))
        rate = rate_change(
            config, found[Kind.SCHEDULE], place(folder.checkpoints(name), step), read_metrics(folder.metrics)
        )
        notes += [] if rate is None else [rate.note]
        MetricsLog(folder.metrics).event(name, step, CHANGED, what | ({} if rate is None else rate.event))
    save_config(config, folder.config)
    folder.store(replace(state, fingerprint=now))
    return notes


def valid_progress(config: Config, folder: RunDir, *, reads: bool = True) -> RunState:
    """Return the progress that stays valid under this configuration, none if the run starts again."""
    state, trained = folder.state(), folder.trained_instances()
    if not state.fingerprint or trained:
        return state
    found = changes(config, state.fingerprint, fingerprint_now(config, folder, reads=reads))
    return RunState() if _begins_anew(found, config, state, trained) else state


def select_recorded(found: dict[Kind, Changes], config: Config, state: RunState) -> dict[str, list[str | None]]:
    """Return the changes for an event: all but free ones. Added and removed instances are listed by name."""
    return {
        key: list(change)
        for key, change in (found[Kind.IMMUTABLE] | found[Kind.SCHEDULE]).items()
        if not (None in change and _of_a_stage(key, config, state))
    }


def _begins_anew(found: dict[Kind, Changes], config: Config, state: RunState, trained: Iterable[str]) -> bool:
    """Return whether no progress is valid: nothing was trained, and a setting outside of stages changed."""
    return not trained and any(not _of_a_stage(key, config, state) for key in found[Kind.IMMUTABLE])


def _of_a_stage(key: str, config: Config, state: RunState) -> bool:
    """Return whether a setting belongs to a stage or an instance, also a removed one that never started."""
    owner = key.partition(".")[0]
    names = {*config.sections, *state.stages, *(one.name for one in config.instances)}
    return owner in names or owner not in KNOWN


def _forget_answers(found: dict[Kind, Changes], folder: RunDir, trained: Iterable[str]) -> None:
    for name in folder.state().stages:
        if name not in trained and samples_anew(name, found):
            folder.answers_file(name).unlink(missing_ok=True)


def samples_anew(name: str, found: dict[Kind, Changes]) -> bool:
    """Return whether the changed settings would change what this stage samples."""
    settings = ("envs.", "rollout.", *(f"{name}.{setting}" for setting in SAMPLED_BY))
    return any(key.startswith(settings) for key in (*found[Kind.IMMUTABLE], *found[Kind.SCHEDULE]))


def _is_fixed(
    key: str, change: tuple[str | None, str | None], config: Config, state: RunState, trained: Iterable[str]
) -> bool:
    owner = key.partition(".")[0]
    stage = _of_a_stage(key, config, state)
    if not (owner in trained if stage else trained):
        return False
    return not (change[1] is None and stage)  # else the list of stages has it no longer


def _needs_no_more(key: str, state: RunState, reads: bool, same_model: bool) -> bool:
    """Return whether no stage ahead reads a missing file. The first model must also have the same path."""
    if key in FIRST_MODEL:
        return same_model
    return not reads or key.partition(".")[0] in state.done


def _afresh(folder: RunDir) -> RunState:
    """Return a state without progress. Remove all results of other settings."""
    state = folder.state()
    for name in state.began:
        folder.answers_file(name).unlink(missing_ok=True)
    shutil.rmtree(folder.root / "checkpoints", ignore_errors=True)
    for path in folder.evals.rglob("*.json"):
        path.unlink()
    return RunState()


def _listed(found: Changes) -> str:
    return "; ".join(f"{key}: {before} -> {now}" for key, (before, now) in found.items())


def _remedy(found: Changes) -> str:
    if moved := [f"{key}={before}" for key, (before, _) in found.items() if key.endswith(".revision")]:
        return f"resume with {', '.join(moved)}"
    files = any("SHA-256" in str(before) for before, _ in found.values())
    return "restore the file" if files else "restore the old values"
