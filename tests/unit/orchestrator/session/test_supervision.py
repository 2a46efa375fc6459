"""The supervisor over fake and real processes: detection of stuck processes, diagnosis, and termination."""

import asyncio
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from time import monotonic, sleep

import psutil
import pytest
from support.refusals import refuses

from temper.envs.core.process import Heartbeat, Place, ProcessDied, WatchedProcess
from temper.orchestrator.config.run_config import SupervisionConfig
from temper.orchestrator.session.diagnosis import FaultDiagnosis, FaultFolder, end, inspect
from temper.orchestrator.session.supervisor import AwakeClock, Supervisor

CONFIG = SupervisionConfig(heartbeat_s=1.0, silent_s=5.0, stalled_s=20.0)
SLEEPER = """
import subprocess, sys, time
from temper.envs.core.process import show_stacks_on_signal
show_stacks_on_signal()
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
def waits_for_what_never_comes():
    print("ready", file=sys.stderr, flush=True)
    time.sleep(600)
waits_for_what_never_comes()
"""


class Actor:
    def __init__(self, name: str = "rollout worker 0", pid: int = 2**22 + 1) -> None:
        self.name = name
        self.place = Place(pid=pid, host="here", node=None)
        self.progress = 0
        self.doing = "a pass of the engine"
        self.answers = True
        self.resumed = asyncio.Event()
        self.dead = False
        self.killed = 0

    async def heartbeat(self) -> Heartbeat:
        if self.dead:
            raise ProcessDied(self.name)
        if not self.answers:
            await self.resumed.wait()
        return Heartbeat(progress=self.progress, doing=self.doing, quiet_s=0.0)

    def kill(self) -> None:
        self.killed += 1


class Scene:
    """A supervisor on a fake clock."""

    def __init__(self, *actors: Actor) -> None:
        self.now = 0.0
        self.processes: list[WatchedProcess] = list(actors)
        self.faults: list[FaultDiagnosis] = []
        self.supervisor = Supervisor(
            CONFIG,
            processes=lambda: self.processes,
            on_fault=self.faults.append,
            on_look=self._nothing,
            clock=lambda: self.now,
        )

    async def pass_seconds(self, seconds: int, *, step: float = 1.0) -> None:
        for _ in range(round(seconds / step)):
            self.now += step
            self.supervisor.look()
            for _ in range(4):
                await asyncio.sleep(0)

    async def ended(self, actor: Actor) -> None:
        deadline = monotonic() + 30
        while not actor.killed and monotonic() < deadline:
            await asyncio.sleep(0.01)

    async def told(self, faults: int) -> None:
        deadline = monotonic() + 30
        while len(self.faults) < faults and monotonic() < deadline:
            await asyncio.sleep(0.01)

    async def _nothing(self) -> None: ...


def test_a_member_that_answers_and_gets_on_is_left_alone() -> None:
    async def scene() -> None:
        actor = Actor()
        watched = Scene(actor)
        for _ in range(40):
            actor.progress += 1
            await watched.pass_seconds(1)
        actor.doing = ""  # idle, so not stalled
        await watched.pass_seconds(100)
        assert not actor.killed
        assert watched.faults == []

    asyncio.run(scene())


def test_a_member_that_does_not_answer_is_looked_at_and_ended_once() -> None:
    async def scene() -> None:
        actor, other = Actor(), Actor("rollout worker 1")
        other.doing = ""
        watched = Scene(actor, other)
        await watched.pass_seconds(2)
        actor.answers = False
        await watched.pass_seconds(4)
        assert not actor.killed
        await watched.pass_seconds(4)
        await watched.ended(actor)
        await watched.pass_seconds(20)
        assert (actor.killed, other.killed) == (1, 0)
        (fault,) = watched.faults
        assert (fault.who, fault.kind) == ("rollout worker 0", "hung")
        assert f"process {actor.place.pid} on here" in fault.line
        assert "supervision.silent_s=5" in fault.what
        assert "has ended" in fault.evidence

    asyncio.run(scene())


