"""An agent that sends its prompt on each route of the endpoint, whole and streamed, and keeps the replies."""

import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from anthropic import Anthropic
from openai import OpenAI

from temper.envs.agents import AgentEpisode

MOST_TOKENS = 10_000
OPENAI, ANTHROPIC = OpenAI(api_key="-", max_retries=0), Anthropic(api_key="-", max_retries=0)
"""Clients with connections for all episodes, since making one takes longer than a request."""


@dataclass(kw_only=True)
class Reply:
    """The parts of a turn that a client got, and why it ended."""

    reasoning: str = ""
    content: str = ""
    calls: list[list[str]] = field(default_factory=list)
    end: str | None = None

    def add(self, *, reasoning: str | None = None, content: str | None = None, end: str | None = None) -> None:
        self.reasoning += reasoning or ""
        self.content += content or ""
        self.end = end or self.end

    def add_call(self, name: str | None, arguments: str | None) -> None:
        """Add a call, or without a name the rest of the last one."""
        if name is not None:
            self.calls.append([name, ""])
        self.calls[-1][1] += arguments or ""

    @property
    def arguments(self) -> list[tuple[str, Any]]:
        return [(name, json.loads(given or "{}")) for name, given in self.calls]


REPLIES: list[tuple[Reply, Reply]] = []
"""The whole and the streamed reply of each route of the last episode."""


def ask_all(episode: AgentEpisode) -> float:
    """Ask for six turns."""
    openai = OPENAI.with_options(base_url=episode.url, api_key=episode.key)
    anthropic = ANTHROPIC.with_options(base_url=episode.url.removesuffix("/v1"), api_key=episode.key)
    functions = [tool["function"] for tool in episode.tools]
    prompt: Any = episode.messages
    asked: list[tuple[Any, Any, dict[str, Any]]] = [
        (openai.chat.completions.create, _chat, {"messages": prompt, "tools": episode.tools}),
        (
            anthropic.messages.create,
            _messages,
            {
                "messages": prompt,
                "max_tokens": MOST_TOKENS,
                "tools": [
                    {"name": one["name"], "description": one["description"], "input_schema": one["parameters"]}
                    for one in functions
                ],
            },
        ),
        (
            openai.responses.create,
            _responses,
            {"input": prompt, "tools": [{"type": "function", "strict": None, **one} for one in functions]},
        ),
    ]
    REPLIES.clear()
    for create, read, body in asked:
        given = {key: value for key, value in body.items() if value}
        whole, streamed = (create(model=episode.model, stream=stream, **given) for stream in (False, True))
        REPLIES.append((read([whole]), read(streamed)))
    return 1.0


def _chat(parts: Iterable[Any]) -> Reply:
    reply = Reply()
    for choice in (choice for part in parts for choice in part.choices):
        said = getattr(choice, "delta", None) or choice.message
        reply.add(reasoning=getattr(said, "reasoning", None), content=said.content, end=choice.finish_reason)
        for call in said.tool_calls or ():
            reply.add_call(call.function.name, call.function.arguments)
    return reply


def _messages(events: Iterable[Any]) -> Reply:
    reply = Reply()
    for event in events:
        match event.type:
            case "message":
                reply.add(end=event.stop_reason)
                for block in event.content:
                    reply.add(reasoning=getattr(block, "thinking", None), content=getattr(block, "text", None))
                    if block.type == "tool_use":
                        reply.add_call(block.name, json.dumps(block.input))
            case "content_block_start" if event.content_block.type == "tool_use":
                reply.add_call(event.content_block.name, None)
            case "content_block_delta" if event.delta.type == "input_json_delta":
                reply.add_call(None, event.delta.partial_json)
            case "content_block_delta":
                reply.add(reasoning=getattr(event.delta, "thinking", None), content=getattr(event.delta, "text", None))
            case "message_delta":
                reply.add(end=event.delta.stop_reason)
    return reply


def _responses(events: Iterable[Any]) -> Reply:
    reply = Reply()
    for event in events:
        match getattr(event, "type", None):
            case None:
                reply.add(end=event.status)
                for item in event.output:
                    texts = "".join(part.text for part in getattr(item, "content", None) or ())
                    reply.add(**{"reasoning" if item.type == "reasoning" else "content": texts})
                    if item.type == "function_call":
                        reply.add_call(item.name, item.arguments)
            case "response.reasoning_text.delta":
                reply.add(reasoning=event.delta)
            case "response.output_text.delta":
                reply.add(content=event.delta)
            case "response.output_item.added" if event.item.type == "function_call":
                reply.add_call(event.item.name, None)
            case "response.function_call_arguments.delta":
                reply.add_call(None, event.delta)
            case "response.completed" | "response.incomplete":
                reply.add(end=event.response.status)
    return reply
