"""The lives of a stage's tickets, followed row by row through its ledger, and what can't have been."""

from dataclasses import asdict, dataclass, field

from temper.orchestrator.loop.buffer import Totals
from temper.orchestrator.run.ledger import TOTALS, LedgerRow
from temper.orchestrator.tools.debug.audit.evidence import Numbered
from temper.orchestrator.tools.debug.audit.finding import Finding, Kind

FILE = "ledger.jsonl"
ENDS = ("trained", "dropped", "failed")
NO_SIGNAL = "no_signal"
SHOWN = 8
"""How many tickets a finding lists."""


@dataclass(slots=True, kw_only=True)
class Life:
    """One ticket."""

    number: int
    env: str | None
    """None where it was never admitted."""
    finished: LedgerRow | None = None
    """The last row of its group."""
    again: bool = False
    """Whether it was issued again after that, so that its group may be finished once more."""
    end: tuple[int, LedgerRow] | None = None
    """How it ended, and in which line."""


@dataclass(slots=True, kw_only=True)
class StepTickets:
    """What became of tickets between the rows of two steps. `line` is that of the later one; None before it is written."""

    trained: list[int] = field(default_factory=list)
    dropped: list[int] = field(default_factory=list)
    failed: list[int] = field(default_factory=list)
    without_task: list[int] = field(default_factory=list)
    """Those that were dropped since their environment has no share any more."""
    line: int | None = None


