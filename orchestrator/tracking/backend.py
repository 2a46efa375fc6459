"""The interface of tracking backends, such as MLflow or W&B, and their errors."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any, Literal

from temper.orchestrator.run.metrics_log import MetricsRow
from temper.orchestrator.tracking.unsent_rows import UnsentRows

PAGE, FILE = "RUN_PAGE", "RUN_FILE/"
"""Placeholders in a note: the address of the run's page, and the start of the address of its files."""
REJECTED = ("INVALID_PARAMETER_VALUE", "BAD_REQUEST", "RESOURCE_DOES_NOT_EXIST", "INVALID_STATE", "MALFORMED_REQUEST")
"""MLflow's error codes for a request with an invalid entry."""
REFUSED = (
    *REJECTED,
    *("PERMISSION_DENIED", "UNAUTHENTICATED", "CUSTOMER_UNAUTHORIZED"),
    *("ENDPOINT_NOT_FOUND", "NOT_IMPLEMENTED", "FEATURE_DISABLED"),
)
"""MLflow's error codes for a request that a retry can't fix."""


class RunStatus(Enum):
    """The final status of a run, in MLflow's terms."""

    FINISHED = "FINISHED"  # it completed
    FAILED = "FAILED"  # an error ended it
    KILLED = "KILLED"  # it was stopped


@dataclass(frozen=True, slots=True, kw_only=True)
class DataSet:
    """Data that a stage read. `digest` has at most 36 characters. `facts` are further names and values."""

    name: str
    digest: str
    kind: Literal["file", "generated"]
    source: str
    context: Literal["train", "eval"]
    facts: tuple[tuple[str, Any], ...] = ()


class Backend:
    """One run in one backend. Calls may block or raise, and are then repeated."""

    address = ""
    """The address of the run, known after `connect`."""

    def connect(self) -> UnsentRows:
        """Find or create the run and return its unsent rows. Called again if sent rows disappear from the file."""
        raise NotImplementedError

    def require_run(self) -> None:
        """Raise `RunDeletedError` if the run is gone, another error if the backend does not answer."""

    def send_rows(self, rows: Sequence[MetricsRow]) -> None:
        """Send rows, in file order."""
        raise NotImplementedError

    def send_params(self, values: dict[str, str]) -> None:
        """Send the configuration and replace the previous one."""
        raise NotImplementedError

    def describe(self, note: str) -> None:
        """Send the description, in Markdown."""
        raise NotImplementedError

    def store(self, path: Path) -> None:
        """Send a file to its path in the run's folder."""
        raise NotImplementedError

    def store_episodes(self, path: Path) -> None:
        """Send episodes of a trajectory file, if the backend shows them."""

    def stage(self, name: str, params: dict[str, str], seconds: float | None, data: Sequence[DataSet]) -> None:
        """Send the settings and data of a stage, if the backend shows them."""

    def register(self, model: Path, facts: dict[str, str]) -> None:
        """Register the run's checkpoint, if the backend has a model registry."""

    def finish_batch(self, *, last: bool) -> None:
        """Finish a batch of rows and calls. `last`: the run ends."""

    def end(self, status: RunStatus) -> None:
        """Mark the run as ended, and wait for the remaining data within a deadline."""
        raise NotImplementedError

    def abandon(self) -> None:
        """Stop everything that would delay the end of this process. Any thread may call it."""


class RunDeletedError(RuntimeError):
    """The run was deleted in MLflow."""


def is_refusal(error: Exception) -> bool:
    """Return whether a retry would be useless."""
    return getattr(error, "error_code", None) in REFUSED


def first_line(error: Exception) -> str:
    """Return the first line of an error's message."""
    return (str(error).splitlines() or [type(error).__name__])[0][:200]
