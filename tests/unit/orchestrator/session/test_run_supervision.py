"""The supervisor in a run: its records in the run's folder, and its notifications."""

import asyncio
import io
import os
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

from temper.envs.core.process import Heartbeat, JudgeDied, Place, ProcessDied, ProcessInfo
from temper.orchestrator.loop.deadline import StopFlag, StuckError
from temper.orchestrator.pipeline.config import load_config
from temper.orchestrator.run.folder import RunDir
from temper.orchestrator.run.metrics_log import read_metrics
from temper.orchestrator.run.progress import Progress
from temper.orchestrator.session import diagnosis
from temper.orchestrator.session.context import RunContext
from temper.orchestrator.session.run_supervision import RunSupervision
from temper.orchestrator.session.status import ask_for_workers, read_status
from temper.orchestrator.tracking.tracker import Tracker


class Worker:
    name = "rollout worker 0"
    place = Place(pid=os.getpid(), host="here")

    async def heartbeat(self) -> Heartbeat:
        return Heartbeat(progress=5, doing="a group", quiet_s=1.5)

    def kill(self) -> None: ...


class Desk:
    """A run's folder, a supervised worker, a starting worker, and the recorded notes and resize requests."""

    def __init__(self, root: Path, worker: Worker | None = None) -> None:
        self.folder, self.said, self.asked = RunDir(root / "job"), io.StringIO(), [0]
        self.folder.open()
        config = load_config(Path("configs/demo.yaml"), ["supervision.heartbeat_s=0.01", "supervision.silent_s=0.3"])
        progress = Progress(stream=self.said)
        self.run = RunContext(config, folder=self.folder, tracker=Tracker(), progress=progress, stop=StopFlag())
        progress.stage("rl", 9)
        first = worker or Worker()
        processes = [
            ProcessInfo(name="rollout worker 0", state="serving", process=first, tickets=(3,), restarts=1),
            ProcessInfo(name="rollout worker 1", state="starting", process=Worker(), watched=False),
        ]
        self.supervision = RunSupervision(self.run, processes=lambda: processes, resize=self.resize)

    def resize(self, workers: int) -> bool:
        self.asked.append(workers)
        return True

    async def until(self, ready: Callable[[], bool]) -> None:
        async with asyncio.timeout(30):
            while not ready():
                await asyncio.sleep(0.01)

    def events(self) -> list[dict[str, object]]:
        return [row.event for row in read_metrics(self.folder.metrics) if row.event is not None]


def test_an_error_beside_the_stages_ends_the_run_with_this_error(tmp_path: Path) -> None:
    desk = Desk(tmp_path)

    async def work() -> None:
        async with asyncio.timeout(30), desk.supervision.watching():
            asyncio.get_running_loop().call_later(0.01, desk.supervision.end_run, JudgeDied("the judge m died"))
            await asyncio.sleep(60)

    with pytest.raises(JudgeDied):
        asyncio.run(work())


class StuckWorker(Worker):
    """A process that never answers and survives the first `refusals` attempts to end it."""

    def __init__(self, *, refusals: int) -> None:
        self.place = Place(pid=2**22 + 1, host="here")
        self.refusals, self.asked = refusals, 0

    async def heartbeat(self) -> Heartbeat:
        await asyncio.sleep(1000)
        raise AssertionError

    def kill(self) -> None:
        self.asked += 1
        if self.asked <= self.refusals:
            raise OverflowError(f"attempt {self.asked}")


def watched(root: Path, work: Callable[[Desk], Awaitable[None]], worker: Worker | None = None) -> Desk:
    async def scene() -> Desk:
        desk = Desk(root, worker)
        try:
            async with desk.supervision.watching():
                await work(desk)
        finally:
            desk.folder.close()
        return desk

    return asyncio.run(scene())


def knows_its_worker(desk: Desk) -> bool:
    status = read_status(desk.folder.root)
    return status is not None and status.processes[0].progress is not None


def test_the_status_shows_who_answers_and_who_starts(tmp_path: Path) -> None:
    async def work(desk: Desk) -> None:
        await desk.until(lambda: knows_its_worker(desk))

    status = read_status(watched(tmp_path, work).folder.root)
    assert status is not None
    serve, starting = status.processes
    assert (status.pid, status.stage, status.step, status.steps) == (os.getpid(), "rl", 0, 9)
    assert (serve.pid, serve.progress, serve.doing, serve.quiet_s) == (os.getpid(), 5, "a group", 1.5)
    assert (serve.state, serve.tickets, serve.restarts, serve.host) == (
        "serving",
        (3,),
        1,
        "here",
    )
    assert (starting.state, starting.pid, starting.answered_s) == ("starting", os.getpid(), None)