class TicketLives:
    """What the rows of one stage tell, as far as they were followed."""

    def __init__(self, stage: str) -> None:
        self.stage = stage
        self.lives: dict[int, Life] = {}
        self.steps: dict[int, StepTickets] = {}
        self.continued: set[int] = set()
        """The steps after which a restart went on."""
        self.findings: list[Finding] = []
        self.last_step = 0
        self.next_ticket: int | None = None
        self._now = StepTickets()
        self._open: dict[int, Life] = {}
        self._drawn: dict[str, int] = {}
        self._counts = dict.fromkeys(ENDS, 0)
        self._shift = dict.fromkeys(TOTALS, 0)
        """By how much the totals were wrong already, so that one wrong row is found once."""

    def follow(self, rows: Numbered[LedgerRow]) -> None:
        """Follow further rows, which are all of this stage, in their order."""
        for line, row in rows:
            self._follow(line, row)

    @property
    def open(self) -> list[int]:
        """The tickets that are in flight."""
        return list(self._open)

    @property
    def totals(self) -> Totals:
        """The totals by the rows of the tickets."""
        return Totals(issued=len(self.lives), **self._counts, in_flight=len(self._open))

    def _follow(self, line: int, row: LedgerRow) -> None:
        if row.event == "step":
            self._end_step(line, row)
        elif row.event == "continued":
            self._continue(line, row)
        elif row.ticket is None:
            self._find("unreadable", f"a row {row.event!r} without a ticket", line)
        elif row.event == "admitted":
            self._admit(line, row, row.ticket)
        else:
            self._change(line, row, row.ticket)

    def _admit(self, line: int, row: LedgerRow, number: int) -> None:
        if number in self.lives:
            self._find("twice", f"ticket {number} is admitted twice", line, ticket=number)
            return
        expected = number if self.next_ticket is None else self.next_ticket
        if number != expected:
            text = f"ticket {number} is admitted where {expected} would be next"
            self._find("gap" if number > expected else "order", text, line, ticket=number)
        self.next_ticket = max(expected, number) + 1
        env, index = str(row.env), -1 if row.index is None else row.index
        wanted = self._drawn.get(env, -1) + 1
        if index != wanted:
            text = f"ticket {number} has task {index} of {env}, where {wanted} would be next"
            kind: Kind = "twice" if index < wanted else "gap"
            self._find(kind, f"{text}: a task is consumed twice or skipped", line, ticket=number)
        self._drawn[env] = index
        self._issue(number, env)

    def _issue(self, number: int, env: str | None) -> Life:
        life = self.lives[number] = Life(number=number, env=env)
        self._open[number] = life
        return life

    def _change(self, line: int, row: LedgerRow, number: int) -> None:
        life = self.lives.get(number)
        if life is None:
            self._find("missing", f"ticket {number} is {row.event} and was never admitted", line, ticket=number)
            life = self._issue(number, None)
        if life.end is not None:
            before, end = life.end
            kind: Kind = "twice" if row.event == end.event else "order"
            text = f"ticket {number} is {_what(row)}, though it was {_what(end)} (line {before})"
            self._find(kind, text, line, ticket=number)
            return
        if row.event == "reissued":
            life.again = True
        elif row.event == "finished":
            if life.finished is not None and not life.again:
                self._find("twice", f"ticket {number} is finished twice", line, ticket=number)
            life.finished, life.again = row, False
        else:
            self._end(line, row, life)

    def _end(self, line: int, row: LedgerRow, life: Life) -> None:
        early = life.finished is None and not (row.event == "dropped" and row.why != NO_SIGNAL)
        if early:
            text = f"ticket {life.number} is {_what(row)} before its group is finished"
            self._find("order", text, line, ticket=life.number)
        if row.event == "trained" and row.step != self.last_step + 1:
            text = f"ticket {life.number} is {_what(row)}, in the middle of step {self.last_step + 1}"
            self._find("order", text, line, step=row.step, ticket=life.number)
        life.end = line, row
        del self._open[life.number]
        self._counts[row.event] += 1
        if row.event == "trained":
            self._now.trained.append(life.number)
        elif row.event == "failed":
            self._now.failed.append(life.number)
        elif row.why == NO_SIGNAL:
            self._now.dropped.append(life.number)
        else:
            self._now.without_task.append(life.number)

    def _end_step(self, line: int, row: LedgerRow) -> None:
        if row.step is None:
            self._find("unreadable", "a row 'step' without its number", line)
            return
        if row.step != self.last_step + 1:
            kind: Kind = "twice" if row.step in self.steps else "gap" if row.step > self.last_step else "order"
            self._find(kind, f"step {row.step} follows step {self.last_step}", line, step=row.step)
        self._compare(line, row)
        self._now.line = line
        self.steps[row.step], self._now = self._now, StepTickets()
        self.last_step = row.step

    def _continue(self, line: int, row: LedgerRow) -> None:
        if row.step != self.last_step:
            text = f"the stage continues after step {row.step}, and the step before is {self.last_step}"
            self._find("order", text, line, step=row.step)
        self.continued.add(self.last_step)
        if row.issued is not None:
            self._compare(line, row)

    def _compare(self, line: int, row: LedgerRow) -> None:
        """Hold the totals of a row against those of the tickets' rows."""
        try:
            totals = row.totals
        except ValueError as error:
            self._find("unreadable", str(error), line, step=row.step)
            return
        told, counted = asdict(totals), asdict(self.totals)
        shift = {name: told[name] - counted[name] for name in TOTALS}
        wrong = [name for name in TOTALS if shift[name] not in (0, self._shift[name])]
        self._shift = shift
        if not wrong:
            return
        says = ", ".join(f"{name} {told[name]}" for name in wrong)
        finds = ", ".join(f"{name} {counted[name]}" for name in wrong)
        balance = "" if totals.balances else "; issued is not trained + dropped + failed + in_flight"
        tickets = f"; open are {listed(self.open)}" if "in_flight" in wrong else ""
        self._find("sums", f"says {says}, the rows of its tickets {finds}{balance}{tickets}", line, step=row.step)

    def _find(self, kind: Kind, text: str, line: int, *, step: int | None = None, ticket: int | None = None) -> None:
        found = Finding(kind=kind, text=text, file=FILE, line=line, stage=self.stage, step=step, ticket=ticket)
        self.findings.append(found)


def listed(numbers: list[int]) -> str:
    """Return numbers for people, the first few of them."""
    more = f" and {len(numbers) - SHOWN} more" if len(numbers) > SHOWN else ""
    return ", ".join(map(str, numbers[:SHOWN])) + more if numbers else "none"


def _what(row: LedgerRow) -> str:
    return f"trained in step {row.step}" if row.event == "trained" else row.event
