"""The explanation of a stage from its run's folder: change points by step, and the groups of the update at the first one."""

import logging
import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from rich.console import Console
from rich.table import Table

from temper.orchestrator.evaluation.record import RunRecord, read_run
from temper.orchestrator.run.folder import RunDir
from temper.orchestrator.run.metrics_log import MetricsRow, step_rows
from temper.orchestrator.run.screen import print_text
from temper.orchestrator.tools.inspect.explain.change_points import MIN_SIDE, MIN_STEPS, ChangePoint, find_change_points
from temper.orchestrator.tools.inspect.explain.update_shares import StepShares, shares_of, shares_of_batch
from temper.orchestrator.tools.inspect.viewer.recorded_file import RecordedFile, recorded_files

LOG = logging.getLogger(__name__)
ALARM = 0.01
"""Maximum probability of a false change point in any metric of a stage."""
NEAR = 3
"""Events within this many steps of a change point are shown with it."""
LOOPS = ("rl", "distill")
OF_MODEL = ("train/", "rollout/", "env/", "loss", "grad_norm")
"""Prefixes of metrics of the model. Times, queues and engine metrics change whenever a machine is busy."""
OF_SETTINGS = (
    *("train/learning_rate", "train/skipped", "train/lag_"),
    *("rollout/partial", "rollout/dropped", "rollout/episodes_"),
)
"""Prefixes of metrics that follow from settings or the machine."""
REPEATED = ("/reward_trained", "/parts/correct", "/groups", "per_s", "_s", "failure_rate")
"""Endings of metrics that repeat another metric, or follow from settings or the machine."""
SKIPPED = "train/skipped"
SHOWN_GROUPS = 5
SHOWN_CHANGE_POINTS = 15


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricChange:
    """A change point of one metric. `events` are the nearby events of the run."""

    metric: str
    change_point: ChangePoint
    events: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """The change points of a stage with `steps` steps. `metrics` is the number of searched metrics."""

    run: str
    stage: str
    steps: int
    metrics: int
    change_points: tuple[MetricChange, ...]
    """By step, then by size."""
    excluded: tuple[int, ...]
    """The steps with a skipped update or a value that is not finite."""
    at: int | None
    """The step of the first change point, or else the first excluded step."""
    shares: StepShares | None
    """The groups of the update in the recorded step nearest to it."""

    def as_json(self) -> dict[str, Any]:
        """Return the explanation as plain JSON data. An infinite size is null."""
        data = asdict(self)
        for row, one in zip(data["change_points"], self.change_points, strict=True):
            row["change_point"]["size"] = one.change_point.size if math.isfinite(one.change_point.size) else None
        return data


def explain(run: RunDir, *, stage: str | None = None) -> Explanation:
    """Explain a stage of a run. The default is the newest stage that samples and trains, or else the longest one.

    Raise `FileNotFoundError` if the folder has no run, `ValueError` if the run has no such stage or no steps yet.
    """
    record = read_run(run.root)
    name = _stage(record, stage)
    rows = [row for row in record.rows if row.stage == name]
    own = step_rows(rows, name)
    series = _series(own)
    events = [(row.step, str(row.event["kind"])) for row in rows if row.event and not row.is_alarm]
    change_points = []
    for metric, points in series.items():
        steps, values = zip(*points, strict=True)
        for change_point in find_change_points(steps, values, limit=ALARM / len(series)):
            near = dict.fromkeys(kind for step, kind in events if abs(step - change_point.step) <= NEAR)
            change_points.append(MetricChange(metric=metric, change_point=change_point, events=tuple(near)))
    change_points.sort(key=lambda one: (one.change_point.step, -one.change_point.size))
    excluded = tuple(
        row.step for row in own if row.values.get(SKIPPED, 0.0) > 0 or not all(map(math.isfinite, row.values.values()))
    )
    at = change_points[0].change_point.step if change_points else min(excluded, default=None)
    return Explanation(
        run=str(run.root),
        stage=name,
        steps=len(own),
        metrics=len(series),
        change_points=tuple(change_points),
        excluded=excluded,
        at=at,
        shares=None if at is None else _shares(run, name, at),
    )


