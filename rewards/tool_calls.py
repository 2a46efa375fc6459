"""Matching function calls against accepted values (the rules of the Berkeley Function-Calling Leaderboard).

A gold call is `{name: {argument: [accepted values]}}`; `""` among the accepted values means that the argument may be
left out, an argument that is not named there may not be given. Calls match in any order, each gold call once. A dot in
a function's name may be written as an underscore.

A value is right if it equals an accepted one, type for type:

- strings: without case, spaces and the punctuation `,./-_*^`, single quotes as double ones; a string of nothing else
  stands for itself;
- numbers: by value, so a whole number passes for a float (2 for 2.0), but a float never for an integer (2.0 for 2) where
  the schema says integer; a boolean is no number, and a string never a number ("2" is not 2);
- null: only where null is accepted;
- lists (tuples are lists): element by element, in order;
- objects: for each key an accepted object has the list of accepted values, with `""` where the key may be missing; no
  other keys. Inside nested objects a list may also be meant as the value itself, and both readings are right.

The schema's type decides nothing else: an accepted value of another type (the name of a variable, for a list) is right.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any

GoldCall = Mapping[str, Mapping[str, Sequence[Any]]]
Schema = Mapping[str, Any]
Schemas = Mapping[str, Mapping[str, Schema]]
"""The JSON schema of every argument of every function, `{name: {argument: schema}}`."""

IGNORED = re.compile(r"[ ,./\-_*^]")
MAX_CALLS = 64
NO_SCHEMA: Schema = {}


def match_calls(
    calls: Sequence[tuple[str, Mapping[str, Any]]], gold: Sequence[GoldCall], schemas: Schemas = NO_SCHEMA
) -> bool:
    """Tell whether the calls (name, arguments) and the gold calls pair up one to one; more than 64 never do."""
    if len(calls) != len(gold) or len(calls) > MAX_CALLS:
        return False
    fits = [[_call_fits(call, target, schemas) for target in gold] for call in calls]
    owner: dict[int, int] = {}
    return all(_assign(index, fits, owner, set()) for index in range(len(calls)))


def _assign(call: int, fits: list[list[bool]], owner: dict[int, int], tried: set[int]) -> bool:
    """Search one augmenting path of the bipartite matching (Kuhn 1955)."""
    for target, fit in enumerate(fits[call]):
        if fit and target not in tried:
            tried.add(target)
            if target not in owner or _assign(owner[target], fits, owner, tried):
                owner[target] = call
                return True
    return False


def _call_fits(call: tuple[str, Mapping[str, Any]], gold: GoldCall, schemas: Schemas) -> bool:
    name, arguments = call
    ((gold_name, accepted),) = gold.items()
    if name not in (gold_name, gold_name.replace(".", "_")) or set(arguments) - set(accepted):
        return False
    known = schemas.get(gold_name, NO_SCHEMA)
    return all(
        any(same_value(arguments[key], option, known.get(key, NO_SCHEMA)) for option in values)
        if key in arguments
        else "" in values
        for key, values in accepted.items()
    )


def same_value(value: Any, option: Any, schema: Schema = NO_SCHEMA, *, nested: bool = False) -> bool:
    """Tell whether a value equals an accepted one by the rules above; `nested` inside an object's values."""
    if isinstance(value, str) and isinstance(option, str):
        return standard(value) == standard(option)
    if isinstance(value, list) and isinstance(option, list):
        items = _inner(schema, "items")
        return len(value) == len(option) and all(
            same_value(mine, theirs, items, nested=nested) for mine, theirs in zip(value, option, strict=True)
        )
    if isinstance(value, dict) and isinstance(option, dict):
        return _same_object(value, option, _inner(schema, "properties"), nested=nested)
    if type(value) in (int, float) and type(option) in (int, float):
        whole = schema.get("type") == "integer" and type(option) is int
        return bool(value == option) and not (whole and type(value) is float)
    return value is option  # true, false and null, each only itself


def _same_object(value: dict[str, Any], option: dict[str, Any], known: Schema, *, nested: bool) -> bool:
    if set(value) - set(option):
        return False
    for key, choices in option.items():
        readings = list(choices) if isinstance(choices, list) else [choices]
        if nested and isinstance(choices, list):
            readings.append(choices)
        schema = _inner(known, key)
        if not (
            any(same_value(value[key], it, schema, nested=True) for it in readings) if key in value else "" in readings
        ):
            return False
    return True


def _inner(schema: Schema, name: str) -> Schema:
    inner = schema.get(name)
    return inner if isinstance(inner, dict) else NO_SCHEMA


def standard(text: str) -> str:
    """Return a string as the leaderboard compares it: lower case, no spaces and punctuation, one kind of quote."""
    return IGNORED.sub("", text).lower().replace("'", '"') or text
