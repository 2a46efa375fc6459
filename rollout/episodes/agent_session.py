"""The requests of one agent's episode as turns: each continues the longest turn whose tokens its prompt begins with."""

import asyncio
import functools
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, contextmanager
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any, AnyStr, Protocol

import numpy as np

from temper.envs.agents import Endpoint
from temper.envs.core.clock import Clock
from temper.envs.core.task import Tool
from temper.rollout.budget.config import ThinkingConfig
from temper.rollout.budget.rule import RefusedRequest
from temper.rollout.engines.protocol import Completion, Engine
from temper.rollout.episodes.episode import Episode
from temper.rollout.episodes.renderer import Renderer
from temper.rollout.token_arrays import as_ids
from temper.rollout.trajectory import Stop

END_WITHIN = 64
"""Characters in which the end of a turn is searched, after blanks of the template."""


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
        self._unsent: list[int] = []
        """Characters at the end of each turn that its client did not get."""
        self.parents: list[int] = []
        """The index of the turn that each turn continues, -1 for none."""

    def split(self, prompt: str) -> tuple[list[int], str]:
        """Return all ids of the longest turn that a prompt continues, and the text after it, which is not encoded yet.

        The sampled tokens are kept, even if the tokenizer would encode the client's text by others. A stop string is kept
        too, as in an environment, although the client did not get it. The end of the turn stays in the text, because a
        tokenizer splits there and may strip white space. So the ids are as for the whole prompt.
        """
        parent, end = self._longest(functools.partial(self._end_of_turn, prompt))
        ids = np.frombuffer(b"".join(self._path(self._ids, parent)), dtype=np.int32).tolist()
        if ids and ids[-1] in self._renderer.format.end_ids:
            return ids[:-1], self._renderer.decode(ids[-1:]) + prompt[end:]
        return ids, prompt[end:]

    def _end_of_turn(self, prompt: str, at: int, start: int) -> int | None:
        """Return the end in a prompt of a turn that begins at `start`, or None. Its stop string may be missing."""
        text, unsent = self._texts[at], self._unsent[at]
        end = _end_of(text, prompt, start)
        if end is not None or not unsent:
            return end
        end = _end_of(text[:-unsent], prompt, start)
        after = "" if end is None else prompt[end : end + END_WITHIN].lstrip()
        return end if after.startswith(self._renderer.format.parted_by) else None

    def find_parent(self, prompt: tuple[int, ...]) -> tuple[int, tuple[int, ...]]:
        """Return the index of the turn that a prompt continues, -1 for none, and the ids after it."""
        ids = as_ids(prompt)
        whole = ids.tobytes()
        parent, end = self._longest(lambda at, start: _end_of(self._ids[at], whole, start))
        return parent, prompt[end // ids.itemsize :]

    def add(
        self, parent: int, context: tuple[int, ...], sampled: tuple[int, ...], *, text: str = "", unsent: int = 0
    ) -> None:
        """Add a turn. `text` is the text of its prompt, or "" if only its ids are known. The client does not get the last
        `unsent` characters, which begin with a stop string.
        """
        before = "".join(self._path(self._texts, parent))
        known = text[len(before) :] if text.startswith(before) else ""
        self._texts.append((known or self._renderer.decode(context)) + self._renderer.decode(sampled))
        self._unsent.append(unsent)
        self._ids.append(as_ids((*context, *sampled)).tobytes())
        self.parents.append(parent)

    def _longest(self, end_of_turn: Callable[[int, int], int | None]) -> tuple[int, int]:
        """Return the turn with the longest path that a prompt continues, and the end of that path. `end_of_turn` takes a turn
        and its start in the prompt.
        """
        ends = {-1: 0}
        for at, parent in enumerate(self.parents):
            if parent in ends and (end := end_of_turn(at, ends[parent])) is not None:
                ends[at] = end
        return max(ends.items(), key=lambda found: (found[1], -found[0]))

    def _path(self, parts: Sequence[AnyStr], at: int) -> list[AnyStr]:
        """Return the parts from the first turn to a turn."""
        path = []
        while at >= 0:
            path.append(parts[at])
            at = self.parents[at]
        return path[::-1]


def _end_of(part: AnyStr, whole: AnyStr, start: int) -> int | None:
    """Return the end of a part that begins at `start`, or None if it does not, or if nothing follows."""
    end = start + len(part)
    return end if end < len(whole) and whole.startswith(part, start) else None


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentRequest:
    """A request of an agent: its prompt, the tools that it offers, and limits besides the episode's own."""

    ids: tuple[int, ...]
    text: str = ""
    """The text of the prompt, "" if it is not known."""
    tools: tuple[Tool, ...] = ()
    max_tokens: int | None = None
    stop: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentReply:
    """The turn that answers a request: the sampled tokens, and their text up to a stop string.

    `readable` as in `ParsedTurn`.
    """

    completion: Completion
    text: str
    readable: bool


class LimitReached(RefusedRequest):
    """A request beyond a limit of its episode."""

    def __init__(self, message: str, stop: Stop) -> None:
        super().__init__(message)
        self.stop = stop


class Sample(Protocol):
    """Samples the turn that answers a request."""

    async def __call__(self, request: AgentRequest, *, number: int, clock: Clock) -> AgentReply: ...


class AgentSession:
    """The requests of one agent's episode, which may overlap. During requests the clock runs only while the engine samples."""

    def __init__(self, episode: Episode, tree: TurnTree, *, sample: Sample, check: Callable[[int, int], None]) -> None:
        """`check` takes a prompt's tokens and a turn's number. It raises `LimitReached` if the episode does not allow them."""
        self.thinking = episode.task.thinking
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
        self._refusals: dict[str, Stop] = {}
        """The limits of all refusals, by their messages."""
        self._faults: dict[tuple[int, ...], Exception] = {}
        """Errors of requests by their ids, which were not answered later."""

    def check(self, tokens: int, *, is_turn: bool = True) -> None:
        """Raise `LimitReached` if the episode has no room after a prompt of `tokens`, or no turn left."""
        with self._recorded_limit():
            self._check(tokens, self._free_number if is_turn else 0)

    async def answer(self, request: AgentRequest) -> AgentReply:
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
            self.limit, self._refusals[str(error)] = error, error.stop
            raise

    def limit_behind(self, error: Exception) -> LimitReached | None:
        """Return the refusal that an agent's error quotes, or else that of the last request.

        Requests overlap, so an agent may report a refusal after others were answered.
        """
        text = str(error)
        quoted = (LimitReached(message, stop) for message, stop in self._refusals.items() if message in text)
        return next(quoted, self.limit)

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


class MakeAgentServer(Protocol):
    """Makes the server of agents over a worker's engine. It is pickled as `MakeEngine`."""

    def __call__(self, engine: Engine, model_dir: Path, thinking: ThinkingConfig) -> AgentServer: ...
