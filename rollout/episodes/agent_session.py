"""The requests of one agent's episode as turns: each continues the longest turn whose tokens its prompt begins with."""

import asyncio
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, contextmanager
from dataclasses import dataclass
from itertools import count
from typing import Any, AnyStr, Protocol

import numpy as np

from temper.envs.agents import Endpoint
from temper.envs.core.clock import Clock
from temper.envs.core.task import Task, Tool
from temper.rollout.budget.rule import RefusedRequest
from temper.rollout.engines.protocol import Completion
from temper.rollout.episodes.renderer import Renderer
from temper.rollout.sampling import Sampling
from temper.rollout.token_arrays import as_ids
from temper.rollout.trajectory import Stop


class TurnTree:
    """The turns of an episode by their token ids. A prompt that continues no turn starts a branch.

    Each turn keeps the ids and the text from the end of its parent on, so memory is linear in tokens.
    """

    def __init__(self, renderer: Renderer) -> None:
        self._renderer = renderer
        self._ids: list[bytes] = []
        """The ids of each turn after its parent, as int32."""
        self._texts: list[str] = []
        """Their text."""
        self.parents: list[int] = []
        """The index of the turn that each turn continues, -1 for none."""

    def split(self, prompt: str) -> tuple[list[int], str]:
        """Return the ids of the longest turn whose text a prompt continues, and the text after it, which is not encoded yet.

        A client sends text, whose tokens may differ from the sampled ones, which are kept. The end of the turn stays in
        the text: a tokenizer splits there and may strip white space, so the ids become equal to the whole prompt's.
        """
        parent, end = self._longest(self._texts, prompt)
        ids = np.frombuffer(b"".join(self._path(self._ids, parent)), dtype=np.int32).tolist()
        if ids and ids[-1] in self._renderer.format.end_ids:
            return ids[:-1], self._renderer.decode(ids[-1:]) + prompt[end:]
        return ids, prompt[end:]

    def find_parent(self, prompt: tuple[int, ...]) -> tuple[int, tuple[int, ...]]:
        """Return the index of the turn that a prompt continues, -1 for none, and the ids after it."""
        ids = as_ids(prompt)
        parent, end = self._longest(self._ids, ids.tobytes())
        return parent, prompt[end // ids.itemsize :]

    def add(self, parent: int, context: tuple[int, ...], sampled: tuple[int, ...], *, text: str = "") -> None:
        """Add a turn. `text` is the text of its prompt, or "" if only its ids are known."""
        before = "".join(self._path(self._texts, parent))
        known = text[len(before) :] if text.startswith(before) else ""
        self._texts.append((known or self._renderer.decode(context)) + self._renderer.decode(sampled))
        self._ids.append(as_ids((*context, *sampled)).tobytes())
        self.parents.append(parent)

    def _longest(self, parts: Sequence[AnyStr], whole: AnyStr) -> tuple[int, int]:
        """Return the turn with the longest path that `whole` begins with and exceeds, and the length of that path."""
        ends = {-1: 0}
        for at, (parent, part) in enumerate(zip(self.parents, parts, strict=True)):
            start = ends.get(parent)
            if start is not None and start + len(part) < len(whole) and whole.startswith(part, start):
                ends[at] = start + len(part)
        return max(ends.items(), key=lambda found: (found[1], -found[0]))

    def _path(self, parts: Sequence[AnyStr], at: int) -> list[AnyStr]:
        """Return the parts from the first turn to a turn."""
        path = []
        while at >= 0:
            path.append(parts[at])
            at = self.parents[at]
        return path[::-1]


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentRequest:
    """A request of an agent: its prompt, the tools that it offers, and limits besides the episode's own."""

    ids: tuple[int, ...]
    text: str = ""
    """The text of the prompt, "" if it is not known."""
    tools: tuple[Tool, ...] = ()
    max_tokens: int | None = None
    stop: tuple[str, ...] = ()


class LimitReached(RefusedRequest):
    """A request beyond a limit of its episode."""

    def __init__(self, message: str, stop: Stop) -> None:
        super().__init__(message)
        self.stop = stop


class PlayedEpisode(Protocol):
    """The episode that an agent plays."""

    @property
    def task(self) -> Task: ...

    @property
    def sampling(self) -> Sampling: ...

    @property
    def clock(self) -> Clock: ...


class Sample(Protocol):
    """Samples the turn that answers a request."""

    async def __call__(self, request: AgentRequest, *, number: int, clock: Clock) -> Completion: ...


class AgentSession:
    """The requests of one agent's episode, which may overlap. Until they are answered, the clock of the episode runs only
    while the engine samples.
    """

    def __init__(
        self, episode: PlayedEpisode, tree: TurnTree, *, sample: Sample, check: Callable[[int, int], None]
    ) -> None:
        """`check` raises `LimitReached` for a prompt of a number of tokens or a turn of a number that the episode does not
        allow.
        """
        self.thinking = episode.task.thinking
        self.stop = tuple(episode.sampling.stop)
        """Texts that end each turn."""
        self.clients: set[object] = set()
        """The addresses of its connections."""
        self.split = tree.split
        self._clock = episode.clock
        self._sample = sample
        self._check = check
        self._running: set[asyncio.Task[Any]] = set()
        self._numbers: set[int] = set()
        """The numbers of finished and running turns."""
        self._over = False
        self.limit: LimitReached | None = None
        """The refusal of the last request, None if it was answered."""
        self._faults: dict[tuple[int, ...], Exception] = {}
        """Errors of requests by their ids, which were not answered later."""

    def check(self, tokens: int, *, is_turn: bool = True) -> None:
        """Raise `LimitReached` if the episode has no room after a prompt of so many tokens, or no turn left for it."""
        with self._recorded_limit():
            self._check(tokens, self._free_number if is_turn else 0)

    async def answer(self, request: AgentRequest) -> Completion:
        """Return the turn that answers a request. Raise `LimitReached` as `check`."""
        if self._over:
            raise RefusedRequest("the episode is over")
        if not self._running:
            self.limit = None
        task = asyncio.current_task()
        assert task is not None
        self._running.add(task)
        try:
            with self._clock.part() as clock, self._recorded_limit(), self._numbered() as number:
                self._check(len(request.ids), number)
                answer = await self._sample(request, number=number, clock=clock)
        except LimitReached:
            raise
        except Exception as error:
            self._faults[request.ids] = error
            raise
        finally:
            self._running.discard(task)
        if self._faults:
            self._faults.pop(request.ids, None)
        return answer

    @property
    def _free_number(self) -> int:
        return next(number for number in count() if number not in self._numbers)

    @contextmanager
    def _numbered(self) -> Iterator[int]:
        """Yield the lowest number that no other turn has. A turn that fails gives it back."""
        number = self._free_number
        self._numbers.add(number)
        try:
            yield number
        except BaseException:
            self._numbers.discard(number)
            raise

    @contextmanager
    def _recorded_limit(self) -> Iterator[None]:
        try:
            yield
        except LimitReached as error:
            self.limit = error
            raise

    @property
    def fault(self) -> Exception | None:
        """The error of a request that was never answered."""
        return next(iter(self._faults.values()), None)

    @property
    def is_answering(self) -> bool:
        return bool(self._running)

    def close(self) -> None:
        """Cancel the running requests and refuse all others: the agent has ended."""
        self._over = True
        for task in self._running:
            task.cancel()


class AgentServer(Protocol):
    """The server of a worker's agents."""

    def open(self, session: AgentSession) -> AbstractAsyncContextManager[Endpoint]:
        """Serve an episode within the block, under its own key."""
        ...

    async def close(self) -> None:
        """Stop the server."""
        ...
