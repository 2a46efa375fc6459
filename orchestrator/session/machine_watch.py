"""The machine under watch while a run works: a row `system` in `metrics.jsonl` every so often, which the tracker sends on."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress

from temper.orchestrator.loop.deadline import in_thread
from temper.orchestrator.session.context import RunContext
from temper.orchestrator.session.machine import JOULES, Machine
from temper.orchestrator.tracking.metric_names import SYSTEM


@asynccontextmanager
async def machine_watched(run: RunContext, *, elsewhere: Callable[[], bool]) -> AsyncIterator[None]:
    """Look at the machine every `tracking.system_s` seconds during the block; with 0 never.

    `elsewhere` says whether the run has processes on other machines, whose energy is not known.
    """
    every_s = run.config.tracking.system_s
    if not every_s:
        yield
        return
    looking = asyncio.create_task(_look(run, every_s, elsewhere))
    try:
        yield
    finally:
        looking.cancel()
        with suppress(asyncio.CancelledError):
            await looking


async def _look(run: RunContext, every_s: float, elsewhere: Callable[[], bool]) -> None:
    told, partial = 0, False
    try:
        machine = await in_thread(Machine)
        while True:
            await asyncio.sleep(every_s)
            seen = await in_thread(machine.look)
            if not partial and JOULES in seen and elsewhere():
                partial = True
                run.progress.note(
                    "system metrics: ranks or engines run on other machines, whose energy is not read: there are no joules for "
                    "each token and task"
                )
            costs = {} if partial else run.work.costs(seen.get(JOULES), counted=machine.counted)
            run.metrics.append_next(SYSTEM, seen | costs)
            if lacking := machine.missing[told:]:
                run.progress.note(f"system metrics: not read: {'; '.join(lacking)}")
                told += len(lacking)
    except Exception as error:  # whatever drivers and counters raise must not end the run
        run.progress.note(f"system metrics: {type(error).__name__}: {error}; the machine is looked at no more")
