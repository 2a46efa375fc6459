"""Literals of Java and JavaScript, as `rewards.foreign_values` reads them: what a right call of these languages holds."""

import json
from typing import Any

from temper.rewards.foreign_values import Language, foreign_value

SUFFIXES = {("java", "long"): "L", ("java", "float"): "f", ("javascript", "Bigint"): "n"}
QUOTED = ("char", "String")


def literal(value: Any, kind: str, items: str | None, language: Language) -> str:
    """Return the text that is read as `value`. Raise `ValueError` where none is."""
    text = _java(value, kind, items) if language == "java" else _javascript(value, items)
    text += SUFFIXES.get((language, kind), "")
    if foreign_value(text, kind, items, language) != value:
        raise ValueError(f"no {language} literal of type {kind} is read as {value!r:.80}")
    return text


def _java(value: Any, kind: str, items: str | None) -> str:
    if isinstance(value, dict):
        puts = " ".join(f"put({json.dumps(key)}, {_guessable(inner)});" for key, inner in value.items())
        return f"new HashMap<>() {{{{ {puts} }}}}" if value else "new HashMap<>()"
    if isinstance(value, list):
        quoted = kind == "ArrayList" and items in QUOTED
        parts = ", ".join(json.dumps(one) if quoted else literal(one, items or "any", None, "java") for one in value)
        if kind == "Array":
            return f"new Object[]{{{parts}}}"
        return f"new ArrayList<>(Arrays.asList({parts}))" if value else "new ArrayList<>()"
    return value if isinstance(value, str) else json.dumps(value)


def _javascript(value: Any, items: str | None) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{json.dumps(key)}: {_guessable(inner)}" for key, inner in value.items()) + "}"
    if isinstance(value, list):
        typed = items in ("String", None)
        return "[" + ", ".join(_guessable(one) if typed else _javascript(one, None) for one in value) + "]"
    return value if isinstance(value, str) else json.dumps(value)


def _guessable(value: Any) -> str:
    if isinstance(value, list):
        return "[" + ", ".join(_guessable(one) for one in value) + "]"
    return json.dumps(value, ensure_ascii=False)
