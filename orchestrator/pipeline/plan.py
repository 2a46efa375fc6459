"""Which stages of a list are still to run, given what a run has done: never one that would take the model back.

Progress is kept by the names of instances, so the list may be edited. What can't be done any more is refused: a stage that
stands before one that has trained on without it, and one that was interrupted and whose model is no longer the newest.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from temper.orchestrator.pipeline.stage_list import free_name, single_instance
from temper.orchestrator.run.folder import RunState
from temper.orchestrator.stages.stage import Role, Stage, StageInstance

REMEDY = "put it behind, take it out, or begin a run of its own from an older checkpoint with `temper fork`"


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What a run does next."""

    ahead: list[StageInstance]
    notes: list[str]
    """What people should know of it."""


def plan(listed: Sequence[StageInstance], state: RunState, *, steps: dict[str, int]) -> Plan:
    """Return the instances that are still to run, in order. `steps` are those that the configuration wants of each one.

    Raise `ValueError` with the reason where the list can't be continued.
    """
    done = _still_done(listed, state, steps)
    _check_same(listed, state)
    _check_order([one.name for one in listed if one.stage.makes and one.name in done], list(done))
    last = max((place for place, one in enumerate(listed) if one.stage.makes and one.name in done), default=-1)
    ahead: list[StageInstance] = []
    taken = {one.name for one in listed}
    newest = state.label if state.label in done else None  # without one, `sft` goes on that is the newest itself
    for place, one in enumerate(listed):
        if place > last and one.about not in (None, newest) and newest is not None:
            one = replace(one, name=free_name(f"{one.stage.name}-{newest}", taken), about=newest)
            taken.add(one.name)
        if one.name in done and not (one.stage.role is Role.REPORT and ahead):
            continue
        if place < last:
            raise ValueError(
                f"stages: {one.name} stands before {listed[last].name}, which is done and did not wait for it; {REMEDY}"
            )
        ahead.append(one)
        newest = one.name if one.stage.makes else newest
    _check_begun([one for one in ahead if one.stage.trains], state)
    return Plan(ahead=ahead, notes=_left_out(listed, ahead, state))


def single(stage: Stage[Any], listed: Sequence[StageInstance], state: RunState, *, steps: dict[str, int]) -> Plan:
    """Return what the command of a stage does: its first instance that is not done, to evaluate or report in any case.

    Raise `ValueError` where it can't go on.
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
    more = f"; raise {own[-1].name}.steps to go on, or add one more `- {stage.name}` to stages" if stage.trains else ""
    return Plan(ahead=[], notes=[f"done already, and the model stays as it is: {names}{more}"])


def _still_done(listed: Sequence[StageInstance], state: RunState, steps: dict[str, int]) -> dict[str, int]:
    """Return what is done, without the last trained stage where it shall go on, and without what came after it.

    Raise `ValueError` where a stage shall go on that others have trained on from.
    """
    done = dict(state.done)
    for one in listed:
        if not (one.stage.trains and one.name in done and steps[one.name] > done[one.name]):
            continue
        began = list(state.began)
        later = began[began.index(one.name) + 1 :] if one.name in began else began
        if state.label != one.name or later:
            raise ValueError(
                f"{one.name} was done after {done[one.name]} steps and {later[0] if later else state.label} went on "
                f"from its model; {one.name}.steps={steps[one.name]} would take the run back: add one more "
                f"`- {one.stage.name}` to stages instead, or fork the run at {one.name}/{done[one.name]}"
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
        raise ValueError(f"stages has {', '.join(listed)} in this order, but they were done as {', '.join(wanted)}")


def _check_begun(training: list[StageInstance], state: RunState) -> None:
    """Refuse an interrupted stage that would go on from a checkpoint which does not come from the newest model."""
    for place, one in enumerate(training):
        before = state.began.get(one.name)
        if before is None or one.name == state.label:
            continue
        if place:
            raise ValueError(
                f"stages: {one.name} was begun, and {training[0].name} stands before it; it would go on without what "
                f"{training[0].name} learns; {REMEDY}"
            )
        if before != state.model:
            raise ValueError(
                f"stages: {one.name} was begun with {before}, and the newest model is {state.model} (of {state.label}); "
                f"give it another name to begin it anew"
            )


def _left_out(listed: Sequence[StageInstance], ahead: list[StageInstance], state: RunState) -> list[str]:
    """Return a note on stages that are done though the list does not name them, where something goes on from their model."""
    names = {one.name for one in listed}
    missing = [name for name in state.done if name in state.began and name not in names]
    if not missing or not ahead:
        return []
    return [f"{ahead[0].name} goes on from the model of {state.label}; done though not in stages: {', '.join(missing)}"]
