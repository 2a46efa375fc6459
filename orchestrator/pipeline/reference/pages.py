"""The page of all settings in Markdown, and the JSON schema of a configuration file for editors.

The schema is based on pydantic's. Nothing is required, since files may be layered, and `${oc.env:NAME}` may replace any
value. Settings of an instance with its own name, such as `rl_tools`, belong in its entry of `stages`: only the loader knows
such a section.
"""

import json
from types import GenericAlias
from typing import Any

from pydantic import ConfigDict, TypeAdapter

from temper.orchestrator.pipeline.config import SCHEMA
from temper.orchestrator.pipeline.profiles.inputs import PROFILED
from temper.orchestrator.pipeline.reference.resolved_file import CHANGES
from temper.orchestrator.pipeline.reference.settings import REQUIRED, Setting, all_settings, class_text
from temper.orchestrator.stages.registry import all_stages

HEAD = """# All settings

A configuration is a YAML file of these settings, and `key=value` on the command line overrides it. Only `name`
must be given, and an environment under `envs` for the stages that take tasks of one: all but `sft` and `dpo` on rows of their
own. This page is made from the classes that declare the settings (`make settings`).

    temper config --explain rl.loss.error_guard                 # one setting, or a section
    temper config configs/demo.yaml --explain rl.max_lag        # its value there too, and why
    temper config configs/demo.yaml --resolved                  # all that a run would have
    temper config --diff configs/demo.yaml runs/demo            # what differs
    temper config --schema > settings.schema.json               # for editors

An editor with `yaml-language-server` completes and checks a file whose first line names the schema:
`# yaml-language-server: $schema=settings.schema.json`.

`*` stands for the name of an environment. The settings of a stage are for all its instances; an entry of `stages` may give
others for one: `- rl: {name: rl_tools, steps: 100}`. A text in place of `data`, `eval_data` and `teacher` is its `path`. What
says "or by profile" is chosen for the hardware and the model where it is not given ([hardware.md](hardware.md)).

What a change means to a resumed run:
"""
COLUMNS = "| setting | type | default | unit | change | meaning |\n|---|---|---|---|---|---|"


def settings_page() -> str:
    changes = "\n".join(f"- `{kind.value}`: {text}." for kind, text in CHANGES.items())
    settings = list(all_settings().values())
    owners = dict.fromkeys(one.owner for one in settings)
    tables = [_table([one for one in settings if one.owner is owner]) for owner in owners]
    return "\n\n".join([f"{HEAD}\n{changes}", *tables]) + "\n"


def _table(alike: list[Setting]) -> str:
    """Return the section of the page for one class, in all places that use it."""
    sections = list(dict.fromkeys(one.section for one in alike))
    head = "## " + ", ".join(f"`{section}`" for section in sections) if sections != [""] else "## The run"
    names = dict.fromkeys(one.name for one in alike)
    rows = [_row([one for one in alike if one.name == name]) for name in names]
    about = [text, ""] if (text := class_text(alike[0].owner)) else []
    return "\n".join([head, "", *about, COLUMNS, *rows])


def _row(places: list[Setting]) -> str:
    first = places[0]
    kinds = _by_place([(one, one.kind.value if one.kind is not None else "") for one in places])
    defaults = _by_place([(one, _default(one)) for one in places])
    kind = "section" if first.is_section else first.type
    cells = (f"`{first.name}`", kind, defaults, first.unit, kinds, first.meaning)
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"


def _default(setting: Setting) -> str:
    mark = " or by profile" if setting.key in PROFILED else ""
    return f"`{setting.default_text}`{mark}" if setting.default_text else ""


def _by_place(values: list[tuple[Setting, str]]) -> str:
    """Return the most common value, and the others with their sections."""
    texts = [text for _, text in values]
    usual = max(dict.fromkeys(texts), key=texts.count)
    others = [f"{one.section}: {text}" for one, text in values if text != usual]
    return "; ".join([usual, *others])


Schema = dict[str, Any]
DRAFT = "http://json-schema.org/draft-07/schema#"
REFERENCE = "#/definitions/{model}"
INTERPOLATED: Schema = {"type": "string", "pattern": r"^\$\{.*\}$"}
"""`${oc.env:NAME}`."""


def editor_schema() -> str:
    named: Any = GenericAlias(dict, (str, SCHEMA))  # a schema of its own has no configuration
    definitions: Schema = TypeAdapter(named, config=ConfigDict(extra="forbid")).json_schema(ref_template=REFERENCE)[
        "$defs"
    ]
    for name in definitions:
        alike = [one for one in all_settings().values() if one.owner.__name__ == name]
        _describe(definitions[name], alike)
    whole = definitions.pop(SCHEMA.__name__)
    stages = {name: stage.settings for name, stage in all_stages().items()}
    entries = [
        {"enum": list(stages)},
        INTERPOLATED,
        *(_entry(name, settings, definitions) for name, settings in stages.items()),
    ]
    whole["properties"]["stages"]["anyOf"][0] = {"type": "array", "items": {"anyOf": entries}}
    instances = {
        f"^{name}-[A-Za-z0-9_-]+$": _reference(settings) for name, settings in stages.items() if settings is not None
    }
    head = {"$schema": DRAFT, "title": "The configuration of a run"}
    return json.dumps({**whole, **head, "patternProperties": instances, "definitions": definitions}, indent=1) + "\n"


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
        others += [{"type": "null"}] if first.part is not None and "NULL" in vars(first.part) else []
        known = len(defaults) == 1 and not first.is_section and first.default_text != REQUIRED
        made.clear()
        made["anyOf"] = [*map(_with_references, value.get("anyOf", [value])), *others] if value else [{}]
        made["description"] = f"{first.meaning}{unit}{change}"
        if known:
            made["default"] = first.default


def _with_references(value: Schema) -> Schema:
    """Return the schema of a value whose entries, if it is a list or a mapping, may be `${oc.env:NAME}`."""
    inner = {key: part for key, part in value.items() if key in ("items", "additionalProperties") and part}
    return value | {key: {"anyOf": [part, INTERPOLATED]} for key, part in inner.items() if isinstance(part, dict)}


def _entry(name: str, settings: type | None, definitions: Schema) -> Schema:
    own = definitions[settings.__name__]["properties"] if settings is not None else {}
    given = {"name": {"type": "string", "description": "The name of this instance of the stage."}} | {
        setting: {"$ref": f"{_reference(settings)['$ref']}/properties/{setting}"} for setting in own
    }
    value = {"type": ["object", "null"], "properties": given, "additionalProperties": False}
    return {"type": "object", "properties": {name: value}, "additionalProperties": False, "minProperties": 1}


def _reference(settings: type | None) -> Schema:
    return {"$ref": REFERENCE.format(model="" if settings is None else settings.__name__)}
