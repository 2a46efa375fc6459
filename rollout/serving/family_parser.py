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
    """Parses calls as rollouts do. An answer stays text if a call is unreadable, or if the request has no tools.

    A stream sends the text before the first call at once, and the rest when the answer is complete.
    """

    form: ClassVar[TurnFormat]

    def __init__(self, tokenizer: Any, tools: list[Any] | None = None) -> None:
        super().__init__(tokenizer, tools)
        self._schemas = [_schema(tool) for tool in self.tools]
        self._text = ""
        self._sent = 0

    def adjust_request(self, request: Any) -> Any:
        """Keep the tokens that mark a call in the text, if there may be one."""
        request = super().adjust_request(request)
        if request.tools and request.tool_choice != "none":
            request.skip_special_tokens = False
        return request

    def extract_tool_calls(self, model_output: str, request: Any) -> ExtractedToolCallInformation:
        """Return the calls of an answer, and the remaining text."""
        calls, content = self._read(model_output)
        made = [_to_tool_call(call) for call in calls]
        return ExtractedToolCallInformation(tools_called=bool(made), tool_calls=made, content=content)

    def _read(self, text: str) -> tuple[list[Call], str | None]:
        assert self.form.calls is not None
        found, content = self.form.calls.read(self.form.without_end(text), self._schemas) if self.tools else ((), text)
        calls = [call for call in found if isinstance(call, Call)]
        if not calls or len(calls) < len(found):
            return [], text
        return calls, content if content.strip() else None

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
        """Return the new text before any call. Blank text waits, because it is dropped before calls."""
        assert self.form.calls is not None
        self.engine_based_streaming = True  # from now on, so that vLLM calls `finish_streaming`
        self._text = current_text
        mark = self.form.calls.mark.search(current_text, partial=True) if self.tools else None
        ready = current_text if mark is None else current_text[: mark.start()]
        return self._send(ready, []) if ready.strip() else None

    def finish_streaming(self) -> DeltaMessage | None:
        """Return the rest of the complete answer."""
        calls, content = self._read(self._text)
        return self._send(content or "", [_delta(number, call) for number, call in enumerate(calls)])

    def _send(self, ready: str, deltas: list[DeltaToolCall]) -> DeltaMessage | None:
        content, self._sent = ready[self._sent :], max(self._sent, len(ready))
        return DeltaMessage(content=content or None, tool_calls=deltas) if content or deltas else None


def _schema(tool: Any) -> Tool:
    """Return a tool of a chat or responses request in the environments' form."""
    given = tool.model_dump(exclude_none=True)
    function = given.get("function", given)
    return {"type": "function", "function": {key: function[key] for key in ("name", "parameters") if key in function}}


def _text(call: Call) -> str:
    return json.dumps(call.arguments, ensure_ascii=False)


def _to_tool_call(call: Call) -> ToolCall:
    """Return a call with the model's id, or else a new one."""
    given = {"id": call.id} if call.id else {}
    return ToolCall(**given, function=FunctionCall(name=call.name, arguments=_text(call)))


def _delta(number: int, call: Call) -> DeltaToolCall:
    function = DeltaFunctionCall(name=call.name, arguments=_text(call))
    return DeltaToolCall(index=number, id=_to_tool_call(call).id, type="function", function=function)
