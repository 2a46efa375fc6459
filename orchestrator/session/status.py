"""The live state of a run in `status.json`, read without Ray, and the request for another number of workers."""

import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path

from pydantic import TypeAdapter

from temper.envs.core.process import ProcessState
from temper.orchestrator.run.folder import write_json

STATUS_FILE = "status.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessStatus:
    """A rollout worker or a rank. Ages in seconds; what is not known yet is None.

    `host` is the name of its machine, `node` how the cluster calls its node where that is not the driver's. `answered_s` is
    the age of its last heartbeat; `progress`, `doing` and `quiet_s` are what that said (see `Heartbeat`).
    """

    name: str
    state: ProcessState
    restarts: int
    tickets: tuple[int, ...]
    pid: int | None = None
    host: str | None = None
    node: str | None = None
    answered_s: float | None = None
    progress: int | None = None
    doing: str = ""
    quiet_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TicketStatus:
    """A group on its way: `age_s` is the time since it was admitted, `worker` who generates it."""

    number: int
    env: str
    state: str
    age_s: float
    worker: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationStatus:
    """An evaluation under way, of a stage of its own or between steps: how many of its tasks are answered, after `age_s`."""

    name: str
    answered: int
    tasks: int
    age_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class RunStatus:
    """The state of a run at a `time`, in seconds since 1970. `pid` is the driver, on the machine `host` if recorded.

    `buffer` counts groups by state and is empty outside of the loop's stages, as `tickets` are; `failures` counts the
    failed episodes of the stage by type, `faults` the files in the run's folder `faults`.
    """

    pid: int
    time: float
    stage: str
    step: int
    steps: int
    version: int
    buffer: dict[str, int]
    tickets: tuple[TicketStatus, ...]
    processes: tuple[ProcessStatus, ...]
    failures: dict[str, int]
    faults: int
    evaluation: EvaluationStatus | None = None
    host: str | None = None

    def write(self, folder: Path) -> None:
        """Replace the status of a run's folder. It need not survive a power cut, so nothing waits for the disk."""
        temporary = folder / f"{STATUS_FILE}.tmp"
        temporary.write_text(json.dumps(asdict(self)), encoding="utf-8")
        os.replace(temporary, folder / STATUS_FILE)


def read_status(folder: Path) -> RunStatus | None:
    """Return the last status that a run wrote; None without one. Raise `ValueError` for another file."""
    try:
        return TypeAdapter(RunStatus).validate_json((folder / STATUS_FILE).read_bytes())
    except FileNotFoundError:
        return None
    except ValueError as error:
        raise ValueError(f"{folder / STATUS_FILE} is no status: {type(error).__name__}: {error}") from error


SCALE_FILE = "scale.json"
TAKEN = ".taken"
"""What is added to its name while it is read, so that the next request may come meanwhile."""


def ask_for_workers(folder: Path, workers: int) -> Path:
    """Write the request; return its file, which is gone once the driver has read it."""
    write_json(folder / SCALE_FILE, {"rollout_workers": workers})
    return folder / SCALE_FILE


def take_request(folder: Path) -> int | None:
    """Return how many rollout workers are asked for, once; None without a request. Raise `ValueError` for another file."""
    path, taken = folder / SCALE_FILE, folder / f"{SCALE_FILE}{TAKEN}"
    try:
        os.replace(path, taken)
    except FileNotFoundError:
        return None
    text = taken.read_text(encoding="utf-8")
    taken.unlink()
    try:
        workers = int(json.loads(text)["rollout_workers"])
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{path} held no request such as {{'rollout_workers': 2}}: {text[:80]!r}") from error
    if workers < 1:
        raise ValueError(f"{path} asked for {workers} rollout workers; a run needs at least 1")
    return workers
