"""The live state of a run in `status.json`, readable without Ray, and requests for another number of workers."""

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
    """A rollout worker or a rank. Ages are in seconds. Unknown values are None.

    `host` is its machine. `node` is its cluster node, if another than the driver's. `answered_s` is the age of its last
    heartbeat, from which `progress`, `doing` and `quiet_s` come (see `Heartbeat`).
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
    """A group in flight: `age_s` since its admission, and the worker that generates it."""

    number: int
    env: str
    state: str
    age_s: float
    worker: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationStatus:
    """A running evaluation, in a stage or between steps: its answered tasks after `age_s`."""

    name: str
    answered: int
    tasks: int
    age_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class RunStatus:
    """The state of a run at a `time`, in seconds since 1970. `pid` is the driver on the machine `host`.

    `buffer` counts groups by state and, like `tickets`, is empty outside of the loop's stages. `failures` counts the stage's
    failed episodes by kind, `faults` the files in the folder `faults`.
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
        """Replace the status file. It is not flushed, since it need not survive a power cut."""
        temporary = folder / f"{STATUS_FILE}.tmp"
        temporary.write_text(json.dumps(asdict(self)), encoding="utf-8")
        os.replace(temporary, folder / STATUS_FILE)


def read_status(folder: Path) -> RunStatus | None:
    """Return the last status of a run, or None without one. Raise `ValueError` with file and remedy for an invalid one."""
    file = folder / STATUS_FILE
    try:
        return TypeAdapter(RunStatus).validate_json(file.read_bytes())
    except FileNotFoundError:
        return None
    except ValueError as error:
        raise ValueError(
            f"{file} is damaged or of another version; remove it, because a running run writes it again"
        ) from error


SCALE_FILE = "scale.json"
TAKEN = ".taken"
"""Suffix of a request while it is read, so that the next one can be written."""


def ask_for_workers(folder: Path, workers: int) -> Path:
    """Write the request. Return its file, which the driver removes once it has read it."""
    write_json(folder / SCALE_FILE, {"rollout_workers": workers})
    return folder / SCALE_FILE


def take_request(folder: Path) -> int | None:
    """Return the requested number of rollout workers, once; None without a request. Raise `ValueError` for an invalid file."""
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
        raise ValueError(f"{path} is no request such as {{'rollout_workers': 2}}: {text[:80]!r}") from error
    if workers < 1:
        raise ValueError(f"{path} requests {workers} rollout workers; a run needs at least 1")
    return workers
