"""All that a run has left, as one look finds it; a run that is working goes on writing meanwhile."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from temper.orchestrator.run.checkpoint import steps
from temper.orchestrator.run.folder import RunDir, RunState
from temper.orchestrator.run.ledger import LedgerRow
from temper.orchestrator.run.ledger import parse_row as parse_ledger_row
from temper.orchestrator.run.metrics_log import MetricsRow
from temper.orchestrator.run.metrics_log import parse_row as parse_metrics_row
from temper.orchestrator.run.row_file import whole_lines
from temper.orchestrator.tools.debug.audit.finding import Finding

T = TypeVar("T")
Numbered = list[tuple[int, T]]
"""Rows with the numbers of their lines, from 1 on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """What was read. `unreadable` are the lines that are no rows."""

    folder: RunDir
    state: RunState
    checkpoints: dict[str, list[int]]
    """The steps of the checkpoints of each instance."""
    trajectories: frozenset[Path]
    metrics: Numbered[MetricsRow]
    ledger: Numbered[LedgerRow]
    unreadable: list[Finding]

    @property
    def stages(self) -> list[str]:
        """Every name that has rows, in the order in which they appear."""
        return list(dict.fromkeys([row.stage for _, row in self.metrics] + [row.stage for _, row in self.ledger]))

    def trajectory_files(self, stage: str) -> dict[int, Path]:
        """Return the files of trajectories of an instance by step."""
        files = self.folder.trajectory_files(stage)
        return {step: path for step, path in files.items() if path in self.trajectories}

    def first_step(self, stage: str) -> int:
        """Return the first step of an instance that this run has done itself: a fork goes on from one of another run."""
        name, _, step = self.state.origin.get("from", "").partition("/")
        return int(step) + 1 if name == stage else 1

    def came_with_fork(self, stage: str) -> bool:
        """Return whether an instance was done before the one with whose checkpoint a fork began."""
        name = self.state.origin.get("from", "").partition("/")[0]
        done = list(self.state.done)
        return (name in done and stage in done[: done.index(name)]) or (
            bool(name) and name not in done and stage in done
        )

    def is_done(self, stage: str) -> bool:
        """Return whether an instance is done, so that nothing of it may still be on its way."""
        return stage in self.state.done


def gather(folder: RunDir) -> Evidence:
    """Read what a run has left. Raise `FileNotFoundError` where the folder is that of no run.

    What is written first is read last: a row of metrics follows that of the ledger, a checkpoint and trajectories follow
    both, so that of a run which is working nothing is seen without what it rests on.
    """
    if not (folder.root / "manifest.json").exists():
        raise FileNotFoundError(f"{folder.root} is the folder of no run: it has no manifest.json")
    state = folder.state()
    places = folder.root / "checkpoints"
    names = sorted(path.name for path in places.iterdir() if path.is_dir()) if places.is_dir() else []
    checkpoints = {name: steps(folder.checkpoints(name)) for name in names}
    trajectories = frozenset(folder.trajectories.glob("*.jsonl"))
    unreadable: list[Finding] = []
    metrics = _rows(folder, folder.metrics, parse_metrics_row, unreadable)
    ledger = _rows(folder, folder.ledger, parse_ledger_row, unreadable)
    return Evidence(
        folder=folder,
        state=state,
        checkpoints=checkpoints,
        trajectories=trajectories,
        metrics=metrics,
        ledger=ledger,
        unreadable=unreadable,
    )


def name_in(folder: RunDir, path: Path) -> str:
    """Return how a finding names a file of a run."""
    return str(path.relative_to(folder.root))


def lines_of(path: Path) -> list[str]:
    """Return the whole lines of a file that may be damaged."""
    return whole_lines(path.read_text(encoding="utf-8", errors="replace"))


def _rows(folder: RunDir, path: Path, parse: Callable[[str], T], unreadable: list[Finding]) -> Numbered[T]:
    if not path.exists():
        return []
    found: Numbered[T] = []
    for number, line in enumerate(lines_of(path), 1):
        try:
            found.append((number, parse(line)))
        except ValueError as error:
            unreadable.append(
                Finding(kind="unreadable", text=f"this line is {error}", file=name_in(folder, path), line=number)
            )
    return found


def parse_object(line: str) -> dict[str, object]:
    """Return the JSON object of a line. Raise `ValueError` where it is none."""
    data = json.loads(line)
    if not isinstance(data, dict):
        raise ValueError(f"no object: {line[:80]!r}")
    return data
