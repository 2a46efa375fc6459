"""Many episodes at once: waiting for others does not count, and a hanging one does not delay the rest."""

import asyncio
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace

import pytest
from support.bound import bound
from support.in_loop import in_loop
from support.refusals import failure_kind
from support.scripted_engine import ROOM, ScriptedEngine, completion, runner_of

from temper.envs.core.clock import CURRENT, Clock, stop_clock
from temper.envs.core.errors import FailureKind
from temper.envs.core.step_result import StepResult
from temper.envs.core.task import EnvRef, EnvSettings, Task
from temper.envs.core.turn_text import ParsedTurn
from temper.envs.sandbox.sandbox import AT_ONCE, shared_sandbox
from temper.envs.task_env import TaskEnv
from temper.rewards.score import Outcome, binary_score
from temper.rollout.engines.protocol import Completion, TurnRequest
from temper.rollout.engines.vllm_stats import TurnClocks
from temper.rollout.episodes.env_threads import EnvThreads, Stopwatch
from temper.rollout.episodes.runner import EpisodeRunner
from temper.rollout.trajectory import Trajectory

QUICK = Task(env=EnvRef(name="own"), key="quick", messages=({"role": "user", "content": "?"},), spec={})
HANGS = replace(QUICK, key="hangs")


class Waiting(TaskEnv):
    """Two turns, each with a slow tool."""

    env_id = "own"

    def __init__(self, tool: Callable[[Task], object]) -> None:
        super().__init__()
        self.tool = tool

    def turn(self, task: Task, parsed: ParsedTurn) -> StepResult:
        self.tool(task)
        if self.turns == 1:
            return self.continue_with([{"role": "tool", "content": "done"}])
        return self.end(binary_score(True))


def together(runner: EpisodeRunner, tasks: list[Task]) -> tuple[list[Trajectory], float]:
    """These tasks' episodes run concurrently, and their total seconds."""

    async def run() -> list[Trajectory]:
        return await asyncio.gather(*(runner.run(task, seed=number) for number, task in enumerate(tasks)))

    start = time.monotonic()
    played = asyncio.run(run())
    return played, time.monotonic() - start


def slow_tools(*, episodes: int, seconds: float) -> float:
    """Seconds of concurrent episodes whose tool sleeps in each of two turns."""
    engine = ScriptedEngine(["</think>go"])
    runner = runner_of(engine, make=lambda _: Waiting(lambda _task: time.sleep(seconds)))
    played, took = together(runner, [QUICK] * episodes)
    assert [one.reward for one in played] == [1.0] * episodes
    return took


def test_256_slow_tools_take_less_than_three_times_one() -> None:
    work = slow_tools(episodes=256, seconds=0.0)  # with this machine's load
    assert slow_tools(episodes=256, seconds=1.2) - work < 3 * 2 * 1.2


def in_threads(task: Task, threads: int) -> Task:
    return replace(task, env=replace(task.env, settings=EnvSettings(threads=threads)))


@pytest.mark.parametrize("threads", [2, 256])
def test_four_episodes_that_hang_cost_nobody_but_themselves(threads: int) -> None:
    released = threading.Event()
    runner = runner_of(
        ScriptedEngine(["</think>go"]),
        limits=replace(ROOM, timeout_s=2.0),
        make=lambda _: Waiting(lambda task: task.key == "hangs" and released.wait()),
    )
    tasks = [in_threads(task, threads) for task in [HANGS] * 4 + [QUICK] * 20]
    try:
        played, took = together(runner, tasks)
    finally:
        released.set()
    assert [(one.reward, one.failure and one.failure.kind) for one in played[:4]] == [(None, FailureKind.TIMEOUT)] * 4
    assert [one.reward for one in played[4:]] == [1.0] * 20
    assert took < 10  # two deadlines: two threads run the four hanging calls


def test_waiting_for_threads_and_engine_is_off_the_clock() -> None:
    engine = ScriptedEngine(["</think>go"], seconds=0.1)
    runner = runner_of(
        engine,
        limits=replace(ROOM, timeout_s=1.6),
        sequences=2,
        make=lambda _: Waiting(lambda _task: time.sleep(0.1)),
    )
    played, took = together(runner, [in_threads(QUICK, 2)] * 20)
    assert [one.reward for one in played] == [1.0] * 20
    assert engine.busiest == 2
    assert took > 2 * 20 / 2 * 0.1 > 1.6


def test_the_times_of_an_episode_say_who_made_it_wait() -> None:
    runner = runner_of(
        ScriptedEngine(["</think>go"], seconds=0.3), sequences=1, make=lambda _: Waiting(lambda _task: time.sleep(0.2))
    )
    played, _ = together(runner, [replace(QUICK, spec={"threads": 1})] * 2)
    for one in played:
        spent = one.times.queue_s + one.times.generate_s + one.times.step_s
        assert 0.7 * one.seconds < spent <= one.seconds
        assert sum(turn.times.step_s for turn in one.turns) <= one.times.step_s
        assert all(turn.times.generate_s >= 0.3 and turn.times.step_s >= 0.2 for turn in one.turns)
    assert max(one.times.queue_s for one in played) >= 0.2  # the first one's 0.3, less the second one's delay


