"""Validate a JSON value against a JSON schema with `jsonschema`, within bounds on the work that a schema may cause.

All drafts that `jsonschema` knows are supported by `$schema`; the default is 2020-12. Nothing is fetched: a schema may
refer only to itself. `format` is an annotation and is not checked. Patterns use Python syntax and are searched by `regex`,
which has a deadline. `temper.rewards.json_answers` bounds the values. This module bounds the references of a schema to
itself and the time of its patterns.
"""

import json
import time
from collections.abc import Callable, Iterator
from typing import Any

import regex
from jsonschema import Draft202012Validator
from jsonschema.exceptions import SchemaError, ValidationError
from jsonschema.protocols import Validator
from jsonschema.validators import extend, validator_for
from referencing import Registry
from referencing.exceptions import Unresolvable
from referencing.jsonschema import specification_with

MAX_SCHEMA_CHARACTERS = 65_536
MAX_REFERENCES = 8192
PATTERN_S = 1.0
"""Total seconds for all patterns of a schema on one value."""
NEWEST = "https://json-schema.org/draft/2020-12/schema"
REFERENCES = ("$ref", "$dynamicRef", "$recursiveRef")
UNKNOWN = extend(Draft202012Validator)
"""The rules of the newest draft, for a schema without `$schema`."""
Keyword = Callable[[Any, Any, Any, Any], Iterator[ValidationError]]


class TooMuchWork(ValueError):
    """A value made a schema refer to itself too often, or its patterns ran too long."""


class UnusableSchema(ValueError):
    """A schema refers to itself without end, or to a missing part."""


def require_schema(schema: Any) -> Any:
    """Return the schema if it is usable. Raise `ValueError` with the reason if it is invalid, too large or refers to other
    documents.
    """
    if not isinstance(schema, dict | bool):
        raise ValueError(f"a JSON schema must be an object, not {schema!r:.80}")
    try:
        _check(schema)
    except RecursionError as error:
        raise ValueError("the JSON schema is nested too deeply") from error
    return schema


def _check(schema: Any) -> None:
    if len(json.dumps(schema)) > MAX_SCHEMA_CHARACTERS:
        raise ValueError(f"the JSON schema has more than {MAX_SCHEMA_CHARACTERS} characters")
    known = validator_for(schema, default=UNKNOWN)
    if known is UNKNOWN and isinstance(schema, dict) and "$schema" in schema:
        raise ValueError(f"the JSON schema has an unknown $schema: {schema['$schema']!r:.80}")
    try:
        known.check_schema(schema)
    except SchemaError as error:
        raise ValueError(f"invalid JSON schema: {error.message}"[:300]) from error
    for inner in _objects(schema):
        _check_closed(inner, schema)


def first_error(value: Any, schema: Any) -> str | None:
    """Return why a value is invalid under a checked schema, in one line, or None if it is valid.

    Raise `TooMuchWork`, or `UnusableSchema` if the value reveals a fault that the check of the schema missed.
    """
    validator = _bounded(validator_for(schema, default=Draft202012Validator))(schema, registry=Registry())
    try:
        error = next(validator.iter_errors(value), None)
    except (RecursionError, Unresolvable) as fault:
        what = "to itself without end" if isinstance(fault, RecursionError) else f"to a missing part: {fault}"
        raise UnusableSchema(f"the JSON schema refers {what}"[:200]) from fault
    return None if error is None else f"{error.json_path}: {error.message}"[:200]


def _objects(schema: Any) -> Iterator[dict[str, Any]]:
    if isinstance(schema, dict):
        yield schema
    for inner in schema.values() if isinstance(schema, dict) else schema if isinstance(schema, list) else ():
        yield from _objects(inner)


