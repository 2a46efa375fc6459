"""What a chat template does with the parts of an assistant's turn, found out by rendering probes."""

import json
from collections.abc import Sequence
from typing import Any

from jinja2 import TemplateError
from transformers import PreTrainedTokenizerBase

from temper.envs.core.task import Message, Tool

SAID, THOUGHT = "temper-mark", "temper-thought"
"""Stand for the text of an assistant, and for its thought."""
ASKED: Message = {"role": "user", "content": "-"}
SPOKEN: Message = {"role": "assistant", "content": SAID}
THOUGHT_FIELDS = ("reasoning_content", "thinking", "reasoning")
"""Where templates look for the thought of a message."""
PROBE_TOOLS: tuple[Tool, ...] = tuple(
    {
        "type": "function",
        "function": {
            "name": name,
            "description": "-",
            "parameters": {
                "type": "object",
                "properties": {
                    "text": {"type": "string", "description": "-"},
                    "count": {"type": "integer", "description": "-"},
                    "items": {"type": "array", "items": {"type": "string"}, "description": "-"},
                },
                "required": ["text", "count"],
            },
        },
    }
    for name in ("probe_first", "probe_second")
)
PROBE_CALLS: tuple[tuple[str, dict[str, Any]], ...] = (
    ("probe_first", {"text": SAID, "count": 7}),
    ("probe_second", {"text": "75001", "count": -1, "items": ["a", "b c"]}),
)
"""Two calls; a number that is text shows whether the types of arguments are kept."""
SPOKEN_MODES = (("/think", "/no_think"),)
"""Texts in a system message that switch thinking on and off with templates which know none of `modes`."""


def modes(*, thinks: bool) -> dict[str, bool]:
    """Return the variables by which templates switch thinking: that of Qwen 3 and most, and that of DeepSeek V3.1."""
    return {"enable_thinking": thinks, "thinking": thinks}


def call_id(number: int) -> str:
    """Return the id of a turn's call; some templates take nothing else than nine letters and digits."""
    return f"call{number:05d}"


def calling(count: int, *, content: str = "", as_text: bool = False) -> Message:
    """Return an assistant's message with so many of the probe's calls; with `as_text` their arguments are JSON texts."""
    calls = []
    for number, (name, arguments) in enumerate(PROBE_CALLS[:count]):
        given = json.dumps(arguments) if as_text else arguments
        calls.append({"type": "function", "id": call_id(number), "function": {"name": name, "arguments": given}})
    return {"role": "assistant", "content": content, "tool_calls": calls}


def told(count: int) -> list[Message]:
    """Return the answers of tools to so many of the probe's calls."""
    return [
        {"role": "tool", "tool_call_id": call_id(number), "name": PROBE_CALLS[number][0], "content": "-"}
        for number in range(count)
    ]


def rendered(
    tokenizer: PreTrainedTokenizerBase,
    messages: Sequence[Message],
    *,
    tools: Sequence[Tool] = (),
    thinks: bool = True,
    open_turn: bool = False,
) -> str | None:
    """Return what the template makes of messages; None where it can't render them."""
    try:
        return str(
            tokenizer.apply_chat_template(
                list(messages),
                tools=list(tools) or None,
                add_generation_prompt=open_turn,
                **modes(thinks=thinks),
                tokenize=False,
            )
        )
    except (TemplateError, TypeError, KeyError, AttributeError, ValueError):
        return None


def after_common(text: str, other: str) -> str:
    """Return the part of a text behind what it has in common with the beginning of another."""
    count = next(
        (number for number, (one, two) in enumerate(zip(text, other, strict=False)) if one != two),
        min(len(text), len(other)),
    )
    return text[count:]


def token_at(tokenizer: PreTrainedTokenizerBase, text: str) -> str:
    """Return the token of its own, such as a special one, with which a text begins but for white space; "" where none does."""
    bare = text.lstrip()
    known = {*tokenizer.get_added_vocab(), *tokenizer.all_special_tokens}
    return max((token for token in known if token.strip() and bare.startswith(token)), key=len, default="")
