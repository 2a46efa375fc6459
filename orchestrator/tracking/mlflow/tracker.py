"""MLflow as the tracker of a run, without the import of MLflow, which takes seconds."""

import os
from collections.abc import Callable
from pathlib import Path

from temper.orchestrator.tracking.sending import Place, SendingTracker

SQLITE = "sqlite:///"
"""The beginning of the address of a store in a file, in front of its path."""
USUAL_TRACES = 8
"""Episodes of each file of trajectories that a store in a file gets."""
CLOSE_S = 15.0


def store_of(uri: str | None, local_dir: Path) -> str:
    """Return the store of a run: the given one, else that of the environment, else a file next to the runs."""
    return uri or os.environ.get("MLFLOW_TRACKING_URI") or f"{SQLITE}{local_dir.absolute()}/mlflow.db"


def traces_of(given: int | None, uri: str) -> int:
    """Return how many episodes of each file of trajectories become traces: by default none leave the machine."""
    return given if given is not None else USUAL_TRACES if uri.startswith(SQLITE) else 0


def mlflow_tracker(
    run_name: str,
    *,
    experiment: str,
    metrics: Path,
    memory: Path,
    uri: str | None = None,
    local_dir: Path = Path("runs"),
    traces: int | None = None,
    stages: bool = True,
    registered: str | None = None,
    system_s: float = 0.0,
    say: Callable[[str], None] = print,
) -> SendingTracker:
    """Return the tracker of a run at `uri`, else at MLFLOW_TRACKING_URI, else in a SQLite file in `local_dir`.

    `metrics` is the metrics file. With the folder `memory` the run stays one run there, however often its process dies.
    `registered` is the name of the registered model, "" for none: by default a local store gets one, a server none.
    """
    # Imported here: MLflow takes seconds, and most commands track nothing. Not in the thread, as the run imports much then.
    from temper.orchestrator.tracking.mlflow.place import MlflowPlace

    store = store_of(uri, local_dir)
    usual = f"temper-{run_name}" if store.startswith(SQLITE) else ""

    def make() -> Place:
        return MlflowPlace(
            store,
            name=run_name,
            experiment=experiment,
            metrics=metrics,
            memory=memory,
            artifacts=local_dir.absolute() / "mlartifacts",
            traces=traces_of(traces, store),
            stages=stages,
            registered=usual if registered is None else registered,
            system_s=system_s,
            say=say,
        )

    return SendingTracker(store, make, say=say, close_s=CLOSE_S)