def _check_closed(inner: dict[str, Any], schema: dict[str, Any]) -> None:
    """Raise `ValueError` if a part of a schema refers outside it or can't be bounded."""
    for name in REFERENCES:
        reference = inner.get(name)
        if isinstance(reference, str) and not reference.startswith("#"):
            raise ValueError(
                f"the JSON schema refers to {reference!r:.80}, which is never fetched; move it under $defs"
            )
        if isinstance(reference, str) and not _resolves(reference, schema):
            raise ValueError(f"the JSON schema refers to {reference!r:.80}, which is missing")
    for pattern in (inner.get("pattern"), *_names(inner.get("patternProperties"))):
        if isinstance(pattern, str):
            try:
                regex.compile(pattern)
            except regex.error as error:
                raise ValueError(
                    f"the pattern {pattern!r:.80} of the JSON schema is not valid in Python: {error}"
                ) from error
    if "unevaluatedProperties" in inner and any("patternProperties" in one for one in _objects(schema)):
        raise ValueError("unevaluatedProperties together with patternProperties is not supported")


def _names(value: Any) -> list[str]:
    return list(value) if isinstance(value, dict) else []


def _resolves(reference: str, schema: dict[str, Any]) -> bool:
    draft = specification_with(schema.get("$schema", NEWEST))
    registry: Registry[Any] = Registry()
    try:
        registry.resolver_with_root(draft.create_resource(schema)).lookup(reference)
    except Unresolvable:
        return False
    return True


def _bounded(known: type[Validator]) -> type[Validator]:
    """Return a validator for one use with bounded references and patterns."""
    references, spent = 0, 0.0

    def counted(keyword: Keyword) -> Keyword:
        def check(validator: Any, value: Any, instance: Any, schema: Any) -> Iterator[ValidationError]:
            nonlocal references
            references += 1
            if references > MAX_REFERENCES:
                raise TooMuchWork(f"the schema referred to itself more than {MAX_REFERENCES} times")
            yield from keyword(validator, value, instance, schema)

        return check

    def found(pattern: str, text: str) -> bool:
        nonlocal spent
        start = time.thread_time()
        try:
            matched = regex.search(pattern, text, timeout=PATTERN_S)
        except TimeoutError:
            matched, spent = None, PATTERN_S
        spent += time.thread_time() - start
        if spent > PATTERN_S:
            raise TooMuchWork(f"the patterns of the schema took more than {PATTERN_S:.0f} s")
        return matched is not None

    def pattern(validator: Any, value: str, instance: Any, _schema: Any) -> Iterator[ValidationError]:
        if validator.is_type(instance, "string") and not found(value, instance):
            yield ValidationError(f"{instance!r:.80} does not match {value!r:.80}")

    def properties(validator: Any, value: dict[str, Any], instance: Any, _schema: Any) -> Iterator[ValidationError]:
        for one, name in _pairs(validator, value, instance):
            if found(one, name):
                yield from validator.descend(instance[name], value[one], path=name, schema_path=one)

    def additional(validator: Any, value: Any, instance: Any, schema: Any) -> Iterator[ValidationError]:
        matched = {
            name for one, name in _pairs(validator, schema.get("patternProperties", {}), instance) if found(one, name)
        }
        for name in instance if validator.is_type(instance, "object") else ():
            if name not in matched and name not in schema.get("properties", {}):
                yield from validator.descend(instance[name], value, path=name)

    keywords = {name: counted(known.VALIDATORS[name]) for name in REFERENCES if name in known.VALIDATORS}
    keywords |= {"pattern": pattern, "patternProperties": properties, "additionalProperties": additional}
    return extend(known, validators=keywords | {"uniqueItems": unique})


def _pairs(validator: Any, patterns: dict[str, Any], instance: Any) -> Iterator[tuple[str, str]]:
    if validator.is_type(instance, "object"):
        yield from ((one, name) for one in patterns for name in instance)


def unique(validator: Any, value: bool, instance: Any, _schema: Any) -> Iterator[ValidationError]:
    if value and validator.is_type(instance, "array") and len(set(map(_hashed, instance))) < len(instance):
        yield ValidationError(f"{instance!r:.80} has the same item twice")


def _hashed(value: Any) -> Any:
    if isinstance(value, bool):
        return ("bool", value)
    if isinstance(value, list):
        return ("list", tuple(map(_hashed, value)))
    if isinstance(value, dict):
        return ("dict", frozenset((name, _hashed(inner)) for name, inner in value.items()))
    return value
