"""Matching function calls against accepted values, by the rules of the Berkeley Function-Calling Leaderboard (2024 to 2026).

A reference call is `{name: {argument: [accepted values]}}`; `""` among the accepted values means that the argument may be left
out. Calls match in any order, each reference call once. A dot in a function's name may be written as an underscore. What the
schema requires must be given, and nothing that the schema or the reference call does not name.

A value is of the schema's type, or of the type of the first accepted value (the name of a variable, for a list); a whole
number passes for a float (2 for 2.0), a float never for an integer. Of the schema's type it is right as follows:

- strings: without case, spaces and the punctuation `,./-_*^`, single quotes as double ones;
- arrays: all elements in order, equal or equal as strings; each of them is of the type that the schema or an accepted array
  has, and here a whole number passes for a float only where the accepted array begins with one;
- objects: of each key an accepted object lists the accepted values, with `""` where the key may be missing; no other keys.
  Objects inside of objects are accepted as they are; arrays of objects go object by object;
- anything else, and a value of another type than the schema's: equal to an accepted value.

Equal is as in Python: 1, 1.0 and true are, if no type was compared before. An `exact` match takes strings as they are, since
`3.5` and `35` are the same by the rule above: right for the leaderboard, wrong for a reward.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

ReferenceCall = Mapping[str, Mapping[str, Sequence[Any]]]
Schema = Mapping[str, Any]
Schemas = Mapping[str, Schema]
"""The parameters of every function by its name: a JSON schema with `properties` and `required`."""

IGNORED = re.compile(r"[ ,./\-_*^]")
MAX_CALLS = 64
NO_SCHEMA: Schema = {}
OMITTED = ""
"""Among accepted values: there may be none."""
TYPES: dict[str, type[Any]] = {
    "string": str,
    "integer": int,
    "number": float,
    "boolean": bool,
    "array": list,
    "object": dict,
    "null": type(None),
}


def match_calls(
    calls: Sequence[tuple[str, Mapping[str, Any]]],
    reference: Sequence[ReferenceCall],
    schemas: Schemas,
    *,
    exact: bool = False,
) -> bool:
    """Tell whether the calls (name, arguments) and the reference calls pair up one to one; more than 64 never do."""
    if len(calls) != len(reference) or len(calls) > MAX_CALLS:
        return False
    return most_pairs(
        [[_call_fits(call, target, schemas, exact=exact) for target in reference] for call in calls]
    ) == len(reference)


def most_pairs(fits: Sequence[Sequence[bool]]) -> int:
    """Return how many rows can be paired with columns that fit them, each once (augmenting paths, Kuhn 1955)."""
    owner: dict[int, int] = {}

    def place(row: int, tried: set[int]) -> bool:
        for column, fit in enumerate(fits[row]):
            if fit and column not in tried:
                tried.add(column)
                if column not in owner or place(owner[column], tried):
                    owner[column] = row
                    return True
        return False

    return sum(place(row, set()) for row in range(len(fits)))


def _call_fits(call: tuple[str, Mapping[str, Any]], reference: ReferenceCall, schemas: Schemas, *, exact: bool) -> bool:
    name, arguments = call
    ((reference_name, accepted),) = reference.items()
    if name not in (reference_name, reference_name.replace(".", "_")):
        return False
    schema = schemas.get(reference_name, NO_SCHEMA)
    known, required = inner_schema(schema, "properties"), schema.get("required")
    if not set(arguments) <= set(accepted) & set(known):
        return False
    if isinstance(required, list) and any(key not in arguments for key in required):
        return False
    return all(
        argument_fits(arguments[key], values, inner_schema(known, key), exact=exact)
        if key in arguments
        else OMITTED in values
        for key, values in accepted.items()
    )


def argument_fits(value: Any, accepted: Sequence[Any], schema: Schema, *, exact: bool = False) -> bool:
    """Tell whether the value of an argument is one of the accepted ones by the rules above."""
    kind, plain = type_of(schema), (lambda it: it) if exact else _plain
    if kind is float and type(value) is int:
        try:
            value = float(value)
        except OverflowError:
            return False
    first = _first_type(accepted)
    if type(value) is not kind:
        return first is not None and type(value) is first and value in accepted
    items = type_of(inner_schema(schema, "items")) if kind is list and "items" in schema else None
    if items is not None and not _elements_fit(value, accepted, items):
        return False
    if first not in (None, kind):
        return value in accepted
    if kind is dict:
        return any(_object_fits(value, option, plain) for option in accepted)
    if items is dict:
        return any(_objects_fit(value, option, plain) for option in accepted)
    if kind is list:
        options = [[] if option == OMITTED else option for option in accepted]
        return list(map(plain, value)) in [list(map(plain, option)) for option in options if isinstance(option, list)]
    return plain(value) in [plain(option) for option in accepted]


def type_of(schema: Schema) -> type[Any]:
    """Return the Python type of a schema's values; where it says none, as for Python's `Any`, a text."""
    name = schema.get("type")
    return TYPES.get(name, str) if isinstance(name, str) else str


def _first_type(accepted: Sequence[Any]) -> type | None:
    return next((type(option) for option in accepted if option != OMITTED), None)


def _elements_fit(value: list[Any], accepted: Sequence[Any], kind: type) -> bool:
    """Tell whether all elements are of the schema's type or of the first one's of one of the accepted arrays."""
    return any(
        not isinstance(option, list) or all(type(element) in (kind, _first_type(option)) for element in value)
        for option in accepted
    )


def _objects_fit(value: list[Any], option: Any, plain: Callable[[Any], Any]) -> bool:
    if not isinstance(option, list):
        return option == OMITTED and value == []
    return len(value) == len(option) and all(map(partial(_object_fits, plain=plain), value, option))


def _object_fits(value: Any, option: Any, plain: Callable[[Any], Any]) -> bool:
    if not isinstance(option, dict) or not isinstance(value, dict) or set(value) - set(option):
        return False
    choices = {key: listed if isinstance(listed, list) else [listed] for key, listed in option.items()}
    return all(
        plain(value[key]) in [plain(choice) for choice in listed] if key in value else OMITTED in listed
        for key, listed in choices.items()
    )


def _plain(value: Any) -> Any:
    """Return a string as the leaderboard compares it: lower case, no spaces and punctuation, one kind of quote."""
    return IGNORED.sub("", value).lower().replace("'", '"') if isinstance(value, str) else value


def inner_schema(schema: Any, *path: str) -> Schema:
    """Return the schema that lies at a path inside of another; an empty one where there is none."""
    for name in path:
        schema = schema.get(name) if isinstance(schema, dict) else None
    return schema if isinstance(schema, dict) else NO_SCHEMA
