"""A vLLM parser of tool calls in the format of the model's family. It is selected automatically."""

import json
from collections.abc import Sequence
from typing import Any, ClassVar

from vllm.entrypoints.generate.base.protocol import (
    DeltaFunctionCall,
    DeltaMessage,
    DeltaToolCall,
    ExtractedToolCallInformation,
    FunctionCall,
    ToolCall,
)
from vllm.tool_parsers import ToolParser, ToolParserManager

from temper.envs.core.task import Tool
from temper.envs.core.turn_text import Call
from temper.rollout.formats.turn_format import TurnFormat

FAMILY = "family"
"""Name of the parser in vLLM."""
CHANNELS_PARSER = "openai"
"""vLLM's parser for gpt-oss, which reads whole turns."""


def tool_parser(form: TurnFormat) -> str:
    """Return the name of the parser of a family's calls, registered with vLLM, or ""."""
    if form.channels:
        return CHANNELS_PARSER
    if form.calls is None:
        return ""
    ToolParserManager.register_module(name=FAMILY, module=type("FamilyParser", (FamilyParser,), {"form": form}))
    return FAMILY


class FamilyParser(ToolParser):
    """Parses calls as rollouts do. An answer with an unreadable call stays text.

    A streamed call is sent whole, once it is closed.
    """

    form: ClassVar[TurnFormat]

    def __init__(self, tokenizer: Any, tools: list[Any] | None = None) -> None:
        super().__init__(tokenizer, tools)
        self._schemas = [_schema(tool) for tool in self.tools]
        self._said = 0

    def adjust_request(self, request: Any) -> Any:
        """Keep the tokens that mark a call in the text, if there may be one."""
        request = super().adjust_request(request)
        if request.tools and request.tool_choice != "none":
            request.skip_special_tokens = False
        return request

    def extract_tool_calls(self, model_output: str, request: Any) -> ExtractedToolCallInformation:
        """Return the calls of an answer, and the remaining text."""
        turn = self.form.parse(model_output, thinks=False, tools=self._schemas)
        calls = [call for call in turn.calls if isinstance(call, Call)]
        if not calls or len(calls) < len(turn.calls):
            return ExtractedToolCallInformation(tools_called=False, tool_calls=[], content=model_output)
        made = [_made(call) for call in calls]
        return ExtractedToolCallInformation(tools_called=True, tool_calls=made, content=turn.content or None)

    def extract_tool_calls_streaming(
        self,
        previous_text: str,
        current_text: str,
        delta_text: str,
        previous_token_ids: Sequence[int],
        current_token_ids: Sequence[int],
        delta_token_ids: Sequence[int],
        request: Any,
    ) -> DeltaMessage | None:
        """Return the new part of a streamed answer: text before any call, and closed calls."""
        assert self.form.calls is not None
        found, remaining = self.form.calls.read(current_text, self._schemas)
        opened_call = self.form.calls.mark.search(remaining, partial=True)
        ready = remaining if opened_call is None else remaining[: opened_call.start()]
        content, self._said = ready[self._said :], max(self._said, len(ready))
        calls = [call for call in found if isinstance(call, Call)]
        new = range(len(self.prev_tool_call_arr), len(calls))
        deltas = [_delta(number, calls[number]) for number in new]
        for number in new:  # vLLM compares with it at the end of a stream
            self.prev_tool_call_arr.append({"name": calls[number].name, "arguments": calls[number].arguments})
            self.streamed_args_for_tool.append(_text(calls[number]))
        self.current_tool_id = len(self.prev_tool_call_arr) - 1
        return DeltaMessage(content=content or None, tool_calls=deltas) if content or deltas else None


def _schema(tool: Any) -> Tool:
    """Return a tool of a chat or responses request in the environments' form."""
    given = tool.model_dump(exclude_none=True)
    function = given.get("function", given)
    return {"type": "function", "function": {key: function[key] for key in ("name", "parameters") if key in function}}


def _text(call: Call) -> str:
    return json.dumps(call.arguments, ensure_ascii=False)


def _made(call: Call) -> ToolCall:
    """Return a call with the model's id, or else a new one."""
    given = {"id": call.id} if call.id else {}
    return ToolCall(**given, function=FunctionCall(name=call.name, arguments=_text(call)))


def _delta(number: int, call: Call) -> DeltaToolCall:
    function = DeltaFunctionCall(name=call.name, arguments=_text(call))
    return DeltaToolCall(index=number, id=_made(call).id, type="function", function=function)
