"""No wait is silent: deadlines name the stage, and a stop request ends a wait."""

import asyncio

import pytest

from orchestrator.deadline import StopFlag, StopRequested, StuckError, within


def test_a_passed_deadline_names_the_stage_and_what_it_waited_for() -> None:
    async def story() -> None:
        await within(0.01, asyncio.sleep(10), stage="rl step 7", waiting_for=lambda: "3 groups")

    with pytest.raises(StuckError, match="rl step 7: nothing for 0 s while waiting for 3 groups"):
        asyncio.run(story())


def test_a_time_out_of_the_awaited_thing_itself_passes_through() -> None:
    async def own() -> None:
        raise TimeoutError("mine")

    with pytest.raises(TimeoutError, match="mine"):
        asyncio.run(within(5, own(), stage="x", waiting_for=lambda: "y"))


def test_a_stop_request_ends_a_wait_and_cancels_the_work() -> None:
    async def story() -> bool:
        flag, work = StopFlag(), asyncio.ensure_future(asyncio.sleep(10))
        asyncio.get_running_loop().call_later(0.01, flag.set)
        with pytest.raises(StopRequested):
            await flag.wait_or(work)
        await asyncio.sleep(0)
        return work.cancelled()

    assert asyncio.run(story())


def test_without_a_request_the_result_comes_through() -> None:
    async def story() -> int:
        return await StopFlag().wait_or(asyncio.sleep(0, result=5))

    assert asyncio.run(story()) == 5
