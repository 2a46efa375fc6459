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
from dataclasses import dataclass
from typing import Any

STAGES = ("init", "sft", "self_sft", "dpo", "rl", "distill", "eval", "report")
TRAINING = ("sft", "self_sft", "dpo", "rl", "distill")
"""The stages that make a new model of the newest one."""
MAKING = ("init", *TRAINING)
"""The stages that leave a model."""
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]*")


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """An instance of a stage."""

    stage: str
    """What it does: one of `STAGES`."""
    name: str
    """What its files and metrics are called."""
    given: Mapping[str, Any]
    """The settings that its entry gives, over those of its stage."""
    about: str | None = None
    """Of an evaluation that has no name of its own: the instance whose model it evaluates."""

    @property
    def trains(self) -> bool:
        """Whether it makes a new model of the newest one."""
        return self.stage in TRAINING

    @property
    def makes(self) -> bool:
        """Whether it leaves a model."""
        return self.stage in MAKING


def instances(stages: list[Any]) -> list[Stage]:
    """The instances that the entries of `stages` stand for. Raises `ValueError` with the entry that is none."""
    made: list[Stage] = []
    taken = {str(given["name"]) for _, given in map(_entry, stages) if "name" in given}
    model = "init"
    for number, entry in enumerate(stages):
        stage, given = _entry(entry)
        if stage == "init" and (given or number):
            raise ValueError(f"stages: entry {number + 1} is {entry!r}; init comes first, once, and takes no settings")
        own = given.get("name")
        about = model if stage == "eval" and own is None else None
        name = str(own) if own is not None else free_name(stage if about is None else f"eval-{about}", taken)
        _check_name(name, stage, named=[one.name for one in made], own=own is not None, number=number)
        taken.add(name)
        made.append(Stage(stage=stage, name=name, given={k: v for k, v in given.items() if k != "name"}, about=about))
        model = name if stage in MAKING else model
    return made


def with_settings(stages: list[Any], given: Mapping[str, Any]) -> tuple[list[Any], set[str]]:
    """The entries with further settings by instance, and which of the names in `given` are instances."""
    found = {one.name: number for number, one in enumerate(instances(stages)) if one.name in given}
    entries = list(stages)
    for name, number in found.items():
        stage, own = _entry(entries[number])
        entries[number] = {stage: _merged(own, given[name])}
    return entries, set(found)


def _entry(entry: Any) -> tuple[str, Mapping[str, Any]]:
    """Stage and settings of an entry, which is a name or a mapping of one name to settings."""
    if isinstance(entry, Mapping) and len(entry) == 1:
        ((stage, given),) = entry.items()
        given = {} if given is None else given
    else:
        stage, given = entry, {}
    if stage not in STAGES or not isinstance(given, Mapping):
        raise ValueError(
            f"stages: {entry!r} is no stage; there are {', '.join(STAGES)}, with settings of its own in the form "
            f"`- rl: {{name: rl_tools, steps: 100}}`"
        )
    return str(stage), given


def free_name(name: str, taken: set[str]) -> str:
    """The name, with a number where it is taken."""
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
    if own and name in STAGES and name != stage:
        raise ValueError(f"stages: entry {number + 1} is of the stage {stage} but has the name of the stage {name}")


def _merged(under: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """Nested mappings merged, the second winning."""
    merged = dict(under)
    for key, value in over.items():
        below = merged.get(key)
        merged[key] = _merged(below, value) if isinstance(below, Mapping) and isinstance(value, Mapping) else value
    return merged
