"""MLflow as a place of a run, without the import of MLflow, which takes seconds."""

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from temper.orchestrator.tracking.backend import Backend
from temper.orchestrator.tracking.sending import Sender

SQLITE = "sqlite:///"
"""The beginning of the address of a store in a file, in front of its path."""
USUAL_TRACES = 8
CLOSE_S = 15.0


def find_store(uri: str | None, local_dir: Path) -> str:
    """Return the store of a run: the given one, else that of the environment, else a file next to the runs."""
    return uri or os.environ.get("MLFLOW_TRACKING_URI") or f"{SQLITE}{local_dir.absolute()}/mlflow.db"


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredRun:
    """A run and the store that it is sent to. What is None leaves no text of the run on another machine by default."""

    name: str
    uri: str
    experiment: str
    metrics: Path
    state_dir: Path
    """The folder that keeps which run of the store this is, so that it stays one however often its process dies."""
    artifacts: Path
    """The folder of the files of a new experiment in a local store."""
    traces: int | None = None
    """Episodes of each file of trajectories that become traces: of a local store 8, of a server none."""
    stages: bool = True
    """Whether each stage has a nested run."""
    registered: str | None = None
    """The name of the registered model, "" for none: by default a local store gets one, a server none."""
    system_s: float = 0.0
    """Seconds between two looks at the machine, 0 for none."""

    @property
    def is_local(self) -> bool:
        """Whether the store is a file."""
        return self.uri.startswith(SQLITE)

    @property
    def traces_per_file(self) -> int:
        """How many episodes of a file become traces."""
        return self.traces if self.traces is not None else USUAL_TRACES if self.is_local else 0

    @property
    def model_name(self) -> str:
        """The name of the registered model, or ""."""
        return self.registered if self.registered is not None else f"temper-{self.name}" if self.is_local else ""


def make_mlflow_sender(run: StoredRun, *, notify: Callable[[str], None] = print) -> Sender:
    """Return the sender of a run to MLflow."""
    # Imported here: MLflow takes seconds, and most commands track nothing. Not in the thread, as the run imports much then.
    from temper.orchestrator.tracking.mlflow.backend import MlflowBackend

    def make() -> Backend:
        return MlflowBackend(run, notify=notify)

    return Sender(run.uri, make, notify=notify, close_s=CLOSE_S)
