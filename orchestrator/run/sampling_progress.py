"""How far sampling is: one line for all that asks a model, shown by the progress of the run while answers are under way."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from time import monotonic

from temper.orchestrator.run.progress import Progress, clock_text
from temper.rollout.trajectory import Group

TICK_S = 1.0
"""Seconds between two looks at whether a line is due."""


class SamplingCount:
    """Answers that are asked for and finished, and tokens. Times in seconds on a monotonic clock."""

    def __init__(
        self, name: str, *, asked: int, tokens: Callable[[], int] | None = None, clock: Callable[[], float] = monotonic
    ) -> None:
        """`tokens` returns how many were sampled so far. Without it the tokens of finished answers count."""
        self._of_finished = 0
        self._read = tokens or (lambda: self._of_finished)
        self._clock = clock
        self.begin(name, asked=asked)

    def begin(self, name: str, *, asked: int) -> None:
        """Count anew from here."""
        self.name, self.asked, self.finished = name, asked, 0
        self._began = self._looked = self._clock()
        self._seen = self._read()

    def add(self, group: Group) -> None:
        """Count the answers of a group as finished."""
        self.finished += len(group.trajectories) + len(group.failed)
        self._of_finished += sum(one.thought_tokens + one.answer_tokens for one in group.trajectories)

    def text(self) -> str:
        """Return the line: answers, tokens per second since the line before, and the time left at the pace so far."""
        now, tokens = self._clock(), self._read()
        rate = max(0, tokens - self._seen) / max(now - self._looked, 1e-9)
        self._looked, self._seen = now, tokens
        left = "time left not known yet"
        if self.finished:
            seconds = (now - self._began) * (self.asked - self.finished) / self.finished
            left = f"{clock_text(seconds)} left"
        return f"{self.name}: {self.finished:,} of {self.asked:,} answers | {rate:,.0f} tokens/s | {left}"


@asynccontextmanager
async def sampling_shown(
    progress: Progress, count: SamplingCount, *, look: Callable[[], bool] = lambda: True
) -> AsyncIterator[SamplingCount]:
    """Show a count in the block whenever the console has shown nothing for ten seconds.

    `look` brings the count up to date before each line, and returns whether anything is sampled now.
    """

    async def show() -> None:
        while True:
            await asyncio.sleep(TICK_S)
            progress.sampling(lambda: count.text() if look() else None)

    showing = asyncio.create_task(show())
    try:
        yield count
    finally:
        showing.cancel()
        progress.sampling(None)
