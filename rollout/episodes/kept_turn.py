"""A turn of an episode as its trajectory keeps it."""

from dataclasses import replace

import numpy as np

from temper.envs.core.step_result import StepResult
from temper.envs.core.task import Task
from temper.envs.core.turn_text import ParsedTurn, calls_are_valid
from temper.rollout.engines.protocol import Completion
from temper.rollout.episodes.turn_sampler import SampledTurn
from temper.rollout.token_arrays import as_floats, as_ids, as_marks
from temper.rollout.trajectory import Times, Turn, TurnFault


def kept_turn(
    task: Task, context: tuple[int, ...], sampled: SampledTurn, parsed: ParsedTurn, result: StepResult, *, times: Times
) -> Turn:
    """Return a turn that was sampled after `context`, read as `parsed`, and answered with `result`."""
    completion = sampled.completion
    experts = completion.experts
    return Turn(
        context_ids=as_ids(context),
        sampled_ids=as_ids(completion.token_ids),
        logprobs_T=as_floats(completion.logprobs_T),
        versions_T=as_ids(completion.versions_T),
        forced_T=as_marks(completion.forced_T),
        text=parsed.text,
        thought_text=parsed.thought,
        answer=parsed.answer,
        observation=result.messages,
        thought=sampled.thought,
        faults=turn_faults(parsed, task),
        experts=None if experts is None else experts[-len(context) - len(completion.token_ids) :],
        times=times,
        tool_spans=result.tool_spans,
    )


def turn_faults(parsed: ParsedTurn, task: Task) -> tuple[TurnFault, ...]:
    """Return what is wrong with the form of a turn."""
    faults = {
        TurnFault.THOUGHT: not parsed.well_formed,
        TurnFault.TOOL_CALL: not calls_are_valid(parsed.calls, task.tools),
    }
    return tuple(fault for fault, there in faults.items() if there)


def processed(turn: Turn, context: tuple[int, ...], after: Completion) -> Turn:
    """Return the turn before `after`, in which the engine processed its last id, with the experts that it chose then."""
    if turn.experts is None or after.experts is None:
        return turn
    last = len(after.experts) - len(after.token_ids) - len(context) - 1
    return replace(turn, experts=np.concatenate([turn.experts[:-1], after.experts[last : last + 1]]))
