"""Arguments of tool calls whose family writes them without types: what a text means is said by the tool's JSON schema."""

import json
import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

from temper.envs.core.task import Tool
from temper.rewards.json_answers import object_of

WHOLE_NUMBER = re.compile(r"-?[0-9]{1,4300}")
"""As long as Python reads one, here and in JSON."""
WORDS = {"true": True, "false": False, "True": True, "False": False, "null": None, "None": None}
"""As templates write them: JSON's words and Python's."""
UNREAD = object()


def properties_of(tools: Sequence[Tool], name: str) -> Mapping[str, Any]:
    """Return the schemas of a tool's arguments by name; none for a tool that is not offered."""
    for tool in tools:
        function = tool.get("function", tool)
        if function.get("name") == name:
            parameters = function.get("parameters") or {}
            known = parameters.get("properties") if isinstance(parameters, Mapping) else None
            return known if isinstance(known, Mapping) else {}
    return {}


def typed(text: str, schema: Any) -> Any:
    """Return the value that a text stands for: of the first type of its schema that it can be, else the text itself.

    Without a schema it is what it says as JSON, and a text where it says nothing.
    """
    kinds = _kinds(schema)
    for kind in kinds or ("null", "boolean", "number", "object", "array", "text"):
        value = _read(text, kind)
        if value is not UNREAD:
            return value
    return text


def _kinds(schema: Any) -> tuple[str, ...]:
    """Return the types that a JSON schema allows, in its order."""
    if not isinstance(schema, Mapping):
        return ()
    named = schema.get("type")
    kinds = [named] if isinstance(named, str) else [kind for kind in named or () if isinstance(kind, str)]
    for choices in ("anyOf", "oneOf"):
        kinds += [kind for choice in schema.get(choices) or () for kind in _kinds(choice)]
    return (*kinds, "null") if schema.get("nullable") else tuple(kinds)


def _read(text: str, kind: str) -> Any:
    """Return a text as a value of one type, `UNREAD` where it is none."""
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
        value = json.loads(text, object_pairs_hook=object_of)
    except (ValueError, RecursionError):
        return UNREAD
    return value if isinstance(value, kind) else UNREAD
