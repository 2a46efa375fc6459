"""The audit of a run: whether its event log, metrics, evaluations, trajectories and checkpoints agree.

The event log balances at every step, because no ticket is lost or trained twice. Every step has one row of metrics. Event log,
metrics and trajectories have the same groups. Each checkpoint is complete and holds the tickets that were in flight.
"""

import json
import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from support.ticket_lives import ENDS, WITHOUT_TASK, StepTickets, TicketLives

from temper.orchestrator.pipeline.finding import Finding, Level
from temper.orchestrator.run.checkpoint import TRAJECTORIES_EVERY, DamagedCheckpointError, place, steps, verify
from temper.orchestrator.run.event_log import parse_row as parse_event_row
from temper.orchestrator.run.folder import RunDir, complete_lines, evaluations_of
from temper.orchestrator.run.loop_state import EPISODES_FILE, GROUPS_FILE, STATE_FILE, LoopState, read_state
from temper.orchestrator.run.metrics_log import UNWRITTEN, MetricsRow
from temper.orchestrator.run.metrics_log import parse_row as parse_metrics_row

T = TypeVar("T")
OF_THE_LOOP = "rollout/answers"
"""The metric that only rows of the loop have."""
EVERY = "checkpoints.trajectories_every"
EVENT_LOG, METRICS = "event_log.jsonl", "metrics.jsonl"


def failures(run: RunDir) -> list[Finding]:
    """Return the inconsistencies of a run, which may be at work.

    The last step of a stage that is not done may be incomplete. Raise `FileNotFoundError` if the folder has no run.
    """
    return _Audit(run).failures