def test_a_request_for_workers_reaches_the_pool_and_stands_among_the_metrics(tmp_path: Path) -> None:
    async def work(desk: Desk) -> None:
        ask_for_workers(desk.folder.root, 3)
        await desk.until(lambda: desk.asked[-1] == 3)
        await desk.until(lambda: bool(desk.events()))

    desk = watched(tmp_path, work)
    assert desk.events() == [{"kind": "scaled", "what": {"rollout_workers": "3"}}]
    assert "3 rollout workers requested" in desk.said.getvalue()


def test_a_death_leaves_a_file_a_line_and_an_event(tmp_path: Path) -> None:
    async def work(desk: Desk) -> None:
        await desk.until(lambda: knows_its_worker(desk))
        desk.supervision.record_failure("rollout worker 0", ProcessDied("rollout worker 0 died (killed)"))

    desk = watched(tmp_path, work)
    (event,) = desk.events()
    what = "rollout worker 0 died (killed)"
    evidence = "faults/001-rollout-worker-0.txt"
    assert event == {
        "kind": "fault",
        "what": {"who": "rollout worker 0", "how": "died", "what": what, "evidence": evidence},
    }
    assert (desk.folder.root / evidence).read_text().startswith(f"rollout worker 0 died: {what}")
    assert evidence in desk.said.getvalue()


def test_a_run_that_waited_in_vain_leaves_the_stacks_of_its_processes(tmp_path: Path) -> None:
    async def work(desk: Desk) -> None:
        await desk.until(lambda: knows_its_worker(desk))
        raise StuckError("rl step 3: nothing for 300 s")

    with pytest.raises(StuckError):
        watched(tmp_path, work)
    text = (tmp_path / "job" / "faults" / "001-rollout-worker-0.txt").read_text()
    assert "looked at: rl step 3: nothing for 300 s" in text
    assert f"process {os.getpid()}" in text


def test_a_start_that_is_waited_for_in_vain_leaves_the_stacks_of_those_that_start(tmp_path: Path) -> None:
    async def work(desk: Desk) -> None:
        await desk.supervision.inspect_starting("rl: nothing for 300 s while waiting for the rollout engines to start")

    watched(tmp_path, work)
    (found,) = (tmp_path / "job" / "faults").iterdir()
    text = found.read_text()
    assert "looked at: rl: nothing for 300 s while waiting for the rollout engines to start" in text
    assert f"process {os.getpid()}" in text


def test_a_folder_that_takes_no_status_is_told_once_and_the_watch_goes_on(tmp_path: Path) -> None:
    async def work(desk: Desk) -> None:
        (desk.folder.root / "status.json").mkdir()
        await desk.until(lambda: "continues without status.json" in desk.said.getvalue())
        await asyncio.sleep(0.2)

    assert watched(tmp_path, work).said.getvalue().count("continues without status.json") == 1


def test_the_supervision_survives_its_first_error(tmp_path: Path) -> None:
    """The error is recorded as a fault of the run. The next attempt ends the stuck process."""
    worker = StuckWorker(refusals=1)

    async def work(desk: Desk) -> None:
        await desk.until(lambda: worker.asked == 2)
        await asyncio.sleep(0.1)

    desk = watched(tmp_path, work, worker)
    faults: list[Any] = [event["what"] for event in desk.events()]
    assert [(fault["who"], fault["how"]) for fault in faults] == [
        ("rollout worker 0", "hung"),
        ("the supervision", "failed"),
        ("rollout worker 0", "hung"),
    ]
    assert "OverflowError: attempt 1" in (desk.folder.root / faults[1]["evidence"]).read_text()


def test_a_second_error_of_the_supervision_ends_the_run(tmp_path: Path) -> None:
    async def work(desk: Desk) -> None:
        await asyncio.sleep(30)

    with pytest.raises(RuntimeError, match="attempt 2"):
        watched(tmp_path, work, StuckWorker(refusals=2))


def test_a_member_that_can_not_be_looked_at_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def denied(pid: int) -> None:
        raise psutil.AccessDenied(pid)

    monkeypatch.setattr(diagnosis, "inspect", denied)
    worker = StuckWorker(refusals=0)

    async def work(desk: Desk) -> None:
        await desk.until(lambda: worker.asked == 1)

    (event,) = watched(tmp_path, work, worker).events()
    assert event["kind"] == "fault"
