"""The places to which a run reports, from its settings: MLflow, and those of `tracking.also`."""

import os
from collections.abc import Callable
from pathlib import Path

from temper.orchestrator.pipeline.config import Config
from temper.orchestrator.run.folder import RunDir
from temper.orchestrator.tracking.mlflow.tracker import SQLITE, MlflowTracker, store_of
from temper.orchestrator.tracking.sinks.sink import SinkRun
from temper.orchestrator.tracking.sinks.tracker import SinkTracker
from temper.orchestrator.tracking.tracker import Tracker, Trackers


def tracker_of(config: Config, folder: RunDir, *, say: Callable[[str], None]) -> Tracker:
    """Return the tracker of a run, which tells all of its places."""
    own = MlflowTracker(
        run_name=config.name,
        experiment=config.tracking.experiment,
        metrics=folder.metrics,
        memory=folder.tracking,
        uri=config.tracking.uri,
        local_dir=folder.root.parent,
        traces=config.tracking.traces,
        stages=config.tracking.stages,
        registered=config.tracking.registered_model,
        say=say,
    )
    further = [SinkTracker(sink_run(config, folder, sink), say=say) for sink in config.tracking.also]
    return Trackers(own, *further) if further else own


def stores_by_path(config: Config) -> dict[str, str]:
    """Return the settings of stores that a relative path names, in the settings or by a variable, with the whole path."""
    stores = {}
    uri = store_of(config.tracking.uri, Path(config.runs_dir))
    if uri.startswith(SQLITE) and not Path(uri.removeprefix(SQLITE)).is_absolute():
        stores["tracking.uri"] = f"{SQLITE}{Path(uri.removeprefix(SQLITE)).absolute()}"
    folder = config.tracking.trackio.dir or os.environ.get("TRACKIO_DIR")
    if "trackio" in config.tracking.also and folder and not Path(folder).expanduser().is_absolute():
        stores["tracking.trackio.dir"] = str(trackio_store(config))
    return stores


def sink_run(config: Config, folder: RunDir, sink: str) -> SinkRun:
    """Return what a second place has to know of a run."""
    wandb, trackio = config.tracking.wandb, config.tracking.trackio
    return SinkRun(
        sink=sink,
        name=config.name,
        project=(wandb if sink == "wandb" else trackio).project,
        metrics=str(folder.metrics.absolute()),
        memory=str((folder.tracking / sink).absolute()),
        store=str(trackio_store(config)) if sink == "trackio" else "",
        entity=wandb.entity,
        uploads=wandb.uploads,
    )


def trackio_store(config: Config) -> Path:
    """Return the folder of trackio's store."""
    given = config.tracking.trackio.dir or os.environ.get("TRACKIO_DIR")
    return Path(given).expanduser().absolute() if given else Path(config.runs_dir).absolute() / "trackio"