class _Audit:
    def __init__(self, run: RunDir) -> None:
        if not (run.root / "manifest.json").exists():
            raise FileNotFoundError(f"{run.root} has no run: manifest.json is missing")
        self._run, self._state = run, run.state()
        self.failures: list[Finding] = []
        self._metrics = self._rows(run.metrics, parse_metrics_row)
        self._event_log = self._rows(run.event_log, parse_event_row)
        names = [row.stage for _, row in self._metrics] + [row.stage for _, row in self._event_log]
        self._stages = list(dict.fromkeys(names))
        folder = run.root / "checkpoints"
        self._checkpoints = {p.name: steps(p) for p in sorted(folder.glob("*")) if p.is_dir()}
        ticketed = dict.fromkeys(row.stage for _, row in self._event_log)
        lives = {name: self._follow(name) for name in ticketed | dict.fromkeys(self._checkpoints)}
        for name in dict.fromkeys([*self._stages, *self._state.done]):
            self._check_metrics(name, lives[name] if name in ticketed else None)
        for name in ticketed:
            self._check_trajectories(name, lives[name])

    def _add(self, path: Path, what: str, line: int | None = None) -> None:
        where = str(path.relative_to(self._run.root)) + ("" if line is None else f":{line}")
        self.failures.append(Finding(level=Level.FAILURE, what=what, where=where))

    def _rows(self, path: Path, parse: Callable[[str], T]) -> list[tuple[int, T]]:
        """Return the parsed rows of a file with their line numbers. Report lines that cannot be parsed."""
        found = []
        for number, line in enumerate(_lines(path), 1):
            try:
                found.append((number, parse(line)))
            except (ValueError, KeyError, TypeError) as error:
                self._add(path, f"this line is unreadable: {error}", number)
        return found

    def _measured(self, stage: str) -> list[tuple[int, MetricsRow]]:
        return [(line, row) for line, row in self._metrics if row.is_step_of(stage)]

    def _follow(self, stage: str) -> TicketLives:
        """Follow a stage's rows of the event log once, and compare each checkpoint with the log at its length."""
        rows = [(line, row) for line, row in self._event_log if row.stage == stage]
        lives = TicketLives()
        paths = {step: place(self._run.checkpoints(stage), step) for step in self._checkpoints.get(stage, [])}
        states = {step: self._check_checkpoint(stage, step, path) for step, path in paths.items()}
        waiting = sorted((state.event_rows, step, state) for step, state in states.items() if state)
        for count in range(len(rows) + 1):
            while waiting and waiting[0][0] == count:
                _, step, state = waiting.pop(0)
                self._check_tickets(step, paths[step], state, lives)
            if count < len(rows):
                lives.follow(*rows[count])
        for count, step, _ in waiting:
            self._add(paths[step] / STATE_FILE, f"the event log had {count} rows of {stage}, and has {len(rows)}")
        for line, what in lives.wrong:
            self._add(self._run.event_log, what, line)
        return lives

    def _check_checkpoint(self, stage: str, step: int, path: Path) -> LoopState | None:
        """Check one checkpoint. Return its state, or None if it has none."""
        try:
            verify(path)
        except (DamagedCheckpointError, FileNotFoundError) as error:
            if path.exists():  # a running driver removes old ones
                self._add(path, str(error))
            return None
        if step not in {row.step for _, row in self._measured(stage)}:
            self._add(path, f"step {step} has a checkpoint and no row in {METRICS}")
        if not (path / STATE_FILE).exists():
            return None
        try:
            return read_state(path)
        except ValueError as error:
            self._add(path / STATE_FILE, str(error))
            return None

    def _check_tickets(self, step: int, path: Path, state: LoopState, lives: TicketLives) -> None:
        """Compare the tickets of a checkpoint with the rows that the event log had then."""
        file = path / STATE_FILE
        if lives.last_step != step:
            self._add(file, f"it has {state.event_rows} rows of the event log, whose last step is {lives.last_step}")
        held, in_flight = {ticket.number for ticket in state.buffer.tickets}, set(lives.open)
        for number in sorted(in_flight - held):
            self._add(file, f"ticket {number} is lost: it is in flight in {EVENT_LOG} and not in this checkpoint")
        for number in sorted(held - in_flight):
            self._add(file, f"ticket {number} is in this checkpoint and not in flight in {EVENT_LOG}")
        if lives.next_ticket is not None and state.buffer.next_ticket != lives.next_ticket:
            self._add(file, f"the next ticket is {state.buffer.next_ticket}, and {lives.next_ticket} in {EVENT_LOG}")
        for name in (GROUPS_FILE, EPISODES_FILE):
            for line, text in enumerate(_lines(path / name), 1):
                row = json.loads(text)
                number = int(row.get("group", row)["ticket"]["number"])
                life = lives.lives.get(number)
                done = life is not None and life.finished is not None
                is_open = life is not None and life.end is None and (not done or life.again)
                if not (done if name == GROUPS_FILE else is_open):
                    state_word = "not finished" if name == GROUPS_FILE else "not in flight"
                    self._add(path / name, f"ticket {number} is in this file, but {state_word} in {EVENT_LOG}", line)

    def _check_metrics(self, stage: str, lives: TicketLives | None) -> None:
        rows = self._measured(stage)
        if self._state.stages.get(stage) == "eval":
            self._check_evaluation(stage, rows)
        else:
            self._check_order(stage, rows)
        if lives is not None or any(OF_THE_LOOP in row.values for _, row in rows):
            self._check_event_log(stage, rows, lives)

    def _check_order(self, stage: str, rows: list[tuple[int, MetricsRow]]) -> None:
        """Check that steps are unique, ordered and without gaps. Evaluations between steps may have gaps."""
        names = {*self._stages, *self._state.done, *self._state.stages}
        is_between = stage in {evaluations_of(name) for name in names}
        newest = -1 if is_between else 0
        for line, row in rows:
            if (row.step <= newest and (is_between or row.step > 0)) or (row.step > newest + 1 and not is_between):
                self._add(self._run.metrics, f"{stage}: step {row.step} follows step {newest}", line)
            newest = max(newest, row.step)
        last = 0 if is_between else self._state.done.get(stage, 0)
        if newest < last:
            self._add(self._run.metrics, f"{stage}: {last} steps are done, but the last row is of step {newest}")

    def _check_evaluation(self, stage: str, rows: list[tuple[int, MetricsRow]]) -> None:
        """Compare the row of an evaluation that is done with its file."""
        for line, _ in rows[1:]:
            self._add(self._run.metrics, f"{stage}: line {rows[0][0]} has its row too", line)
        if stage not in self._state.done:
            return
        path = self._run.evals / f"{stage.removeprefix('eval-')}.json"
        if not path.exists() or not rows:
            self._add(path if rows else self._run.metrics, f"the evaluation {stage} is done, but its record is missing")
            return
        line, row = rows[-1]
        recorded = json.loads(path.read_text(encoding="utf-8"))["envs"]
        pairs = ((f"{env}/{name}", value) for env, values in recorded.items() for name, value in values.items())
        for name, value in pairs:
            logged = row.values.get(name, math.nan)
            if logged != value and not (value is None and math.isnan(logged)):
                self._add(self._run.metrics, f"{stage}: {name} is {logged}, and {value} in {path.name}", line)

    def _check_event_log(self, stage: str, rows: list[tuple[int, MetricsRow]], lives: TicketLives | None) -> None:
        """Check that metrics and event log have the same steps and the same counts per step."""
        if lives is None:
            self._add(self._run.event_log, f"no row of {stage}, and {len(rows)} of its steps are measured")
            return
        for line, row in rows:
            if row.step not in lives.steps:
                self._add(self._run.metrics, f"{stage}: step {row.step} is measured and not in {EVENT_LOG}", line)
                continue
            for name, counted in self._counts(stage, row, lives.steps[row.step], lives).items():
                if (value := row.values.get(name, 0.0)) != counted:
                    what = f"step {row.step}: {name} is {value:g}, and {counted} in {EVENT_LOG}"
                    self._add(self._run.metrics, what, line)
        measured = {row.step for _, row in rows}
        last = set() if stage in self._state.done else {lives.last_step}  # may be unfinished
        for step in sorted(lives.steps.keys() - measured - last):
            self._add(self._run.event_log, f"{stage}: step {step} is in the event log and not in {METRICS}")

    def _counts(self, stage: str, row: MetricsRow, tickets: StepTickets, lives: TicketLives) -> dict[str, int]:
        """Return the metrics that count tickets of a step, as the event log has them."""
        counts = {
            "rollout/dropped_zero_advantage": len(tickets["dropped"]),
            "rollout/dropped_failed": len(tickets["failed"]),
        }
        counts |= _by_env(row, "groups_trained", tickets["trained"], lives)
        if not tickets[WITHOUT_TASK]:
            counts |= _by_env(row, "groups", (number for kind in ENDS for number in tickets[kind]), lives)
        return counts

    def _check_trajectories(self, stage: str, lives: TicketLives) -> None:
        files = self._run.trajectory_files(stage)
        for step, path in files.items():
            if step not in lives.steps:
                self._add(path, f"step {step} is not in {EVENT_LOG}")
            elif path.exists():
                self._check_file(path, step, lives)
        for step in sorted(self._due(stage, lives) - set(files)):
            self._add(self._run.trajectory_file(stage, step), f"step {step} has no trajectory file")

    def _check_file(self, path: Path, step: int, lives: TicketLives) -> None:
        """Compare the answers of a file with the groups that the event log has as trained."""
        trained = lives.steps[step]["trained"]
        answers: dict[int, Counter[bool]] = {}
        envs: dict[int, object] = {}
        for line, (number, env, failed) in self._rows(path, _answer):
            if number not in trained and number not in envs:
                self._add(path, f"ticket {number} is in this file, but not trained in step {step}", line)
            envs.setdefault(number, env)
            answers.setdefault(number, Counter())[failed] += 1
        for number in trained:
            life, counts = lives.lives[number], answers.get(number)
            if counts is None:
                self._add(path, f"ticket {number} was trained in step {step}, but has no trajectories in this file")
                continue
            if life.env not in (None, envs[number]):
                self._add(path, f"ticket {number} is of {envs[number]}, and of {life.env} in {EVENT_LOG}")
            recorded = life.finished and (life.finished.answers, life.finished.failed)
            if recorded and recorded != (counts[False], counts[True]):
                here = f"{counts[False]} answers and {counts[True]} failures"
                self._add(path, f"ticket {number} has {here}, but {recorded[0]} and {recorded[1]} in {EVENT_LOG}")

    def _due(self, stage: str, lives: TicketLives) -> set[int]:
        """Return the steps that need a file. Steps before a restart and steps with an explaining event do not."""
        rows = [row for _, row in self._metrics if row.stage == stage]
        unwritten = {row.step for row in rows if row.event is not None and row.event["kind"] == UNWRITTEN}
        every, due, newest = int(self._state.fingerprint.get(EVERY, TRAJECTORIES_EVERY)), set(), 0
        for _, row in reversed(self._metrics):
            if row.event is not None:  # a change event has the interval before it
                before, _ = row.event["what"].get(EVERY, (every, every))
                every = TRAJECTORIES_EVERY if before is None else int(before)
            elif row.is_measured and row.stage == stage:
                newest = max(newest, row.step)
                is_last = row.step == self._state.done.get(stage)
                if row.step % every == 0 or is_last or row.values.get("train/skipped", 0.0) > 0:
                    due.add(row.step)
        return due - unwritten - lives.continued - (set() if stage in self._state.done else {newest})


def _lines(path: Path) -> list[str]:
    """Return the complete lines of a file that may be damaged or removed."""
    return complete_lines(path.read_text(encoding="utf-8", errors="replace")) if path.exists() else []


def _answer(text: str) -> tuple[int, object, bool]:
    """Return the ticket of a trajectory, its environment, and whether it failed."""
    row = json.loads(text)
    return int(row["ticket"]), row["env"], row["failure"] is not None


def _by_env(row: MetricsRow, name: str, numbers: Iterable[int], lives: TicketLives) -> dict[str, int]:
    """Count the tickets of each environment, by metric. The result is empty if a ticket was never admitted."""
    envs: Mapping[Any, int] = Counter(lives.lives[number].env for number in numbers)
    if None in envs:
        return {}
    names = [metric.split("/") for metric in row.values]
    measured = {parts[1] for parts in names if parts[0] == "env" and parts[-1] == "groups"}
    return {f"env/{env}/{name}": envs.get(env, 0) for env in {*measured, *envs}}