def test_a_member_that_answers_but_gets_nothing_done_is_ended() -> None:
    async def scene() -> None:
        actor = Actor("the learner's rank 0")
        actor.doing = "train"
        watched = Scene(actor)
        await watched.pass_seconds(19)
        assert not actor.killed
        await watched.pass_seconds(5)
        await watched.ended(actor)
        assert watched.faults[0].what.startswith("train: ")
        assert "supervision.stalled_s=20" in watched.faults[0].what

    asyncio.run(scene())


def test_a_member_that_never_answered_is_ended_too() -> None:
    async def scene() -> None:
        actor = Actor()
        actor.answers = False
        watched = Scene(actor)
        await watched.pass_seconds(8)
        await watched.ended(actor)
        assert watched.faults[0].evidence == f"process {actor.place.pid} has ended"

    asyncio.run(scene())


def test_a_member_that_answers_again_after_the_look_is_left_alone_and_that_is_told() -> None:
    async def scene() -> None:
        slow, idle = Actor(), Actor("the learner's rank 0")
        watched = Scene(slow, idle)
        await watched.pass_seconds(2)
        slow.answers = idle.answers = False
        await watched.pass_seconds(7)  # both are being diagnosed
        slow.answers, slow.progress = True, 1
        slow.resumed.set()
        idle.answers, idle.doing = True, ""
        idle.resumed.set()
        await watched.told(2)
        await watched.pass_seconds(4)
        assert (slow.killed, idle.killed) == (0, 0)
        assert [fault.kind for fault in watched.faults] == ["recovered", "recovered"]
        assert "supervision.silent_s=5" in watched.faults[0].line
        slow.answers = False  # forever
        slow.resumed.clear()
        await watched.pass_seconds(8)
        await watched.ended(slow)
        assert watched.faults[-1].kind == "hung"

    asyncio.run(scene())


def test_an_answer_without_progress_after_the_look_saves_nobody_who_is_stalled() -> None:
    async def scene() -> None:
        stuck, late = Actor("the learner's rank 0"), Actor("the learner's rank 1")
        watched = Scene(stuck, late)
        await watched.pass_seconds(22)
        watched.now += 1.0
        watched.supervisor.look()
        late.progress += 1
        await watched.ended(stuck)
        await watched.told(2)
        assert (stuck.killed, late.killed) == (1, 0)
        assert sorted(fault.kind for fault in watched.faults) == ["hung", "recovered"]

    asyncio.run(scene())


def test_a_process_that_does_not_start_in_time_is_looked_at_and_ended_and_its_death_is_known() -> None:
    async def scene() -> None:
        late = Actor()
        watched = Scene()
        await watched.supervisor.end_starting(late, "did not start within 300 s")
        watched.supervisor.record_failure(
            "rollout worker 0", ProcessDied("rollout worker 0 did not start within 300 s")
        )
        (fault,) = watched.faults
        assert (fault.kind, fault.evidence, late.killed) == ("hung", f"process {late.place.pid} has ended", 1)
        await watched.pass_seconds(2)

    asyncio.run(scene())


def test_a_newcomer_of_the_same_name_has_time_of_its_own() -> None:
    async def scene() -> None:
        actor, newcomer = Actor(), Actor()
        watched = Scene(actor)
        actor.answers = False
        await watched.pass_seconds(4)
        watched.processes = [newcomer]
        newcomer.doing = ""
        await watched.pass_seconds(50)
        assert (actor.killed, newcomer.killed, watched.faults) == (0, 0, [])

    asyncio.run(scene())


def test_a_pause_of_the_driver_itself_is_nobodys_silence() -> None:
    async def scene() -> None:
        actor = Actor()
        watched = Scene(actor)
        await watched.pass_seconds(2)
        await watched.pass_seconds(400, step=400.0)
        await watched.pass_seconds(2)
        assert not actor.killed

    asyncio.run(scene())


def test_an_awake_clock_counts_a_long_pause_as_a_short_one() -> None:
    now = [0.0]
    clock = AwakeClock(4.0, lambda: now[0])
    now[0] = 3.0
    assert clock.now() == 3.0
    now[0] = 1000.0
    assert clock.now() == 7.0


