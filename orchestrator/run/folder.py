"""A run's folder: paths, atomic writes, the run's state, and a lock against a second driver."""

import fcntl
import json
import math
import os
import re
import time
import weakref
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import IO, Any, TypeVar

from temper.envs.core.errors import describe_error
from temper.orchestrator.run.checkpoint import steps, sync_folder, verify

LOCK_FILE = "driver.lock"
LOCK_TRIES = 3
LOCK_PAUSE_S = 0.1


@dataclass(frozen=True, kw_only=True)
class RunState:
    """The progress of a run, stored in `manifest.json`."""

    done: dict[str, int] = field(default_factory=dict)
    """Finished instances of stages in order, with their steps (0 for a stage without steps)."""
    began: dict[str, str] = field(default_factory=dict)
    """The first model of each training instance, in order of their starts."""
    stages: dict[str, str] = field(default_factory=dict)
    model: str | None = None
    """Newest model, relative to the run's folder; null before `init`."""
    label: str = "init"
    """The instance of a stage that made this model."""
    version: int = 0
    fingerprint: dict[str, str] = field(default_factory=dict)
    """The configuration of the last start, files by their content."""
    seconds: dict[str, float] = field(default_factory=dict)
    """Wall time of each stage, the sum of its starts."""
    commits: list[str] = field(default_factory=list)
    """Commits of the code that ran stages, in order, with "-dirty" for a changed checkout. An installed package has none."""
    origin: dict[str, str] = field(default_factory=dict)
    """For a fork: the source run, the checkpoint and the hash of its manifest."""


class RunDir:
    """`runs/<name>/`. One driver at a time holds it."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._lock: IO[str] | None = None

    @property
    def config(self) -> Path:
        return self.root / "config.yaml"

    @property
    def metrics(self) -> Path:
        return self.root / "metrics.jsonl"

    @property
    def event_log(self) -> Path:
        """Events of all tickets."""
        return self.root / "event_log.jsonl"

    @property
    def faults(self) -> Path:
        """Reports of hung and failed processes, one file each."""
        return self.root / "faults"

    @property
    def log(self) -> Path:
        """Output of libraries in the driver."""
        return self.root / "logs" / "driver.log"

    @property
    def printed(self) -> Path:
        """Output of engines and ranks, copied after faults and at the end."""
        return self.root / "logs" / "ray"

    @property
    def trajectories(self) -> Path:
        return self.root / "trajectories"

    def trajectory_file(self, stage: str, step: int) -> Path:
        return self.trajectories / f"{stage}-{step}.jsonl"

    def trajectory_files(self, stage: str) -> dict[int, Path]:
        return _by_step(self.trajectories, stage, ".jsonl")

    def newest_trajectories(self, count: int = 3) -> list[Path]:
        """Return the newest files of all instances in order. A tracker may get them with a report."""
        return self.written_trajectories()[-count:]

    def written_trajectories(self) -> list[Path]:
        """Return all trajectory files, oldest first."""
        written = {path: path.stat().st_mtime_ns for path in self.trajectories.glob("*.jsonl")}
        return sorted(written, key=written.__getitem__)

    @property
    def batches(self) -> Path:
        """Batches of steps for replay."""
        return self.root / "batches"

    def batch_file(self, stage: str, step: int) -> Path:
        return self.batches / f"{stage}-{step}.safetensors"

    def batch_files(self, stage: str) -> dict[int, Path]:
        return _by_step(self.batches, stage, ".safetensors")

    @property
    def tracking(self) -> Path:
        """State of the tracker."""
        return self.root / "tracking"

    @property
    def artifacts(self) -> list[Path]:
        """Existing files that the tracker uploads: evaluations and the report."""
        report = (self.root / name for name in ("report.html", "report.json", "result.svg", "curves.svg"))
        return [*sorted(self.evals.rglob("*.json")), *(path for path in report if path.exists())]

    @property
    def evals(self) -> Path:
        return self.root / "eval"

    def step_evaluation(self, stage: str, step: int) -> Path:
        return self.evals / "steps" / f"{stage}-{step}.json"

    def step_evaluations(self, stage: str) -> dict[int, Path]:
        return _by_step(self.evals / "steps", stage, ".json")

    def checkpoints(self, stage: str) -> Path:
        return self.root / "checkpoints" / stage

    def verify_model(self, model: Path) -> Path:
        """Return the model. Raise `DamagedCheckpointError` for a changed checkpoint of this run."""
        if model.is_relative_to(self.root / "checkpoints"):
            verify(model)
        return model

    def answers_file(self, stage: str) -> Path:
        """Return the file of answers that an instance sampled to train on."""
        return self.root / f"{stage}.jsonl"

    def trained_instances(self) -> dict[str, str]:
        """Return the training instances with a checkpoint, and the first model of each."""
        return {name: model for name, model in self.state().began.items() if steps(self.checkpoints(name))}

    def open(self) -> None:
        """Create the folder and lock it. Raise `ValueError` if another driver holds the lock."""
        for folder in (self.root, self.trajectories, self.batches, self.evals / "steps"):
            folder.mkdir(parents=True, exist_ok=True)
        self._lock = (self.root / LOCK_FILE).open("a+")
        for left in reversed(range(LOCK_TRIES)):
            try:
                fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                if not left:
                    raise self._refusal() from error
                time.sleep(LOCK_PAUSE_S)  # another process may be testing the lock
            else:
                return

    def require_free(self) -> None:
        """Raise `ValueError` if another driver holds the folder."""
        if self.is_held():
            raise self._refusal()

    def _refusal(self) -> ValueError:
        return ValueError(f"another process holds {self.root}; wait for it, or choose another name=")

    def is_held(self) -> bool:
        try:
            with (self.root / LOCK_FILE).open("rb") as lock:
                fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except FileNotFoundError:
            return False
        except BlockingIOError:
            return True
        return False

    def close(self) -> None:
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    def state(self) -> RunState:
        """Read the state. A new run has an empty one. Raise `ValueError` with a remedy for a damaged file."""
        path = self.root / "manifest.json"
        try:
            return RunState(**json.loads(path.read_text(encoding="utf-8"))) if path.exists() else RunState()
        except (ValueError, TypeError, RecursionError) as error:
            raise ValueError(
                f"{path} is damaged or of another version ({describe_error(error)}); restore it, resume with the version that "
                f"wrote it, or start another run with another name"
            ) from error

    def newest_model(self) -> Path:
        """Return the directory of the newest model. Raise `FileNotFoundError` if there is none."""
        newest = self.state().model
        if newest is None:
            raise FileNotFoundError(f"{self.root} has no model yet; run its stage init")
        return self.root / newest

    def store(self, state: RunState) -> None:
        write_json(self.root / "manifest.json", asdict(state))


def evaluations_of(stage: str) -> str:
    """Return the name of the rows and trajectories of an instance's evaluations between steps."""
    return f"{stage}.eval"


