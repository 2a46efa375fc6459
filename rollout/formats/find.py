"""Detects the format of a tokenizer's family from the output of its chat template.

For tool calls the order is: the tokenizer's declarations (`end_of_turn`, `thinking_tags`, `tool_calls`, which a run writes
from `model.*`), its `response_template`, then the entry of `CALL_SYNTAXES` that parses the rendered probe calls exactly.
vLLM's parsers are not used: they accept errors that a model in training must see, and load slowly.

A new family is a new entry in one of these lists. Its name plays no role.
"""

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import regex
from transformers import PreTrainedTokenizerBase

from temper.envs.core.task import Message
from temper.envs.core.turn_text import OWN_TAGS, Call, Tags
from temper.rollout.formats.call_syntax import CallSyntax, calls_as_json, declare_syntax
from temper.rollout.formats.messages import (
    ASSISTANT_MESSAGE,
    PROBE_CALLS,
    PROBE_TOOLS,
    REASONING_FIELDS,
    REASONING_MARK,
    SYSTEM_TEXT_MODES,
    TEXT_MARK,
    USER_MESSAGE,
    probe_message,
    render,
    strip_common_prefix,
    token_at,
    tool_answers,
)
from temper.rollout.formats.turn_format import CALL, CHANNEL_TAGS, END, NEXT_MESSAGE, RETURN, TURN_ENDS, TurnFormat

