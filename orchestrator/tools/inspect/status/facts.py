"""The state of a run at a moment, from its folder and the processes of this machine, for `temper status`."""

import contextlib
import json
import socket
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from statistics import median_low
from typing import Any

import psutil
import yaml

from temper.orchestrator.loop.ticket_log import Totals
from temper.orchestrator.run.event_log import parse_row as parse_event_row
from temper.orchestrator.run.folder import RunDir, finite
from temper.orchestrator.run.metrics_log import MetricsRow, step_rows
from temper.orchestrator.run.metrics_log import parse_row as parse_metrics_row
from temper.orchestrator.session.status import RunStatus, read_status
from temper.orchestrator.tools.inspect.viewer.recorded_file import recorded_files

TAIL_BYTES = 8_000_000
"""Bytes of metrics.jsonl that are read: about its last 2,500 steps. The event log has more steps in as many."""
LATELY = 10
"""Steps over which a rate is taken."""
NEWEST = 6
MAIN = (
    *("train/loss", "train/entropy", "train/grad_norm", "train/mismatch_abs", "train/kl", "train/lag_tokens"),
    *("rollout/nonzero_advantage", "rollout/truncated", "rollout/tokens_per_s", "train/tokens_per_s", "time/step_s"),
)
"""The main metrics in display order, after the rewards of environments."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessMemory:
    """The resident memory of a process and its children, in bytes. Shared memory counts for each."""

    name: str
    bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Note:
    """An alarm or another event after a step, in words."""

    stage: str
    step: int
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFacts:
    """A run at the time `now`, in seconds since 1970.

    `running`: a driver holds the folder. `finished`: all stages are done. `silent_s` is the age of the driver's status, None
    without one. `seconds_a_step` and `seconds_left` need two steps of the stage.
    """

    run: str
    folder: str
    now: float
    running: bool
    finished: bool
    status: RunStatus | None
    silent_s: float | None
    seconds_a_step: float | None
    seconds_left: float | None
    newest: dict[str, float]
    """The main metrics of the stage's last step. NaN if not finite."""
    alarms: tuple[Note, ...]
    """The newest ones, newest first."""
    events: tuple[Note, ...]
    found: tuple[str, ...]
    """The newest faults, newest first: the file name in `faults` and its finding."""
    memory: tuple[ProcessMemory, ...]
    free_memory: int
    """Available bytes of this machine's memory."""
    totals: Totals | None = None
    """The tickets of the newest loop up to its last step, by the event log."""
    outcome: str = ""
    """What a run that has ended achieved, in a line."""
    recorded: tuple[str, ...] = ()
    """The newest recorded answers, as `temper view` names them."""

    def as_json(self) -> dict[str, Any]:
        """Return plain JSON data, with the driver's status at the top level. Numbers that are not finite are null."""
        data = asdict(self)
        plain: dict[str, Any] = finite((data.pop("status") or {}) | data)
        return plain


def gather(run: RunDir, *, now: float) -> RunFacts:
    """Return the facts of a run. Raise `ValueError` if its driver's status can't be read."""
    running, status = run.is_held(), read_status(run.root)
    rows = last_rows(run.metrics)
    stage = status.stage if status is not None and status.stage else rows[-1].stage if rows else ""
    finished = not running and _is_finished(run)
    if finished:  # the report stage has no metrics: show the last trained stage
        stage = next((row.stage for row in reversed(rows) if row.event is None and _main_metrics(row)), stage)
    own = step_rows(rows, stage)
    pace = _pace(own)
    left = None if pace is None or status is None else pace * max(0, status.steps - own[-1].step)
    return RunFacts(
        run=run.root.resolve().name,
        folder=str(run.root),
        now=now,
        running=running,
        finished=finished,
        status=status,
        silent_s=None if status is None else max(0.0, now - status.time),
        seconds_a_step=pace,
        seconds_left=left if running else None,
        newest=_main_metrics(own[-1]) if own else {},
        alarms=_notes(rows, alarms=True),
        events=_notes(rows, alarms=False),
        found=_newest_faults(run.faults),
        memory=_memory(status) if running and status is not None else (),
        free_memory=psutil.virtual_memory().available,
        totals=last_totals(run.event_log),
        outcome="" if running else _outcome(run.root),
        recorded=tuple(file.label for file in recorded_files(run)[:NEWEST]),
    )


