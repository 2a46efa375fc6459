"""How the families write thoughts and tool calls. A new family is an entry of one of these lists.

Which entry is a model's is found out by what its chat template renders (`rollout/formats/find.py`), not by its name.
"""

from typing import Any

from temper.envs.core.turn_text import OWN_TAGS, Tags
from temper.rollout.formats.call_syntax import CallSyntax, declared
from temper.rollout.formats.pythonic import calls_as_json

WIDE_BAR, WIDE_SPACE = "\uff5c", "\u2581"
"""What DeepSeek's tags have in place of `|` and a space."""
THOUGHT_TAGS = (
    OWN_TAGS,
    Tags(opening="<|channel>thought", closing="<channel|>"),
    Tags(opening="[THINK]", closing="[/THINK]"),
    Tags(opening="<seed:think>", closing="</seed:think>"),
    Tags(opening="<reasoning>", closing="</reasoning>"),
)
WHOLE: dict[str, Any] = {"type": "function", "function": "{content}"}
NAMED: dict[str, Any] = {"type": "function", "function": {"name": "{name}", "arguments": "{content}"}}
LISTED: dict[str, Any] = {"type": "function", "function": {"name": "{name}", "arguments": "{arguments}"}}


def _wide(tag: str) -> str:
    return f"<{WIDE_BAR}{tag.replace(' ', WIDE_SPACE)}{WIDE_BAR}>"


def _xml(pattern: str) -> dict[str, Any]:
    return {"content": "xml-inline", "content_args": {"tag_pattern": pattern}, "transform": NAMED, "repeats": True}


CALL_SYNTAXES: tuple[CallSyntax, ...] = (
    # Hermes, Qwen 2.5 and 3, Temper's own: <tool_call>{"name": ..., "arguments": {...}}</tool_call>
    declared(
        "json",
        {
            "open": "<tool_call>",
            "close": "</tool_call>",
            "repeats": True,
            "content": "json",
            "transform": WHOLE,
        },
        mark="<tool_call>",
    ),
    # Qwen 3 Coder, Qwen 3.5 and later, Nemotron 3: <function=NAME> and <parameter=NAME> on lines of their own
    declared(
        "xml",
        {
            "open_pattern": r"<tool_call>\s*<function=(?P<name>[^\n>]+)>",
            "close_pattern": r"</function>\s*</tool_call>",
            **_xml(r"<parameter=(?P<key>[^>\n]+)>\n?(?P<value>.*?)\n?</parameter>"),
        },
        mark="<tool_call>",
    ),
    # GLM 4.5 and later: the name, then <arg_key> and <arg_value>
    declared(
        "glm",
        {
            "open_pattern": r"<tool_call>\s*(?P<name>[^\s<{]+)",
            "close": "</tool_call>",
            **_xml(r"<arg_key>(?P<key>[^<]+)</arg_key>\s*<arg_value>(?P<value>.*?)</arg_value>"),
        },
        mark="<tool_call>",
    ),
    # Nemotron Nano 9B and 12B v2: <TOOLCALL>[{"name": ..., "arguments": {...}}, ...]</TOOLCALL>
    declared(
        "toolcall",
        {
            "open": "<TOOLCALL>",
            "close": "</TOOLCALL>",
            "content": "json",
            "transform": LISTED,
            "transform_each": True,
        },
        mark="<TOOLCALL>",
    ),
    # Llama 3.1 and later: one bare {"name": ..., "parameters": {...}}
    declared(
        "llama",
        {
            "open_pattern": r'\s*(?:<\|python_tag\|>)?\s*(?=\{\s*"(?:type|name)")',
            "close_pattern": r"\s*\Z",
            "content": "json",
            "transform": {
                "type": "function",
                "function": {"name": "{content.name}", "arguments": "{content.parameters}"},
            },
        },
        mark=r'\A\s*(?:<\|python_tag\|>)?\s*\{\s*"(?:type|name)"',
        bare=True,
    ),
    # Gemma 4: call:NAME{key:<|"|>text<|"|>, ...}
    declared(
        "gemma",
        {
            "open_pattern": r"<\|tool_call>call:(?P<name>[^\s{]+)",
            "close": "<tool_call|>",
            "repeats": True,
            "content": "json",
            "content_args": {"string_delims": [['<|"|>', '<|"|>']], "unquoted_keys": True},
            "transform": NAMED,
        },
        mark=r"<\|tool_call>",
    ),
    # DeepSeek V3 and R1: the type, the name, and the arguments in a fence
    declared(
        "deepseek",
        {
            "open_pattern": rf"(?:{_wide('tool calls begin')})?\s*{_wide('tool call begin')}function{_wide('tool sep')}"
            r"(?P<name>[^\n]+)\n```json\n",
            "close_pattern": rf"\n```{_wide('tool call end')}(?:\s*{_wide('tool calls end')})?",
            "repeats": True,
            "content": "json",
            "transform": NAMED,
        },
        mark=rf"(?:{_wide('tool calls begin')})?\s*{_wide('tool call begin')}",
    ),
    # DeepSeek V3.1: the name and the arguments
    declared(
        "deepseek 3.1",
        {
            "open_pattern": rf"(?:{_wide('tool calls begin')})?\s*{_wide('tool call begin')}(?P<name>[^\n{WIDE_BAR}]+)"
            rf"{_wide('tool sep')}",
            "close_pattern": rf"{_wide('tool call end')}(?:\s*{_wide('tool calls end')})?",
            "repeats": True,
            "content": "json",
            "transform": NAMED,
        },
        mark=rf"(?:{_wide('tool calls begin')})?\s*{_wide('tool call begin')}",
    ),
    # LFM 2: <|tool_call_start|>[NAME(key='text', ...), ...]<|tool_call_end|>
    declared(
        "pythonic",
        {
            "open": "<|tool_call_start|>",
            "close": "<|tool_call_end|>",
            "content": "json",
            "transform": LISTED,
            "transform_each": True,
        },
        mark=r"<\|tool_call_start\|>",
        as_json=calls_as_json,
    ),
    # Mistral until Small 3.1: [TOOL_CALLS] [{"name": ..., "arguments": {...}, "id": ...}, ...] up to the end of the turn
    declared(
        "mistral",
        {
            "open_pattern": r"\[TOOL_CALLS\]\s*(?=\[)",
            "close_pattern": r"\s*\Z",
            "content": "json",
            "transform": {**LISTED, "id": "{id}"},
            "transform_each": True,
        },
        mark=r"\[TOOL_CALLS\]",
    ),
    # Mistral since Small 3.2: [TOOL_CALLS]NAME[ARGS]{...}, once for each call
    declared(
        "mistral args",
        {
            "open_pattern": r"\[TOOL_CALLS\](?P<name>[^\[\s]+)(?:\[CALL_ID\][^\[\s]+)?\[ARGS\]",
            "close_pattern": r"\s*\Z",
            "repeats": True,
            "content": "json",
            "transform": NAMED,
        },
        mark=r"\[TOOL_CALLS\]",
    ),
)
