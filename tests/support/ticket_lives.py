"""The lives of a stage's tickets, followed row by row through its event log, and the rows that cannot be."""

from dataclasses import asdict, dataclass

from temper.orchestrator.loop.ticket_log import Totals
from temper.orchestrator.run.event_log import TOTALS, EventRow

ENDS = ("trained", "dropped", "failed")
WITHOUT_TASK = "without_task"
"""Dropped because the environment no longer has a share, so there is no task."""
ZERO_ADVANTAGE = "zero_advantage"
StepTickets = dict[str, list[int]]
"""The tickets that ended between the rows of two steps, by `ENDS` and `WITHOUT_TASK`."""
SHOWN = 8
"""How many tickets a finding lists."""


@dataclass(slots=True, kw_only=True)
class Life:
    """One ticket. `env` is None if it was never admitted."""

    number: int
    env: str | None
    finished: EventRow | None = None
    """The last row of its group."""
    again: bool = False
    """Whether it was issued again after that."""
    end: EventRow | None = None


class TicketLives:
    """The tickets of one stage. `wrong` has the lines and errors of rows that do not fit."""

    def __init__(self) -> None:
        self.lives: dict[int, Life] = {}
        self.steps: dict[int, StepTickets] = {}
        self.continued: set[int] = set()
        """The steps after which a restart continued."""
        self.wrong: list[tuple[int, str]] = []
        self.last_step = 0
        self.next_ticket: int | None = None
        self._now = _no_tickets()
        self._open: dict[int, Life] = {}
        self._drawn: dict[str, int] = {}
        self._counts = dict.fromkeys(ENDS, 0)
        self._shift = dict.fromkeys(TOTALS, 0)
        """The error of the totals so far, so that each wrong row is reported once."""

    @property
    def open(self) -> list[int]:
        """The tickets in flight."""
        return list(self._open)

    @property
    def totals(self) -> Totals:
        """The totals by the rows of the tickets."""
        return Totals(issued=len(self.lives), **self._counts, in_flight=len(self._open))

    def follow(self, line: int, row: EventRow) -> None:
        """Follow the next row of this stage."""
        if row.event == "step":
            self._end_step(line, row)
        elif row.event == "continued":
            if row.step != self.last_step:
                self._add(line, f"the stage continues after step {row.step}, and the last step is {self.last_step}")
            self.continued.add(self.last_step)
            if row.issued is not None:
                self._compare(line, row)
        elif row.ticket is None:
            self._add(line, f"a row {row.event!r} without a ticket")
        elif row.event == "admitted":
            self._admit(line, row, row.ticket)
        else:
            self._change(line, row, row.ticket)

    def _admit(self, line: int, row: EventRow, number: int) -> None:
        if number in self.lives:
            self._add(line, f"ticket {number} is admitted twice")
            return
        expected = number if self.next_ticket is None else self.next_ticket
        if number != expected:
            self._add(line, f"ticket {number} is admitted, and {expected} is next")
        self.next_ticket = max(expected, number) + 1
        env, index = str(row.env), -1 if row.index is None else row.index
        wanted = self._drawn.get(env, -1) + 1
        if index != wanted:
            what = f"ticket {number} has task {index} of {env}, but {wanted} is next: a task is repeated or skipped"
            self._add(line, what)
        self._drawn[env] = index
        self._issue(number, env)

    def _issue(self, number: int, env: str | None) -> Life:
        life = self.lives[number] = self._open[number] = Life(number=number, env=env)
        return life

    def _change(self, line: int, row: EventRow, number: int) -> None:
        life = self.lives.get(number)
        if life is None:
            self._add(line, f"ticket {number} is {row.event} and was never admitted")
            life = self._issue(number, None)
        if life.end is not None:
            self._add(line, f"ticket {number} is {row.event} in step {row.step}, and was {life.end.event} before")
        elif row.event == "reissued":
            life.again = True
        elif row.event == "finished":
            if life.finished is not None and not life.again:
                self._add(line, f"ticket {number} is finished twice")
            life.finished, life.again = row, False
        else:
            self._end(line, row, life)

    def _end(self, line: int, row: EventRow, life: Life) -> None:
        number, is_without_task = life.number, row.event == "dropped" and row.why != ZERO_ADVANTAGE
        if life.finished is None and not is_without_task:
            self._add(line, f"ticket {number} is {row.event} before its group is finished")
        if row.event == "trained" and row.step != self.last_step + 1:
            step = self.last_step + 1
            self._add(line, f"ticket {number} is trained in step {row.step}, in the middle of step {step}")
        life.end = row
        del self._open[number]
        self._counts[row.event] += 1
        self._now[WITHOUT_TASK if is_without_task else row.event].append(number)

    def _end_step(self, line: int, row: EventRow) -> None:
        if row.step is None:
            self._add(line, "a row 'step' without its number")
            return
        if row.step != self.last_step + 1:
            self._add(line, f"step {row.step} follows step {self.last_step}")
        self._compare(line, row)
        self.steps[row.step], self._now = self._now, _no_tickets()
        self.last_step = row.step

    def _compare(self, line: int, row: EventRow) -> None:
        """Compare the totals of a row with the totals of the ticket rows."""
        try:
            recorded = asdict(row.totals)
        except ValueError as error:
            self._add(line, str(error))
            return
        counted = asdict(self.totals)
        shift = {name: recorded[name] - counted[name] for name in TOTALS}
        wrong = [name for name in TOTALS if shift[name] not in (0, self._shift[name])]
        self._shift = shift
        if wrong:
            pairs = ", ".join(f"{name} {recorded[name]} (the tickets: {counted[name]})" for name in wrong)
            self._add(line, f"step {row.step} has {pairs}, but in flight are {_listed(self.open)}")

    def _add(self, line: int, what: str) -> None:
        self.wrong.append((line, what))


def _no_tickets() -> StepTickets:
    return {kind: [] for kind in (*ENDS, WITHOUT_TASK)}


def _listed(numbers: list[int]) -> str:
    """Return the first few numbers for people."""
    more = f" and {len(numbers) - SHOWN} more" if len(numbers) > SHOWN else ""
    return ", ".join(map(str, numbers[:SHOWN])) + more if numbers else "none"
