"""Which stages of a list are still to run, given what a run has done: never one that would take the model back.

Progress is kept by the names of instances, so the list may be edited. What can't be done any more is refused: a stage that
stands before one that has trained on without it, and one that was interrupted and whose model is no longer the newest.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from orchestrator.run.folder import RunState
from orchestrator.pipeline.stage_list import Stage, free_name

REMEDY = (
    "put it behind, take it out, or begin a run of its own from an older checkpoint with `python -m orchestrator fork`"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What a run does next."""

    ahead: list[Stage]
    notes: list[str]
    """What people should know of it."""


def plan(stages: Sequence[Stage], state: RunState, *, steps: dict[str, int]) -> Plan:
    """The instances that are still to run, in order. `steps` are those that the configuration wants of each instance.

    Raises `ValueError` with the reason where the list can't be continued.
    """
    done = _still_done(stages, state, steps)
    _check_same(stages, state)
    _check_order([stage.name for stage in stages if stage.makes and stage.name in done], list(done))
    last = max((place for place, stage in enumerate(stages) if stage.makes and stage.name in done), default=-1)
    ahead: list[Stage] = []
    taken = {stage.name for stage in stages}
    newest = state.label if state.label in done else None  # without one, `sft` goes on that is the newest itself
    for place, stage in enumerate(stages):
        if place > last and stage.about not in (None, newest) and newest is not None:
            stage = replace(stage, name=free_name(f"eval-{newest}", taken), about=newest)
            taken.add(stage.name)
        if stage.name in done and not (stage.stage == "report" and ahead):
            continue
        if place < last:
            raise ValueError(
                f"stages: {stage.name} stands before {stages[last].name}, which is done and did not wait for it; {REMEDY}"
            )
        ahead.append(stage)
        newest = stage.name if stage.makes else newest
    _check_begun([stage for stage in ahead if stage.trains], state)
    return Plan(ahead=ahead, notes=_left_out(stages, ahead, state))


def single(stage: str, stages: Sequence[Stage], state: RunState, *, steps: dict[str, int]) -> Plan:
    """What the command of one stage does: its first instance that is not done; an evaluation or a report in any case.

    Raises `ValueError` where it can't go on.
    """
    own = [one for one in stages if one.stage == stage]
    if stage == "eval":
        return Plan(ahead=[Stage(stage=stage, name=f"eval-{state.label}", given={}, about=state.label)], notes=[])
    own = own or [Stage(stage=stage, name=stage, given={})]
    if stage == "report":
        return Plan(ahead=own[:1], notes=[])
    done = _still_done(own, state, steps)
    _check_same(own, state)
    left = [one for one in own if one.name not in done]
    if left:
        _check_begun([one for one in left[:1] if one.trains], state)
        return Plan(ahead=left[:1], notes=[])
    names = ", ".join(one.name for one in own)
    more = "" if stage == "init" else f"; raise {own[-1].name}.steps to go on, or add one more `- {stage}` to stages"
    return Plan(ahead=[], notes=[f"done already, and the model stays as it is: {names}{more}"])


def _still_done(stages: Sequence[Stage], state: RunState, steps: dict[str, int]) -> dict[str, int]:
    """What is done, without the last trained stage where it shall go on, and without what came after it.

    Raises `ValueError` where a stage shall go on that others have trained on from.
    """
    done = dict(state.done)
    for stage in stages:
        if not (stage.trains and stage.name in done and steps[stage.name] > done[stage.name]):
            continue
        began = list(state.began)
        later = began[began.index(stage.name) + 1 :] if stage.name in began else began
        if state.label != stage.name or later:
            raise ValueError(
                f"{stage.name} was done after {done[stage.name]} steps and {later[0] if later else state.label} went on "
                f"from its model; {stage.name}.steps={steps[stage.name]} would take the run back: add one more "
                f"`- {stage.stage}` to stages instead, or fork the run at {stage.name}/{done[stage.name]}"
            )
        order = list(done)
        for name in order[order.index(stage.name) :]:
            del done[name]
    return done


def _check_same(stages: Sequence[Stage], state: RunState) -> None:
    for stage in stages:
        was = state.stages.get(stage.name, stage.stage)
        if was != stage.stage:
            raise ValueError(f"stages: {stage.name} was a stage {was} and is now {stage.stage}; give it another name")


def _check_order(listed: list[str], done: list[str]) -> None:
    wanted = [name for name in done if name in listed]
    if listed != wanted:
        raise ValueError(f"stages has {', '.join(listed)} in this order, but they were done as {', '.join(wanted)}")


def _check_begun(training: list[Stage], state: RunState) -> None:
    """An interrupted stage goes on from its own checkpoint, which must come from what is the newest model then."""
    for place, stage in enumerate(training):
        before = state.began.get(stage.name)
        if before is None or stage.name == state.label:
            continue
        if place:
            raise ValueError(
                f"stages: {stage.name} was begun, and {training[0].name} stands before it; it would go on without what "
                f"{training[0].name} learns; {REMEDY}"
            )
        if before != state.model:
            raise ValueError(
                f"stages: {stage.name} was begun with {before}, and the newest model is {state.model} (of {state.label}); "
                f"give it another name to begin it anew"
            )


def _left_out(stages: Sequence[Stage], ahead: list[Stage], state: RunState) -> list[str]:
    """Stages that are done though the list does not name them, where something goes on from their model."""
    listed = {stage.name for stage in stages}
    missing = [name for name in state.done if name in state.began and name not in listed]
    if not missing or not ahead:
        return []
    return [f"{ahead[0].name} goes on from the model of {state.label}; done though not in stages: {', '.join(missing)}"]
