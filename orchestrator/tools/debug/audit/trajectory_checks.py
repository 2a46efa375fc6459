"""The files of trajectories against the groups that the ledger says were trained in their steps."""

from dataclasses import dataclass
from pathlib import Path

from temper.orchestrator.run.checkpoint import TRAJECTORIES_EVERY
from temper.orchestrator.run.metrics_log import UNWRITTEN
from temper.orchestrator.tools.debug.audit.evidence import Evidence, lines_of, name_in, parse_object
from temper.orchestrator.tools.debug.audit.finding import Finding, Kind
from temper.orchestrator.tools.debug.audit.ticket_lives import TicketLives, listed

EVERY = "checkpoints.trajectories_every"
"""The setting that says which steps have a file."""


@dataclass(slots=True, kw_only=True)
class _Answers:
    """The lines of one ticket in a file."""

    line: int
    env: object
    scored: int = 0
    failed: int = 0


def trajectory_findings(evidence: Evidence, lives: TicketLives) -> list[Finding]:
    """Return what is wrong with the files of one instance."""
    files = evidence.trajectory_files(lives.stage)
    found: list[Finding] = []
    for step, path in files.items():
        found += _File(evidence, lives, step, path).findings()
    for step in sorted(_due(evidence, lives) - set(files)):
        path = evidence.folder.trajectory_file(lives.stage, step)
        text = f"step {step} has no file of trajectories, and nothing tells why"
        where = name_in(evidence.folder, path)
        found.append(Finding(kind="missing", text=text, file=where, stage=lives.stage, step=step))
    return found


def _due(evidence: Evidence, lives: TicketLives) -> set[int]:
    """Return the steps whose file must be there: not those that a restart may have come before, or that are told of."""
    rows = [row for _, row in evidence.metrics if row.stage == lives.stage]
    told = {row.step for row in rows if row.event is not None and row.event["kind"] == UNWRITTEN}
    measured = {row.step: row for row in rows if row.is_measured}
    every = _intervals(evidence, lives.stage)
    newest = max(measured, default=0)
    last = evidence.state.done.get(lives.stage)
    due = {
        step
        for step, row in measured.items()
        if step % every[step] == 0 or step == last or row.values.get("train/skipped", 0.0) > 0
    }
    unfinished = set() if evidence.is_done(lives.stage) else {newest}
    return due - told - lives.continued - unfinished


def _intervals(evidence: Evidence, stage: str) -> dict[int, int]:
    """Return how many steps lay between trajectory files when each step of an instance was measured.

    The run's settings say it of the last rows, and each event of a change what it was before.
    """
    now = int(evidence.state.fingerprint.get(EVERY, TRAJECTORIES_EVERY))
    found: dict[int, int] = {}
    for _, row in reversed(evidence.metrics):
        if row.event is not None:
            before, _ = row.event["what"].get(EVERY, (now, now))
            now = TRAJECTORIES_EVERY if before is None else int(before)
        elif row.is_measured and row.stage == stage:
            found[row.step] = now
    return found


class _File:
    """One file."""

    def __init__(self, evidence: Evidence, lives: TicketLives, step: int, path: Path) -> None:
        self._found: list[Finding] = []
        self._lives = lives
        self._step = step
        self._path = path
        self._where = name_in(evidence.folder, path)

    def findings(self) -> list[Finding]:
        """Return what is wrong with it; nothing where it is not there any more."""
        try:
            lines = lines_of(self._path)
        except FileNotFoundError:
            return []
        if self._step not in self._lives.steps:
            self._find("missing", f"step {self._step} is not in ledger.jsonl", None)
            return self._found
        there = self._answers(lines)
        trained = self._lives.steps[self._step].trained
        for number in trained:
            if number not in there:
                text = f"ticket {number} was trained in step {self._step} and has no trajectories here"
                self._find("missing", text, None, number)
        for number, answers in there.items():
            if number in trained:
                self._compare(number, answers)
            else:
                text = f"ticket {number} was not trained in step {self._step}, but {listed(trained)}"
                self._find("differs", text, answers.line, number)
        return self._found

    def _answers(self, lines: list[str]) -> dict[int, _Answers]:
        there: dict[int, _Answers] = {}
        for line, text in enumerate(lines, 1):
            try:
                data = parse_object(text)
                number, env, failed = int(str(data["ticket"])), data["env"], data["failure"] is not None
            except (ValueError, KeyError):
                self._find("unreadable", f"this line is no trajectory: {text[:80]!r}", line)
                continue
            answers = there.setdefault(number, _Answers(line=line, env=env))
            answers.failed += failed
            answers.scored += not failed
        return there

    def _compare(self, number: int, answers: _Answers) -> None:
        life = self._lives.lives[number]
        if life.env not in (None, answers.env):
            text = f"ticket {number} is of {answers.env}, and of {life.env} in ledger.jsonl"
            self._find("differs", text, answers.line, number)
        if life.finished is None:
            return  # which is found where it ended without
        told = life.finished.answers, life.finished.failed
        if (answers.scored, answers.failed) != told:
            text = f"ticket {number} has {answers.scored} answers and {answers.failed} failed ones"
            self._find("differs", f"{text}, and {told[0]} and {told[1]} in ledger.jsonl", answers.line, number)

    def _find(self, kind: Kind, text: str, line: int | None, ticket: int | None = None) -> None:
        stage, step = self._lives.stage, self._step
        found = Finding(kind=kind, text=text, file=self._where, line=line, stage=stage, step=step, ticket=ticket)
        self._found.append(found)
