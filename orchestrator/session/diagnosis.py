"""What is found where a process is stuck or has died, and where it is written."""

import asyncio
import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal

from temper.envs.core.member import Member, Place
from temper.envs.core.pulse import Pulse
from temper.orchestrator.cluster.actors import at_place
from temper.orchestrator.run.folder import write_whole
from temper.orchestrator.session.examination import Examination, ProcessKey, examine

EXAMINE_S = 60.0
"""How long the look at a process may take, in seconds."""
FaultKind = Literal["hung", "recovered", "died", "looked at", "failed"]
"""A process that was stuck and is ended, one that was and continues, one that ended by itself, one that may be why the
run waited too long, and the supervision itself."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FaultDiagnosis:
    """Who is at fault and what is wrong, with the evidence."""

    who: str
    kind: FaultKind
    what: str
    evidence: str
    place: Place | None = None
    pulse: Pulse | None = None
    processes: tuple[ProcessKey, ...] = ()

    @property
    def line(self) -> str:
        """The fault in one line."""
        place = "" if self.place is None else f" ({self.place})"
        return f"{self.who}{place} {self.kind}: {self.what}"


async def diagnose(member: Member, what: str, *, kind: FaultKind, pulse: Pulse | None = None) -> FaultDiagnosis:
    """Look at a process, on its own node; one that can't be looked at is diagnosed all the same. `pulse` is its last one."""
    place = member.place
    if place is None:
        return FaultDiagnosis(who=member.name, kind=kind, what=what, evidence="it has no process yet")
    try:
        found = await asyncio.wait_for(at_place(place, examine, place.pid), EXAMINE_S)
    except Exception as error:  # evidence alone: its machine may be gone, or its memory may not be read
        found = Examination(processes=(), text=f"it can't be looked at: {type(error).__name__}: {error}")
    return FaultDiagnosis(
        who=member.name,
        kind=kind,
        what=what,
        evidence=found.text,
        place=place,
        pulse=pulse,
        processes=found.processes,
    )


class FaultFolder:
    """The files of the faults of a run, numbered in their order."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self.count = len(list(root.glob("*.txt")))
        """How many faults there are. Kept, so that nobody who shows it waits for a disk."""

    def write(self, diagnosis: FaultDiagnosis, *, stage: str, step: int, groups: Sequence[str] = ()) -> Path:
        """Write a fault that came after a step of a stage, in the middle of these groups; returns its file."""
        self._root.mkdir(parents=True, exist_ok=True)
        path = self._root / f"{self.count + 1:03}-{re.sub('[^a-z0-9]+', '-', diagnosis.who.lower())}.txt"
        pulse = diagnosis.pulse
        lines = [
            diagnosis.line,
            f"when: {datetime.now(UTC).isoformat(timespec='seconds')}, in stage {stage or '-'} after step {step}",
        ]
        if pulse is not None:
            lines.append(f"last answer: progress {pulse.progress}, doing {pulse.doing or 'nothing'}")
        if groups:
            lines.append(f"in the middle of {len(groups)} groups: {', '.join(groups)}")
        write_whole(path, "\n".join([*lines, "", diagnosis.evidence, ""]))
        self.count += 1
        return path
