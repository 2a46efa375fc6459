"""Syntaxes of tool calls, and the strict parser of a model's calls.

A syntax uses the notation of transformers' response templates (field `tool_calls`: opening, closing, content parser). Their
`parse_response` does not report unclosed calls, stops at the first unreadable one and skips text between arguments. A model
in training needs these errors. So this module uses their patterns and content parsers, and walks over the text itself.
"""

import ast
import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import regex
from transformers.utils.chat_parsing.content_parsers import parse_content, process_field
from transformers.utils.chat_parsing.response_templates import ResponseTemplateField, load_response_template

from temper.envs.core.task import Tool
from temper.envs.core.turn_text import BadCall, Call, call_of, json_end
from temper.rewards.json_answers import to_object

WHOLE_NUMBER = re.compile(r"-?[0-9]{1,4300}")
"""Longest integer that Python parses."""
WORDS = {"true": True, "false": False, "True": True, "False": False, "null": None, "None": None}
"""Constants in JSON and in Python, which templates mix."""
UNREAD = object()


def properties_of(tools: Sequence[Tool], name: str) -> Mapping[str, Any]:
    """Return the schemas of a tool's arguments by name; none for an unknown tool."""
    for tool in tools:
        function = tool.get("function", tool)
        if function.get("name") == name:
            parameters = function.get("parameters") or {}
            known = parameters.get("properties") if isinstance(parameters, Mapping) else None
            return known if isinstance(known, Mapping) else {}
    return {}


def parse_value(text: str, schema: Any) -> Any:
    """Return the value of a text: of the first matching type in its schema, else the text.

    Without a schema it is parsed as JSON, else it is a text.
    """
    kinds = _kinds(schema)
    for kind in kinds or ("null", "boolean", "number", "object", "array", "text"):
        value = _read(text, kind)
        if value is not UNREAD:
            return value
    return text


def _kinds(schema: Any) -> tuple[str, ...]:
    """Return the types that a JSON schema allows, in order."""
    if not isinstance(schema, Mapping):
        return ()
    named = schema.get("type")
    kinds = [named] if isinstance(named, str) else [kind for kind in named or () if isinstance(kind, str)]
    for choices in ("anyOf", "oneOf"):
        kinds += [kind for choice in schema.get(choices) or () for kind in _kinds(choice)]
    return (*kinds, "null") if schema.get("nullable") else tuple(kinds)


def _read(text: str, kind: str) -> Any:
    """Return the text as a value of this type, or `UNREAD`."""
    bare = text.strip()
    match kind:
        case "string":
            return text
        case "boolean" | "null":
            value = WORDS.get(bare, UNREAD)
            return value if (value is None) == (kind == "null") else UNREAD
        case "integer":
            return int(bare) if WHOLE_NUMBER.fullmatch(bare) else UNREAD
        case "number":
            return _number(bare)
        case "object" | "array":
            return _container(bare, dict if kind == "object" else list)
    return UNREAD


def _number(text: str) -> Any:
    if WHOLE_NUMBER.fullmatch(text):
        return int(text)
    try:
        value = float(text)
    except ValueError:
        return UNREAD
    return value if text.isascii() and math.isfinite(value) else UNREAD


def _container(text: str, kind: type) -> Any:
    try:
        value = json.loads(text, object_pairs_hook=to_object)
    except (ValueError, RecursionError):
        return UNREAD
    return value if isinstance(value, kind) else UNREAD


JSON_WORDS = {"true": True, "false": False, "null": None}
"""Names of constants in some templates, with their JSON values."""


def calls_as_json(text: str) -> str:
    """Return a list of calls as JSON: name, and arguments by name. Raises `ValueError` if it can't be parsed."""
    try:
        tree = ast.parse(text.strip(), mode="eval").body
    except (SyntaxError, MemoryError) as error:
        raise ValueError("the text is not a list of calls") from error
    if not isinstance(tree, ast.List):
        raise ValueError("the text is not a list of calls")
    return json.dumps([_call(node) for node in tree.elts], ensure_ascii=False)


def _call(node: ast.expr) -> dict[str, Any]:
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Name | ast.Attribute) or node.args:
        raise ValueError("a call needs a name, and keyword arguments only")
    arguments = {}
    for given in node.keywords:
        if given.arg is None or given.arg in arguments:
            raise ValueError("each argument needs a name, and must be given once")
        arguments[given.arg] = _value(given.value)
    return {"name": ast.unparse(node.func), "arguments": arguments}


def _value(node: ast.expr) -> Any:
    """Return a literal's value. `json` refuses values that JSON does not have."""
    if isinstance(node, ast.Name) and node.id in JSON_WORDS:
        return JSON_WORDS[node.id]
    if isinstance(node, ast.List):
        return [_value(one) for one in node.elts]
    if isinstance(node, ast.Dict) and all(isinstance(key, ast.Constant) for key in node.keys):
        return {str(ast.literal_eval(key)): _value(one) for key, one in zip(node.keys, node.values, strict=True) if key}
    value = ast.literal_eval(node) if isinstance(node, ast.Constant | ast.UnaryOp) else node
    if not isinstance(value, str | int | float | None):
        raise ValueError("a value is not valid JSON")
    return value


Field = Mapping[str, Any]
CLOSING_TAGS = regex.compile(r"(?:</[\w-]+>|\s)*")
"""Tags that a call may contain besides its arguments."""
NOT_CLOSED = "error: tool call not closed"
NOT_READ = "error: tool call has no name, or none where it should be"
NOT_JSON = "error: tool call is not JSON"
UNREADABLE = "error: tool call can't be read"


