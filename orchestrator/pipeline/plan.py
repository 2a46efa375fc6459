"""The instances of stages in `stages`, and the plan of a run: the instances still to run.

    stages:
      - init
      - rl                                                              the settings under `rl`
      - rl: {name: rl_tools, shares: {tool_use: 1}, steps: 100}         the same with overrides
      - eval

An unnamed instance has the name of its stage, a second one `rl-2`. An evaluation is named after its model, `eval-rl`. Folder,
checkpoints, metrics and progress use this name, so the list may be edited. A plan never returns to an earlier model. It
rejects a stage before one that has trained without it, and an interrupted stage whose model is not the newest.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain, count
from typing import Any

from temper.orchestrator.config.schema import expand
from temper.orchestrator.config.text import merge
from temper.orchestrator.run.folder import RunState
from temper.orchestrator.stages.registry import all_stages
from temper.orchestrator.stages.stage import Role, Stage, StageInstance

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,99}")


def instances(stages: list[Any]) -> list[StageInstance]:
    """Return the instances of the entries of `stages`. Raise `ValueError` with an invalid entry."""
    made: list[StageInstance] = []
    taken = {str(given["name"]) for _, given in map(_entry, stages) if "name" in given}
    model = next(name for name, stage in all_stages().items() if stage.role is Role.BEGIN)
    for number, entry in enumerate(stages):
        stage, given = _entry(entry)
        if stage.role is Role.BEGIN and (given or number):
            raise ValueError(
                f"stages: entry {number + 1} is {entry!r}; {stage.name} must be the first entry, once, without settings"
            )
        own = given.get("name")
        about = model if stage.role is Role.EVALUATE and own is None else None
        name = str(own) if own is not None else free_name(_usual_name(stage, about), taken)
        _check_name(name, stage.name, named=[one.name for one in made], own=own is not None, number=number)
        taken.add(name)
        settings = {key: value for key, value in given.items() if key != "name"}
        made.append(StageInstance(stage=stage, name=name, overrides=settings, about=about))
        model = name if stage.makes else model
    return made


def single_instance(stage: Stage[Any], *, about: str | None = None) -> StageInstance:
    return StageInstance(stage=stage, name=_usual_name(stage, about), overrides={}, about=about)


def _usual_name(stage: Stage[Any], about: str | None) -> str:
    return stage.name if about is None else f"{stage.name}-{about}"


def with_settings(stages: list[Any], given: Mapping[str, Any]) -> tuple[list[Any], set[str]]:
    """Return the entries with further settings by instance, and the names in `given` that are instances."""
    found = {one.name: number for number, one in enumerate(instances(stages)) if one.name in given}
    entries = list(stages)
    for name, number in found.items():
        stage, own = _entry(entries[number])
        if not isinstance(given[name], Mapping):
            raise ValueError(
                f"{name}={given[name]!r} must be settings of the stage {stage.name}, such as {{steps: 100}}"
            )
        under = (
            own if stage.settings is None else expand(stage.settings, own)
        )  # else `data: {split: b}` drops `data: a`
        entries[number] = {stage.name: merge(under, given[name])}
    return entries, set(found)


def _entry(entry: Any) -> tuple[Stage[Any], Mapping[str, Any]]:
    if isinstance(entry, Mapping) and len(entry) == 1:
        ((stage, given),) = entry.items()
        given = {} if given is None else given
    else:
        stage, given = entry, {}
    if stage not in tuple(all_stages()) or not isinstance(given, Mapping):
        raise ValueError(
            f"stages: {entry!r} is no stage; use one of {', '.join(all_stages())}, with settings in the form "
            f"`- rl: {{name: rl_tools, steps: 100}}`"
        )
    return all_stages()[stage], given


def free_name(name: str, taken: set[str]) -> str:
    """Return the name, with a number if it is taken."""
    numbered = (f"{name}-{number}" for number in count(2))
    return next(one for one in chain([name], numbered) if one not in taken)


def _check_name(name: str, stage: str, *, named: list[str], own: bool, number: int) -> None:
    if not NAME.fullmatch(name):
        raise ValueError(f"stages: the name {name!r} of a stage must consist of at most 100 letters, digits, _ and -")
    if name in named:
        raise ValueError(f"stages: two stages have the name {name!r}; give one of them another name")
    if own and name in all_stages() and name != stage:
        raise ValueError(f"stages: entry {number + 1} is of the stage {stage} but has the name of the stage {name}")


REMEDY = "move it after, remove it, or start another run from an older checkpoint with `temper fork`"


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The next stages of a run."""

    ahead: list[StageInstance]
    notes: list[str]


