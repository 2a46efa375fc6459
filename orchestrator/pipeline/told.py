"""What a tracker is told of a run beside its metrics: settings, stages with their data, descriptions, files, the model."""

import hashlib
import json
from collections.abc import Callable, Iterator

from temper.envs.data.config import DataConfig
from temper.orchestrator.pipeline.config import Config, flat_config
from temper.orchestrator.pipeline.run_note import run_note
from temper.orchestrator.run.folder import RunDir
from temper.orchestrator.run.redaction import blanked
from temper.orchestrator.stages.stage import Role, StageInstance
from temper.orchestrator.tracking.data_set import DataSet
from temper.orchestrator.tracking.tracker import Tracker
from temper.orchestrator.tracking.tracking_error import first_line

LONGEST_DIGEST = 36


def tell_tracker(tracker: Tracker, config: Config, folder: RunDir, *, say: Callable[[str], None]) -> None:
    """Tell all that a run has by now but its metrics: a process that was killed may not have sent it."""
    tracker.params(flat_config(config))
    state = folder.state()
    for one in config.instances:
        if one.name in state.done:
            tell_stage(tracker, one, config, folder, state.seconds.get(one.name, 0.0))
    tell_note(tracker, folder, say=say)
    reported = any(one.stage.role is Role.REPORT and one.name in state.done for one in config.instances)
    answers = folder.newest_trajectories() if reported and config.tracking.trajectories else []
    for path in (*folder.artifacts, *answers):
        tracker.artifact(path)
    for path in folder.written_trajectories():
        tracker.episodes(path)


def tell_note(tracker: Tracker, folder: RunDir, *, say: Callable[[str], None]) -> None:
    """Tell what the run says of itself; `say` gets why it can't, as where a file of an evaluation can't be read."""
    try:
        note = run_note(folder)
    except Exception as error:  # a description must not end the run
        say(f"tracking: the run is not described anew ({first_line(error)})")
        return
    tracker.describe(note)


def tell_stage(
    tracker: Tracker, one: StageInstance, config: Config, folder: RunDir, seconds: float | None = None
) -> None:
    """Tell that a stage begins, or is done in so many `seconds`; nothing of one that measures nothing."""
    if one.stage.role in (Role.BEGIN, Role.REPORT):
        return
    own = (f"{one.name}.", f"{one.stage.name}.")
    params = {name: value for name, value in flat_config(config).items() if name.startswith(own)}
    tracker.stage(_rows_name(one), params, seconds, data=tuple(_data(one, config, folder.state().fingerprint)))


def tell_model(tracker: Tracker, folder: RunDir) -> None:
    """Tell which checkpoint a run has left, where it left one."""
    state = folder.state()
    if state.model is not None:
        tracker.model(folder.root / state.model, {"stage": state.label, "weights": str(state.version)})


def _rows_name(one: StageInstance) -> str:
    """Return the name under which an instance has its rows: of an evaluation that is `exam` it is `eval-exam`."""
    return f"eval-{one.name.removeprefix('eval-')}" if one.stage.role is Role.EVALUATE else one.name


def _data(one: StageInstance, config: Config, known: dict[str, str]) -> Iterator[DataSet]:
    """Yield what a stage reads: rows of its own, else an environment each; `known` has files' content by their settings."""
    settings = config.settings(one)
    if (own := one.stage.data(settings)) is not None:
        source, content = _source(own), _content(known, f"{one.name}.data") or _content(known, f"{one.stage.name}.data")
        yield DataSet(
            name=blanked(own.name),
            digest=_digest(source, content, False, config.seed),
            kind="file",
            source=source,
            context="train",
            facts=(("format", own.format),),
        )
        return
    heldout = not one.stage.trains
    shares: dict[str, float] = {} if heldout else getattr(settings, "shares", {})
    for env, options in sorted(config.envs.items()):
        share = shares.get(env, options.share)
        if not heldout and share <= 0:
            continue
        separate = heldout and options.eval_data is not None
        data = options.eval_data if separate else options.data
        setting = f"envs.{env}.{'eval_data' if separate else 'data'}"
        source = f"{options.kind or env}, level {options.level}" if data is None else _source(data)
        yield DataSet(
            name=env,
            digest=_digest(source, _content(known, setting), heldout, config.seed),
            kind="generated" if data is None else "file",
            source=source,
            context="eval" if heldout else "train",
            facts=(("share", share), ("format", options.format), ("level", options.level)),
        )


def _source(data: DataConfig) -> str:
    return blanked(" ".join(part for part in (data.path, data.config, data.split, data.revision) if part))


def _content(known: dict[str, str], setting: str) -> list[str]:
    return [value for name, value in sorted(known.items()) if name.startswith(setting)]


def _digest(*parts: object) -> str:
    """Return what tells data apart: where it is from, its content, which part of it, the seed by which it is drawn."""
    return hashlib.sha256(json.dumps([str(part) for part in parts]).encode()).hexdigest()[:LONGEST_DIGEST]
