"""What became of a run, from its folder alone: bends of its metrics in order, known collapses, whose answers it learnt from."""

import logging
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from temper.orchestrator.evaluation.record import RunRecord, read_run
from temper.orchestrator.pipeline.stage_list import settings_of
from temper.orchestrator.run.folder import RunDir
from temper.orchestrator.run.metrics_log import MetricsRow
from temper.orchestrator.tools.inspect.explain.bends import FEWEST_STEPS, Bend, bends_of
from temper.orchestrator.tools.inspect.explain.courses import (
    RATE,
    Course,
    Kind,
    courses_of,
    has_kink,
    is_told,
    kind_of,
    steps_left_out,
)
from temper.orchestrator.tools.inspect.explain.evidence import Evidence
from temper.orchestrator.tools.inspect.explain.signatures import Diagnosis, diagnoses
from temper.orchestrator.tools.inspect.explain.update_shares import StepShares, shares_of, shares_of_batch
from temper.orchestrator.tools.inspect.viewer.recorded_file import RecordedFile, recorded_files

LOG = logging.getLogger(__name__)
ALARM = 0.05
"""Largest probability that any metric of a kind is said to bend in a stage where none does."""
NEAR = 3
"""Steps within which two bends are one event."""
LOOPS = ("rl", "distill")
SHOWN_GROUPS = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricBend:
    """A bend of one metric. `beside` are settings, lags and events that change within `NEAR` steps of it."""

    metric: str
    kind: Kind
    bend: Bend
    beside: tuple[str, ...] = ()

    @property
    def of_itself(self) -> bool:
        """Whether it is of what the model does, and nothing that was laid down changes there."""
        return self.kind == "learning" and not self.beside


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """What is to be said of a stage. `steps` is how many it has, `metrics` how many courses were looked at."""

    run: str
    stage: str
    steps: int
    metrics: int
    alarm: float = ALARM
    diagnoses: tuple[Diagnosis, ...] = ()
    bends: tuple[MetricBend, ...] = ()
    left_out: tuple[int, ...] = ()
    """The steps of which an update was skipped, or a value was not finite: nothing of these values is in the rest."""
    at: int | None = None
    """The step that is looked at closely: that of the first diagnosis, else of the first bend of what the model does, by itself
    if one is, else the first that was left out."""
    shares: StepShares | None = field(default=None)
    """Which groups the update came from in the recorded step nearest to it."""

    @property
    def bends_of_learning(self) -> list[MetricBend]:
        """Bends of what the model does that nothing laid down explains."""
        return [one for one in self.bends if one.of_itself]

    def as_json(self) -> dict[str, Any]:
        """Return the explanation as plain JSON data; a size that has no bound is null."""
        data = asdict(self)
        for told, one in zip(data["bends"], self.bends, strict=True):
            told["bend"]["size"] = one.bend.size if one.bend.size < float("inf") else None
        return data


def explain(run: RunDir, *, stage: str | None = None) -> Explanation:
    """Explain a stage of a run, by default the newest that samples and trains, else the one with most steps.

    Raise `FileNotFoundError` where it is no folder of a run, `ValueError` where it has no such stage, or no steps yet.
    """
    record = read_run(run.root)
    name = _stage(record, stage)
    rows = [row for row in record.rows if row.stage == name]
    courses = courses_of(rows, name)
    bends = bends_in(courses)
    evidence = Evidence(
        stage=name,
        courses=courses,
        bends={metric: found for metric, found in bends.items() if found},
        config=record.config,
        settings=settings_of(name, record.config),
    )
    named = diagnoses(evidence)
    told = _told(bends, _laid_down(bends, courses, rows))
    left_out = steps_left_out(rows, name)
    of_learning = [one.bend.step for one in told if one.kind == "learning"]
    of_itself = [one.bend.step for one in told if one.of_itself]
    of_diagnoses = next(([one.step] for one in named if one.step is not None), [])
    at = min(of_diagnoses or of_itself or of_learning or left_out, default=None)
    return Explanation(
        run=str(run.root),
        stage=name,
        steps=sum(row.is_measured for row in rows),
        metrics=len(bends),
        diagnoses=tuple(named),
        bends=tuple(told),
        left_out=tuple(left_out),
        at=at,
        shares=None if at is None else _shares(run, name, at),
    )


