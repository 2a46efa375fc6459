"""Every wait has a deadline that names its stage, and a stop request ends a wait."""

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from time import monotonic

import pytest
from support.virtual_time import run_virtually

from temper.envs.core.clock import loop_time
from temper.orchestrator.loop.deadline import Deadline, StopFlag, StopRequested, StuckError, in_thread, together, within
from temper.orchestrator.pipeline.config import load_config

SHORT = Deadline(seconds=0.05, setting="rl.timeout_s")
LONG = Deadline(seconds=5, setting="rl.timeout_s")


def test_a_passed_deadline_names_the_stage_what_it_waited_for_and_the_setting() -> None:
    async def story() -> None:
        await within(SHORT, asyncio.sleep(10), stage="rl step 7", waiting_for="3 groups")

    with pytest.raises(StuckError, match="rl step 7.*3 groups.*rl.timeout_s"):
        asyncio.run(story())


@pytest.mark.parametrize("comes", [False, True])
def test_whoever_looks_at_what_is_stuck_does_so_before_that_is_given_up(comes: bool) -> None:
    """An answer that arrives during the inspection is accepted."""

    async def story() -> list[str]:
        said, came = list[str](), asyncio.Event()

        async def waits() -> str:
            try:
                await came.wait()
            except asyncio.CancelledError:
                said.append("given up")
                raise
            return "engines"

        async def look(what: str) -> None:
            said.append(what[:8])
            if comes:
                came.set()
            await asyncio.sleep(0.01)

        with suppress(StuckError):
            said.append(await within(SHORT, waits(), stage="rl", waiting_for="engines", on_stuck=look))
        await asyncio.sleep(0)
        return said

    assert asyncio.run(story()) == ["rl: noth", "engines" if comes else "given up"]


def test_a_wait_for_many_things_goes_on_while_they_come_and_ends_when_nothing_comes_any_more() -> None:
    async def story(signs: int) -> str:
        last = 0.0

        async def come() -> str:
            nonlocal last
            for _ in range(signs):
                await asyncio.sleep(0.03)
                last = loop_time()
            await asyncio.sleep(0.01 if signs > 5 else 10)
            return "all"

        return await within(SHORT, come(), stage="x", waiting_for="groups", last_progress=lambda: last)

    async def stuck() -> float:
        with pytest.raises(StuckError):
            await story(3)
        return loop_time()

    assert run_virtually(story(6)) == "all"  # 0.19 s in total
    assert run_virtually(stuck()) == pytest.approx(3 * 0.03 + SHORT.seconds)


def test_deadlines_grow_with_the_bytes_that_are_to_be_moved() -> None:
    config = load_config(Path("configs/demo.yaml"), ["deadlines.files_s=100", "deadlines.megabytes_per_s=200"])
    assert config.deadlines.files(0) == Deadline(seconds=100.0, setting="deadlines.files_s")
    assert config.deadlines.files(128 * 10**9).seconds == 100.0 + 640.0
    assert config.deadlines.start(16 * 10**9).seconds == 300.0 + 80.0
    assert config.rollout.engine.push_deadline_s(14 * 10**9) == 120.0 + 140.0
    with pytest.raises(ValueError, match="deadlines.step_s=0"):
        load_config(Path("configs/demo.yaml"), ["deadlines.step_s=0"])


def test_a_time_out_of_the_awaited_thing_itself_passes_through() -> None:
    async def own() -> None:
        raise TimeoutError("mine")

    with pytest.raises(TimeoutError, match="mine"):
        asyncio.run(within(LONG, own(), stage="x", waiting_for="y"))


def test_a_stop_request_ends_a_wait_and_cancels_the_work() -> None:
    async def story() -> bool:
        flag, work = StopFlag(), asyncio.ensure_future(asyncio.sleep(10))
        assert await flag.wait_or(asyncio.sleep(0, result=5)) == 5
        asyncio.get_running_loop().call_later(0.01, flag.set)
        with pytest.raises(StopRequested):
            await flag.wait_or(work)
        await asyncio.sleep(0)
        return work.cancelled()

    assert asyncio.run(story())


def test_a_call_that_hangs_in_its_thread_keeps_neither_the_error_nor_the_end_of_the_process() -> None:
    for_ever = threading.Event()

    async def story() -> None:
        assert await in_thread(divmod, 7, 2) == (3, 1)
        with pytest.raises(ZeroDivisionError):
            await in_thread(divmod, 1, 0)
        await within(SHORT, in_thread(for_ever.wait, 20.0), stage="rl step 7", waiting_for="a task")

    began = monotonic()
    with pytest.raises(StuckError, match="a task"):
        asyncio.run(story())
    assert monotonic() - began < 5
    for_ever.set()


def test_of_things_that_are_done_together_the_others_are_given_up_where_one_fails() -> None:
    given_up: list[str] = []

    async def starts() -> None:
        try:
            await asyncio.sleep(1000)
        except asyncio.CancelledError:
            await asyncio.sleep(0.01)  # cleanup takes time
            given_up.append("engines")
            raise

    async def fails() -> None:
        await asyncio.sleep(0.01)
        raise OSError("a rank died")

    with pytest.raises(OSError, match="a rank died"):
        asyncio.run(together((starts(), fails())))
    assert given_up == ["engines"]


def test_deaths_make_a_wait_longer_twice_at_most_but_for_one_that_is_now() -> None:
    async def seconds(last_restart_at: Callable[[], float]) -> float:
        with suppress(StuckError):
            await within(LONG, asyncio.sleep(100), stage="rl", waiting_for="groups", last_restart_at=last_restart_at)
        return loop_time()

    assert run_virtually(seconds(lambda: 0.0)) == pytest.approx(5.0)
    assert run_virtually(seconds(lambda: 3.0)) == pytest.approx(8.0)
    assert run_virtually(seconds(lambda: loop_time() - 1.0)) == pytest.approx(13.0)  # always a recent one
    assert run_virtually(seconds(lambda: min(loop_time(), 59.0))) == pytest.approx(64.0)  # no engine serves until then


def test_an_awaited_task_that_somebody_else_cancelled_is_no_cancellation_of_the_run() -> None:
    async def story() -> None:
        task = asyncio.create_task(asyncio.sleep(10))
        asyncio.get_running_loop().call_soon(task.cancel)
        await within(LONG, task, stage="rl step 7", waiting_for="3 groups")

    async def cancelled() -> bool:
        task = asyncio.create_task(within(LONG, asyncio.sleep(10), stage="rl", waiting_for="groups"))
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait({task})
        return task.cancelled()

    with pytest.raises(RuntimeError, match="rl step 7"):
        asyncio.run(story())
    assert asyncio.run(cancelled())