def plan(listed: Sequence[StageInstance], state: RunState, *, steps: dict[str, int]) -> Plan:
    """Return the instances still to run, in order. `steps` are the configured ones of each.

    Raise `ValueError` if the list cannot be resumed.
    """
    done = _still_done(listed, state, steps)
    _check_same(listed, state)
    _check_order([one.name for one in listed if one.stage.makes and one.name in done], list(done))
    last = max((place for place, one in enumerate(listed) if one.stage.makes and one.name in done), default=-1)
    ahead: list[StageInstance] = []
    taken = {one.name for one in listed}
    newest = state.label if state.label in done else None  # without one, `sft` continues and is the newest itself
    for place, one in enumerate(listed):
        if place > last and one.about not in (None, newest) and newest is not None:
            one = replace(one, name=free_name(f"{one.stage.name}-{newest}", taken), about=newest)
            taken.add(one.name)
        if one.name in done and not (one.stage.role is Role.REPORT and ahead):
            continue
        if place < last:
            raise ValueError(f"stages: {one.name} comes before {listed[last].name}, which is done without it; {REMEDY}")
        ahead.append(one)
        newest = one.name if one.stage.makes else newest
    _check_begun([one for one in ahead if one.stage.trains], state)
    return Plan(ahead=ahead, notes=_left_out(listed, ahead, state))


def single(stage: Stage[Any], listed: Sequence[StageInstance], state: RunState, *, steps: dict[str, int]) -> Plan:
    """Return the plan of a single stage: its first unfinished instance. Evaluations and reports always run.

    Raise `ValueError` if it cannot be resumed.
    """
    if stage.role is Role.EVALUATE:
        return Plan(ahead=[single_instance(stage, about=state.label)], notes=[])
    own = [one for one in listed if one.stage is stage] or [single_instance(stage)]
    if stage.role is Role.REPORT:
        return Plan(ahead=own[:1], notes=[])
    done = _still_done(own, state, steps)
    _check_same(own, state)
    left = [one for one in own if one.name not in done]
    if left:
        _check_begun([one for one in left[:1] if one.stage.trains], state)
        return Plan(ahead=left[:1], notes=[])
    names = ", ".join(one.name for one in own)
    more = (
        f"; raise {own[-1].name}.steps to continue, or add one more `- {stage.name}` to stages" if stage.trains else ""
    )
    return Plan(ahead=[], notes=[f"done already, and the model is unchanged: {names}{more}"])


def _still_done(listed: Sequence[StageInstance], state: RunState, steps: dict[str, int]) -> dict[str, int]:
    """Return the finished stages. The last trained one continues if it has more steps now, as do all after it.

    Raise `ValueError` for more steps of a stage whose model others have trained.
    """
    done = dict(state.done)
    for one in listed:
        if not (one.stage.trains and one.name in done and steps[one.name] > done[one.name]):
            continue
        began = list(state.began)
        later = began[began.index(one.name) + 1 :] if one.name in began else began
        if state.label != one.name or later:
            raise ValueError(
                f"{one.name} ended after {done[one.name]} steps and {later[0] if later else state.label} trained its model, so "
                f"{one.name}.steps={steps[one.name]} is too late: add one more `- {one.stage.name}` to stages instead, or fork "
                f"the run at {one.name}/{done[one.name]}"
            )
        order = list(done)
        for name in order[order.index(one.name) :]:
            del done[name]
    return done


def _check_same(listed: Sequence[StageInstance], state: RunState) -> None:
    for one in listed:
        was, now = state.stages.get(one.name, one.stage.name), one.stage.name
        if was != now:
            raise ValueError(f"stages: {one.name} was a stage {was} and is now {now}; give it another name")


def _check_order(listed: list[str], done: list[str]) -> None:
    wanted = [name for name in done if name in listed]
    if listed != wanted:
        raise ValueError(
            f"stages has {', '.join(listed)} in this order, but the run did {', '.join(wanted)}; reorder them"
        )


def _check_begun(training: list[StageInstance], state: RunState) -> None:
    for place, one in enumerate(training):
        before = state.began.get(one.name)
        if before is None or one.name == state.label:
            continue
        if place:
            raise ValueError(
                f"stages: {one.name} has started, and {training[0].name} before it has not, so {one.name} would continue "
                f"without it; {REMEDY}"
            )
        if before != state.model:
            raise ValueError(
                f"stages: {one.name} started from {before}, but the newest model is {state.model} (of {state.label}); give it "
                f"another name to start it again"
            )


def _left_out(listed: Sequence[StageInstance], ahead: list[StageInstance], state: RunState) -> list[str]:
    names = {one.name for one in listed}
    missing = [name for name in state.done if name in state.began and name not in names]
    if not missing or not ahead:
        return []
    return [f"{ahead[0].name} continues from the model of {state.label}; done but not in stages: {', '.join(missing)}"]
