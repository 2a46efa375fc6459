"""Read argument values in Java or JavaScript syntax, as the Berkeley Function-Calling Leaderboard does.

In its Java and JavaScript categories every argument is a text with a literal: `42L`, `new int[]{1, 2}`, `{"a": true}`. A
text without the form of its type stays a text, which is never an accepted value. Collections are read simply: elements are
split at commas, also inside quotes, and a collection ends at its first closing bracket. Elements of a Java array of strings
keep their quotes.
"""

import re
from collections.abc import Callable, Mapping
from typing import Any, Literal

Language = Literal["java", "javascript"]
JSON_TYPES: Mapping[Language, Mapping[str, str]] = {
    "java": {
        **dict.fromkeys(("byte", "short", "integer", "long"), "integer"),
        **dict.fromkeys(("float", "double"), "number"),
        **dict.fromkeys(("Array", "ArrayList"), "array"),
        "boolean": "boolean",
        "HashMap": "object",
    },
    "javascript": {
        **dict.fromkeys(("integer", "Bigint"), "integer"),
        "float": "number",
        "Boolean": "boolean",
        "array": "array",
        "dict": "object",
    },
}
"""The JSON Schema type of each language's types. All other types are texts."""
DIGITS = r"-?\d{1,4000}"
"""Longer whole numbers are not read: Python converts at most 4300 digits."""
DECIMAL = r"-?\d+(?:\.\d+)?"
EXPONENT = r"(?:[eE][+-]?\d+)?"
Reader = tuple[re.Pattern[str], Callable[[str], Any]]
WHOLE: Reader = (re.compile(f"({DIGITS})"), int)
TRUTH: Reader = (re.compile(r"(true|false)"), "true".__eq__)
SCALARS: Mapping[Language, Mapping[str, Reader]] = {
    "java": {
        **dict.fromkeys(("byte", "short", "integer"), WHOLE),
        "long": (re.compile(f"({DIGITS})[lL]"), int),
        "float": (re.compile(f"({DECIMAL}{EXPONENT})[fF]"), float),
        "double": (re.compile(f"({DECIMAL}{EXPONENT})"), float),
        "boolean": TRUTH,
    },
    "javascript": {
        "integer": WHOLE,
        "Bigint": (re.compile(f"({DIGITS})n"), int),
        "float": (re.compile(f"({DECIMAL})"), float),
        "Boolean": TRUTH,
        "String": (re.compile(r"""((?:".*")|(?:'.*'))""", re.DOTALL), lambda text: text[1:-1]),
    },
}
GUESSES: Mapping[Language, tuple[Reader, ...]] = {
    "java": (
        TRUTH,
        (re.compile(r'"(.*)"', re.DOTALL), str),
        SCALARS["java"]["long"],
        SCALARS["java"]["float"],
        WHOLE,
        SCALARS["java"]["double"],
    ),
    "javascript": (TRUTH, (re.compile(r""""(.*)"|'(.*)'""", re.DOTALL), str), WHOLE, SCALARS["java"]["double"]),
}
MAX_CHARACTERS = 8192
ARRAY = re.compile(r"new\s+\w+\[\]\s*\{([^}\n]*)\}")
LISTED = re.compile(r"new\s+ArrayList<\w*>\(Arrays\.asList\((.+?)\)\)")
GROWN = re.compile(r"new\s+ArrayList<\w*>\(\)(?:\s*\{\{(.*?)\}\})?", re.DOTALL)
ADDED = re.compile(r"add\(([^)\n]+)\)")
MAP = re.compile(r"new\s+HashMap<[^(\n]*>\s*\(\)(?:\s*\{\s*\{?([^}]*)\})?")
PUT = re.compile(r'put\("([^"\n]*)",\s*([^)\n]*)\)')
ROWS = re.compile(r"(?:\[|new\s+Array\()\s*\[[^][\n]*\]\s*(?:,\s*\[[^][\n]*\]\s*)*[])]")
ROW = re.compile(r"\[([^][\n]*)\]")
ELEMENTS = re.compile(r"\[([^]\n]*)\]|new\s+Array\(([^)\n]*)\)")
OBJECT = re.compile(r"\{([^}\n]*)\}")
ENTRY = re.compile(r"([^:]+):\s*(.*?)(?:,\s*(?=[^,]+:)|$)")


def foreign_value(text: str, kind: str, items: str | None, language: Language) -> Any:
    """Return the value of a text of type `kind`, or the text if it has another form. `items` is the type of a collection's
    elements.
    """
    if len(text) > MAX_CHARACTERS:
        return text
    match language, kind:
        case "java", "Array":
            found = ARRAY.search(text)
            return [_element(one, items, "java") for one in _cut(found[1])] if found else text
        case "java", "ArrayList":
            return _array_list(text, items)
        case "java", "HashMap":
            found = MAP.search(text)
            return {key: _guessed(one, "java") for key, one in PUT.findall(found[1] or "")} if found else text
        case "javascript", "array":
            return _javascript_array(text.strip(), items)
        case "javascript", "dict":
            return _javascript_object(text.strip())
    return _read(text, [SCALARS[language][kind]] if kind in SCALARS[language] else [])


def _read(text: str, readers: "list[Reader] | tuple[Reader, ...]") -> Any:
    for pattern, make in readers:
        if found := pattern.fullmatch(text):
            return make(next((group for group in found.groups() if group is not None), ""))
    return text


def _guessed(text: str, language: Language) -> Any:
    return _read(text.strip(), GUESSES[language])


def _element(text: str, kind: str | None, language: Language) -> Any:
    return _guessed(text, language) if kind is None else foreign_value(text.strip(), kind, None, language)


def _cut(text: str) -> list[str]:
    return [part for part in text.split(",") if part.strip()]


def _array_list(text: str, items: str | None) -> Any:
    if listed := LISTED.search(text):
        parts = listed[1].split(",")
    elif grown := GROWN.search(text):
        parts = ADDED.findall(grown[1] or "")
    else:
        return text
    quoted = items in ("char", "String")
    return [part.strip()[1:-1] if quoted else _element(part, items, "java") for part in parts]


def _javascript_array(text: str, items: str | None) -> Any:
    if rows := ROWS.match(text):
        return [[_guessed(part, "javascript") for part in row.split(",")] for row in ROW.findall(rows[0])]
    found = ELEMENTS.match(text)
    if found is None:
        return text
    inside = (found[1] or found[2] or "").strip()
    return [_element(part, items, "javascript") for part in inside.split(",")] if inside else []


def _javascript_object(text: str) -> Any:
    found = OBJECT.match(text)
    if found is None:
        return text
    made = {}
    for key, entry in ENTRY.findall(found[1]):
        value = entry.strip()
        listed = value.startswith("[") and value.endswith("]")
        made[key.strip().strip("'\"")] = (
            _javascript_array(value, None) if listed else _guessed(value.strip("'\""), "javascript")
        )
    return made
