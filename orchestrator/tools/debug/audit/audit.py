"""The audit of a run: what its ledger, metrics, checkpoints and trajectories say, and where they do not agree."""

import time
from dataclasses import asdict, dataclass
from typing import Any

from temper.orchestrator.loop.buffer import Totals
from temper.orchestrator.run.folder import RunDir
from temper.orchestrator.tools.debug.audit.checkpoint_checks import followed
from temper.orchestrator.tools.debug.audit.evidence import Evidence, gather
from temper.orchestrator.tools.debug.audit.finding import Finding
from temper.orchestrator.tools.debug.audit.metrics_checks import metrics_findings
from temper.orchestrator.tools.debug.audit.ticket_lives import TicketLives
from temper.orchestrator.tools.debug.audit.trajectory_checks import trajectory_findings

LOOKS = 3
PAUSE_S = 1.0
"""A run that is working may go back to a checkpoint between two looks at its files: only what every look finds is wrong."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StageAudit:
    """What one instance has left. `steps` counts its rows of metrics; `tickets` is None where it has none."""

    name: str
    steps: int
    tickets: Totals | None
    trajectories: int
    """Files."""
    checkpoints: list[int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Audit:
    """What was found. `working` says whether a driver holds the run now."""

    run: str
    working: bool
    stages: list[StageAudit]
    findings: list[Finding]

    def as_json(self) -> dict[str, Any]:
        """Return it as plain JSON data."""
        return {"sound": not self.findings} | asdict(self)


def audit(folder: RunDir) -> Audit:
    """Audit a run. Raise `FileNotFoundError` where the folder is that of no run."""
    working = folder.is_held()
    found, stages = _look(gather(folder))
    for _ in range(LOOKS - 1):
        if not (found and working):
            break
        time.sleep(PAUSE_S)
        again, stages = _look(gather(folder))
        found = [finding for finding in found if finding in again]
    return Audit(run=str(folder.root), working=working, stages=stages, findings=found)


def _look(evidence: Evidence) -> tuple[list[Finding], list[StageAudit]]:
    ticketed = dict.fromkeys(row.stage for _, row in evidence.ledger)
    past = {name: followed(evidence, name) for name in ticketed | dict.fromkeys(evidence.checkpoints)}
    lives = {name: past[name][0] for name in ticketed}
    found = [*evidence.unreadable]
    for one in lives.values():
        found += one.findings
    found += metrics_findings(evidence, lives)
    for one in lives.values():
        found += trajectory_findings(evidence, one)
    for _, of_checkpoints in past.values():
        found += of_checkpoints
    return found, [_stage(evidence, name, lives) for name in evidence.stages]


def _stage(evidence: Evidence, name: str, lives: dict[str, TicketLives]) -> StageAudit:
    steps = sum(row.is_step_of(name) for _, row in evidence.metrics)
    return StageAudit(
        name=name,
        steps=steps,
        tickets=lives[name].totals if name in lives else None,
        trajectories=len(evidence.trajectory_files(name)),
        checkpoints=evidence.checkpoints.get(name, []),
    )
