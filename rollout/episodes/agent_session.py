"""The requests of one agent's episode as turns: each continues the longest turn whose tokens its prompt begins with."""

from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Protocol

from temper.envs.agents import Address
from temper.envs.core.thinking_mode import Thinking
from temper.rollout.engines.protocol import Completion
from temper.rollout.episodes.renderer import Renderer


class TurnTree:
    """The turns of an episode by their ids. A prompt that begins with none of them starts a branch."""

    def __init__(self, renderer: Renderer) -> None:
        self._renderer = renderer
        self._wholes: list[tuple[int, ...]] = []
        self._texts: list[str] = []
        self.parents: list[int] = []
        """The index of the turn that each turn continues, -1 for none."""

    def place(self, prompt: tuple[int, ...]) -> tuple[int, tuple[int, ...]]:
        """Return the index of the turn that a prompt continues, -1 for none, and the ids after it.

        A client sends text, whose tokens may differ from the sampled ones. So equal text continues a turn too, and its
        sampled tokens stay.
        """
        longest = sorted(range(len(self._wholes)), key=lambda at: -len(self._wholes[at]))
        for at in longest:
            whole = self._wholes[at]
            if len(prompt) > len(whole) and prompt[: len(whole)] == whole:
                return at, prompt[len(whole) :]
        text = self._renderer.decode(prompt) if longest else ""
        for at in longest:
            rest = text.removeprefix(self._texts[at])
            if len(rest) < len(text) and rest:
                return at, self._renderer.encode(rest)
        return -1, prompt

    def ids(self, parent: int, context: tuple[int, ...]) -> tuple[int, ...]:
        return (*self._wholes[parent], *context) if parent >= 0 else context

    def add(self, parent: int, ids: tuple[int, ...]) -> None:
        """Add a turn with all ids up to its end."""
        self._wholes.append(ids)
        self._texts.append(self._renderer.decode(ids))
        self.parents.append(parent)


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentRequest:
    """A request of an agent: its prompt, and limits besides the episode's own."""

    ids: tuple[int, ...]
    max_tokens: int | None = None
    stop: tuple[str, ...] = ()


class AgentSession(Protocol):
    """An episode that answers the requests of its agent, one at a time."""

    @property
    def thinking(self) -> Thinking:
        """The mode of thinking of all its turns."""
        ...

    async def answer(self, request: AgentRequest) -> Completion:
        """Sample the turn that answers a request. Raise `RefusedRequest` if the episode has no turn or no token left."""
        ...


class AgentEndpoint(Protocol):
    """The server of a worker's agents."""

    def open(self, session: AgentSession) -> AbstractAsyncContextManager[Address]:
        """Serve an episode within the block, under its own key."""
        ...

    async def close(self) -> None:
        """Stop the server."""
        ...
