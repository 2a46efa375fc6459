"""`eval`: held-out tasks of each environment, answers sampled at temperature 1; once more each under limited thought.

The first pass thinks without a limit and gives the results of the environments. Further passes put the same tasks under
other modes of thinking, as `eval.budgets`, `budget_shares`, `no_thought` and `low_effort` say; their points make a curve.

What no answer has a score for is NaN, in files null: never 0. Accuracy is over the answers with a score; beside it stand
how many were asked for, and the accuracy that is left where those without a score count as wrong.
"""

import asyncio
import math
import time
from collections.abc import Iterable
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path

from envs.core.task import Task
from envs.core.thinking_mode import LOW_EFFORT, OFF, UNLIMITED
from envs.source import distinct, open_source
from orchestrator.deadline import Deadline, beside, within
from orchestrator.failure_watch import FailureWatch
from orchestrator.reporting.budget_curve import (
    BudgetPoint,
    Condition,
    budget_conditions,
    budget_curve,
    mean,
    median_free_thought,
    standard_error,
    task_accuracies,
)
from orchestrator.reporting.record import read_evaluations
from orchestrator.run.folder import write_json
from orchestrator.pipeline.config import Config, EvalConfig
from orchestrator.settings.model_checks import check_model
from orchestrator.stages.session import Run
from rollout.episodes.pool import RolloutPool
from rollout.trajectory import Group, Ticket, well_formed_share
from rollout.trajectory_json import write_groups

EVAL_TICKETS = 10**9
"""Tickets of evaluations start here, so that their seeds are never those of training."""
FREE = Condition(thinking=UNLIMITED)


@dataclass(frozen=True, slots=True, kw_only=True)
class Pass:
    """The tasks of the environments that think, answered once more under each of these conditions, all at once."""

    name: str
    conditions: dict[str, list[Condition]]

    @property
    def points(self) -> int:
        """Most points of one environment."""
        return max((len(conditions) for conditions in self.conditions.values()), default=0)

    def tasks(self, plain: Iterable[Task]) -> list[Task]:
        """The tasks under this pass's modes; conditions that share a mode share its answers."""
        modes = {env: dict.fromkeys(one.thinking for one in conditions) for env, conditions in self.conditions.items()}
        return [replace(task, thinking=thinking) for task in plain for thinking in modes.get(task.env, ())]


async def run_eval(run: Run, config: EvalConfig, name: str) -> Path:
    """Evaluate the newest model; writes `eval/<label>.json` and its trajectories, returns the former.

    The label is the name of the instance, of `eval-rl` what it evaluates.
    """
    state, label = run.folder.state(), name.removeprefix("eval-")
    if config.has_curve:  # may have been asked for after `init`, which checks the same
        check_model(run.model_dir, run.config)
    exam = _Exam(run, config, await run.serving(run.model_dir, stage=f"eval of {label}"), label=label)
    began = time.monotonic()
    run.progress.stage(f"eval-{label}", 0)
    limit, stage = Deadline(seconds=config.timeout_s, setting="eval.timeout_s"), f"eval of {label}"
    making = within(
        limit,
        beside(heldout_tasks, run.config, config.tasks),
        stage=stage,
        waiting_for=lambda: "held-out tasks to be made",
    )
    tasks = await run.stop.wait_or(making)
    for env in sorted(run.config.envs):
        if (found := sum(task.env == env for task in tasks)) < config.tasks:
            run.progress.note(f"eval-{label}: {env} has {found} held-out tasks, {config.tasks} were asked for")
    if config.has_curve:
        run.progress.note(f"eval-{label}: thinking without a limit")
    groups = await exam.answers(tasks)
    by_env = {env: env_result(_of_env(groups, env), asked=config.tasks) for env in sorted(run.config.envs)}
    further, curves = await _thinking(run, config, exam, tasks, groups) if config.has_curve else ([], {})
    result = {
        "label": label,
        "order": next_order(run.folder.evals, label),
        "model": state.model,
        "k": config.samples,
        "seconds": time.monotonic() - began,
        "envs": by_env,
    }
    if curves:
        result["curve"] = {env: [point.as_json() for point in points] for env, points in curves.items()}
        await beside(write_groups, run.folder.trajectories / f"eval-{label}-thinking.jsonl", further)
    await beside(write_groups, run.folder.trajectories / f"eval-{label}.jsonl", groups)
    path = run.folder.evals / f"{label}.json"
    write_json(path, result)
    metrics = {f"{env}/{name}": value for env, values in by_env.items() for name, value in values.items()}
    run.log(f"eval-{label}", 0, metrics | curve_metrics(curves))
    return path


def heldout_tasks(config: Config, tasks: int) -> list[Task]:
    """The tasks of an evaluation: the first `tasks` held-out ones of each environment, in the order of names.

    None of them twice; fewer of an environment that does not have as many.
    """
    sources = [
        open_source(env, settings, split="heldout", seed=config.seed) for env, settings in sorted(config.envs.items())
    ]
    return [task for source in sources for task in distinct(source, tasks)]


def next_order(folder: Path, label: str) -> int:
    """The place of the evaluation of the newest model: behind those of all other models."""
    return 1 + max((other.order for other in read_evaluations(folder) if other.label != label), default=-1)


