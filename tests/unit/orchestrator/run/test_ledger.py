"""The ledger: what is written is read back, a restart cuts off one stage's rows alone, a torn line disappears."""

from pathlib import Path

import pytest
from support.ledger_rows import read_ledger

from temper.envs.core.errors import Failure, FailureKind
from temper.envs.core.task import EnvRef, Task
from temper.orchestrator.loop.buffer import TicketLedger, Totals
from temper.orchestrator.loop.mixture import Draw
from temper.orchestrator.run.ledger import Ledger, LedgerRow, copy_ledger
from temper.rollout.trajectory import Group, Stop, Ticket, Trajectory, WeightVersion

TASK = Task(env=EnvRef(name="math"), key="0", messages=({"role": "user", "content": "?"},), spec={})
FAILED = Trajectory(
    task=TASK, turns=(), stop=Stop.FAILURE, failure=Failure(kind=FailureKind.TIMEOUT, message="too slow")
)
ANSWER = Trajectory(task=TASK, turns=(), stop=Stop.ENV, reward=1.0)


def ticket(number: int) -> Ticket:
    return Ticket(number=number, task=TASK, admitted=WeightVersion(step=3))


def ledger(tmp_path: Path, stage: str = "rl") -> Ledger:
    return Ledger(tmp_path / "ledger.jsonl", stage, clock=lambda: 100.0)


def events(tmp_path: Path) -> list[tuple[str, str, int | None]]:
    return [(row.stage, row.event, row.ticket) for row in read_ledger(tmp_path / "ledger.jsonl")]


def test_every_event_is_read_back_as_it_was_written(tmp_path: Path) -> None:
    written = ledger(tmp_path)
    writer: TicketLedger = written
    writer.admitted(5, Draw(env="math", index=2), WeightVersion(step=3))
    writer.reissued(5, why="restored")
    writer.finished(Group(ticket=ticket(5), trajectories=(ANSWER,), failed=(FAILED,)))
    writer.trained(ticket(5), step=4)
    writer.dropped(6, why="no_signal")
    writer.failed(Group(ticket=ticket(7), trajectories=(), failed=(FAILED, FAILED)))
    totals = Totals(issued=4, trained=1, dropped=1, failed=1, in_flight=1)
    writer.step(4, totals)
    written.continued(4)
    assert totals.balances
    rows = read_ledger(tmp_path / "ledger.jsonl")
    assert rows[0] == LedgerRow(stage="rl", event="admitted", time=100.0, ticket=5, env="math", index=2, version=3)
    assert [row.event for row in rows[1:]] == [
        *("reissued", "finished", "trained", "dropped", "failed", "step", "continued"),
    ]
    assert (rows[2].answers, rows[2].failed, rows[2].tokens, rows[3].step) == (1, 1, 0, 4)
    assert (rows[1].why, rows[4].why, rows[5].why) == ("restored", "no_signal", "timeout 2")
    assert rows[6].totals == totals
    assert written.rows == len(rows)


def test_a_cut_forgets_the_last_rows_of_its_own_stage_alone(tmp_path: Path) -> None:
    rl = ledger(tmp_path)
    rl.dropped(0, why="no_signal")
    rl.dropped(1, why="no_signal")
    other = ledger(tmp_path, "distill")
    other.dropped(9, why="no_signal")
    rl = ledger(tmp_path)
    assert (rl.rows, rl.cut(1), rl.rows) == (2, 0, 1)
    rl.continued(1)
    assert events(tmp_path) == [("rl", "dropped", 0), ("distill", "dropped", 9), ("rl", "continued", None)]
    assert ledger(tmp_path).cut(5) == 3  # of the first five rows three are missing


def test_a_line_that_a_killed_process_left_half_written_disappears_and_any_other_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "ledger.jsonl"
    ledger(tmp_path).continued(1)
    whole = path.read_text(encoding="utf-8")
    path.write_text(whole + '{"stage": "rl", "ev', encoding="utf-8")
    assert len(read_ledger(path)) == 1
    ledger(tmp_path).continued(2)
    assert [row.step for row in read_ledger(path)] == [1, 2]
    path.write_text(whole + "{}\n", encoding="utf-8")
    with pytest.raises(ValueError, match=r"ledger.jsonl, line 2"):
        copy_ledger(path, tmp_path / "copy.jsonl", rows={"rl": None})
    path.write_text(whole.replace("continued", "vanished"), encoding="utf-8")
    with pytest.raises(ValueError, match=r"line 1 .*'vanished'"):
        copy_ledger(path, tmp_path / "copy.jsonl", rows={"rl": None})
