"""The trackers of a run, and the data that they receive: settings, stages, data sets, note and files."""

import hashlib
import json
import math
from collections.abc import Callable, Iterator
from pathlib import Path

from temper.envs.data.config import DataConfig
from temper.orchestrator.evaluation.record import Evaluation, read_evaluations
from temper.orchestrator.pipeline.config import Config, flat_config
from temper.orchestrator.run.folder import RunDir
from temper.orchestrator.run.redaction import blank_text
from temper.orchestrator.stages.stage import Role, StageInstance
from temper.orchestrator.tracking.backend import FILE, PAGE, Backend, DataSet, first_line
from temper.orchestrator.tracking.mlflow.stored_run import SQLITE, StoredRun, find_store
from temper.orchestrator.tracking.sending import Sender
from temper.orchestrator.tracking.sinks.config import WandbConfig
from temper.orchestrator.tracking.tracker import Tracker

MLFLOW_CLOSE_S, WANDB_CLOSE_S = 15.0, 45.0
"""Seconds that the end of a run waits for a backend. W&B's library takes long to import."""


def tracker_of(config: Config, folder: RunDir, *, notify: Callable[[str], None]) -> Tracker:
    tracking, local_dir = config.tracking, folder.root.parent
    stored = StoredRun(
        name=config.name,
        uri=find_store(tracking.uri, local_dir),
        experiment=tracking.experiment,
        metrics=folder.metrics,
        state_dir=folder.tracking,
        artifacts=local_dir.absolute() / "mlartifacts",
        traces=tracking.traces,
        stages=tracking.stages,
        registered=tracking.registered_model,
        system_s=tracking.system_s,
    )
    senders = [make_mlflow_sender(stored, notify=notify)]
    if "wandb" in tracking.also:
        senders.append(make_wandb_sender(tracking.wandb, name=config.name, folder=folder, notify=notify))
    return Tracker(*senders)


def make_mlflow_sender(run: StoredRun, *, notify: Callable[[str], None] = print) -> Sender:
    """Return the sender of a run to MLflow."""
    # Imported here because MLflow takes seconds. Not in the thread, because the run imports much at that time.
    from temper.orchestrator.tracking.mlflow.backend import MlflowBackend

    def make() -> Backend:
        return MlflowBackend(run, notify=notify)

    return Sender(run.uri, make, notify=notify, close_s=MLFLOW_CLOSE_S)


def make_wandb_sender(settings: WandbConfig, *, name: str, folder: RunDir, notify: Callable[[str], None]) -> Sender:
    """Return the sender of a run to W&B. Its thread imports the library."""

    def make() -> Backend:
        from temper.orchestrator.tracking.sinks.wandb_sink import WandbSink

        return WandbSink(settings, name=name, folder=folder, notify=notify)

    return Sender("wandb", make, notify=notify, close_s=WANDB_CLOSE_S)


def relative_store(config: Config) -> Path | None:
    """Return MLflow's store if it is a file with a relative path, which an environment variable may also set."""
    uri = find_store(config.tracking.uri, Path(config.runs_dir))
    file = Path(uri.removeprefix(SQLITE))
    return file if uri.startswith(SQLITE) and not file.is_absolute() else None


LONGEST_DIGEST = 36


def send_run(tracker: Tracker, config: Config, folder: RunDir, *, notify: Callable[[str], None]) -> None:
    """Send the state of a run except its metrics, which a killed process may not have sent."""
    tracker.params(flat_config(config))
    state = folder.state()
    for one in config.instances:
        if one.name in state.done:
            send_stage(tracker, one, config, folder, state.seconds.get(one.name, 0.0))
    send_note(tracker, folder, notify=notify)
    reported = any(one.stage.role is Role.REPORT and one.name in state.done for one in config.instances)
    answers = folder.newest_trajectories() if reported and config.tracking.trajectories else []
    for path in (*folder.artifacts, *answers):
        tracker.artifact(path)
    for path in folder.written_trajectories():
        tracker.episodes(path)


