"""Match function calls against accepted values by the rules of the Berkeley Function-Calling Leaderboard (2024 to 2026).

A reference call is `{name: {argument: [accepted values]}}`. If `""` is accepted, the argument is optional. Calls match in any
order, each reference call once. A dot in a function's name may be an underscore, because some servers allow no dot. A call
must give the required arguments, and only arguments that the schema and the reference call name.

A value must have the schema's type, or the type of the first accepted value (a variable name, for a list). A whole number
passes for a float (2 for 2.0), a float never for an integer. A value of the schema's type is right as follows:

- strings: equal without case, spaces and the punctuation `,./-_*^`, with single quotes as double ones
- arrays: all elements in order, equal or equal as strings, each of the element type of the schema or of an accepted array.
  A whole number passes for a float only if the accepted array begins with one.
- objects: an accepted object lists the accepted values of each key, with `""` for an optional key. Other keys are wrong.
  Nested objects must be equal, arrays of objects match object by object.
- anything else, and a value of another type than the schema's: equal to an accepted value

Equality is Python's: 1, 1.0 and true are equal unless types were compared before. An `exact` match compares strings
unchanged, since the rules above equate `3.5` and `35`: right for the leaderboard, wrong for a reward.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

ReferenceCall = Mapping[str, Mapping[str, Sequence[Any]]]
Schema = Mapping[str, Any]
Schemas = Mapping[str, Schema]
"""The parameters of each function by its name: a JSON schema with `properties` and `required`."""

IGNORED = re.compile(r"[ ,./\-_*^]")
MAX_CALLS = 64
NO_SCHEMA: Schema = {}
OMITTED = ""
"""An accepted value that makes the argument optional."""
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
    """Return whether the calls (name, arguments) and the reference calls pair up one to one. More than 64 calls never do."""
    if len(calls) != len(reference) or len(calls) > MAX_CALLS:
        return False
    return most_pairs(
        [[_call_fits(call, target, schemas, exact=exact) for target in reference] for call in calls]
    ) == len(reference)


def most_pairs(fits: Sequence[Sequence[bool]]) -> int:
    """Return the largest number of rows that can be paired with distinct fitting columns (augmenting paths, Kuhn 1955)."""
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
        is_argument_accepted(arguments[key], values, inner_schema(known, key), exact=exact)
        if key in arguments
        else OMITTED in values
        for key, values in accepted.items()
    )


def is_argument_accepted(value: Any, accepted: Sequence[Any], schema: Schema, *, exact: bool = False) -> bool:
    """Return whether an argument's value is accepted by the rules above."""
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
    """Return the Python type of a schema's values; text if it names none, as for Python's `Any`."""
    name = schema.get("type")
    return TYPES.get(name, str) if isinstance(name, str) else str


def _first_type(accepted: Sequence[Any]) -> type | None:
    return next((type(option) for option in accepted if option != OMITTED), None)


def _elements_fit(value: list[Any], accepted: Sequence[Any], kind: type) -> bool:
    """Return whether all elements have the schema's type, or the type of the first element of an accepted array."""
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
    """Return a string as the leaderboard compares it: lower case, no spaces or punctuation, one kind of quote."""
    return IGNORED.sub("", value).lower().replace("'", '"') if isinstance(value, str) else value


def inner_schema(schema: Any, *path: str) -> Schema:
    """Return the schema at a path inside another, or an empty one if there is none."""
    for name in path:
        schema = schema.get(name) if isinstance(schema, dict) else None
    return schema if isinstance(schema, dict) else NO_SCHEMA
