"""Conversion between conversations and OpenAI's chat API. Pure functions of JSON data.

Internal messages have the Hugging Face format (`envs/core/task.py`): call arguments are objects, and calls have no ids. In
the API arguments are text, and each call has an id to which its result refers.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from temper.envs.core.task import Message
from temper.envs.core.thinking_mode import Mode, Thinking
from temper.envs.core.turn_text import (
    CLOSE_THINKING,
    OWN_TAGS,
    BadCall,
    Call,
    ParsedTurn,
    TurnParts,
    answer_text,
    call_from_text,
    call_message,
    call_of,
    parse_calls,
    remove_calls,
    split_turn,
    to_writable,
    turn_text,
)
from temper.rollout.budget.rule import BUDGET
from temper.rollout.formats.messages import thinking_variables
from temper.rollout.remote.client import Refused, ServerFault
from temper.rollout.sampling import Sampling
from temper.rollout.trajectory import Closed, ThinkingStats

REASONING_FIELDS = ("reasoning_content", "reasoning")
"""Fields in which servers return reasoning."""
ENDED = ("stop", "tool_calls", "function_call", "end_turn", "tool_use", "stop_sequence", "eos")
CUT = ("length", "max_tokens", "max_output_tokens", "model_length")
"""Finish reasons of a whole answer, and of one that a token limit truncated. Other reasons are errors."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatTurn:
    """A server's answer: the parsed turn, the message for the conversation, and its lengths.

    `finished` is false if a token limit truncated it.
    """

    parsed: ParsedTurn
    message: Message
    thinking: ThinkingStats
    finished: bool


def request_body(
    model: str, messages: Sequence[Message], tools: Sequence[Any], thinking: Thinking, sampling: Sampling, *, seed: int
) -> dict[str, Any]:
    """Return the body of a request for the next turn. Fields that only some servers know are included only if they are set.

    Those are top_k, min_p, and the thinking modes: chat template variables, and the keys of Temper's server.
    """
    body: dict[str, Any] = {
        "model": model,
        "messages": to_writable(to_openai(messages)),
        "temperature": sampling.temperature,
        "seed": seed % 2**31,
    }
    usual = Sampling()
    body |= {
        name: value
        for name, value, without in (
            ("top_p", sampling.top_p, usual.top_p),
            ("top_k", sampling.top_k, usual.top_k),
            ("min_p", sampling.min_p, usual.min_p),
            ("max_tokens", sampling.max_tokens, None),
            ("stop", sampling.stop, []),
        )
        if value != without
    }
    if tools:
        body["tools"] = list(tools)
    if thinking.mode is Mode.OFF:
        body["chat_template_kwargs"] = thinking_variables(thinks=False)
    elif thinking.mode is Mode.LOW_EFFORT:
        body["thinking"] = "low"
    elif thinking.budget is not None:
        body[BUDGET] = thinking.budget
    return body


def to_openai(messages: Sequence[Message]) -> list[dict[str, Any]]:
    """Return messages with numbered call ids, and results that refer to them.

    Calls without a result are dropped: servers refuse them.
    """
    converted: list[dict[str, Any]] = []
    waiting: list[str] = []
    count = 0
    for place, message in enumerate(messages):
        if message["role"] == "tool":
            converted.append({**message, "tool_call_id": waiting.pop(0) if waiting else f"call_{count}"})
            continue
        plain = {key: value for key, value in message.items() if key != "tool_calls"}
        calls = (message.get("tool_calls") or [])[: _results(messages[place + 1 :])]
        waiting = [f"call_{count + number}" for number in range(len(calls))]
        count += len(calls)
        if calls:
            plain["tool_calls"] = [_call(call, name) for call, name in zip(calls, waiting, strict=True)]
        converted.append(plain)
    return converted


def _results(messages: Sequence[Message]) -> int:
    """Return the number of tool results at the start."""
    return next((n for n, message in enumerate(messages) if message["role"] != "tool"), len(messages))


def _call(call: dict[str, Any], name: str) -> dict[str, Any]:
    function = call["function"]
    arguments = function["arguments"]
    text = arguments if isinstance(arguments, str) else json.dumps(arguments)
    return {"id": name, "type": "function", "function": {"name": function["name"], "arguments": text}}


