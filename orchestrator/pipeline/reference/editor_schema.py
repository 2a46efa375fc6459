"""The JSON schema by which editors complete and check a configuration file.

What it refuses is refused by the loader too, but for what only the loader can tell: settings of a named instance of a stage
beside its entry of `stages`, and values that it converts, such as a number in quotes. Nothing is required, since files may be
laid over each other.
"""

import json
from collections.abc import Iterable
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin

from temper.orchestrator.config.described import REQUIRED, Setting, part_of
from temper.orchestrator.pipeline.config import SCHEMA
from temper.orchestrator.pipeline.reference.catalog import all_settings
from temper.orchestrator.stages.stage import all_stages

Schema = dict[str, Any]
"""A JSON schema, or a part of one."""
DRAFT = "http://json-schema.org/draft-07/schema#"
"""The draft that editors know best."""
PLAIN = {bool: "boolean", int: "integer", float: "number", str: "string", NoneType: "null"}
INTERPOLATED: Schema = {"type": "string", "pattern": r"^\$\{.*\}$"}
"""What may stand in place of any value: `${oc.env:NAME}`. The pattern is for texts alone."""


def editor_schema() -> str:
    """Return the schema as the text of a file."""
    owners = dict.fromkeys(one.owner for one in all_settings().values())
    definitions = {_name(owner): _definition(owner) for owner in owners if owner is not SCHEMA}
    assert len(definitions) == len(owners) - 1, "two classes of settings have the same name"
    stages = {name: stage.settings for name, stage in all_stages().items()}
    own = {name: _entry(settings) for name, settings in stages.items()}
    whole = _definition(SCHEMA)
    whole["properties"]["stages"]["anyOf"][0]["items"] = _any_of([{"enum": list(own)}, *map(_only, own.items())])
    numbered = {f"^{name}-[0-9]+$": _held(settings) for name, settings in stages.items() if settings is not None}
    schema = {
        "$schema": DRAFT,
        "title": "The configuration of a run",
        **whole,
        "patternProperties": numbered,
        "definitions": definitions,
    }
    return json.dumps(schema, indent=1) + "\n"


def _definition(owner: type) -> Schema:
    """Return the schema of the settings of a class."""
    alike = [one for one in all_settings().values() if one.owner is owner]
    names = dict.fromkeys(one.name for one in alike)
    properties = {name: _property([one for one in alike if one.name == name]) for name in names}
    return {"type": "object", "properties": properties, "additionalProperties": False}


def _property(places: list[Setting]) -> Schema:
    """Return the schema of a setting, with the default that it has wherever it stands, if it has one."""
    first = places[0]
    defaults = {one.default_text for one in places}
    known = len(defaults) == 1 and not first.is_section and first.default_text != REQUIRED
    kinds = dict.fromkeys(one.kind.value for one in places if one.kind is not None)
    unit = f" Unit: {first.unit}." if first.unit else ""
    change = f" Change: {' or '.join(kinds)}." if kinds else ""
    return {
        **_schema_of(first.hint),
        "description": f"{first.meaning}{unit}{change}",
        **({"default": first.default} if known else {}),
    }


def _schema_of(hint: Any) -> Schema:
    """Return the schema of what a field of this type may be given."""
    origin, parts = get_origin(hint), get_args(hint)
    if hint is Any:
        return {}
    if origin is Literal:
        return _any_of([{"enum": list(parts)}, INTERPOLATED])
    if origin in (Union, UnionType):
        return _any_of([_schema_of(one) for one in parts])
    if origin is list:
        return _any_of([{"type": "array", "items": _schema_of(parts[0])}, INTERPOLATED])
    if origin is dict:
        return _any_of([{"type": "object", "additionalProperties": _schema_of(parts[1])}, INTERPOLATED])
    if part_of(hint)[0] is not None:
        return _held(hint)
    return {"type": PLAIN[hint]} if hint in (str, NoneType) else {**INTERPOLATED, "type": [PLAIN[hint], "string"]}


def _held(part: type) -> Schema:
    """Return the schema of a section: its settings, or the text that stands for them."""
    text = {"type": "string"} if "SHORTHAND" in vars(part) else INTERPOLATED
    return _any_of([{"$ref": f"#/definitions/{_name(part)}"}, text])


def _entry(settings: type | None) -> Schema:
    """Return the schema of what an entry of `stages` gives: a name, and settings of its stage."""
    names = {one.name for one in all_settings().values() if one.owner is settings}
    own = {name: {"$ref": f"#/definitions/{_name(settings)}/properties/{name}"} for name in sorted(names) if settings}
    name = {"type": "string", "description": "The name of this instance of the stage."}
    return {"type": ["object", "null"], "properties": {"name": name, **own}, "additionalProperties": False}


def _only(entry: tuple[str, Schema]) -> Schema:
    """Return the schema of a mapping of one stage to what its entry gives."""
    name, own = entry
    return {"type": "object", "properties": {name: own}, "additionalProperties": False, "minProperties": 1}


def _any_of(schemas: Iterable[Schema]) -> Schema:
    """Return the schema of what one of some accepts; those of which each is such a choice are not nested."""
    flat = [one for schema in schemas for one in (schema["anyOf"] if schema.keys() == {"anyOf"} else [schema])]
    return {"anyOf": [one for place, one in enumerate(flat) if one not in flat[:place]]}


def _name(owner: type | None) -> str:
    return "" if owner is None else owner.__name__
