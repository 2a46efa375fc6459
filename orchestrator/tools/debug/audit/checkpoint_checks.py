"""The checkpoints: whole, of steps that were measured, and with a state that agrees with the ledger at that point."""

from collections.abc import Sequence
from pathlib import Path

from temper.orchestrator.run.checkpoint import DamagedCheckpointError, place, verify
from temper.orchestrator.run.ledger import LedgerRow
from temper.orchestrator.run.loop_state import EPISODES_FILE, GROUPS_FILE, STATE_FILE, LoopState, read_state
from temper.orchestrator.tools.debug.audit.evidence import Evidence, Numbered, name_in, parse_object
from temper.orchestrator.tools.debug.audit.finding import Finding, Kind
from temper.orchestrator.tools.debug.audit.ticket_lives import TicketLives, listed


def followed(evidence: Evidence, stage: str) -> tuple[TicketLives, list[Finding]]:
    """Follow a stage's rows of the ledger; return the lives of its tickets, and what is wrong with its checkpoints.

    A long run's ledger has millions of rows: they are followed once, and each checkpoint is held against them on the way,
    where the ledger was as long as when it was made.
    """
    rows = [(line, row) for line, row in evidence.ledger if row.stage == stage]
    measured = {row.step for _, row in evidence.metrics if row.is_step_of(stage)}
    checkpoints = [_Checkpoint(evidence, stage, step) for step in evidence.checkpoints.get(stage, [])]
    for one in checkpoints:
        one.check_itself(measured)
    return _past(stage, rows, checkpoints), [finding for one in checkpoints for finding in one.found]


def _past(stage: str, rows: Numbered[LedgerRow], checkpoints: "Sequence[_Checkpoint]") -> TicketLives:
    """Follow the rows, and let each checkpoint look at them where they are as many as it counts."""
    lives, done = TicketLives(stage), 0
    told = [(one.state, one) for one in checkpoints if one.state is not None]
    for state, one in sorted(told, key=lambda pair: pair[0].ledger_rows):
        if state.ledger_rows > len(rows):
            one.miss_rows(state, there=len(rows))
        else:
            lives.follow(rows[done : state.ledger_rows])
            done = state.ledger_rows
            one.check_tickets(state, lives)
    lives.follow(rows[done:])
    return lives


class _Checkpoint:
    """One checkpoint of an instance of a stage. `state` is None where it has none that the ledger could be held against."""

    def __init__(self, evidence: Evidence, stage: str, step: int) -> None:
        self.found: list[Finding] = []
        self.state: LoopState | None = None
        self._evidence = evidence
        self._stage = stage
        self._step = step
        self._path = place(evidence.folder.checkpoints(stage), step)

    def check_itself(self, measured: set[int]) -> None:
        """Find what is wrong with it alone; nothing where it was removed meanwhile, as older ones are."""
        try:
            verify(self._path)
        except (DamagedCheckpointError, FileNotFoundError) as error:
            if self._path.exists():
                self._find("damaged", str(error), self._path)
            return
        if self._step < self._evidence.first_step(self._stage):
            return  # of another run, that of a fork
        if self._step not in measured:
            self._find("missing", f"step {self._step} has a checkpoint and no row in metrics.jsonl", self._path)
        if (self._path / STATE_FILE).exists():
            try:
                self.state = read_state(self._path)
            except ValueError as error:
                self._find("unreadable", str(error), self._path / STATE_FILE)

    def miss_rows(self, state: LoopState, *, there: int) -> None:
        """Find that the ledger is shorter than it was."""
        text = f"was made when the ledger had {state.ledger_rows} rows of {self._stage}; it has {there}"
        self._find("missing", text, self._path / STATE_FILE)

    def check_tickets(self, state: LoopState, lives: TicketLives) -> None:
        """Hold its tickets against the rows that the ledger had when it was made."""
        file, buffer = self._path / STATE_FILE, state.buffer
        if lives.last_step != self._step:
            text = f"the step of its {state.ledger_rows} rows in ledger.jsonl is {lives.last_step}"
            self._find("differs", text, file)
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

    def _find(self, kind: Kind, text: str, path: Path, ticket: int | None = None, line: int | None = None) -> None:
        where, stage, step = name_in(self._evidence.folder, path), self._stage, self._step
        self.found.append(Finding(kind=kind, text=text, file=where, line=line, stage=stage, step=step, ticket=ticket))
