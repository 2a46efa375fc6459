"""Speeds and lengths of a run that was made, read from its metrics and trajectories.

Of an engine two numbers are found by least squares over the steps: a pass takes a + b n seconds with n sequences, so an engine
is busy for a * passes + b * tokens in a step. The engines say themselves how long they were: what they stood idle for want of
work, as where the learner is the limit, makes them no slower.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from temper.orchestrator.run.folder import RunDir
from temper.orchestrator.run.metrics_log import MetricsRow, read_metrics
from temper.orchestrator.tools.preflight.plan.comparison import FILLING, mean_of, measured_work, with_all
from temper.orchestrator.tools.preflight.plan.plan import planned_config
from temper.orchestrator.tools.preflight.plan.planner import Planner
from temper.orchestrator.tools.preflight.plan.seconds.work import Work
from temper.orchestrator.tools.preflight.simulation.speeds import START_S, Speeds
from temper.rollout.weights.transports import resolved

OF_ENGINES = ("engine/passes", "engine/sampled_tokens", "engine/busy_s")
OF_LEARNING = ("rollout/answers", "rollout/tokens_per_s", "time/step_s", "time/learn_s", "time/batch_s")


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """What a run measured. `groups` are the lengths of recorded answers, group by group; none where none were recorded."""

    speeds: Speeds
    work: Work
    groups: tuple[tuple[int, ...], ...]


def measured_by(run: Path, planner: Planner, *, steps: range | None = None, start_s: float = START_S) -> Measured:
    """Return what a run measured by its own settings, of these steps alone where they are given.

    Of `planner` are the hardware, and how many sequences the engines of the simulation have.

    Raise `FileNotFoundError` where there is no such run, `ValueError` where it has no step of the stage that is simulated.
    """
    folder = RunDir(run)
    for file in (folder.metrics, folder.config):
        if not file.is_file():
            raise FileNotFoundError(f"{run} is no run's folder with steps: it has no {file.name}")
    own = Planner(*planned_config(folder.config, [], planner.site), planner.site, planner.assumptions)
    planned, most = own.work, planner.config.rollout.engine.max_sequences
    if planned is None:
        raise ValueError("`stages` lists neither rl nor distill: there is no loop to simulate")
    rows = steps_of(folder, planned.stage)
    rows = rows[FILLING:] if steps is None else [row for row in rows if row.step in steps]
    if not rows:
        raise ValueError(f"{run} has too few steps of {planned.stage} to measure by: it needs at least {FILLING + 1}")
    work = measured_work(planned, rows)
    speeds = measured_speeds(own, work, rows, most=most, run=str(run), start_s=start_s)
    files = folder.trajectory_files(planned.stage)
    wanted = [path for step, path in files.items() if steps is None or step in steps]
    return Measured(speeds=speeds, work=work, groups=tuple(group for path in wanted for group in recorded_groups(path)))


def steps_of(folder: RunDir, stage: str) -> list[MetricsRow]:
    """Return the rows of a stage's steps."""
    rows = [row for row in read_metrics(folder.metrics) if row.stage == stage and row.is_of_its_step]
    return [row for row in rows if "time/step_s" in row.values]


def measured_speeds(
    planner: Planner, work: Work, rows: Sequence[MetricsRow], *, most: int, run: str, start_s: float
) -> Speeds:
    """Return the speeds that these steps had, of engines with up to `most` sequences; `planner` is of the run's settings.

    A metric is taken of the steps that have it; raise `ValueError` where none has.
    """
    config = planner.config
    engines = config.rollout.workers
    beside_s = mean_of(rows, "episode/step_s") + mean_of(rows, "episode/rest_s")
    fixed, each = engine_pass(rows, engines=engines)
    learnt = with_all(rows, *OF_LEARNING)
    answers = sum(row.values["rollout/answers"] for row in learnt)
    sampled = sum(row.values["rollout/tokens_per_s"] * row.values["time/step_s"] for row in learnt)
    learning = sum(row.values["time/learn_s"] + row.values["time/batch_s"] for row in learnt)
    return Speeds(
        pass_s=(0.0, *(fixed + each * n for n in range(1, most + 1))),
        learn_token_s=learning / (sampled + work.prompt_tokens * answers),
        learn_fixed_s=0.0,
        publish_s=mean_of(rows, "time/publish_s"),
        load_s=mean_of(rows, "push/load_s"),
        transport=resolved(config.learner.transport),
        prompt_tokens=work.prompt_tokens,
        source=f"measured by {run}",
        beside_s=beside_s,
        between_s=mean_of(rows, "time/log_s") + mean_of(rows, "time/save_s"),
        start_s=start_s,
    )


def engine_pass(rows: Sequence[MetricsRow], *, engines: int) -> tuple[float, float]:
    """Return a and b of a pass of a + b n seconds, neither below 0.

    Raise `ValueError` where the steps have no pass, or do not say how long engines were busy.
    """
    points = [_point(row, engines=engines) for row in with_all(rows, *OF_ENGINES)]
    if not any(passes and tokens and busy_s for passes, tokens, busy_s in points):
        raise ValueError(
            "in no step of the run engine/passes, engine/sampled_tokens and engine/busy_s are above 0, by which engines are "
            "measured"
        )
    pp = sum(p * p for p, _, _ in points)
    pt = sum(p * t for p, t, _ in points)
    tt = sum(t * t for _, t, _ in points)
    ps = sum(p * s for p, _, s in points)
    ts = sum(t * s for _, t, s in points)
    ground = pp * tt - pt * pt
    if ground > 1e-9 * pp * tt:
        fixed, each = (ps * tt - ts * pt) / ground, (ts * pp - ps * pt) / ground
        if fixed >= 0 and each >= 0:
            return fixed, each
    by_pass, by_token = (ps / pp, 0.0), (0.0, ts / tt)
    return min(by_pass, by_token, key=lambda one: sum((one[0] * p + one[1] * t - s) ** 2 for p, t, s in points))


def _point(row: MetricsRow, *, engines: int) -> tuple[float, float, float]:
    """Return passes, tokens and busy seconds of an engine in a step, in the mean over the engines."""
    passes, tokens, busy_s = (row.values[name] for name in OF_ENGINES)
    return passes / engines, tokens / engines, busy_s / engines


def recorded_groups(path: Path) -> list[tuple[int, ...]]:
    """Return the sampled tokens of the answers in a file of trajectories, group by group."""
    groups: dict[int, list[int]] = {}
    for line in path.read_text(encoding="utf-8").splitlines():
        row = json.loads(line)
        if row["failure"] is None:
            groups.setdefault(row["ticket"], []).append(sum(len(turn["sampled_ids"]) for turn in row["turns"]))
    return [tuple(lengths) for lengths in groups.values()]
