"""The checkpoints: whole, of steps that were measured, and with a state that agrees with the ledger at that point."""

import json
from pathlib import Path
from typing import Any

from orchestrator.audit.evidence import Evidence, Numbered, name_in, parse_object
from orchestrator.audit.finding import Finding, Kind
from orchestrator.audit.ticket_lives import TicketLives, listed
from orchestrator.buffer_state import EPISODES_FILE, GROUPS_FILE, STATE_FILE
from orchestrator.run.checkpoint import DamagedCheckpointError, place, verify
from orchestrator.run.ledger import LedgerRow


def checkpoint_findings(evidence: Evidence) -> list[Finding]:
    """Return what is wrong with the checkpoints of all instances."""
    found: list[Finding] = []
    for stage, kept in evidence.checkpoints.items():
        rows = [(line, row) for line, row in evidence.ledger if row.stage == stage]
        measured = {row.step for _, row in evidence.metrics if row.stage == stage and row.event is None}
        for step in kept:
            found += _Checkpoint(evidence, stage, step).findings(rows, measured)
    return found


class _Checkpoint:
    """One checkpoint of an instance of a stage."""

    def __init__(self, evidence: Evidence, stage: str, step: int) -> None:
        self._found: list[Finding] = []
        self._evidence = evidence
        self._stage = stage
        self._step = step
        self._path = place(evidence.folder.checkpoints(stage), step)

    def findings(self, rows: Numbered[LedgerRow], measured: set[int]) -> list[Finding]:
        """Return what is wrong with it; nothing where it was removed meanwhile, as older ones are."""
        try:
            verify(self._path)
        except (DamagedCheckpointError, FileNotFoundError) as error:
            if self._path.exists():
                self._find("damaged", str(error), self._path)
            return self._found
        if self._step >= self._evidence.first_step(self._stage) and self._step not in measured:
            self._find("missing", f"step {self._step} has a checkpoint and no row in metrics.jsonl", self._path)
        if (self._path / STATE_FILE).exists():
            self._check_state(rows)
        return self._found

    def _check_state(self, rows: Numbered[LedgerRow]) -> None:
        """Hold the tickets of the checkpoint against the rows that the ledger had when it was made."""
        file = self._path / STATE_FILE
        state: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
        if "ledger_rows" not in state or self._is_of_another_run():
            return
        count = state["ledger_rows"]
        if count > len(rows):
            text = f"was made when the ledger had {count} rows of {self._stage}; it has {len(rows)}"
            self._find("missing", text, file)
            return
        lives = TicketLives(self._stage, rows[:count])
        if lives.last_step != self._step:
            self._find("differs", f"the step of its {count} rows in ledger.jsonl is {lives.last_step}", file)
        buffer = state["buffer"]
        held, open_ = {ticket["number"] for ticket in buffer["tickets"]}, set(lives.open)
        for number in sorted(open_ - held):
            text = f"ticket {number} is in flight in ledger.jsonl and not in this checkpoint: it is lost"
            self._find("missing", text, file, number)
        for number in sorted(held - open_):
            text = f"ticket {number} is in this checkpoint and not in flight in ledger.jsonl (open are {listed(lives.open)})"
            self._find("differs", text, file, number)
        if lives.next_ticket is not None and buffer["next_ticket"] != lives.next_ticket:
            text = f"the next ticket is {buffer['next_ticket']}, and {lives.next_ticket} in ledger.jsonl"
            self._find("differs", text, file)
        self._check_groups(lives)

    def _check_groups(self, lives: TicketLives) -> None:
        """Find groups that wait here though they are not finished, and groups that go on here though they are not in flight."""
        for number, line in self._tickets(GROUPS_FILE):
            life = lives.lives.get(number)
            if life is None or life.finished is None:
                text = f"ticket {number} has a group here and is not finished in ledger.jsonl"
                self._find("differs", text, self._path / GROUPS_FILE, number, line)
        for number, line in self._tickets(EPISODES_FILE):
            life = lives.lives.get(number)
            if life is None or life.end is not None or (life.finished is not None and not life.again):
                text = f"ticket {number} has begun episodes here and none is open in ledger.jsonl"
                self._find("differs", text, self._path / EPISODES_FILE, number, line)

    def _tickets(self, name: str) -> list[tuple[int, int]]:
        """Return the tickets of a file of groups, each with its line; none where there is no file."""
        file = self._path / name
        if not file.exists():
            return []
        lines = file.read_text(encoding="utf-8").splitlines()
        return [(int(str(parse_object(text)["ticket"])), line) for line, text in enumerate(lines, 1)]

    def _is_of_another_run(self) -> bool:
        """Return whether it came with a fork whose ledger does not reach back to it."""
        return self._step < self._evidence.first_step(self._stage)

    def _find(self, kind: Kind, text: str, path: Path, ticket: int | None = None, line: int | None = None) -> None:
        where, stage, step = name_in(self._evidence.folder, path), self._stage, self._step
        self._found.append(Finding(kind=kind, text=text, file=where, line=line, stage=stage, step=step, ticket=ticket))