@dataclass(frozen=True, slots=True, kw_only=True)
class CallSyntax:
    """A syntax of tool calls. `mark` finds the start of each, `region` parses one call or a list.

    `bare` calls have no mark: with tools offered, an answer that starts like a call is one. `as_json` converts the content
    to JSON and raises `ValueError` if it can't.
    """

    name: str
    mark: Any
    region: ResponseTemplateField
    bare: bool = False
    as_json: Callable[[str], str] | None = None

    def read(self, answer: str, tools: Sequence[Tool]) -> tuple[tuple[Call | BadCall, ...], str]:
        """Return the calls of an answer in order, unreadable ones as `BadCall`, and the remaining text."""
        if self.bare and not tools:
            return (), answer
        starts: list[int] = []
        inside = 0
        for found in self.mark.finditer(answer):
            if found.start() >= inside:  # else the mark is in a string argument of a call
                starts.append(found.start())
                inside = self._json_end(answer, found.start())
        if not starts:
            return (), answer
        calls: list[Call | BadCall] = []
        remaining = answer[: starts[0]]
        for start, end in zip(starts, [*starts[1:], len(answer)], strict=True):
            read, rest = self._block(answer[start:end], tools)
            calls += read
            remaining += rest
        return tuple(calls), remaining

    def _block(self, block: str, tools: Sequence[Tool]) -> tuple[Sequence[Call | BadCall], str]:
        """Parse the block at a mark. Return its calls and the text after its closing."""
        opened = self.region.open_re.match(block)
        inner = block[opened.end() :] if opened else block
        closed = self.region.close_re.search(inner, max(0, self._json_end(block, 0) - (len(block) - len(inner))))
        if closed is None:
            return [BadCall(error=NOT_CLOSED)], ""
        rest = inner[closed.end() :]
        if opened is None:
            return [BadCall(error=NOT_READ)], rest
        captures = {name: text for name, text in opened.groupdict().items() if text is not None}
        return self._calls(inner[: closed.start()], captures, tools), rest

    def _json_end(self, text: str, start: int) -> int:
        """Return the end of the JSON of the call at `start`, or `start` without one."""
        opened = self.region.open_re.match(text, start)
        if opened is None or self.region.content != "json":
            return start
        end = json_end(text, opened.end())
        return end if end > opened.end() else start

    def _calls(self, body: str, captures: dict[str, str], tools: Sequence[Tool]) -> list[Call | BadCall]:
        try:
            bodies = self._bodies(body if self.as_json is None else self.as_json(body))
        except (ValueError, RecursionError):
            return [BadCall(error=NOT_JSON if self.as_json is None else UNREADABLE)]
        return [self._call(one, captures, tools) for one in bodies]

    def _bodies(self, body: str) -> list[str]:
        """Return the bodies of single calls. A block may hold a list of them."""
        if not self.region.transform_each:
            return [body]
        listed = parse_content(body, self.region.content, self.region.content_args)
        items = listed if isinstance(listed, list) else [listed]
        named = [{"id": "", **item} if isinstance(item, dict) else item for item in items]  # models may give none
        return [json.dumps([item], ensure_ascii=False) for item in named]

    def _call(self, body: str, captures: dict[str, str], tools: Sequence[Tool]) -> Call | BadCall:
        untyped = self.region.content == "xml-inline"
        if untyped and not self._holds_arguments_only(body):
            return BadCall(error="error: an argument of the tool call can't be read")
        try:
            made = process_field(body, self.region, captures)
        except KeyError:
            return BadCall(error="error: tool call has no name or no arguments")
        except (ValueError, RecursionError) as error:
            missing = "placeholder" in str(error) or "transform_each" in str(error)
            return BadCall(error="error: tool call has no name or no arguments" if missing else NOT_JSON)
        return _to_call(made[0] if isinstance(made, list) else made, tools, untyped=untyped)

    def _holds_arguments_only(self, body: str) -> bool:
        """Check one argument after the other. A search for all is quadratic in a text that opens them and closes none."""
        argument = regex.compile(self.region.content_args["tag_pattern"], flags=regex.DOTALL)
        at = 0
        while (at := CLOSING_TAGS.match(body, at).end()) < len(body):
            found = argument.match(body, at)
            if found is None or found.end() == at:
                return False
            at = found.end()
        return True


def _to_call(made: Any, tools: Sequence[Tool], *, untyped: bool) -> Call | BadCall:
    function = made.get("function") if isinstance(made, dict) else None
    name = function.get("name") if isinstance(function, dict) else None
    if not isinstance(function, dict) or not isinstance(name, str):
        return call_of(None, {})
    arguments = function.get("arguments", {})
    if untyped:
        schemas = properties_of(tools, name.strip())
        arguments = {key: parse_value(str(value), schemas.get(key)) for key, value in arguments.items()}
    return call_of(name, arguments, named=made.get("id", function.get("id")))


def declare_syntax(
    name: str,
    field: Field,
    *,
    mark: str = "",
    bare: bool = False,
    as_json: Callable[[str], str] | None = None,
) -> CallSyntax:
    """Return a syntax declared in the notation of response templates.

    `mark` is a pattern of the start of a call, complete or not. By default it is the whole opening. Raises `ValueError` for
    an invalid declaration, and for one without a closing.
    """
    template = load_response_template({"start_anchor": "-", "fields": {"tool_calls": dict(field)}})
    region = template.fields["tool_calls"]
    if region.open_re is None or region.close_re is None:
        raise ValueError(f"the tool calls of {name!r} need `open` and `close`, or `open_pattern` and `close_pattern`")
    found = regex.compile(mark) if mark else region.open_re
    return CallSyntax(name=name, mark=found, region=region, bare=bare, as_json=as_json)
