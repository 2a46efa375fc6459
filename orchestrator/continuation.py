"""What a run was begun with, and what of it may be different when it goes on: as each setting's kind says."""

import shutil
from collections.abc import Iterable
from dataclasses import replace

from envs.setting import Kind, kind_of
from learner.checkpoint import steps
from orchestrator.config import KINDS, Config, flat_config, save_config
from orchestrator.data_files import MISSING, content
from orchestrator.metrics import MetricsLog
from orchestrator.run_dir import RunDir, RunState

CHANGED = "changed"
"""The kind of the event that says which settings changed."""
Changes = dict[str, tuple[str | None, str | None]]
"""Settings by their dotted names, with what they were and what they are; None where there was or is none."""


def fingerprint(config: Config) -> dict[str, str]:
    """The settings, those that name files by what the files hold: another place is no change, another content is."""
    return flat_config(config) | content(config)


def fingerprint_now(config: Config, state: RunState, *, reads: bool = True) -> dict[str, str]:
    """The fingerprint of a run that goes on: of a file that is gone and that nothing ahead reads, what was known of it."""
    now = fingerprint(config)
    return now | {key: state.fingerprint[key] for key in now if _needs_no_more(key, now[key], state, reads)}


def changes(config: Config, before: dict[str, str], now: dict[str, str]) -> dict[Kind, Changes]:
    """What differs, by kind."""
    stages = {stage.name: stage.stage for stage in config.instances}
    found: dict[Kind, Changes] = {kind: {} for kind in Kind}
    for key in sorted(before | now):
        if before.get(key) != now.get(key):
            found[_kind(key, stages)][key] = before.get(key), now.get(key)
    return found


def _kind(key: str, stages: dict[str, str]) -> Kind:
    owner, _, rest = key.partition(".")
    return kind_of(KINDS, f"{stages.get(owner, owner)}.{rest}" if rest else key)


def check_continuation(config: Config, folder: RunDir, *, reads: bool = True) -> None:
    """Record a new run's configuration, or check that a continued one may go on with this one, and record what changed.

    What nothing was trained with may change: all of a run without a checkpoint, which then begins anew, and the settings
    of a stage that has none. Files may be gone where nothing ahead `reads` any. Raises `ValueError` with what would make
    another run.
    """
    state = folder.state()
    now = fingerprint_now(config, state, reads=reads)
    if not state.fingerprint:
        save_config(config, folder.config)
        folder.store(replace(state, fingerprint=now))
        return
    trained = folder.begun()
    found = changes(config, state.fingerprint, now)
    other = found[Kind.IDENTITY]
    fixed = {key: change for key, change in other.items() if _is_fixed(key, change, config, state, trained)}
    if fixed:
        raise ValueError(
            f"{folder.root} was trained with {_listed(fixed)}; {_remedy(fixed)}, or begin another run: with name=, or at "
            f"a checkpoint of this one with `python -m orchestrator fork`"
        )
    if other and not trained:
        state = _afresh(folder)
    if trained and (what := recorded(found, config, state)):
        name = next(reversed(trained))
        MetricsLog(folder.metrics).event(name, max(steps(folder.checkpoints(name))), CHANGED, what)
    save_config(config, folder.config)
    folder.store(replace(state, fingerprint=now))


def recorded(found: dict[Kind, Changes], config: Config, state: RunState) -> dict[str, list[str | None]]:
    """What an event says of changes: all but those that are free, and of an instance that came or went its name alone."""
    names = set(state.stages) | {stage.name for stage in config.instances}
    return {
        key: list(change)
        for key, change in (found[Kind.IDENTITY] | found[Kind.SCHEDULE]).items()
        if not (None in change and key.partition(".")[0] in names)
    }


def _is_fixed(
    key: str, change: tuple[str | None, str | None], config: Config, state: RunState, trained: Iterable[str]
) -> bool:
    """Whether something was trained with this setting."""
    owner = key.partition(".")[0]
    stage = owner in config.sections or owner in state.stages or owner in {one.name for one in config.instances}
    if not (owner in trained if stage else trained):
        return False
    return not (change[1] is None and stage)  # else the list of stages does not name it any more


def _needs_no_more(key: str, now: str, state: RunState, reads: bool) -> bool:
    """Whether a file is gone that nothing ahead reads."""
    owner = key.partition(".")[0]
    return now == MISSING and key in state.fingerprint and (not reads or owner in state.done or owner == "model")


def _afresh(folder: RunDir) -> RunState:
    """A state without progress, where nothing was trained: what was made with other settings is removed."""
    state = folder.state()
    for name in state.began:
        folder.sampled(name).unlink(missing_ok=True)
    shutil.rmtree(folder.root / "checkpoints", ignore_errors=True)
    for path in folder.evals.glob("*.json"):
        path.unlink()
    return RunState()


def _listed(found: Changes) -> str:
    return "; ".join(f"{key}: {before} -> {now}" for key, (before, now) in found.items())


def _remedy(found: Changes) -> str:
    files = any("SHA-256" in str(before) for before, _ in found.values())
    return "put the file back as it was" if files else "go on with what it was"