class _Exam:
    """Puts tasks to the engines. Every pass has a deadline and tickets of its own, and so other seeds."""

    def __init__(self, run: Run, config: EvalConfig, pool: RolloutPool, *, label: str) -> None:
        self.label = label
        self._run = run
        self._config = config
        self._pool = pool
        self._numbers = count(EVAL_TICKETS)
        self._watch = FailureWatch(config.max_failures, setting="eval.max_failures")

    async def answers(self, tasks: list[Task], *, points: int = 1) -> list[Group]:
        """The groups of answers to the tasks.

        Raises `StuckError` after `points` times the deadline of an evaluation, `TooManyFailures` where too many fail.
        """
        run, config = self._run, self._config
        tickets = [Ticket(number=next(self._numbers), task=task, admitted=run.version) for task in tasks]
        calls = (self._pool.run_group(ticket, config.samples) for ticket in tickets)
        answering = asyncio.gather(*(self._watch.on(call) for call in calls))
        limit, stage = Deadline(seconds=points * config.timeout_s, setting="eval.timeout_s"), f"eval of {self.label}"
        waiting = within(limit, answering, stage=stage, waiting_for=lambda: "held-out answers")
        groups = await run.stop.wait_or(waiting)
        self._watch.conclude()
        return groups


async def _thinking(
    run: Run, config: EvalConfig, exam: _Exam, tasks: list[Task], free: list[Group]
) -> tuple[list[Group], dict[str, list[BudgetPoint]]]:
    """The further passes: their groups, and the curve of every environment that thinks."""
    scope = run.config.rollout.thought.scope
    thinking = sorted({task.env for task in tasks if task.thinking == UNLIMITED})
    medians = {env: median_free_thought(_of_env(free, env), scope=scope) for env in thinking}
    known = {env: value for env, value in medians.items() if value is not None}
    for env in sorted(set(run.config.envs) - set(known)):
        why = "no answer has a score" if env in medians else "its tasks are answered without a thought"
        run.progress.note(f"eval-{exam.label}: no curve for {env}: {why}")
    passes = further_passes(config, known) if known else []
    further: list[Group] = []
    for one in passes:
        run.progress.note(f"eval-{exam.label}: {one.name}")
        further += await exam.answers(one.tasks(tasks), points=one.points)
    conditions = {env: [FREE, *(asked for one in passes for asked in one.conditions[env])] for env in known}
    groups = [*free, *further]
    return further, {env: budget_curve(_of_env(groups, env), conditions[env], scope=scope) for env in known}


def further_passes(config: EvalConfig, medians: dict[str, float]) -> list[Pass]:
    """What is asked for beside unlimited thought, by kind; `medians` has each environment's free thought in tokens."""
    passes = []
    if config.no_thought:
        passes.append(Pass(name="thinking off", conditions={env: [Condition(thinking=OFF)] for env in medians}))
    if config.low_effort:
        passes.append(Pass(name="low effort", conditions={env: [Condition(thinking=LOW_EFFORT)] for env in medians}))
    if config.budgets or config.budget_shares:
        conditions = {
            env: budget_conditions(config.budgets, config.budget_shares, free_thought=value)
            for env, value in medians.items()
        }
        budgets = {env: ", ".join(str(one.thinking.budget) for one in asked) for env, asked in conditions.items()}
        listed = "; ".join(f"{env} {numbers}" for env, numbers in budgets.items())
        passes.append(Pass(name=f"budgets in tokens: {listed}", conditions=conditions))
    return passes


def curve_metrics(curves: dict[str, list[BudgetPoint]]) -> dict[str, float]:
    """The numbers of every point that go to the tracker; lengths are those of an episode."""
    return {
        f"{env}/thinking/{point.label}/{name}": value
        for env, points in curves.items()
        for point in points
        for name, value in (
            ("accuracy", point.accuracy),
            ("well_formed", point.well_formed),
            ("thought_tokens", point.thought_tokens),
            ("answer_tokens", point.answer_tokens),
        )
    }


def env_result(groups: list[Group], *, asked: int) -> dict[str, float]:
    """An environment's results, of `asked` tasks.

    avg@k is over the answers with a score, with its standard error over tasks; `avg_at_k_low` counts those without one as
    wrong. pass@k is over the tasks whose k answers all have a score, of which there are `complete`.
    """
    scored = [t for group in groups for t in group.trajectories]
    complete = [group for group in groups if not group.failed]
    shares, lowest = task_accuracies(groups), task_accuracies(groups, failed_are_wrong=True)
    return {
        "tasks": len(groups),
        "tasks_asked": asked,
        "samples": len(scored),
        "failures": sum(len(group.failed) for group in groups),
        "complete": len(complete),
        "avg_at_k": mean(shares),
        "avg_at_k_low": mean(lowest) if scored else math.nan,
        "pass_at_k": mean([any(t.correct for t in group.trajectories) for group in complete]),
        "stderr": standard_error(shares),
        "reward": mean([t.reward for t in scored if t.reward is not None]),
        "tokens": mean([t.sampled_tokens for t in scored]),
        "truncated": mean([t.truncated for t in scored]),
        "well_formed": well_formed_share(scored) if scored else math.nan,
        "thought_tokens": mean([t.thought_tokens for t in scored]),
        "answer_tokens": mean([t.answer_tokens for t in scored]),
    }


def _of_env(groups: list[Group], env: str) -> list[Group]:
    return [group for group in groups if group.ticket.task.env == env]
