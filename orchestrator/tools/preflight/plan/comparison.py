"""A plan beside what its run measured: what was predicted, what was, and the error.

How long answers are, and how many groups are dropped, nobody knows before a run: these are taken from the run, and the rest is
predicted for them. Seconds are predicted where rates are known: measured by a probe, or given.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean

from temper.orchestrator.run.checkpoint import steps
from temper.orchestrator.run.folder import RunDir
from temper.orchestrator.run.metrics_log import MetricsRow, read_metrics, step_rows
from temper.orchestrator.tools.preflight.plan.planner import Planner
from temper.orchestrator.tools.preflight.plan.seconds.rates import Rates
from temper.orchestrator.tools.preflight.plan.seconds.work import Work
from temper.rollout.weights.weight_files import require_whole

FILLING = 1
"""Steps at the start that are not counted where there are more: the engines begin with nothing in flight."""
OF_WORK = (
    *("rollout/answers", "rollout/tokens_per_s", "time/step_s"),
    *("train/tokens_per_s", "train/step_seconds", "engine/sampled_tokens"),
)
"""What the work of a step is measured by."""
OPTIMISER = "learner/optimizer-*.safetensors"


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """One figure."""

    name: str
    predicted: float
    measured: float | None
    """None where no step of the run says it."""

    @property
    def error(self) -> float | None:
        """The prediction's, as a share of what was measured; None of nothing."""
        return self.predicted / self.measured - 1 if self.measured else None


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanComparison:
    """A run beside its plan."""

    run: str
    stage: str
    steps: int
    """Steps that were counted."""
    work: Work
    """With lengths and shares as the run had them."""
    source: str
    """Where the rates are from; empty where none were known."""
    figures: tuple[Compared, ...]


def compare_with(planner: Planner, folder: RunDir, rates: Rates | None) -> PlanComparison:
    """Return a plan beside what its run left. Raise `ValueError` where the run has no step of the loop yet."""
    planned = planner.work
    stage = planned.stage if planned is not None else ""
    rows = [row for row in step_rows(read_metrics(folder.metrics), stage) if "time/step_s" in row.values]
    if planned is None or not rows:
        raise ValueError(f"{folder.root} has no step of rl or distill yet, which a plan could be compared with")
    counted = rows[FILLING:] or rows
    work = measured_work(planned, counted)
    figures = [*_bytes(planner, folder, stage, counted), *_seconds(planner, work, counted, rates)]
    return PlanComparison(
        run=str(folder.root),
        stage=stage,
        steps=len(counted),
        work=work,
        source=rates.source if rates is not None else "",
        figures=tuple(figures),
    )


def measured_work(planned: Work, rows: list[MetricsRow]) -> Work:
    """Return the work of a step with the lengths that the run had, and the share of what it sampled that it trained on.

    Of the longest answer no metric tells the tokens: it is as many times the mean as in the plan, as far as
    limits allow. Raise `ValueError` where no step of the run says the rest.
    """
    rows = with_all(rows, *OF_WORK)
    answers, by_engines = mean_of(rows, "rollout/answers"), mean_of(rows, "engine/sampled_tokens")
    for name, value in (("rollout/answers", answers), ("engine/sampled_tokens", by_engines)):
        if not value:
            raise ValueError(f"{name} is 0 in every step of the run that is counted: there is nothing to measure by")
    sampled = fmean(row.values["rollout/tokens_per_s"] * row.values["time/step_s"] for row in rows)
    trained = (
        fmean(row.values["train/tokens_per_s"] * row.values["train/step_seconds"] for row in rows) / planned.epochs
    )
    kept, length = sampled / by_engines, sampled / answers
    return replace(
        planned,
        groups=round(answers / planned.group_size),
        prompt_tokens=(trained - sampled) / answers,
        answer_tokens=length,
        longest_answer=min(planned.answer_limit, planned.longest_answer / planned.answer_tokens * length),
        kept=min(1.0, kept),
    )


