"""The entries of `stages`: each is an instance of a stage, with a name and settings of its own where it has some.

    stages:
      - init
      - rl                                                              the settings under `rl`
      - rl: {name: rl_tools, shares: {tool_use: 1}, steps: 100}         the same but for these
      - eval

An instance without a name has that of its stage, a second one `rl-2`; an evaluation that of the model that it is about,
`eval-rl`. Its folder, checkpoints, metrics and progress go by this name.
"""

import re
from collections.abc import Iterator, Mapping
from typing import Any

from temper.orchestrator.config.text import merged
from temper.orchestrator.stages.registry import HELP
from temper.orchestrator.stages.stage import Role, Stage, StageInstance, all_stages

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]*")


def instances(stages: list[Any]) -> list[StageInstance]:
    """Return the instances that the entries of `stages` stand for. Raise `ValueError` with the entry that is none."""
    made: list[StageInstance] = []
    taken = {str(given["name"]) for _, given in map(_entry, stages) if "name" in given}
    model = next(name for name, stage in all_stages().items() if stage.role is Role.BEGIN)
    for number, entry in enumerate(stages):
        stage, given = _entry(entry)
        if stage.role is Role.BEGIN and (given or number):
            raise ValueError(
                f"stages: entry {number + 1} is {entry!r}; {stage.name} comes first, once, and takes no settings"
            )
        own = given.get("name")
        about = model if stage.role is Role.EVALUATE and own is None else None
        name = str(own) if own is not None else free_name(_usual_name(stage, about), taken)
        _check_name(name, stage.name, named=[one.name for one in made], own=own is not None, number=number)
        taken.add(name)
        settings = {key: value for key, value in given.items() if key != "name"}
        made.append(StageInstance(stage=stage, name=name, given=settings, about=about))
        model = name if stage.makes else model
    return made


def single_instance(stage: Stage[Any], *, about: str | None = None) -> StageInstance:
    """Return the instance that the command of a stage means where the list names none."""
    return StageInstance(stage=stage, name=_usual_name(stage, about), given={}, about=about)


def _usual_name(stage: Stage[Any], about: str | None) -> str:
    return stage.name if about is None else f"{stage.name}-{about}"


def with_settings(stages: list[Any], given: Mapping[str, Any]) -> tuple[list[Any], set[str]]:
    """Return the entries with further settings by instance, and which of the names in `given` are instances."""
    found = {one.name: number for number, one in enumerate(instances(stages)) if one.name in given}
    entries = list(stages)
    for name, number in found.items():
        stage, own = _entry(entries[number])
        if not isinstance(given[name], Mapping):
            raise ValueError(
                f"{name}={given[name]!r} must be settings of the stage {stage.name}, such as {{steps: 100}}"
            )
        entries[number] = {stage.name: merged(own, given[name])}
    return entries, set(found)


def settings_of(name: str, config: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the settings of an instance in the plain data of a configuration: those of its stage, over them its entry's.

    Those under its own name where `stages` lists no such instance. Raise `ValueError` as `instances`.
    """
    listed = {one.name: one for one in instances(config.get("stages") or [])}
    if name not in listed:
        return config.get(name) or {}
    return merged(config.get(listed[name].stage.name) or {}, listed[name].given)


def _entry(entry: Any) -> tuple[Stage[Any], Mapping[str, Any]]:
    """Return stage and settings of an entry, which is a name or a mapping of one name to settings."""
    if isinstance(entry, Mapping) and len(entry) == 1:
        ((stage, given),) = entry.items()
        given = {} if given is None else given
    else:
        stage, given = entry, {}
    if stage not in tuple(HELP) or not isinstance(given, Mapping):
        raise ValueError(
            f"stages: {entry!r} is no stage; there are {', '.join(HELP)}, with settings of its own in the form "
            f"`- rl: {{name: rl_tools, steps: 100}}`"
        )
    return all_stages()[stage], given


def free_name(name: str, taken: set[str]) -> str:
    """Return the name, with a number where it is taken."""
    return next(one for one in _numbered(name) if one not in taken)


def _numbered(name: str) -> Iterator[str]:
    yield name
    number = 2
    while True:
        yield f"{name}-{number}"
        number += 1


def _check_name(name: str, stage: str, *, named: list[str], own: bool, number: int) -> None:
    if not NAME.fullmatch(name):
        raise ValueError(f"stages: the name {name!r} of a stage must consist of letters, digits, _ and -")
    if name in named:
        raise ValueError(f"stages: two stages have the name {name!r}; give one of them another name")
    if own and name in HELP and name != stage:
        raise ValueError(f"stages: entry {number + 1} is of the stage {stage} but has the name of the stage {name}")
