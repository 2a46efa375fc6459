"""Many episodes at once: what one waits for others does not count, and one that hangs costs nobody but itself."""

import asyncio
import threading
import time
from collections.abc import Callable
from dataclasses import replace

import pytest
from bound import bound
from scripted_engine import ROOM, ScriptedEngine, runner_of

from envs.core.clock import CURRENT, Clock, off_the_clock
from envs.core.env_ref import EnvRef, EnvSettings
from envs.core.failure import FailureKind
from envs.core.step_result import StepResult
from envs.core.task import Task
from envs.core.turn_text import ParsedTurn
from envs.sandbox.sandbox import AT_ONCE, shared_sandbox
from envs.task_env import TaskEnv
from rewards.verdict import Outcome, verdict
from rollout.episodes.episode import EpisodeRunner
from rollout.trajectory import Trajectory

QUICK = Task(env=EnvRef(name="own"), key="quick", messages=({"role": "user", "content": "?"},), spec={})
HANGS = replace(QUICK, key="hangs")


class Waiting(TaskEnv):
    """Two turns; each waits for its tool, whatever that is."""

    env_id = "own"

    def __init__(self, tool: Callable[[Task], object]) -> None:
        super().__init__()
        self.tool = tool

    def turn(self, task: Task, parsed: ParsedTurn) -> StepResult:
        self.tool(task)
        if self.turns == 1:
            return self.go_on([{"role": "tool", "content": "done"}])
        return self.end(verdict(True))


def together(runner: EpisodeRunner, tasks: list[Task]) -> tuple[list[Trajectory], float]:
    """The episodes of these tasks at once, and the seconds that they took."""

    async def run() -> list[Trajectory]:
        return await asyncio.gather(*(runner.run(task, seed=number) for number, task in enumerate(tasks)))

    start = time.monotonic()
    played = asyncio.run(run())
    return played, time.monotonic() - start


def slow_tools(*, episodes: int, seconds: float) -> float:
    """How many seconds so many episodes take whose tool sleeps in each of two turns."""
    engine = ScriptedEngine(["</think>go"])
    runner = runner_of(engine, make=lambda _: Waiting(lambda _task: time.sleep(seconds)))
    played, took = together(runner, [QUICK] * episodes)
    assert [one.reward for one in played] == [1.0] * episodes
    return took


def test_256_episodes_wait_for_a_slow_tool_less_than_three_times_as_long_as_one() -> None:
    work = slow_tools(episodes=256, seconds=0.0)  # on this machine, as busy as it is
    assert slow_tools(episodes=256, seconds=1.2) - work < 3 * 2 * 1.2


@pytest.mark.slow
def test_256_episodes_with_a_tool_of_five_seconds_take_less_than_three_times_as_long_as_one() -> None:
    assert slow_tools(episodes=256, seconds=5.0) < 3 * 2 * 5.0


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
    assert {one.failure and one.failure.kind for one in played[:4]} == {FailureKind.TIMEOUT}
    assert [one.reward for one in played[4:]] == [1.0] * 20
    assert took < 10  # two deadlines, where two threads take the four that hang


def test_the_wait_for_a_thread_and_for_the_engine_is_off_the_clock() -> None:
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
    assert max(one.times.queue_s for one in played) >= 0.2  # the first one's 0.3, less what the second came later


def test_an_episode_that_fails_says_what_its_time_went_into() -> None:
    runner = runner_of(ScriptedEngine(["x"], seconds=60), limits=replace(ROOM, timeout_s=0.2))
    (lost,), _ = together(runner, [bound(Task(key="1", messages=QUICK.messages, spec={"answer": "1"}), "math")])
    assert lost.failure is not None
    assert lost.times.generate_s >= 0.1


def test_an_engine_that_does_not_answer_is_a_timeout_of_its_episode() -> None:
    runner = runner_of(ScriptedEngine(["x"], seconds=60), limits=replace(ROOM, timeout_s=0.2))
    (lost,), _ = together(runner, [bound(Task(key="1", messages=QUICK.messages, spec={"answer": "1"}), "math")])
    assert lost.failure is not None
    assert lost.failure.kind is FailureKind.TIMEOUT


def test_programs_that_use_up_their_time_are_scored_however_many_there_are_and_short_the_clock() -> None:
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
    assert [(one.reward, one.verdict.outcome) for one in played] == [(0.0, Outcome.POLICY_FAULT)] * 2
    assert took > 0.7


def test_a_clock_runs_and_stands_still_by_turns() -> None:
    clock, began = Clock(10.0), time.monotonic()
    CURRENT.set(clock)
    with clock.turned(on=True):
        time.sleep(0.1)
        with off_the_clock(), off_the_clock():
            left = clock.left_s
            time.sleep(0.1)
            assert clock.left_s == left
        time.sleep(0.1)
    CURRENT.set(None)
    assert 10.0 - (time.monotonic() - began - 0.1) <= clock.left_s <= 9.8