def test_a_silent_engine_is_an_episode_timeout() -> None:
    runner = runner_of(ScriptedEngine(["x"], seconds=60), limits=replace(ROOM, timeout_s=0.2))
    (lost,), _ = together(runner, [bound(Task(key="1", messages=QUICK.messages, spec={"answer": "1"}), "math")])
    assert failure_kind(lost) is FailureKind.TIMEOUT
    assert lost.times.generate_s >= 0.1


class PausedEngine(ScriptedEngine):
    """Each turn waits 0.3 s in the queue, is sampled for 0.2 s, and has three pauses of 0.3 s."""

    async def generate(self, request: TurnRequest) -> Completion:
        partial: set[str] = set()
        clocks, name = TurnClocks(partial.__contains__), request.name or ""
        with clocks.of(name, request.clock):
            await asyncio.sleep(0.3)
            partial.add(name)
            clocks.look()
            for _ in range(3):
                clocks.set_paused(paused=True)
                await asyncio.sleep(0.3)
                clocks.set_paused(paused=False)
                await asyncio.sleep(self._seconds / 3)
        return completion("</think>go")


@pytest.mark.parametrize(("sampling_s", "in_time"), [(0.2, True), (30.0, False)])
def test_queueing_and_pauses_are_off_the_clock(sampling_s: float, in_time: bool) -> None:
    engine = PausedEngine([""], seconds=sampling_s)
    runner = runner_of(engine, limits=replace(ROOM, timeout_s=0.6), make=lambda _: Waiting(lambda _task: None))
    (one,), took = together(runner, [QUICK])
    assert (one.failure is None) is in_time
    if in_time:
        assert took > 2 * 1.4  # two turns
    else:
        assert failure_kind(one) is FailureKind.TIMEOUT
        assert took < 10


@in_loop
async def test_a_call_that_hangs_is_counted_until_it_ends() -> None:
    released = threading.Event()
    limits, make = replace(ROOM, timeout_s=0.2), lambda _: Waiting(lambda _task: released.wait())
    runner = runner_of(ScriptedEngine(["</think>go"]), limits=limits, make=make)
    assert runner.hung_calls == 0
    playing = [asyncio.create_task(runner.run(QUICK, seed=n)) for n in range(3)]
    try:
        while not runner.env_works:
            await asyncio.sleep(0.01)
        await asyncio.gather(*playing)
        assert not runner.env_works
        assert runner.hung_calls == 3
    finally:
        released.set()
    while runner.hung_calls:
        await asyncio.sleep(0.01)


@in_loop
async def test_a_call_whose_thread_does_not_start_never_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    ran: list[str] = []
    start = threading.Thread.start
    refused = [RuntimeError("can't start new thread")]

    def sometimes(thread: threading.Thread) -> None:
        if refused and thread.name == "env":
            raise refused.pop()
        start(thread)

    threads = EnvThreads()
    monkeypatch.setattr(threading.Thread, "start", sometimes)

    async def call(name: str) -> None:
        clock, watch = Clock(10.0), Stopwatch()
        await threads.call(lambda: ran.append(name), env="own", at_once=4, clock=clock, watch=watch)

    with pytest.raises(RuntimeError, match="can't start"):
        await call("first")
    for _ in range(3):
        await call("later")
    assert ran == ["later"] * 3


def test_programs_at_their_time_limit_are_scored() -> None:
    task = Task(
        key="1",
        messages=({"role": "user", "content": "f(x): x"},),
        spec={"entry_point": "f", "tests": [{"args": [1], "expected": 1}]},
    )
    runner = runner_of(ScriptedEngine(["</think>def f(x):\n    while True: pass"]), limits=replace(ROOM, timeout_s=0.7))
    shared_sandbox().admit(1)
    try:
        played, took = together(runner, [bound(task, "code")] * 2)
    finally:
        shared_sandbox().admit(AT_ONCE)
    assert [(one.reward, one.score.outcome) for one in played] == [(0.0, Outcome.POLICY_FAULT)] * 2
    assert took > 0.7


def test_a_clock_runs_and_stands_still_by_turns() -> None:
    clock, began = Clock(10.0), time.monotonic()
    CURRENT.set(clock)
    with clock.keep(on=True):
        time.sleep(0.1)
        with stop_clock(), stop_clock():
            left = clock.left_s
            time.sleep(0.1)
            assert clock.left_s == left
        time.sleep(0.1)
    CURRENT.set(None)
    assert 10.0 - (time.monotonic() - began - 0.1) <= clock.left_s <= 9.8


def test_a_clock_runs_while_one_of_its_overlapping_parts_runs() -> None:
    clock = Clock(10.0)
    clock.turn(on=True)

    def runs() -> bool:
        before = clock.left_s
        time.sleep(0.01)
        return clock.left_s < before

    with ExitStack() as one, ExitStack() as other:
        first = one.enter_context(clock.part())
        second = other.enter_context(clock.part())
        assert not runs()
        one.enter_context(first.keep(on=True))
        other.enter_context(second.keep(on=True))
        one.close()  # the first part ends before the second
        assert runs()
        assert second.left_s == pytest.approx(clock.left_s, abs=0.1)
        second.turn(on=False)
        clock.turn(on=False)  # the episode ends before its last part
        assert not runs()
    assert not runs()
    with clock.keep(on=True):
        with clock.part():
            pass
        assert runs()
