"""One run in one place, such as MLflow, W&B or trackio, and the errors of such places."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any, Literal

from temper.orchestrator.run.metrics_log import MetricsRow
from temper.orchestrator.tracking.unsent_rows import UnsentRows

PAGE, FILE = "RUN_PAGE", "RUN_FILE/"
"""In a note: the address of the run's own page, and the beginning of the address of a file of the run."""
REJECTED = ("INVALID_PARAMETER_VALUE", "BAD_REQUEST", "RESOURCE_DOES_NOT_EXIST", "INVALID_STATE", "MALFORMED_REQUEST")
"""MLflow's answers to a request with an entry that it will never accept."""
REFUSED = (
    *REJECTED,
    *("PERMISSION_DENIED", "UNAUTHENTICATED", "CUSTOMER_UNAUTHORIZED"),
    *("ENDPOINT_NOT_FOUND", "NOT_IMPLEMENTED", "FEATURE_DISABLED"),
)
"""MLflow's answers to a request that it will never accept."""


class RunStatus(Enum):
    """How a run came to its end, in MLflow's words."""

    FINISHED = "FINISHED"  # all that was asked for is done
    FAILED = "FAILED"  # a fault ended it
    KILLED = "KILLED"  # somebody stopped it


@dataclass(frozen=True, slots=True, kw_only=True)
class DataSet:
    """Data that a stage read. `digest` has at most 36 characters, `facts` are further names and values."""

    name: str
    digest: str
    kind: Literal["file", "generated"]
    source: str
    context: Literal["train", "eval"]
    facts: tuple[tuple[str, Any], ...] = ()


class Backend:
    """One run in one place. Every call may block and may raise, and is repeated then."""

    address = ""
    """The address of the run. It is known once the place is connected."""

    def connect(self) -> UnsentRows:
        """Find the run or create it; return the rows that it lacks. Called again if rows that it has were cut off."""
        raise NotImplementedError

    def require_run(self) -> None:
        """Raise `RunDeletedError` if the run is gone, another error if the place does not answer."""

    def send_rows(self, rows: Sequence[MetricsRow]) -> None:
        """Deliver rows, in the order of the file."""
        raise NotImplementedError

    def send_params(self, values: dict[str, str]) -> None:
        """Deliver the configuration, in the place of the one before."""
        raise NotImplementedError

    def describe(self, note: str) -> None:
        """Deliver the description, in Markdown."""
        raise NotImplementedError

    def store(self, path: Path) -> None:
        """Deliver a file to its place in the run's folder."""
        raise NotImplementedError

    def store_episodes(self, path: Path) -> None:
        """Deliver episodes of a file of trajectories, if the place has a page for them."""

    def stage(self, name: str, params: dict[str, str], seconds: float | None, data: Sequence[DataSet]) -> None:
        """Deliver the settings and data of a stage, if the place has a page for it."""

    def register(self, model: Path, facts: dict[str, str]) -> None:
        """Deliver the checkpoint that the run has left, if the place has a page for it."""

    def finish_batch(self, *, last: bool) -> None:
        """Do the rest after the rows and calls. `last`: the run ends."""

    def end(self, status: RunStatus) -> None:
        """Mark the run as ended and wait, within a deadline, for the rest."""
        raise NotImplementedError

    def abandon(self) -> None:
        """End all that would delay the end of this process; any thread may call it."""


class RunDeletedError(RuntimeError):
    """Somebody deleted the run in MLflow."""


def is_refusal(error: Exception) -> bool:
    """Return whether another try would change nothing."""
    return getattr(error, "error_code", None) in REFUSED


def first_line(error: Exception) -> str:
    """Return the first line of an error's text."""
    return (str(error).splitlines() or [type(error).__name__])[0][:200]
