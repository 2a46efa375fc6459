"""An engine that only takes time: a pass gives each of its sequences a token, and takes longer the more there are.

Between two changes of its sequences all of them get on at the same rate, so only their beginnings and ends are events; those
that find no room wait in their order. A simulation of passes one by one would tell the same, but for what is less than a pass.
"""

import asyncio
from collections import deque
from collections.abc import Sequence
from heapq import heapify, heappop, heappush
from itertools import count

from temper.orchestrator.tools.preflight.simulation.meter import FleetMeter

LEAST_TOKENS = 1e-6
"""What is left of an answer that counts as finished: sums of floats are not exact."""


class GroupInEngine:
    """Answers that are sampled together; `done` has the second at which each ended, in their order."""

    def __init__(self, answers: int, loop: asyncio.AbstractEventLoop) -> None:
        self.ended = [0.0] * answers
        self.left = answers
        self.done: asyncio.Future[list[float]] = loop.create_future()

    def end(self, answer: int, now: float) -> None:
        """Take note that an answer has its last token."""
        self.ended[answer] = now
        self.left -= 1
        if not self.left and not self.done.done():
            self.done.set_result(self.ended)


class EngineModel:
    """One engine. All methods belong to the running event loop."""

    def __init__(self, pass_s: Sequence[float], meter: FleetMeter) -> None:
        """`pass_s[n]` are the seconds of a pass with n sequences; the longest of these is a full one."""
        self._pass_s = pass_s
        self._most = len(pass_s) - 1
        self._meter = meter
        self._loop = asyncio.get_running_loop()
        self._at = self._loop.time()
        self._work = 0.0  # tokens that a sequence which runs since the beginning has been given
        self._running: list[tuple[float, int, GroupInEngine, int]] = []  # by the work at which they end
        self._waiting: deque[tuple[int, GroupInEngine, int]] = deque()
        self._numbers = count()
        self._still = False
        self._timer: asyncio.TimerHandle | None = None
        self.sampled = 0.0
        """Tokens, of answers that were given up too."""

    def add(self, tokens: Sequence[int]) -> GroupInEngine:
        """Begin a group of answers of these lengths, as soon as there is room for each."""
        group = GroupInEngine(len(tokens), self._loop)
        self._advance()
        self._waiting.extend((length, group, answer) for answer, length in enumerate(tokens))
        self._fill()
        return group

    def drop(self, group: GroupInEngine) -> None:
        """Give up the answers of a group that are not finished."""
        if not group.left:
            return
        self._advance()
        self._replace([one for one in self._running if one[2] is not group])
        self._waiting = deque(one for one in self._waiting if one[1] is not group)
        self._fill()

    def stand(self, *, still: bool) -> None:
        """Stand still from now on, or get on."""
        if still == self._still:
            return
        self._advance()
        self._meter.count()
        self._meter.still += 1 if still else -1
        if self._running:
            self._meter.busy += -1 if still else 1
        self._still = still
        self._arm()

    def end(self) -> None:
        """Give up everything."""
        self._advance()
        self.stand(still=False)
        self._waiting.clear()
        self._replace([])
        self._arm()

    def _advance(self) -> None:
        now, running = self._loop.time(), len(self._running)
        if running and not self._still:
            passed = (now - self._at) / self._pass_s[running]
            self._work += passed
            self.sampled += passed * running
        self._at = now

    def _fill(self) -> None:
        """Let those that wait begin where there is room, and set the timer of the next end."""
        begun: list[tuple[float, int, GroupInEngine, int]] = []
        while self._waiting and len(self._running) + len(begun) < self._most:
            length, group, answer = self._waiting.popleft()
            begun.append((self._work + length, next(self._numbers), group, answer))
        if begun:
            self._replace([*self._running, *begun])
        self._arm()

    def _replace(self, running: list[tuple[float, int, GroupInEngine, int]]) -> None:
        """Run these sequences from now on."""
        heapify(running)
        self._changed(len(running))
        self._running = running

    def _changed(self, running: int) -> None:
        """Tell the meter how many sequences run from now on."""
        meter, before = self._meter, len(self._running)
        meter.count()
        meter.sequences += running - before
        if not self._still:
            meter.busy += bool(running) - bool(before)

    def _arm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._running and not self._still:
            left = max(0.0, self._running[0][0] - self._work) * self._pass_s[len(self._running)]
            self._timer = self._loop.call_at(self._at + left, self._due)

    def _due(self) -> None:
        """End the answers that have their last token; those that wait take their places."""
        self._timer = None
        self._advance()
        running, ended = self._running, []
        while running and running[0][0] - self._work <= LEAST_TOKENS:
            ended.append(heappop(running))
        began = 0
        while self._waiting and len(running) < self._most:
            length, group, answer = self._waiting.popleft()
            heappush(running, (self._work + length, next(self._numbers), group, answer))
            began += 1
        meter = self._meter
        meter.count()
        meter.sequences += began - len(ended)
        meter.busy += bool(running) - 1
        for _, _, group, answer in ended:
            group.end(answer, self._at)
        self._arm()