def bends_in(courses: Mapping[str, Course], *, alarm: float = ALARM) -> dict[str, list[Bend]]:
    """Return the bends of each course that is long enough and not all the same; `alarm` is shared by those of a kind
    (Bonferroni)."""
    tested = [
        one
        for one in courses.values()
        if len(one.values) >= FEWEST_STEPS and min(one.values) < max(one.values) and is_told(one.name)
    ]
    kinds = Counter(kind_of(one.name) for one in tested)
    return {one.name: bends_of(one.steps, one.values, limit=alarm / kinds[kind_of(one.name)]) for one in tested}


def _stage(record: RunRecord, wanted: str | None) -> str:
    """Return the stage to be explained. Raise `ValueError` where there is none."""
    counts: dict[str, int] = {}
    for row in record.rows:
        if row.is_measured:
            counts[row.stage] = counts.get(row.stage, 0) + 1
    if not counts:
        raise ValueError(f"{record.name} has no steps yet: metrics.jsonl has no rows")
    if wanted is not None:
        if wanted not in counts:
            raise ValueError(f"--stage {wanted}: {record.name} has rows of {', '.join(counts)}")
        return wanted
    loops = [name for name in counts if record.stages.get(name, name) in LOOPS]
    return loops[-1] if loops else max(counts, key=counts.__getitem__)


def _laid_down(
    bends: Mapping[str, list[Bend]], courses: Mapping[str, Course], rows: Iterable[MetricsRow]
) -> list[tuple[str, int]]:
    """Return what settings, lags and events changed, each with its step. A learning rate that follows a smooth curve changes
    nowhere, though lines can be laid through it.
    """
    found = [(metric, one.step) for metric, each in bends.items() if kind_of(metric) == "given" for one in each]
    kinks = [
        (metric, step) for metric, step in found if metric != RATE or has_kink(courses[metric], near=step, within=NEAR)
    ]
    return kinks + [(f"the event {row.event['kind']}", row.step) for row in rows if row.event and not row.is_alarm]


def _told(bends: Mapping[str, list[Bend]], laid_down: Sequence[tuple[str, int]]) -> list[MetricBend]:
    """Return all bends by step, the clearest first where they share one, each with what changes beside it."""
    told = []
    for metric, each in bends.items():
        for one in each:
            beside = [name for name, step in laid_down if abs(step - one.step) <= NEAR and name != metric]
            told.append(MetricBend(metric=metric, kind=kind_of(metric), bend=one, beside=tuple(dict.fromkeys(beside))))
    return sorted(told, key=lambda one: (one.bend.step, -one.bend.size))


def _shares(run: RunDir, stage: str, step: int) -> StepShares | None:
    """Return the shares in the recorded step of a stage nearest to a step, the earlier of two as near; None where no recorded
    step has an update.

    A step within `NEAR` whose answers are recorded, for the viewer, goes before a nearer one of which the batch alone is.
    """
    shown = {
        _step(file): file
        for file in recorded_files(run)
        if file.kind == "step" and file.label.rpartition("/")[0] == stage
    }
    batches = run.batch_files(stage)

    def order(place: int) -> tuple[bool, int, int]:
        distance = abs(place - step)
        return not (place in shown and distance <= NEAR), distance, place

    for place in sorted({*shown, *batches}, key=order):
        try:
            shares = (
                shares_of(shown[place], most=SHOWN_GROUPS)
                if place in shown
                else shares_of_batch(batches[place], stage=stage, step=place, most=SHOWN_GROUPS)
            )
        except FileNotFoundError:  # of a run at work, whose checkpoint is gone
            continue
        except ValueError as error:  # the next one has groups to name too
            LOG.warning("%s", error)
            continue
        if shares.groups:
            return shares
    return None


def _step(file: RecordedFile) -> int:
    return int(file.label.rpartition("/")[2])
