"""Turns and step reports with a test's fields, and plain values elsewhere."""

from collections.abc import Sequence
from dataclasses import replace

from temper.orchestrator.loop.buffer import Dropped, Occupancy
from temper.orchestrator.loop.step import StepPart, StepReport, StepTimes
from temper.rollout.engines.protocol import EngineStats
from temper.rollout.token_arrays import as_floats, as_ids, as_marks
from temper.rollout.trajectory import Group, ThinkingStats, Turn, TurnFault, WeightVersion


def turn_of(
    sampled: Sequence[int],
    *,
    context: Sequence[int] = (1,),
    logprob: float = -1.0,
    versions: Sequence[int] | None = None,
    text: str = "",
    thinking: ThinkingStats | None = None,
    faults: tuple[TurnFault, ...] = (),
) -> Turn:
    """Return a turn, whose tokens are of version 0 unless `versions` has others."""
    turn = Turn(
        context_ids=as_ids(tuple(context)),
        sampled_ids=as_ids(tuple(sampled)),
        logprobs_T=as_floats((logprob,) * len(sampled)),
        versions_T=as_ids((0,) * len(sampled) if versions is None else tuple(versions)),
        injected_T=as_marks((False,) * len(sampled)),
        text=text,
        faults=faults,
    )
    return turn if thinking is None else replace(turn, thinking=thinking)


def report_of(
    groups: list[Group], *, dropped: Dropped | None = None, version: int = 0, left_over: int = 0
) -> StepReport:
    """Return the report of a step of one second."""
    return StepReport(
        step=1,
        groups=groups,
        dropped=dropped or Dropped(),
        learner={},
        version=WeightVersion(step=version),
        left_over=left_over,
        pushed_bytes=0,
        pushed_share=0.0,
        load_s=0.0,
        times=StepTimes(seconds={StepPart.WAIT: 1.0}),
        occupancy=Occupancy(slots=1, held={}),
        engine=EngineStats(),
    )