def _bytes(planner: Planner, folder: RunDir, stage: str, rows: list[MetricsRow]) -> list[Compared]:
    """Return what was pushed and saved."""
    found = [Compared(name="bytes of a push", predicted=planner.push.sent, measured=_measured(rows, "push/bytes"))]
    newest = max(steps(folder.checkpoints(stage)), default=None)
    if newest is None:
        return found
    saved = folder.checkpoints(stage) / f"{newest:06d}"
    model, state = _size(saved, "*.safetensors"), _size(saved, OPTIMISER)
    return [
        Compared(name="parameters", predicted=planner.model.parameters, measured=require_whole(saved)),
        *found,
        Compared(name="bytes of the model in a checkpoint", predicted=planner.model.saved_bytes, measured=model),
        Compared(name="bytes of the optimiser there", predicted=planner.model.state_bytes, measured=state),
    ]


def _seconds(planner: Planner, work: Work, rows: list[MetricsRow], rates: Rates | None) -> list[Compared]:
    if rates is None:
        return []
    time = planner.step(rates, work)
    measured = {name: _measured(rows, f"time/{name}_s") for name in ("step", "learn", "wait", "publish")}
    busy_s, sampled = _measured(rows, "engine/busy_s"), _measured(rows, "engine/sampled_tokens")
    busy_each_s = None if busy_s is None else busy_s / planner.wanted.engines
    return [
        Compared(
            name="seconds of generating",
            predicted=time.generate_s,
            measured=busy_each_s if work.lag else measured["wait"],
        ),
        Compared(name="seconds of learning", predicted=time.learn_s, measured=measured["learn"]),
        Compared(name="seconds of publishing", predicted=time.publish_s, measured=measured["publish"]),
        Compared(name="seconds of a load", predicted=time.load_s, measured=_measured(rows, "push/load_s")),
        Compared(name="seconds of a step", predicted=time.step_s, measured=measured["step"]),
        Compared(
            name="sampled tokens a second",
            predicted=time.sampled_per_s,
            measured=sampled / measured["step"] if sampled is not None and measured["step"] else None,
        ),
    ]


def with_all(rows: Sequence[MetricsRow], *names: str) -> list[MetricsRow]:
    """Return the rows that have all these metrics as finite numbers.

    Raise `ValueError`, with those that none has, where there is no such row.
    """
    found = [row for row in rows if all(_has(row, name) for name in names)]
    if not found:
        lacking = [name for name in names if not any(_has(row, name) for row in rows)]
        what = ", ".join(lacking) or f"all of {', '.join(names)}"
        raise ValueError(f"no step of the run that is counted has {what}, by which it is measured")
    return found


def mean_of(rows: Sequence[MetricsRow], name: str) -> float:
    """Return the mean of a metric over the rows that have it as a finite number. Raise as `with_all`."""
    return fmean(row.values[name] for row in with_all(rows, name))


def _measured(rows: Sequence[MetricsRow], name: str) -> float | None:
    """Return the mean of a metric, None where no row has it."""
    return mean_of(rows, name) if any(_has(row, name) for row in rows) else None


def _has(row: MetricsRow, name: str) -> bool:
    return math.isfinite(row.values.get(name, math.nan))


def _size(folder: Path, pattern: str) -> int:
    return sum(path.stat().st_size for path in folder.glob(pattern))


def lines(found: PlanComparison) -> list[str]:
    """Return it for people."""
    work = found.work
    said = [
        f"{found.run}: {found.steps} steps of {found.stage} beside their plan",
        f"taken from the run: {work.answer_tokens:,.1f} sampled tokens an answer, {work.prompt_tokens:,.1f} others, "
        f"{work.kept:.0%} of the sampled tokens trained on",
        f"rates: {found.source}"
        if found.source
        else "no seconds: rates are not known here; add --probe to measure them",
        f"{'figure':36} {'predicted':>14} {'measured':>14} {'error':>8}",
    ]
    return said + [_line(one) for one in found.figures]


def _line(one: Compared) -> str:
    error = "-" if one.error is None else f"{one.error:+.1%}"
    return f"{one.name:36} {_text(one.predicted):>14} {_text(one.measured):>14} {error:>8}"


def _text(value: float | None) -> str:
    if value is None:
        return "not measured"
    return f"{value:,.0f}" if value >= 1000 else f"{value:,.3f}"