def _outcome(run_dir: Path) -> str:
    from temper.orchestrator.evaluation.outcome import read_outcome  # takes a second, which no other command shall take

    return read_outcome(run_dir)


def last_rows(path: Path) -> list[MetricsRow]:
    """Return the rows at the end of a metrics file."""
    rows = []
    for line in _last_lines(path):
        with contextlib.suppress(ValueError):
            rows.append(parse_metrics_row(line))
    return rows


def last_totals(path: Path) -> Totals | None:
    """Return the totals of the last step in an event log. None without one."""
    for line in reversed(_last_lines(path)):
        if '"event": "step"' in line:
            with contextlib.suppress(ValueError):
                return parse_event_row(line).totals
    return None


def _last_lines(path: Path) -> list[str]:
    """Return the lines at the end of a file of rows, without a torn one."""
    if not path.exists():
        return []
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - TAIL_BYTES))
        whole = file.tell() == 0
        lines = file.read().decode("utf-8", errors="replace").splitlines(keepends=True)
    return [line for line in (lines if whole else lines[1:]) if line.endswith("\n")]


def _main_metrics(row: MetricsRow) -> dict[str, float]:
    """Return the main metrics of a step, rewards first."""
    rewards = sorted(name for name in row.values if name.startswith("env/") and name.endswith("/reward"))
    return {name: row.values[name] for name in (*rewards, *MAIN) if name in row.values}


def _pace(rows: Sequence[MetricsRow]) -> float | None:
    """Return the median seconds of the last steps, so that a rest before a continuation does not count."""
    each = [(b.time - a.time) / (b.step - a.step) for a, b in pairwise(rows[-LATELY - 1 :]) if b.step > a.step]
    return median_low(each) if each else None


def _is_finished(run: RunDir) -> bool:
    """Return whether all configured stages are done. False if the configuration cannot be read."""
    try:
        listed = yaml.safe_load(run.config.read_text(encoding="utf-8"))["stages"]
        reached = json.loads((run.root / "manifest.json").read_text(encoding="utf-8"))
        done = Counter(reached["stages"].get(name, name) for name in reached["done"])
        entries = [next(iter(one.items())) if isinstance(one, dict) else (one, None) for one in listed]
        named = {str(given["name"]) for _, given in entries if given and "name" in given}
        return bool(entries) and Counter(stage for stage, _ in entries) <= done and named <= set(reached["done"])
    except (OSError, ValueError, LookupError, TypeError, AttributeError, yaml.YAMLError):
        return False


def _notes(rows: Sequence[MetricsRow], *, alarms: bool) -> tuple[Note, ...]:
    """Return the newest alarms, or the newest other events, which begin with their kind."""
    found = []
    for row in reversed(rows):
        if row.event is not None and row.is_alarm == alarms:
            text = "; ".join(f"{name}: {what}" for name, what in row.event_text.items())
            found.append(Note(stage=row.stage, step=row.step, text=text if alarms else f"{row.event['kind']}: {text}"))
    return tuple(found[:NEWEST])


def _newest_faults(folder: Path) -> tuple[str, ...]:
    """Return the first line of each file with its name."""
    found = []
    for path in sorted(folder.glob("*.txt"), reverse=True)[:NEWEST]:
        with path.open(encoding="utf-8", errors="replace") as file:
            found.append(f"{path.name}: {file.readline().strip()}")
    return tuple(found)


def _memory(status: RunStatus) -> tuple[ProcessMemory, ...]:
    """Return the memory of the driver and of its processes on this machine."""
    here = socket.gethostname()
    pids = [("driver", status.pid)] if status.host == here else []
    pids += [(one.name, one.pid) for one in status.processes if one.pid is not None and one.host == here]
    found = []
    for name, pid in pids:
        with contextlib.suppress(psutil.Error):
            process = psutil.Process(pid)
            below = [] if name == "driver" else process.children(recursive=True)  # the driver's are its processes
            found.append(ProcessMemory(name=name, bytes=sum(_resident(one) for one in (process, *below))))
    return tuple(found)


def _resident(process: psutil.Process) -> int:
    with contextlib.suppress(psutil.Error):
        return int(process.memory_info().rss)
    return 0
