"""An endpoint without a server: agents in this process call the session of their episode."""

import asyncio
import time
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager

from temper.envs.agents import AgentEpisode, Endpoint
from temper.envs.core.task import Tool
from temper.rollout.episodes.agent_session import AgentReply, AgentRequest, AgentSession

GET: Tool = {
    "type": "function",
    "function": {"name": "get", "parameters": {"type": "object", "properties": {"key": {"type": "string"}}}},
}
SESSIONS: dict[str, tuple[AgentSession, asyncio.AbstractEventLoop]] = {}


class DirectServer:
    """An `AgentServer` whose keys are numbers."""

    @asynccontextmanager
    async def open(self, session: AgentSession) -> AsyncIterator[Endpoint]:
        key = str(len(SESSIONS))
        SESSIONS[key] = session, asyncio.get_running_loop()
        yield Endpoint(url="direct", key=key, model="model")
        del SESSIONS[key]

    async def close(self) -> None:
        return


def ask(episode: AgentEpisode, *ids: int, tools: tuple[Tool, ...] = ()) -> AgentReply:
    session, loop = SESSIONS[episode.key]
    return asyncio.run_coroutine_threadsafe(session.answer(AgentRequest(ids=ids, tools=tools)), loop).result(10)


def offers(episode: AgentEpisode) -> float:
    ask(episode, 1, 2, 3, tools=(GET,))
    return 1.0


def offers_nothing(episode: AgentEpisode) -> float:
    ask(episode, 1, 2, 3)
    return 1.0


def gets_no_answer(episode: AgentEpisode) -> str:
    """A client gets an empty answer if the thought has no end."""
    ask(episode, 1, 2, 3)
    return ""


def repeats(episode: AgentEpisode) -> dict[str, float]:
    """The engine fails, then it answers the same request, then the agent fails."""
    try:
        ask(episode, 1)
    except Exception:
        ask(episode, 1)
    raise KeyError("mine")


def goes_on(episode: AgentEpisode) -> float:
    """The engine fails, then it answers another request."""
    try:
        ask(episode, 1)
    except Exception:
        ask(episode, 1, 2)
    return 1.0


def does_not_recover(episode: AgentEpisode) -> float:
    ask(episode, 1)
    return 1.0


def hides_an_error(episode: AgentEpisode) -> float:
    try:
        ask(episode, 1)
    except Exception:
        return 0.0
    return 1.0


def too_long(episode: AgentEpisode) -> float:
    ask(episode, *range(100_000))
    return 1.0


def reports_a_refusal_late(episode: AgentEpisode) -> float:
    """A pool of workers raises the error of its first request when the others are answered."""
    try:
        ask(episode, *range(100_000))
    except Exception as error:
        ask(episode, 1)
        raise error
    return 1.0


def asks_three(episode: AgentEpisode) -> float:
    for token in range(3):
        ask(episode, token)
    return 1.0


def asks_three_at_once(episode: AgentEpisode) -> float:
    """Send the next request while the others are answered."""

    def ask_later(token: int) -> None:
        time.sleep(0.01 * token)
        ask(episode, token)

    with ThreadPoolExecutor(3) as threads:
        list(threads.map(ask_later, range(3)))
    return 1.0
