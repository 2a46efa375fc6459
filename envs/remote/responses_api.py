"""NeMo-Gym rows, prompts, tools and turns in the format of OpenAI's Responses API."""

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from temper.envs.core.messages import text_of
from temper.envs.core.row_format import field
from temper.envs.core.task import Message, Task, Tool
from temper.envs.core.turn_text import Call, call_message

Item = dict[str, Any]
ROLES = {"user": "user", "assistant": "assistant", "system": "system", "developer": "system"}
PARAMS = "responses_create_params"
ROUTES = ("seed_session", "verify", "reset", "step", "close", "aggregate_metrics", "reverify_mode", "mcp")
TOOL_NAME = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9_.-]{0,127}")


def load(row: dict[str, Any]) -> Task:
    params = field(row, PARAMS, dict)
    tools = tools_of(params)
    for tool in tools:
        name = tool["function"]["name"]
        if not TOOL_NAME.fullmatch(name) or name in ROUTES:
            raise ValueError(
                f"field '{PARAMS}.tools' has a tool {name!r}, which can't be a route of the server; rename it"
            )
    return Task(messages=messages_of(params), spec={"row": dict(row)}, tools=tools)


def messages_of(params: dict[str, Any]) -> tuple[Message, ...]:
    """Return the chat messages of `responses_create_params`: `instructions`, and `input` as text or a list of items."""
    said = params.get("input")
    if not isinstance(said, str | list) or not said:
        raise ValueError("field 'responses_create_params.input' must be text or a list of messages, and not empty")
    messages: list[Message] = []
    if isinstance(params.get("instructions"), str):
        messages.append({"role": "system", "content": params["instructions"]})
    if isinstance(said, str):
        return (*messages, {"role": "user", "content": said})
    return (*messages, *map(_message, said))


def _message(item: Any) -> Message:
    kind = item.get("type", "message") if isinstance(item, dict) else None
    if kind == "message" and item.get("role") in ROLES:
        return {"role": ROLES[item["role"]], "content": text_of(item.get("content"))}
    if kind == "function_call":
        call = call_message(field(item, "name", str), json.loads(field(item, "arguments", str)))
        return {"role": "assistant", "content": "", "tool_calls": [call]}
    if kind == "function_call_output":
        return {"role": "tool", "content": text_of(item.get("output"))}
    raise ValueError(f"field 'responses_create_params.input' has an unsupported item: {str(item)[:100]}")


def tools_of(params: dict[str, Any]) -> tuple[Tool, ...]:
    tools = []
    for tool in params.get("tools") or ():
        if not isinstance(tool, dict) or tool.get("type") != "function" or not isinstance(tool.get("name"), str):
            raise ValueError(
                f"field 'responses_create_params.tools' has a tool that is not a function: {str(tool)[:100]}"
            )
        function = {
            "name": tool["name"],
            "description": tool.get("description") or "",
            "parameters": tool.get("parameters") or {"type": "object", "properties": {}},
        }
        tools.append({"type": "function", "function": function})
    return tuple(tools)


@dataclass(frozen=True, slots=True, kw_only=True)
class ResponseTurn:
    """One turn of the model: the text without calls, the calls with their ids, and their results."""

    text: str
    calls: tuple[tuple[str, Call], ...] = ()
    outputs: tuple[str, ...] = ()

    def items(self, number: int) -> list[Item]:
        items: list[Item] = []
        if self.text or not self.calls:
            content = [{"type": "output_text", "text": self.text, "annotations": []}]
            message = {"type": "message", "id": f"msg_{number}", "role": "assistant", "status": "completed"}
            items.append(message | {"content": content})
        for call_id, call in self.calls:
            arguments = json.dumps(call.arguments)
            function = {"type": "function_call", "call_id": call_id, "name": call.name, "arguments": arguments}
            items.append(function | {"id": call_id, "status": "completed"})
        for (call_id, _), output in zip(self.calls, self.outputs, strict=True):
            items.append({"type": "function_call_output", "call_id": call_id, "output": output})
        return items


def response(turns: Sequence[ResponseTurn], params: dict[str, Any]) -> dict[str, Any]:
    return {
        "id": "resp_0",
        "object": "response",
        "created_at": 0.0,
        "model": "policy",
        "output": [item for number, turn in enumerate(turns) for item in turn.items(number)],
        "parallel_tool_calls": True,
        "tool_choice": "auto",
        "tools": params.get("tools") or [],
    }
