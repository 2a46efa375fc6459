"""Matching function calls against accepted values (the rules of the Berkeley Function-Calling Leaderboard).

A gold call is `{name: {argument: [accepted values]}}`; `""` among the accepted values means that the argument may be
left out. Calls match in any order, each gold call once.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any

GoldCall = Mapping[str, Mapping[str, Sequence[Any]]]
IGNORED = re.compile(r"[ ,./\-_*^]")
MAX_CALLS = 64
TYPES: dict[str, tuple[type, ...]] = {
    "string": (str,),
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
    "array": (list,),
    "object": (dict,),
}


def match_calls(
    calls: Sequence[tuple[str, Mapping[str, Any]]], gold: Sequence[GoldCall], types: Mapping[str, Any]
) -> bool:
    """Whether the calls (name, arguments) and the gold calls pair up one to one.

    `types` maps a function's name to the JSON-schema types of its arguments, `{name: {argument: type or None}}`.
    """
    if len(calls) != len(gold) or len(calls) > MAX_CALLS:
        return False
    fits = [[_call_fits(call, target, types) for target in gold] for call in calls]
    owner: dict[int, int] = {}
    return all(_assign(index, fits, owner, set()) for index in range(len(calls)))


def _assign(call: int, fits: list[list[bool]], owner: dict[int, int], tried: set[int]) -> bool:
    """One augmenting path of the bipartite matching (Kuhn 1955)."""
    for target, fit in enumerate(fits[call]):
        if fit and target not in tried:
            tried.add(target)
            if target not in owner or _assign(owner[target], fits, owner, tried):
                owner[target] = call
                return True
    return False


def _call_fits(call: tuple[str, Mapping[str, Any]], gold: GoldCall, types: Mapping[str, Any]) -> bool:
    name, arguments = call
    ((gold_name, accepted),) = gold.items()
    if name not in (gold_name, gold_name.replace(".", "_")) or set(arguments) - set(accepted):
        return False
    kinds = types.get(gold_name, {})
    return all(
        _value_fits(arguments[key], values, kinds.get(key)) if key in arguments else "" in values
        for key, values in accepted.items()
    )


def _value_fits(value: Any, accepted: Sequence[Any], kind: str | None) -> bool:
    if kind is not None and not has_type(value, kind):
        return False
    return any(same_value(value, option) for option in accepted)


def has_type(value: Any, kind: str) -> bool:
    """Whether a JSON value has a schema type; a whole number passes for `number`, a boolean for nothing else."""
    if isinstance(value, bool):
        return kind == "boolean"
    return isinstance(value, TYPES.get(kind, (object,)))


def same_value(value: Any, option: Any) -> bool:
    """Equality with an accepted value: strings without case, spaces and punctuation; true is not 1; 2 is 2.0."""
    if isinstance(value, bool) or isinstance(option, bool):
        return value is option
    if isinstance(value, str) and isinstance(option, str):
        return standard(value) == standard(option)
    if isinstance(value, list) and isinstance(option, list):
        return len(value) == len(option) and all(map(same_value, value, option))
    if isinstance(value, dict) and isinstance(option, dict):
        return _same_object(value, option)
    return (
        type(value) in (int, float, type(None)) and type(option) in (int, float, type(None)) and bool(value == option)
    )


def _same_object(value: dict[str, Any], option: dict[str, Any]) -> bool:
    """An accepted object holds, for each key, the list of accepted values, as an argument does."""
    if set(value) - set(option):
        return False
    for key, choices in option.items():
        choices = choices if isinstance(choices, list) else [choices]
        if not (any(same_value(value[key], choice) for choice in choices) if key in value else "" in choices):
            return False
    return True


def standard(text: str) -> str:
    """A string as the leaderboard compares it: lower case, without spaces and ` ,./-_*^`, one kind of quote."""
    return IGNORED.sub("", text).lower().replace("'", '"')
