"""The rows of metrics against themselves, against what is done, and against the ledger."""

import json
import math
from collections import Counter

from temper.orchestrator.run.folder import evaluations_of
from temper.orchestrator.run.metrics_log import MetricsRow
from temper.orchestrator.tools.debug.audit.evidence import Evidence, Numbered, name_in
from temper.orchestrator.tools.debug.audit.finding import Finding, Kind
from temper.orchestrator.tools.debug.audit.ticket_lives import StepTickets, TicketLives, listed

OF_THE_LOOP = "rollout/answers"
"""The value by which a row of the loop is known."""
EVAL = "eval"


def metrics_findings(evidence: Evidence, lives: dict[str, TicketLives]) -> list[Finding]:
    """Return what is wrong with the rows of all stages."""
    found: list[Finding] = []
    names = list(dict.fromkeys([*evidence.stages, *evidence.state.done]))
    between = {evaluations_of(name) for name in (*names, *evidence.state.stages)}
    for stage in names:
        rows = [(line, row) for line, row in evidence.metrics if row.is_step_of(stage)]
        if evidence.came_with_fork(stage) and not rows:
            continue  # it was measured in the other run
        of = _Stage(evidence, stage, rows)
        if stage in between:
            of.check_order()
        elif evidence.state.stages.get(stage) == EVAL:
            of.check_evaluation()
        else:
            of.check_steps()
        if stage in lives or any(OF_THE_LOOP in row.values for _, row in rows):
            of.check_ledger(lives.get(stage))
        found += of.found
    return found


class _Stage:
    """The rows of one instance."""

    def __init__(self, evidence: Evidence, stage: str, rows: Numbered[MetricsRow]) -> None:
        self.found: list[Finding] = []
        self._evidence = evidence
        self._stage = stage
        self._rows = rows
        self._file = name_in(evidence.folder, evidence.folder.metrics)
        first = evidence.first_step(stage)
        self._forked_at = first if first > 1 else None
        """The first step after the checkpoint of another run."""

    def check_steps(self) -> None:
        """Find steps that stand twice, out of their order, or not at all."""
        first, last = self._evidence.first_step(self._stage), self._evidence.state.done.get(self._stage, 0)
        seen: dict[int, int] = {}
        newest = first - 1
        for line, row in self._rows:
            if row.step in seen:
                self._find("twice", f"the row of step {row.step} stands in line {seen[row.step]} too", line, row.step)
            elif row.step > 0 and row.step != newest + 1:
                kind: Kind = "gap" if row.step > newest else "order"
                self._find(kind, f"step {row.step} follows step {newest}", line, row.step)
            seen[row.step] = line
            newest = max(newest, row.step)
        if newest < last:
            self._find("missing", f"{last} steps are done and the last row is that of step {newest}", None, last)

    def check_order(self) -> None:
        """Find evaluations between steps that stand twice, or before earlier ones."""
        newest = -1
        for line, row in self._rows:
            if row.step <= newest:
                kind: Kind = "twice" if row.step == newest else "order"
                self._find(kind, f"step {row.step} follows step {newest}", line, row.step)
            newest = row.step

    def check_evaluation(self) -> None:
        """Hold the row of an evaluation that is done against its file."""
        for line, row in self._rows[1:]:
            self._find("twice", f"its row stands in line {self._rows[0][0]} too", line, row.step)
        if not self._evidence.is_done(self._stage):
            return
        path = self._evidence.folder.evals / f"{self._stage.removeprefix('eval-')}.json"
        if not path.exists() or not self._rows:
            where = name_in(self._evidence.folder, path) if self._rows else self._file
            text = f"the evaluation {self._stage} is done and is not in {where}"
            self.found.append(Finding(kind="missing", text=text, file=where, stage=self._stage))
            return
        line, row = self._rows[-1]
        told = json.loads(path.read_text(encoding="utf-8"))["envs"]
        for env, values in told.items():
            for name, value in values.items():
                logged = row.values.get(f"{env}/{name}", math.nan)
                if not _same(math.nan if value is None else value, logged):
                    text = f"{env}/{name} is {logged}, and {value} in {name_in(self._evidence.folder, path)}"
                    self._find("differs", text, line, row.step)

    def check_ledger(self, lives: TicketLives | None) -> None:
        """Find steps that only one of both has, and those of which both tell otherwise."""
        rows = {row.step: (line, row) for line, row in self._rows}
        if lives is None:
            text = f"no row of {self._stage}, of which {len(rows)} steps are measured"
            self.found.append(Finding(kind="missing", text=text, file="ledger.jsonl", stage=self._stage))
            return
        first, done = self._evidence.first_step(self._stage), self._evidence.is_done(self._stage)
        for step, (line, row) in rows.items():
            if step in lives.steps:
                self._compare(line, row, lives.steps[step], lives)
            else:
                self._find("missing", f"step {step} is measured and not in ledger.jsonl", line, step)
        for step, tickets in lives.steps.items():
            if step in rows or step < first or (step == lives.last_step and not done):
                continue
            text = f"step {step} is in the ledger and not in {self._file}"
            self.found.append(
                Finding(kind="missing", text=text, file="ledger.jsonl", line=tickets.line, stage=self._stage, step=step)
            )

    def _compare(self, line: int, row: MetricsRow, tickets: StepTickets, lives: TicketLives) -> None:
        numbers = [*tickets.trained, *tickets.dropped, *tickets.failed]
        pairs = [
            ("rollout/dropped_no_signal", len(tickets.dropped), tickets.dropped),
            ("rollout/dropped_failed", len(tickets.failed), tickets.failed),
            *_by_env(row, "groups_trained", tickets.trained, lives),
        ]
        if not tickets.without_task and row.step != self._forked_at:  # else answers of other groups were let go
            pairs += _by_env(row, "groups", numbers, lives)
        for name, counted, found in pairs:
            told = row.values.get(name, 0.0)
            if told != counted:
                text = f"{name} is {told:g}, and {counted} in ledger.jsonl (tickets {listed(found)})"
                self._find("differs", text, line, row.step)

    def _find(self, kind: Kind, text: str, line: int | None, step: int) -> None:
        self.found.append(Finding(kind=kind, text=text, file=self._file, line=line, stage=self._stage, step=step))


def _by_env(row: MetricsRow, name: str, numbers: list[int], lives: TicketLives) -> list[tuple[str, int, list[int]]]:
    """Return how many of these tickets each environment has, by the name of the metric that says so."""
    of = {number: lives.lives[number].env for number in numbers}
    known = [env for env in of.values() if env is not None]
    if len(known) < len(numbers):
        return []  # one was never admitted, which is found there
    told = {metric.split("/")[1] for metric in row.values if metric.startswith("env/") and metric.endswith("/groups")}
    counted = Counter(known)
    return [
        (f"env/{env}/{name}", counted[env], [number for number in numbers if of[number] == env])
        for env in sorted({*told, *counted})
    ]


def _same(one: float, other: float) -> bool:
    return one == other or (math.isnan(one) and math.isnan(other))
