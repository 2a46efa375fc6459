"""The writing of a checkpoint that is given up, or not, where a rank may hang."""

import asyncio

import pytest

from temper.orchestrator.session.trainer import CheckpointWriter


@pytest.mark.parametrize("committing", [False, True])
def test_a_hung_rank_is_given_up_and_a_checkpoint_that_is_being_committed_is_not(committing: bool) -> None:
    ended: list[str] = []

    async def work() -> None:
        writer, needed = CheckpointWriter(lambda text: None), asyncio.Event()

        async def write() -> None:
            try:
                if committing:
                    writer.keep()
                await needed.wait()
                ended.append("committed")
            except asyncio.CancelledError:
                ended.append("given up")
                raise

        writer.start(write(), what="checkpoint 5", needed=0)
        if committing:
            asyncio.get_running_loop().call_later(0.2, needed.set)
        await writer.let_go(at_most_s=0.01)
        if committing:
            assert ended == ["committed"]
        await asyncio.sleep(0.01)
        writer.start(asyncio.sleep(0), what="checkpoint 6", needed=0)  # the next one may begin
        await writer.written()

    asyncio.run(work())
    assert ended == ["committed" if committing else "given up"]
