"""The requests of one agent's episode as turns: each continues the longest turn whose tokens its prompt begins with."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Any, Protocol

from temper.envs.agents import Endpoint
from temper.envs.core.clock import Clock
from temper.envs.core.task import Task, Tool
from temper.rollout.budget.rule import RefusedRequest
from temper.rollout.engines.protocol import Completion
from temper.rollout.episodes.renderer import Renderer
from temper.rollout.trajectory import Stop


class TurnTree:
    """The turns of an episode by their token ids. A prompt that continues no turn starts a branch."""

    def __init__(self, renderer: Renderer) -> None:
        self._renderer = renderer
        self._sequences: list[tuple[int, ...]] = []
        """All ids up to the end of each turn."""
        self._texts: list[str | None] = []
        """The decoded ids of each turn, None until first used."""
        self.parents: list[int] = []
        """The index of the turn that each turn continues, -1 for none."""

    def find_parent(self, prompt: tuple[int, ...]) -> tuple[int, tuple[int, ...]]:
        """Return the index of the turn that a prompt continues, -1 for none, and the ids after it.

        A client sends text, whose tokens may differ from the sampled ones. So equal text continues a turn too, and the
        sampled tokens are kept.
        """
        text = ""
        for at in sorted(range(len(self._sequences)), key=lambda at: -len(self._sequences[at])):
            ids = self._sequences[at]
            if len(prompt) > len(ids) and prompt[: len(ids)] == ids:
                return at, prompt[len(ids) :]
            text = text or self._renderer.decode(prompt)
            rest = text.removeprefix(self._text(at))
            if len(rest) < len(text) and rest:
                return at, self._renderer.encode(rest)
        return -1, prompt

    def prompt_ids(self, parent: int, context: tuple[int, ...]) -> tuple[int, ...]:
        return (*self._sequences[parent], *context) if parent >= 0 else context

    def add(self, parent: int, ids: tuple[int, ...]) -> None:
        """Add a turn with all ids up to its end."""
        self._sequences.append(ids)
        self._texts.append(None)
        self.parents.append(parent)

    def _text(self, at: int) -> str:
        text = self._texts[at] = self._texts[at] or self._renderer.decode(self._sequences[at])
        return text


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentRequest:
    """A request of an agent: its prompt, the tools that it offers, and limits besides the episode's own."""

    ids: tuple[int, ...]
    tools: tuple[Tool, ...] = ()
    max_tokens: int | None = None
    stop: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentReply:
    """The turn that answers a request: the sampled tokens, and their text up to a stop string."""

    completion: Completion
    text: str


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
    def clock(self) -> Clock: ...


class AgentSession:
    """The requests of one agent's episode, answered one at a time. Meanwhile the clock of the episode stops."""

    def __init__(self, episode: PlayedEpisode, sample: Callable[[AgentRequest], Awaitable[AgentReply]]) -> None:
        self.thinking = episode.task.thinking
        self._clock = episode.clock
        self._sample = sample
        self._one_at_a_time = asyncio.Lock()
        self._running: asyncio.Task[Any] | None = None
        self._over = False
        self.limit: LimitReached | None = None
        """The refusal of the last request, None if it was answered."""
        self._faults: dict[tuple[int, ...], Exception] = {}
        """Errors of requests by their ids, which were not answered later."""

    async def answer(self, request: AgentRequest) -> AgentReply:
        """Return the turn that answers a request. Raise `LimitReached` if the episode has no turn or no token left."""
        async with self._one_at_a_time:
            if self._over:
                raise RefusedRequest("the episode is over")
            self._running = asyncio.current_task()
            with self._clock.turned(on=False):
                self.limit = None
                try:
                    answer = await self._sample(request)
                except LimitReached as error:
                    self.limit = error
                    raise
                except Exception as error:
                    self._faults[request.ids] = error
                    raise
                finally:
                    self._running = None
                self._faults.pop(request.ids, None)
                return answer

    @property
    def fault(self) -> Exception | None:
        """The error of a request that was never answered."""
        return next(iter(self._faults.values()), None)

    @property
    def is_answering(self) -> bool:
        return self._running is not None

    def close(self) -> None:
        """Cancel the running request and refuse all others: the agent has ended."""
        self._over = True
        if self._running is not None:
            self._running.cancel()


class AgentServer(Protocol):
    """The server of a worker's agents."""

    def open(self, session: AgentSession) -> AbstractAsyncContextManager[Endpoint]:
        """Serve an episode within the block, under its own key."""
        ...

    async def close(self) -> None:
        """Stop the server."""
        ...