def read_turn(reply: dict[str, Any], *, thinks: bool, sampling: Sampling) -> ChatTurn:
    """Return the turn in a server's answer. Raises `ServerFault` for an invalid answer, `Refused` for a filtered one.

    An unknown finish reason, such as an aborted generation, is invalid. Reasoning and calls inside the text are parsed in
    Temper's format.
    """
    try:
        choice = reply["choices"][0]
        message, reason = choice["message"], choice["finish_reason"]
        content, calls = message.get("content") or "", message.get("tool_calls") or []
        reasoning = next((message[name] for name in REASONING_FIELDS if message.get(name)), None)
        given = [_read_call(call["function"]) for call in calls]
    except (KeyError, IndexError, TypeError, AttributeError) as error:
        raise ServerFault(f"the reply is not a chat completion: {json.dumps(reply)[:300]}") from error
    if not isinstance(content, str) or not (reasoning is None or isinstance(reasoning, str)):
        raise ServerFault(f"the reply has a message without text: {json.dumps(message)[:300]}")
    if reason == "content_filter":
        raise Refused("the server filtered the answer")
    ended = str(reason).lower()
    if ended not in (*ENDED, *CUT):
        raise ServerFault(f"finish_reason is {reason!r}; only {ENDED} and {CUT} are supported")
    content, cut = sampling.cut_at_stop_string(to_writable(content)), ended in CUT
    parsed = _parse_turn(content, to_writable(reasoning), given, thinks=thinks, cut=cut)
    return ChatTurn(
        parsed=parsed, message=_message(parsed), thinking=_measure_thinking(reply, parsed), finished=not cut
    )


def _read_call(function: dict[str, Any]) -> Call | BadCall:
    """Return a structured call. Its arguments are text, or an object with some servers."""
    name, arguments = function["name"], function.get("arguments") or "{}"
    return call_from_text(name, arguments) if isinstance(arguments, str) else call_of(name, arguments)


def _parse_turn(
    content: str, reasoning: str | None, given: Sequence[Call | BadCall], *, thinks: bool, cut: bool
) -> ParsedTurn:
    """Return a turn. Without structured calls, calls are parsed from the answer."""
    parts = _parts(content, reasoning, called=bool(given), thinks=thinks, cut=cut)
    calls = {"tool_calls": [_show(call) for call in given]}
    return ParsedTurn(
        text=turn_text({"content": content, "reasoning_content": reasoning, **calls}, thinks=reasoning is not None),
        reasoning=parts.reasoning,
        answer=turn_text({"content": parts.answer, **calls}, thinks=False) if parts.readable else "",
        content=remove_calls(parts.answer),
        readable=parts.readable,
        well_formed=parts.well_formed,
        calls=tuple(given or parse_calls(parts.answer)) if parts.readable else (),
    )


def _parts(content: str, reasoning: str | None, *, called: bool, thinks: bool, cut: bool) -> TurnParts:
    """Separate reasoning and answer: as the server does, else by the tags in the text.

    A complete text without tags is an answer. A truncated one may be thinking that the template opened.
    """
    if reasoning is None:
        return split_turn(content, OWN_TAGS, thinks=thinks, opened=cut or CLOSE_THINKING in content)
    readable = called or bool(content) or not cut  # else the thinking never ended
    return TurnParts(reasoning=reasoning, answer=answer_text(content), readable=readable, well_formed=readable)


def _show(call: Call | BadCall) -> dict[str, Any]:
    return call_message(call.name, call.arguments) if isinstance(call, Call) else call_message("unreadable", {})


def _message(parsed: ParsedTurn) -> Message:
    """Return the conversation's message of a turn, with structured calls."""
    reasoning = {"reasoning_content": parsed.reasoning} if parsed.reasoning else {}
    calls = {"tool_calls": [_show(call) for call in parsed.calls]} if parsed.calls else {}
    return {"role": "assistant", "content": parsed.content, **reasoning, **calls}


def _measure_thinking(reply: dict[str, Any], parsed: ParsedTurn) -> ThinkingStats:
    """Return the lengths that the server reports, or 0."""
    usage = reply.get("usage") or {}
    details = usage.get("completion_tokens_details") or {}
    whole, thinking = (int(part or 0) for part in (usage.get("completion_tokens"), details.get("reasoning_tokens")))
    closed = Closed.NONE if not parsed.reasoning else Closed.ITSELF if parsed.readable else Closed.NEVER
    return ThinkingStats(tokens=thinking, answer_tokens=max(0, whole - thinking), closed=closed)