def print_explanation(found: Explanation, console: Console, *, viewer: str) -> None:
    """Print tables of change points and groups. `viewer` is the address of `temper view`."""
    for line in _lines(found):
        print_text(console, line)
    if found.change_points:
        table = Table("step", "metric", "before", "after", "change / noise", "events", box=None)
        for one in found.change_points[:SHOWN_CHANGE_POINTS]:
            change_point = one.change_point
            size = f"{change_point.size:.1f}" if math.isfinite(change_point.size) else "no noise"
            sides = (f"{change_point.before:.3g}", f"{change_point.after:.3g}")
            table.add_row(str(change_point.step), one.metric, *sides, size, ", ".join(one.events))
        console.print(table)
    if found.shares is not None:
        console.print(f"the update of step {found.shares.step}: {len(found.shares.groups)} of {found.shares.of} groups")
        for group in found.shares.groups:
            rewards = ", ".join(f"{reward:.2g}" for reward in group.rewards)
            line = f"{group.share:4.0%}  {group.env} {group.key}, rewards {rewards}  {viewer if group.link else ''}{group.link}"
            print_text(console, line)


def _lines(found: Explanation) -> Iterator[str]:
    yield f"{found.run}, {found.stage}: {found.steps} steps, {found.metrics} metrics, {len(found.change_points)} change points"
    if found.steps < MIN_STEPS:
        yield f"fewer than {MIN_STEPS} steps are too few to find change points"
    elif not found.change_points:
        yield f"a change point in the last {MIN_SIDE - 1} steps cannot be found yet"
    if found.excluded:
        yield f"skipped or not finite: {len(found.excluded)} steps, the first is step {found.excluded[0]}"
    if len(found.change_points) > SHOWN_CHANGE_POINTS:
        yield f"the first {SHOWN_CHANGE_POINTS} change points (--json has all):"
    if found.at is not None and found.shares is None:
        yield f"no recorded step near step {found.at} has an update"


def _stage(record: RunRecord, wanted: str | None) -> str:
    """Return the stage to explain. Raise `ValueError` if the run has no such stage."""
    counts = Counter(row.stage for row in record.rows if row.is_measured)
    if not counts:
        raise ValueError(f"{record.name} has no steps yet: metrics.jsonl has no rows")
    if wanted is not None:
        if wanted not in counts:
            raise ValueError(f"--stage {wanted}: {record.name} has rows of {', '.join(counts)}")
        return wanted
    loops = [name for name in counts if record.stages.get(name, name) in LOOPS]
    return loops[-1] if loops else max(counts, key=counts.__getitem__)


def _series(rows: Sequence[MetricsRow]) -> dict[str, list[tuple[int, float]]]:
    """Return the finite values of each metric of the model by step. Short and constant series are dropped."""
    points: dict[str, list[tuple[int, float]]] = {}
    for row in rows:
        for name, value in row.values.items():
            if math.isfinite(value) and _is_of_model(name):
                points.setdefault(name, []).append((row.step, value))
    varied = {name for name, each in points.items() if len({value for _, value in each}) > 1}
    return {name: each for name, each in points.items() if name in varied and len(each) >= MIN_STEPS}


def _is_of_model(metric: str) -> bool:
    """Return whether a metric describes the model, and no other metric shows it better."""
    return metric.startswith(OF_MODEL) and not metric.startswith(OF_SETTINGS) and not metric.endswith(REPEATED)


def _shares(run: RunDir, stage: str, step: int) -> StepShares | None:
    """Return the shares in the recorded step nearest to a step. None if no recorded step has an update.

    A step within `NEAR` with recorded answers is preferred to a nearer one with only a recorded batch.
    """
    shown: dict[int, RecordedFile] = {}
    for file in recorded_files(run):
        name, _, number = file.label.rpartition("/")
        if (file.kind, name) == ("step", stage):
            shown[int(number)] = file
    batches = run.batch_files(stage)

    def order(place: int) -> tuple[bool, int, int]:
        return place not in shown or abs(place - step) > NEAR, abs(place - step), place

    for place in sorted({*shown, *batches}, key=order):
        try:
            if place in shown:
                shares = shares_of(shown[place], most=SHOWN_GROUPS)
            else:
                shares = shares_of_batch(batches[place], stage=stage, step=place, most=SHOWN_GROUPS)
        except FileNotFoundError:  # a run at work has removed it
            continue
        except ValueError as error:  # a damaged file: try the next one
            LOG.warning("%s", error)
            continue
        if shares.groups:
            return shares
    return None
