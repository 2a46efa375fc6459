"""Nulls that tables add: a column of objects gives each object the fields of all, so missing ones become null."""

from collections.abc import Mapping
from typing import Any

LITERALS = ("default", "const")
"""Keywords of a schema whose null is a value if the schema allows null."""
CHOICES = ("anyOf", "oneOf")
NAMED = ("properties", "patternProperties", "$defs", "definitions")
"""Keywords whose value maps names to schemas."""


def strip_nulls(schema: Any, *, is_schema: bool = True) -> Any:
    """Return a tool or a JSON schema without the fields that are null. Nulls in lists stay, for example in `enum`.

    Set `is_schema` to False for a mapping of names to schemas.
    """
    if isinstance(schema, list):
        return [strip_nulls(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    kept = {
        name: strip_nulls(value, is_schema=not (is_schema and name in NAMED))
        for name, value in schema.items()
        if value is not None
    }
    literals = [name for name in LITERALS if is_schema and name in schema and name not in kept]
    return kept | dict.fromkeys(literals, None) if literals and allows_null(kept) else kept


def strip_padding(arguments: Any, schema: Any) -> Any:
    """Return the arguments of a call without the nulls that its schema does not allow.

    A null stays if its schema allows it, or requires the argument. Without a schema all stay.
    """
    if isinstance(arguments, list):
        items = schema.get("items") if isinstance(schema, Mapping) else None
        return [strip_padding(one, items) for one in arguments]
    properties = schema.get("properties") if isinstance(schema, Mapping) else None
    if not isinstance(arguments, dict) or not isinstance(properties, Mapping):
        return arguments
    required = schema.get("required") or ()
    others = schema.get("additionalProperties", False)
    return {
        name: strip_padding(value, properties.get(name))
        for name, value in arguments.items()
        if value is not None or name in required or allows_null(properties.get(name, others))
    }


def allows_null(schema: Any) -> bool:
    """Return whether null may be valid under a JSON schema. References and unknown keywords are not followed."""
    if not isinstance(schema, Mapping):
        return schema is True
    if schema.get("nullable"):
        return True
    kinds, enum = schema.get("type"), schema.get("enum")
    if kinds is not None and "null" not in ([kinds] if isinstance(kinds, str) else kinds):
        return False
    if enum is not None and None not in enum:
        return False
    choices = [schema[name] for name in CHOICES if schema.get(name)]
    return all(any(allows_null(one) for one in choice) for choice in choices)
