"""An engine that only takes time: a pass gives each of its sequences a token, and takes longer the more there are.

All sequences advance at the same rate between two changes, so the events are only their beginnings and ends. Sequences without
room wait in order. A simulation of single passes gives the same ends, to less than a pass.
"""

import asyncio
from collections import deque
from collections.abc import Sequence
from heapq import heapify, heappop
from itertools import count

LEAST_TOKENS = 1e-6
"""Remainder of an answer that counts as finished: sums of floats are not exact."""


class GroupInEngine:
    """Answers that are sampled together; `done` has the second at which each ended, in their order."""

    def __init__(self, answers: int, loop: asyncio.AbstractEventLoop) -> None:
        self.ended = [0.0] * answers
        self.left = answers
        self.done: asyncio.Future[list[float]] = loop.create_future()

    def end(self, answer: int, now: float) -> None:
        """Record the last token of an answer."""
        self.ended[answer] = now
        self.left -= 1
        if not self.left and not self.done.done():
            self.done.set_result(self.ended)


class EngineModel:
    """One engine. All methods belong to the running event loop."""

    def __init__(self, pass_s: Sequence[float]) -> None:
        """`pass_s[n]` are the seconds of a pass with n sequences; the longest of these is a full one."""
        self._pass_s = pass_s
        self._most = len(pass_s) - 1
        self._loop = asyncio.get_running_loop()
        self._at = self._loop.time()
        self._work = 0.0  # tokens of a sequence that runs since the beginning
        self._running: list[tuple[float, int, GroupInEngine, int]] = []  # by the work at which they end
        self._waiting: deque[tuple[int, GroupInEngine, int]] = deque()
        self._numbers = count()
        self._paused = False
        self._timer: asyncio.TimerHandle | None = None
        self.sampled = 0.0
        """Tokens, including those of abandoned answers."""
        self.busy_s = self.sequence_s = 0.0
        """Seconds with a sequence and without a pause, and the sum of those of all sequences, up to the last event."""

    def add(self, tokens: Sequence[int]) -> GroupInEngine:
        """Begin a group of answers of these lengths, as soon as there is room for each."""
        group = GroupInEngine(len(tokens), self._loop)
        self.advance()
        self._waiting.extend((length, group, answer) for answer, length in enumerate(tokens))
        self._fill()
        return group

    def drop(self, group: GroupInEngine) -> None:
        """Abandon the unfinished answers of a group."""
        if not group.left:
            return
        self.advance()
        self._running = [one for one in self._running if one[2] is not group]
        heapify(self._running)
        self._waiting = deque(one for one in self._waiting if one[1] is not group)
        self._fill()

    def pause(self, *, paused: bool) -> None:
        """Sample nothing from now on, or resume."""
        self.advance()
        self._paused = paused
        self._arm()

    def advance(self) -> None:
        """Add up the time since the last event, in which the sequences were as they are."""
        now, running = self._loop.time(), len(self._running)
        if running and not self._paused:
            passed = (now - self._at) / self._pass_s[running]
            self._work += passed
            self.sampled += passed * running
            self.busy_s += now - self._at
            self.sequence_s += running * (now - self._at)
        self._at = now

    def _fill(self) -> None:
        """Begin waiting sequences where there is room, and set the timer of the next end."""
        while self._waiting and len(self._running) < self._most:
            length, group, answer = self._waiting.popleft()
            self._running.append((self._work + length, next(self._numbers), group, answer))
        heapify(self._running)
        self._arm()

    def _arm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._running and not self._paused:
            left = max(0.0, self._running[0][0] - self._work) * self._pass_s[len(self._running)]
            self._timer = self._loop.call_at(self._at + left, self._due)

    def _due(self) -> None:
        """End the answers that have their last token; waiting ones take their places."""
        self._timer = None
        self.advance()
        ended = []
        while self._running and self._running[0][0] - self._work <= LEAST_TOKENS:
            ended.append(heappop(self._running))
        for _, _, group, answer in ended:
            group.end(answer, self._at)
        self._fill()