def send_note(tracker: Tracker, folder: RunDir, *, notify: Callable[[str], None]) -> None:
    """Send the description of the run. If that fails, `notify` gets the reason."""
    try:
        note = run_note(folder)
    except Exception as error:  # a description must not end the run
        notify(f"tracking: the run's description is not updated ({first_line(error)})")
        return
    tracker.describe(note)


def send_stage(
    tracker: Tracker, one: StageInstance, config: Config, folder: RunDir, seconds: float | None = None
) -> None:
    """Send the start of a stage, or its end after `seconds`. Skip a stage that measures nothing."""
    if one.stage.role in (Role.BEGIN, Role.REPORT):
        return
    own = (f"{one.name}.", f"{one.stage.name}.")
    params = {name: value for name, value in flat_config(config).items() if name.startswith(own)}
    tracker.stage(_rows_name(one), params, seconds, data=tuple(_data(one, config, folder.state().fingerprint)))


def send_model(tracker: Tracker, folder: RunDir) -> None:
    state = folder.state()
    if state.model is not None:
        tracker.model(folder.root / state.model, {"stage": state.label, "weights": str(state.version)})


def _rows_name(one: StageInstance) -> str:
    """Return the name of an instance's rows. An evaluation `exam` has `eval-exam`."""
    return f"eval-{one.name.removeprefix('eval-')}" if one.stage.role is Role.EVALUATE else one.name


def _data(one: StageInstance, config: Config, known: dict[str, str]) -> Iterator[DataSet]:
    """Yield the data of a stage: its rows, else one set for each environment. `known` has file contents by setting."""
    settings = config.settings(one)
    if (own := one.stage.data(settings)) is not None:
        source, content = _source(own), _content(known, f"{one.name}.data") or _content(known, f"{one.stage.name}.data")
        yield DataSet(
            name=blank_text(own.name),
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
    return blank_text(" ".join(part for part in (data.path, data.config, data.split, data.revision) if part))


def _content(known: dict[str, str], setting: str) -> list[str]:
    return [value for name, value in sorted(known.items()) if name.startswith(setting)]


def _digest(*parts: object) -> str:
    return hashlib.sha256(json.dumps([str(part) for part in parts]).encode()).hexdigest()[:LONGEST_DIGEST]


def run_note(folder: RunDir) -> str:
    """Return the results of a run with links to its files, in Markdown."""
    evaluations = sorted(read_evaluations(folder.evals), key=lambda one: one.order)
    return f"{_results(evaluations)}\n\n{_more(folder)}"


def _results(evaluations: list[Evaluation]) -> str:
    if not evaluations:
        return "No evaluation yet."
    envs = sorted({env for one in evaluations for env in one.envs})
    heads = ["environment", *(f"after {one.label}" for one in evaluations)]
    if several := len(evaluations) > 1:
        heads.append("change")
    lines = [_line(heads), _line(["---"] + ["---:"] * (len(heads) - 1))]
    for env in envs:
        values = [one.envs[env].avg_at_k if env in one.envs else float("nan") for one in evaluations]
        change = [_number(values[-1] - values[0], sign="+")] if several else []
        lines.append(_line([env, *map(_number, values), *change]))
    last = evaluations[-1]
    requested = max((result.tasks_asked for result in last.envs.values()), default=0)
    return "\n".join([f"Accuracy (avg@{last.k} over {requested} held-out tasks an environment):", "", *lines])


def _more(folder: RunDir) -> str:
    shown = [path.name for path in folder.artifacts if path.parent == folder.root and path.suffix != ".json"]
    links = [f"[{name}]({PAGE}/artifacts/{name})" for name in shown]
    pictures = [f"![{name}]({FILE}{name})" for name in shown if name.endswith(".svg")]
    linked = " - ".join([*links, f"[traces]({PAGE}/traces)"])
    return "\n\n".join([linked, f"Folder: `{folder.root}`", *pictures])


def _number(value: float, sign: str = "") -> str:
    return f"{value:{sign}.2f}" if math.isfinite(value) else "-"


def _line(cells: list[str]) -> str:
    return f"| {' | '.join(cells)} |"