def test_a_death_that_somebody_heals_is_recorded_and_that_of_an_ended_member_only_once() -> None:
    async def scene() -> None:
        actor, hung = Actor(), Actor("rollout worker 1")
        watched = Scene(actor, hung)
        await watched.pass_seconds(2)
        watched.supervisor.record_failure("rollout worker 0", ProcessDied("rollout worker 0 died (out of memory)"))
        assert watched.faults[0].kind == "died"
        hung.answers, actor.doing = False, ""
        await watched.pass_seconds(8)
        await watched.ended(hung)
        watched.supervisor.record_failure("rollout worker 1", ProcessDied("rollout worker 1 died"))
        assert [fault.kind for fault in watched.faults] == ["died", "hung"]

    asyncio.run(scene())


@pytest.fixture
def sleeper(tmp_path: Path) -> Iterator[subprocess.Popen[bytes]]:
    log = tmp_path / "worker.err"
    with log.open("wb") as output:
        process = subprocess.Popen([sys.executable, "-c", SLEEPER], stderr=output)
    deadline = monotonic() + 30
    while "ready" not in log.read_text() and monotonic() < deadline:
        sleep(0.02)
    yield process
    family = [*psutil.Process(process.pid).children(recursive=True)] if psutil.pid_exists(process.pid) else []
    process.send_signal(signal.SIGCONT)
    for one in family:
        one.kill()
    process.kill()
    process.wait(20)


def test_the_look_at_a_stopped_process_shows_stacks_children_and_the_end_of_its_log(
    sleeper: "subprocess.Popen[bytes]",
) -> None:
    sleeper.send_signal(signal.SIGSTOP)
    found = inspect(sleeper.pid)
    assert f"process {sleeper.pid}" in found.text
    assert "stopped" in found.text
    assert "waits_for_what_never_comes" in found.text or "no stacks:" in found.text
    assert "worker.err\nready" in found.text
    assert len(found.processes) == 2
    end(found.processes)
    assert sleeper.wait(20) == -signal.SIGKILL
    _, alive = psutil.wait_procs(
        [psutil.Process(key.pid) for key in found.processes[1:] if psutil.pid_exists(key.pid)], 20
    )
    assert alive == []


def test_a_process_whose_memory_may_not_be_read_writes_its_stacks_itself(
    sleeper: "subprocess.Popen[bytes]", tmp_path: Path
) -> None:
    found = inspect(sleeper.pid, spy=tmp_path / "no-such-program")
    assert "its stacks are in its log, below" in found.text
    assert "in waits_for_what_never_comes" in found.text


def test_a_process_that_has_ended_is_said_to_have() -> None:
    assert inspect(2**22 + 1).text == f"process {2**22 + 1} has ended"


def test_faults_are_numbered_and_named_by_who_is_at_fault(tmp_path: Path) -> None:
    folder = FaultFolder(tmp_path / "faults")
    fault = FaultDiagnosis(who="the learner's rank 0", kind="hung", what="no answer for 61 s", evidence="stacks")
    assert folder.write(fault, stage="rl", step=3).name == "001-the-learner-s-rank-0.txt"
    second = folder.write(fault, stage="rl", step=4, groups=["#7 code (12 s)"])
    assert second.name == "002-the-learner-s-rank-0.txt"
    assert (folder.count, FaultFolder(tmp_path / "faults").count) == (2, 2)
    (tmp_path / "faults" / "001-the-learner-s-rank-0.txt").unlink()
    assert folder.write(fault, stage="rl", step=4).name == "003-the-learner-s-rank-0.txt"
    text = second.read_text()
    assert text.startswith("the learner's rank 0 hung: no answer for 61 s\n")
    assert "in stage rl after step 4" in text
    assert "interrupted 1 groups: #7 code (12 s)" in text
    assert text.endswith("\nstacks\n")


def test_supervision_wants_more_silence_than_one_pulse() -> None:
    with refuses("supervision.silent_s=2.0"):
        SupervisionConfig(silent_s=2.0)