WIDE_BAR, WIDE_SPACE = "\uff5c", "\u2581"
"""DeepSeek's tags use these instead of `|` and a space."""
THINKING_TAGS = (
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


DEEPSEEK_MARK = rf"{_wide('tool calls begin')}(?:\s*{_wide('tool call begin')})?|{_wide('tool call begin')}"


CALL_SYNTAXES: tuple[CallSyntax, ...] = (
    # Hermes, Qwen 2.5 and 3, Temper's own: <tool_call>{"name": ..., "arguments": {...}}</tool_call>
    declare_syntax(
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
    declare_syntax(
        "xml",
        {
            "open_pattern": r"<tool_call>\s*<function=(?P<name>[^\n>]+)>",
            "close_pattern": r"</function>\s*</tool_call>",
            **_xml(r"<parameter=(?P<key>[^>\n]+)>\n?(?P<value>.*?)\n?</parameter>"),
        },
        mark=r"(?s)<tool_call>(?:\s*<function=(?:(?:(?!<tool_call>).)*?</function>\s*</tool_call>)?)?|<function=",
    ),
    # GLM 4.5 and later: the name, then <arg_key> and <arg_value>
    declare_syntax(
        "glm",
        {
            "open_pattern": r"<tool_call>\s*(?P<name>[^\s<{]+)",
            "close": "</tool_call>",
            **_xml(r"<arg_key>(?P<key>[^<]+)</arg_key>\s*<arg_value>(?P<value>.*?)</arg_value>"),
        },
        mark="<tool_call>",
    ),
    # Nemotron Nano 9B and 12B v2: <TOOLCALL>[{"name": ..., "arguments": {...}}, ...]</TOOLCALL>
    declare_syntax(
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
    declare_syntax(
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
        mark=r'\A\s*(?:<\|python_tag\|>|\{\s*"(?:type|name)")',
        bare=True,
    ),
    # Gemma 4: call:NAME{key:<|"|>text<|"|>, ...}
    declare_syntax(
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
    declare_syntax(
        "deepseek",
        {
            "open_pattern": rf"(?:{_wide('tool calls begin')})?\s*{_wide('tool call begin')}function{_wide('tool sep')}"
            r"(?P<name>[^\n]+)\n```json\n",
            "close_pattern": rf"\n```{_wide('tool call end')}(?:\s*{_wide('tool calls end')})?",
            "repeats": True,
            "content": "json",
            "transform": NAMED,
        },
        mark=DEEPSEEK_MARK,
    ),
    # DeepSeek V3.1: the name and the arguments
    declare_syntax(
        "deepseek 3.1",
        {
            "open_pattern": rf"(?:{_wide('tool calls begin')})?\s*{_wide('tool call begin')}(?P<name>[^\n{WIDE_BAR}]+)"
            rf"{_wide('tool sep')}",
            "close_pattern": rf"{_wide('tool call end')}(?:\s*{_wide('tool calls end')})?",
            "repeats": True,
            "content": "json",
            "transform": NAMED,
        },
        mark=DEEPSEEK_MARK,
    ),
    # LFM 2: <|tool_call_start|>[NAME(key='text', ...), ...]<|tool_call_end|>
    declare_syntax(
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
    declare_syntax(
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
    declare_syntax(
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


BRACKETS = re.compile(r"<[^<>]+>|\[[^\[\]]+\]")
USUAL_CLOSING = "\n{tag}\n\n"
"""Closing of thinking if the template shows none."""


def find_format(tokenizer: PreTrainedTokenizerBase) -> TurnFormat:
    """Return the format of a tokenizer. Raise `ValueError` if no single token ends a turn."""
    field, between = _find_reasoning_field(tokenizer)
    tags = _tags(tokenizer, between)
    if tags == CHANNEL_TAGS:
        return _channels(tokenizer, field)
    as_text = render(tokenizer, [USER_MESSAGE, probe_message(1)], tools=PROBE_TOOLS) is None
    syntax, no_calls, end_of_calls = _calls(tokenizer, tags, as_text=as_text)
    parted_by, ends = _ends(tokenizer, end_of_calls)
    think, no_think = _find_system_texts(tokenizer) if tags is not None else ("", "")
    behind = (
        (render(tokenizer, [USER_MESSAGE, ASSISTANT_MESSAGE, USER_MESSAGE]) or "")
        .partition(TEXT_MARK)[2]
        .partition(parted_by[0])[0]
    )
    return TurnFormat(
        name=syntax.name if syntax is not None else "text",
        tags=tags,
        closing=_closing(tags, between),
        reasoning_field=field,
        ends=ends,
        end_ids=_ids(tokenizer, ends),
        parted_by=parted_by,
        behind_answer=behind.strip(),
        calls=syntax,
        no_calls=no_calls,
        parallel=syntax is None or _reads(tokenizer, syntax, tags, 2, as_text=as_text) is not None,
        arguments_as_text=as_text and syntax is not None,
        think=think,
        no_think=no_think,
    )


def _channels(tokenizer: PreTrainedTokenizerBase, field: str | None) -> TurnFormat:
    return TurnFormat(
        name="channels",
        tags=CHANNEL_TAGS,
        closing=NEXT_MESSAGE,
        reasoning_field=field,
        ends=TURN_ENDS,
        end_ids=_ids(tokenizer, TURN_ENDS),
        parted_by=(END, RETURN, CALL),
        calls=None,
        no_calls="",
        parallel=False,
        channels=True,
    )


def _find_reasoning_field(tokenizer: PreTrainedTokenizerBase) -> tuple[str | None, tuple[str, str]]:
    """Return the message field that the template writes as reasoning, and the text before and after it."""
    for field in REASONING_FIELDS:
        for message in (ASSISTANT_MESSAGE, probe_message(1), probe_message(1, as_text=True)):
            text = render(tokenizer, [USER_MESSAGE, {**message, field: REASONING_MARK}], tools=PROBE_TOOLS)
            before, found, after = (text or "").partition(REASONING_MARK)
            if found and (TEXT_MARK in after):
                return field, (before, after.partition(TEXT_MARK)[0])
    return None, ("", "")


def _tags(tokenizer: PreTrainedTokenizerBase, between: tuple[str, str]) -> Tags | None:
    """Return the thinking tags, declared or from the template. None for a model that does not think."""
    declared = tokenizer.init_kwargs
    given = declared.get("thinking_tags", declared.get("thought_tags"))  # the second in models of versions before 0.2
    if given is not None:
        if (
            not isinstance(given, list | tuple)
            or len(given) != 2
            or not all(isinstance(tag, str) and tag for tag in given)
        ):
            raise ValueError(
                f"model.thinking_tags={given!r}: give the opening tag and the closing tag of the reasoning"
            )
        return Tags(opening=given[0], closing=given[1])
    opening, closing = between
    template = str(tokenizer.chat_template or "")
    for tags in (CHANNEL_TAGS, *THINKING_TAGS):
        if tags.opening in opening and tags.closing in closing:
            return tags
    tokens = tokenizer.get_vocab()
    known = (tags for tags in THINKING_TAGS if _in(template, tags.opening))
    return next((tags for tags in known if _in(template, tags.closing) or tags.closing in tokens), None)


def _in(template: str, tag: str) -> bool:
    """Return whether a template contains a tag. The first brackets of a longer tag are enough."""
    found = BRACKETS.match(tag)
    return (found[0] if found else tag) in template


def _closing(tags: Tags | None, between: tuple[str, str]) -> str:
    """Return the closing of thinking as the template writes it, with the white space after the tag."""
    if tags is None:
        return ""
    before, closed, after = between[1].partition(tags.closing)
    if not closed:
        return USUAL_CLOSING.format(tag=tags.closing)
    return before + closed + after[: len(after) - len(after.lstrip())]


def _find_system_texts(tokenizer: PreTrainedTokenizerBase) -> tuple[str, str]:
    """Return the system texts that switch thinking on and off; "" if none is needed."""
    question: Message = {"role": "user", "content": TEXT_MARK}

    def opening(text: str = "", *, thinks: bool = True) -> str:
        messages: list[Message] = [{"role": "system", "content": text}, question] if text else [question]
        return (render(tokenizer, messages, thinks=thinks, open_turn=True) or "").partition(TEXT_MARK)[2]

    usual = opening()
    if usual != opening(thinks=False):
        return "", ""
    for on, off in SYSTEM_TEXT_MODES:
        opened, closed = opening(on), opening(off)
        if opened and closed and opened != closed:
            return "" if opened == usual else on, "" if closed == usual else off
    return "", ""


def _calls(
    tokenizer: PreTrainedTokenizerBase, tags: Tags | None, *, as_text: bool
) -> tuple[CallSyntax | None, str, str]:
    """Return the syntax of tool calls or the reason for none, and the text after a turn of calls."""
    text = _call_text(tokenizer, tags, 1, as_text=as_text)
    if text is None:
        return None, "the chat template can't render tool calls", ""
    if PROBE_CALLS[0][0] not in text:
        return None, "the chat template leaves tool calls out", ""
    given = tokenizer.init_kwargs.get("tool_calls")
    known = (*_own_syntax(tokenizer.response_template), *CALL_SYNTAXES) if given is None else (read_declaration(given),)
    for syntax in known:
        rest = _reads(tokenizer, syntax, tags, 1, as_text=as_text)
        if rest is not None:
            return syntax, "", rest
    readers = "no known format reads" if given is None else "model.tool_calls does not read"
    return None, f"the chat template writes a tool call as {text[:120]!r}, which {readers}", ""


def _own_syntax(template: Any) -> Sequence[CallSyntax]:
    """Return the call syntax in a tokenizer's response template, if there is one."""
    field = (template.get("fields") or {}).get("tool_calls") if isinstance(template, Mapping) else None
    return [declare_syntax("response_template", field)] if field is not None else []


def read_declaration(given: Any) -> CallSyntax:
    """Return the syntax that `model.tool_calls` names or declares. Raise `ValueError` for an invalid value."""
    if not isinstance(given, Mapping):
        raise ValueError(f"model.tool_calls={given!r}: give the name of a format, or a declaration")
    if "format" not in given:
        try:
            return declare_syntax("declared", given)
        except (ValueError, TypeError, KeyError, regex.error) as error:
            raise ValueError(
                f"model.tool_calls={dict(given)!r} is not a valid declaration of tool calls: {error}"
            ) from error
    by_name = {syntax.name: syntax for syntax in CALL_SYNTAXES}
    if given["format"] not in by_name or len(given) > 1:
        raise ValueError(f"model.tool_calls={dict(given)!r}: give only `format`, one of {', '.join(by_name)}")
    return by_name[given["format"]]


def _call_text(tokenizer: PreTrainedTokenizerBase, tags: Tags | None, count: int, *, as_text: bool) -> str | None:
    """Return the template's text of a turn with probe calls and the text after it. None if it can't be rendered."""
    dialogue = [USER_MESSAGE, probe_message(count, as_text=as_text)]
    text = render(tokenizer, [*dialogue, *tool_answers(count)], tools=PROBE_TOOLS) or render(
        tokenizer, dialogue, tools=PROBE_TOOLS
    )
    prompt = render(tokenizer, [USER_MESSAGE], tools=PROBE_TOOLS, open_turn=True)
    if text is None or prompt is None:
        return None
    if tags is not None and tags.opening in prompt:  # a turn without reasoning may begin with another tag
        prompt = prompt[: prompt.rindex(tags.opening)]
    turn = strip_common_prefix(text, prompt)
    return turn if tags is None else turn.partition(tags.closing)[2] or turn


def _reads(
    tokenizer: PreTrainedTokenizerBase, syntax: CallSyntax, tags: Tags | None, count: int, *, as_text: bool
) -> str | None:
    """Return the text after the calls if a syntax parses the probe calls exactly, else None."""
    text = _call_text(tokenizer, tags, count, as_text=as_text)
    if text is None:
        return None
    wanted = tuple(Call(name=name, arguments=arguments) for name, arguments in PROBE_CALLS[:count])
    ends = [len(text), *(text.find(token) for token in _turn_ends(tokenizer) if token in text)]
    for whole in (text, text[: min(ends)]):  # a syntax that ends with the turn parses only the turn
        calls, remaining = syntax.read(whole, PROBE_TOOLS)
        if calls == wanted:
            before = syntax.mark.search(whole).start()
            return remaining[before:] if whole is text else ""
    return None


def _turn_ends(tokenizer: PreTrainedTokenizerBase) -> tuple[str, ...]:
    """Return the end of a turn of plain text: the first token after it, or the eos token if that follows directly."""
    text = render(tokenizer, [USER_MESSAGE, ASSISTANT_MESSAGE, USER_MESSAGE])
    if text is None or TEXT_MARK not in text:
        raise ValueError("the chat template can't render a text dialogue of a question, an answer and a question")
    return _end_at(tokenizer, text.partition(TEXT_MARK)[2])


def _end_at(tokenizer: PreTrainedTokenizerBase, tail: str) -> tuple[str, ...]:
    rest, tokens = tail.lstrip(), []
    while token := token_at(tokenizer, rest):
        tokens.append(token)
        rest = rest.removeprefix(token)
        if rest != rest.lstrip():
            break
    eos = str(tokenizer.eos_token or "")
    return (eos,) if eos in tokens else tuple(tokens[:1])


def _ends(tokenizer: PreTrainedTokenizerBase, end_of_calls: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the template's text after a turn, and the tokens that end a sampled turn: declared, or that text's token and
    eos.
    """
    written = tuple(dict.fromkeys((*_turn_ends(tokenizer), *_end_at(tokenizer, end_of_calls))))
    given = tokenizer.init_kwargs.get("end_of_turn")
    if given is not None:
        ends = (given,) if isinstance(given, str) else tuple(given)
        if written and not set(written) <= set(ends):
            raise ValueError(
                f"model.end_of_turn={given!r}, but the chat template ends turns with {' and '.join(map(repr, written))}: "
                f"set model.end_of_turn to these, or model.chat_template to a template that writes yours"
            )
        return written or ends, ends
    ends = tuple(dict.fromkeys((*written, *filter(None, [tokenizer.eos_token]))))
    if not written:
        raise ValueError(
            f"the chat template writes no special token after an assistant's turn, so the end of a turn can't be detected; "
            f"set model.end_of_turn to a token, and model.chat_template to a template that writes it "
            f"(eos_token is {tokenizer.eos_token!r})"
        )
    return written, ends


def _ids(tokenizer: PreTrainedTokenizerBase, ends: Sequence[str]) -> tuple[int, ...]:
    vocabulary = tokenizer.get_vocab()
    for end in ends:
        if end not in vocabulary:
            raise ValueError(
                f"model.end_of_turn={end!r} is not a token of the tokenizer; set one, such as {tokenizer.eos_token!r}"
            )
    return tuple(vocabulary[end] for end in ends)


GENERATION = "generation_config.json"


def generation_text(model: Path, tokenizer: PreTrainedTokenizerBase) -> str:
    """Return a model directory's generation configuration with the end-of-turn ids first.

    Declared ends replace the file's ids. Raises `ValueError` if the file can't be read.
    """
    found = _read_generation(model)
    known = [] if tokenizer.init_kwargs.get("end_of_turn") else _ending_ids(found)
    ends = [*find_format(tokenizer).end_ids, *known]
    return json.dumps({**found, "eos_token_id": list(dict.fromkeys(ends))}, indent=1)


def ending_ids(model: Path) -> list[int]:
    """Return the ids that end sampling by a model directory's generation configuration. Raises as `generation_text`."""
    return _ending_ids(_read_generation(model))


def _ending_ids(generation: dict[str, Any]) -> list[int]:
    known = generation.get("eos_token_id") or []
    return known if isinstance(known, list) else [known]


def _read_generation(model: Path) -> dict[str, Any]:
    path = model / GENERATION
    try:
        found: Any = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    except ValueError as error:
        raise ValueError(f"{path} is not valid JSON: {error}") from error
    if not isinstance(found, dict):
        raise ValueError(f"{path} is not a JSON object")
    return found