def _by_step(folder: Path, stage: str, ending: str) -> dict[int, Path]:
    """Return the files STAGE-STEP of a folder by step, in order."""
    named = re.compile(rf"{re.escape(stage)}-(\d+){re.escape(ending)}")
    found = {path: named.fullmatch(path.name) for path in folder.glob(f"{stage}-*{ending}")}
    return dict(sorted((int(match[1]), path) for path, match in found.items() if match))


def write_json(path: Path, value: Any) -> None:
    """Write JSON atomically. A non-finite number becomes null."""
    write_atomically(path, json.dumps(finite(value), indent=1, allow_nan=False))


def write_atomically(path: Path, text: str) -> None:
    """Write a file atomically and flush it: a reader sees the old or the new text at any time."""
    temporary = path.with_name(path.name + ".tmp")
    try:
        with temporary.open("w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise unwritten(path, error) from error
    os.replace(temporary, path)
    sync_folder(path.parent)


def unwritten(path: Path, error: OSError) -> OSError:
    """Return the error of a failed write with path and remedy."""
    reason = error.strerror or str(error)
    return OSError(error.errno, f"{reason}; free space or repair the disk, then rerun the same command", str(path))


def finite(value: Any) -> Any:
    """Return JSON data with null for each non-finite number."""
    if isinstance(value, dict):
        return {key: finite(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [finite(inner) for inner in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


T = TypeVar("T")


def append_line(path: Path, line: str) -> None:
    """Append a line, whole or not at all. Raise `OSError` with path and remedy."""
    before = path.stat().st_size if path.exists() else 0
    try:
        with path.open("ab") as file:
            file.write(line.encode() + b"\n")
    except OSError as error:
        if path.exists():
            os.truncate(path, before)  # a part of the line may be written
        raise unwritten(path, error) from error


class RowFile:
    """A file that stays open for many rows, since each close waits for the disk on shared storage."""

    def __init__(self, path: Path) -> None:
        """No other process may write the file until it is closed. The first row opens it."""
        self._path = path
        self._file, self._size = -1, 0
        self._end: Callable[[], object] = lambda: None

    def append(self, line: str) -> None:
        """Append a line, whole or not at all. Raise `OSError` with path and remedy."""
        left = memoryview(line.encode() + b"\n")
        size = len(left)
        try:
            if self._file < 0:
                self._open()
            while left:
                left = left[os.write(self._file, left) :]
        except OSError as error:
            if self._file >= 0:
                os.ftruncate(self._file, self._size)  # a part of the line may be written
            raise unwritten(self._path, error) from error
        self._size += size

    def sync(self) -> None:
        """Flush the added rows to disk, from any thread."""
        if self._file >= 0:
            os.fsync(self._file)
        else:
            sync(self._path)

    def close(self) -> None:
        """Close the file. The next row opens it again."""
        self._file = -1
        self._end()

    def _open(self) -> None:
        self._file = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
        self._end = weakref.finalize(self, os.close, self._file)
        self._size = os.fstat(self._file).st_size


def sync(path: Path) -> None:
    if path.exists():
        with path.open("rb") as file:
            os.fsync(file.fileno())


def complete_lines(text: str) -> list[str]:
    """Return the lines that end in a newline. The writer may not have finished the last one."""
    return text.split("\n")[:-1]


def parse_lines(text: str, path: Path, parse: Callable[[str], T]) -> list[tuple[str, T]]:
    """Return the whole lines of a file with the row of each. Raise `ValueError` with place for an invalid one."""
    found = []
    for number, line in enumerate(complete_lines(text), 1):
        try:
            found.append((line, parse(line)))
        except ValueError as error:
            raise ValueError(f"{path}, line {number} is {error}") from error
    return found
