"""The JSON schema by which editors complete and check a configuration file, from the schema that pydantic makes.

Nothing is required, since files may be laid over each other, and `${oc.env:NAME}` may replace any value. Only the loader checks
the settings under the name of an instance of a stage.
"""

import json
from typing import Any

from temper.orchestrator.config.schema import adapter
from temper.orchestrator.pipeline.config import SCHEMA
from temper.orchestrator.pipeline.reference.settings import REQUIRED, Setting, all_settings
from temper.orchestrator.stages.stage import all_stages

Schema = dict[str, Any]
"""A JSON schema, or a part of one."""
DRAFT = "http://json-schema.org/draft-07/schema#"
"""The draft that editors know best."""
REFERENCE = "#/definitions/{model}"
INTERPOLATED: Schema = {"type": "string", "pattern": r"^\$\{.*\}$"}
"""`${oc.env:NAME}`."""


def editor_schema() -> str:
    """Return the schema as the text of a file."""
    definitions: Schema = adapter(SCHEMA).json_schema(ref_template=REFERENCE)["$defs"]
    for name in definitions:
        alike = [one for one in all_settings().values() if one.owner.__name__ == name]
        _describe(definitions[name], alike)
    whole = definitions.pop(SCHEMA.__name__)
    stages = {name: stage.settings for name, stage in all_stages().items()}
    entries = [{"enum": list(stages)}, *(_entry(name, settings, definitions) for name, settings in stages.items())]
    whole["properties"]["stages"]["anyOf"][0] = {"type": "array", "items": {"anyOf": entries}}
    numbered = {f"^{name}-[0-9]+$": _reference(settings) for name, settings in stages.items() if settings is not None}
    head = {"$schema": DRAFT, "title": "The configuration of a run"}
    return json.dumps({**whole, **head, "patternProperties": numbered, "definitions": definitions}, indent=1) + "\n"


def _describe(definition: Schema, settings: list[Setting]) -> None:
    """Add meaning, unit and kind of change to each setting of a class, and the alternatives of its value."""
    definition.pop("required", None)
    for name, made in definition["properties"].items():
        places = [one for one in settings if one.name == name]
        first, defaults = places[0], {one.default_text for one in places}
        kinds = dict.fromkeys(one.kind.value for one in places if one.kind is not None)
        unit = f" Unit: {first.unit}." if first.unit else ""
        change = f" Change: {' or '.join(kinds)}." if kinds else ""
        value = {key: part for key, part in made.items() if key not in ("title", "default")}
        shorthand = first.part is not None and first.shape != "each" and "SHORTHAND" in vars(first.part)
        others = [{"type": "string"} if shorthand else INTERPOLATED]
        known = len(defaults) == 1 and not first.is_section and first.default_text != REQUIRED
        made.clear()
        made["anyOf"] = [*value.get("anyOf", [value]), *others] if value else [{}]
        made["description"] = f"{first.meaning}{unit}{change}"
        if known:
            made["default"] = first.default


def _entry(name: str, settings: type | None, definitions: Schema) -> Schema:
    """Return the schema of an entry of `stages` with settings of its own."""
    own = definitions[settings.__name__]["properties"] if settings is not None else {}
    given = {"name": {"type": "string", "description": "The name of this instance of the stage."}} | {
        setting: {"$ref": f"{_reference(settings)['$ref']}/properties/{setting}"} for setting in own
    }
    value = {"type": ["object", "null"], "properties": given, "additionalProperties": False}
    return {"type": "object", "properties": {name: value}, "additionalProperties": False, "minProperties": 1}


def _reference(settings: type | None) -> Schema:
    return {"$ref": REFERENCE.format(model="" if settings is None else settings.__name__)}
