"""Reads the results in a run's folder: configuration, metrics, evaluations and times."""

import json
import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from temper.orchestrator.evaluation.budget_curve import BudgetPoint, nan_for_null
from temper.orchestrator.evaluation.intervals import accuracy_interval
from temper.orchestrator.evaluation.paired import TaskScore
from temper.orchestrator.run.folder import RunDir
from temper.orchestrator.run.metrics_log import MetricsRow, read_metrics

ENGINE_START = "engine/start_s"


@dataclass(frozen=True, slots=True, kw_only=True)
class EnvResult:
    """One environment in one evaluation. Accuracies are shares, NaN without scored answers."""

    tasks: int
    tasks_asked: int
    samples: int
    """Scored answers."""
    failures: int
    """Failed answers, for reasons outside the model."""
    complete: int
    """Tasks whose answers are all scored."""
    avg_at_k: float
    """Over scored answers."""
    avg_at_k_failures_as_zero: float
    """With failed answers as wrong."""
    pass_at_k: float
    """Over complete tasks."""
    stderr: float
    """Standard error of `avg_at_k` over tasks."""
    tokens: float = math.nan
    truncated: float = math.nan
    stale: int = 0
    """Answers with a token from other weights. With one of them all other values are unknown."""

    @property
    def interval(self) -> tuple[float, float]:
        """The 95 % confidence interval of `avg_at_k`, NaN without a score."""
        return accuracy_interval(self.avg_at_k, stderr=self.stderr, tasks=self.tasks, samples=self.samples)


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluation:
    """One evaluation of one model: `label` names its stage, `k` is answers per task.

    `curve` has the accuracy of an environment over its thinking budget, if measured, and `tasks` its single tasks.
    """

    label: str
    order: int
    k: int
    seconds: float
    envs: dict[str, EnvResult]
    curve: dict[str, list[BudgetPoint]] = field(default_factory=dict)
    tasks: dict[str, list[TaskScore]] = field(default_factory=dict)
    model: str | None = None
    """The evaluated model, as in `RunState.model`."""
    asked: dict[str, Any] = field(default_factory=dict)
    """Settings of the answers by name, as plain values, if the file has them."""
    sampled_tokens: float = math.nan
    """Tokens sampled in `seconds`, with forced answers. NaN without a curve."""

    def seconds_per_right_answer(self, point: BudgetPoint) -> float:
        """Return tokens per right answer divided by the evaluation's tokens per second, NaN if one is unknown."""
        return point.tokens_per_right_answer * self.seconds / self.sampled_tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """A change of a run after a step, such as a changed setting: its kind and values."""

    stage: str
    step: int
    kind: str
    what: dict[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRecord:
    """The content of a run's folder. `stage_seconds` is in the order of the stages."""

    name: str
    seed: int | None
    config: dict[str, Any]
    rows: list[MetricsRow]
    evaluations: list[Evaluation]
    stage_seconds: dict[str, float] = field(default_factory=dict)
    stages: dict[str, str] = field(default_factory=dict)
    """The stage of each started instance, by name."""
    commits: list[str] = field(default_factory=list)
    """Commits of the code that ran the stages."""
    step_evaluations: list[Evaluation] = field(default_factory=list)
    """The first and the last evaluation between the steps of each stage."""

    def instances(self, stage: str) -> list[str]:
        """Return the instances of a stage in order, by default the stage's own name."""
        return [name for name, kind in self.stages.items() if kind == stage] or [stage]

    @property
    def engine_start_s(self) -> float | None:
        """The longest start of an engine in seconds; None if not measured."""
        return max((row.values[ENGINE_START] for row in self.rows if ENGINE_START in row.values), default=None)

    @property
    def budget_curves(self) -> dict[str, dict[str, list[BudgetPoint]]]:
        """The curves by evaluation label and environment."""
        return {evaluation.label: evaluation.curve for evaluation in self.evaluations if evaluation.curve}

    def series(self, stage: str, metric: str) -> tuple[list[int], list[float]]:
        """Return the steps and values of a stage's metric."""
        pairs = [(row.step, row.values[metric]) for row in self.rows if row.stage == stage and metric in row.values]
        return [step for step, _ in pairs], [value for _, value in pairs]

    def envs_of(self, stage: str) -> list[str]:
        """Return the environments whose reward a stage has measured."""
        names = {name for row in self.rows if row.stage == stage for name in row.values}
        parts = [name.split("/") for name in names]
        return sorted(p[1] for p in parts if len(p) == 3 and p[0] == "env" and p[2] == "reward")

    def final_metrics(self) -> dict[str, dict[str, float]]:
        """Return the last row of each stage."""
        return {row.stage: {"step": row.step} | row.values for row in self.rows if row.is_measured}

    @property
    def events(self) -> list[Event]:
        """Changes of the run, in order."""
        return [_event(row, row.event) for row in self.rows if row.event is not None and not row.is_alarm]

    @property
    def alarms(self) -> list[Event]:
        """Alarms in order: metrics that left their bands or came back."""
        return [_event(row, row.event) for row in self.rows if row.event is not None and row.is_alarm]


def _event(row: MetricsRow, event: dict[str, Any]) -> Event:
    return Event(stage=row.stage, step=row.step, kind=str(event["kind"]), what=row.event_text)


def read_run(run_dir: Path) -> RunRecord:
    """Read a run's folder.

    Raise `FileNotFoundError` without a configuration, and `ValueError` with the file for a damaged one.
    """
    path = run_dir / "config.yaml"
    if not path.exists():
        raise FileNotFoundError(f"{run_dir} has no config.yaml, so it is not the folder of a run")
    folder = RunDir(run_dir)
    config, state = yaml.safe_load(path.read_text(encoding="utf-8")) or {}, folder.state()
    between = [list(folder.step_evaluations(name).values()) for name in state.stages]
    return RunRecord(
        name=str(config.get("name", run_dir.name)),
        seed=config.get("seed"),
        config=config,
        rows=read_metrics(run_dir / "metrics.jsonl"),
        evaluations=read_evaluations(run_dir / "eval"),
        stage_seconds=state.seconds,
        stages=state.stages,
        commits=state.commits,
        step_evaluations=[_of_run(file) for files in between for file in dict.fromkeys((*files[:1], *files[-1:]))],
    )


def read_evaluations(folder: Path) -> list[Evaluation]:
    """Read the evaluations in a folder, in the order of their models. Raise `ValueError` with the file for an invalid one."""
    return sorted((_of_run(file) for file in folder.glob("*.json")), key=lambda evaluation: evaluation.order)


def read_evaluation(path: Path) -> Evaluation:
    """Read the file of an evaluation. Raise `ValueError` for an invalid one."""
    known = EnvResult.__dataclass_fields__
    try:
        raw = json.loads(path.read_text(encoding="utf-8"))
        envs = {
            env: EnvResult(**{name: nan_for_null(value) for name, value in result.items() if name in known})
            for env, result in raw["envs"].items()
        }
        curve = {env: [BudgetPoint.read(point) for point in points] for env, points in raw.get("curve", {}).items()}
        tasks = {env: [TaskScore(**task) for task in scores] for env, scores in raw.get("tasks", {}).items()}
        head = {name: raw[name] for name in ("label", "order", "k", "seconds")} | {"model": raw.get("model")}
        sampling = {f"sampling.{name}": value for name, value in raw.get("sampling", {}).items()}
        asked = {"samples": raw["k"]} | sampling | raw.get("asked", {})
        sampled = float(raw.get("sampled_tokens") or math.nan)
        return Evaluation(**head, envs=envs, curve=curve, tasks=tasks, asked=asked, sampled_tokens=sampled)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{path} is not an evaluation ({type(error).__name__}: {error})") from error


def _of_run(path: Path) -> Evaluation:
    try:
        return read_evaluation(path)
    except ValueError as error:
        raise ValueError(f"{error}; delete it and run the stage `eval` again") from error
