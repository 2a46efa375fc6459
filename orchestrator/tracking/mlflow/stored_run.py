"""A run and its MLflow store, without importing MLflow, which takes seconds."""

import os
from dataclasses import dataclass
from pathlib import Path

SQLITE = "sqlite:///"
"""Prefix of the address of a store in a file."""
USUAL_TRACES = 8


def find_store(uri: str | None, local_dir: Path) -> str:
    """Return the store of a run: the given one, else the environment's, else a file next to the runs."""
    return uri or os.environ.get("MLFLOW_TRACKING_URI") or f"{SQLITE}{local_dir.absolute()}/mlflow.db"


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredRun:
    """A run and its store. By default, None values send no text of the run to another machine."""

    name: str
    uri: str
    experiment: str
    metrics: Path
    state_dir: Path
    """Folder of the run's identity in the store, so that it survives restarts."""
    artifacts: Path
    """Folder of the files of a new experiment in a local store."""
    traces: int | None = None
    """Episodes of each trajectory file that become traces; by default 8 in a local store, none on a server."""
    stages: bool = True
    """Whether each stage has a nested run."""
    registered: str | None = None
    """Name of the registered model, "" for none. By default a local store gets one, a server none."""
    system_s: float = 0.0
    """Seconds between two system metrics, 0 for none."""

    @property
    def is_local(self) -> bool:
        """Whether the store is a file."""
        return self.uri.startswith(SQLITE)

    @property
    def traces_per_file(self) -> int:
        """Number of episodes of a file that become traces."""
        return self.traces if self.traces is not None else USUAL_TRACES if self.is_local else 0

    @property
    def model_name(self) -> str:
        """The name of the registered model, or ""."""
        return self.registered if self.registered is not None else f"temper-{self.name}" if self.is_local else ""
