"""Scores of an evaluation by environment and task, from answers of the evaluated weights only."""

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

import numpy as np

from temper.orchestrator.config.run_config import RunConfig
from temper.orchestrator.evaluation.budget_curve import mean, task_accuracies, task_scores
from temper.orchestrator.evaluation.intervals import accuracy_interval, standard_error
from temper.rollout.sampling import PLAIN, Sampling
from temper.rollout.token_arrays import join_arrays
from temper.rollout.trajectory import Group, Trajectory, WeightVersion, well_formed_share


def drop_stale(groups: Sequence[Group], version: WeightVersion) -> tuple[list[Group], Counter[str]]:
    """Return the groups, and the number of scored answers with a token of other weights, by environment.

    The score of such an environment is stale, so its groups come without answers.
    """
    stale = Counter(
        group.ticket.task.env.name for group in groups for one in group.trajectories if not is_of(one, version)
    )
    return [replace(one, trajectories=()) if one.ticket.task.env.name in stale else one for one in groups], stale


def is_of(trajectory: Trajectory, version: WeightVersion) -> bool:
    """Return whether all tokens, injected ones included, have these weights."""
    return all(bool((turn.versions_T == version.step).all()) for turn in trajectory.turns)


def versions_of(groups: Iterable[Group]) -> list[int]:
    """Return the weight versions of all tokens of scored answers, in order."""
    turns = (turn for group in groups for one in group.trajectories for turn in one.turns)
    return [int(version) for version in np.unique(join_arrays((turn.versions_T for turn in turns), np.int32))]


def describe_stale(env: str, answers: int, groups: Sequence[Group], version: WeightVersion) -> str:
    """Describe an environment with tokens of other weights."""
    found = ", ".join(map(str, versions_of(of_env(groups, env))))
    return (
        f"the score of {env} is stale: {answers} answers have tokens of other weights than version {version.step} (versions "
        f"{found})"
    )


def result_json(
    *,
    label: str,
    order: int,
    model: str | None,
    version: WeightVersion,
    samples: int,
    sampling: Sampling,
    seconds: float,
    asked: Mapping[str, Any],
    groups: Sequence[Group],
    envs: Mapping[str, Mapping[str, float]],
) -> dict[str, Any]:
    """Return the content of an evaluation's file: results by environment and by task.

    `asked` has the further settings that answers depend on, by name.
    """
    return {
        "label": label,
        "order": order,
        "model": model,
        "version": version.step,
        "k": samples,
        "sampling": asdict(sampling),
        "asked": dict(asked),
        "seconds": seconds,
        "envs": envs,
        "tasks": {env: [asdict(task) for task in task_scores(of_env(groups, env))] for env in envs},
    }


def asked_of_engines(config: RunConfig) -> dict[str, Any]:
    """Return, by name, the settings that the answers of our engines depend on besides sampling."""
    limits, thinking = asdict(config.rollout.limits), asdict(config.rollout.thinking)
    named = {f"rollout.limits.{name}": limits[name] for name in ("turn_tokens", "total_tokens", "turns")}
    return named | {f"rollout.thinking.{name}": value for name, value in thinking.items()} | asked_of_envs(config)


def asked_of_envs(config: RunConfig) -> dict[str, Any]:
    """Return, by name, the settings of the environments that answers to their tasks depend on."""
    return {
        f"envs.{name}.{setting}": value
        for name, env in sorted(config.envs.items())
        for setting, value in (("thinking", env.thinking), ("max_turns", env.max_turns), ("credit", env.credit))
    }


def of_env(groups: Iterable[Group], env: str) -> list[Group]:
    return [group for group in groups if group.ticket.task.env.name == env]


def env_result(groups: list[Group], *, asked: int | None, stale: int = 0) -> dict[str, float]:
    """Return an environment's results for `asked` tasks, None for all. `stale` answers have tokens of other weights.

    avg@k is over scored answers, with its standard error over tasks and its 95 % interval. `avg_at_k_failures_as_zero` counts
    failed answers as wrong. pass@k is over the `complete` tasks, whose k answers are all scored. `parts/NAME` is the mean of
    a score part over the answers that have it.
    """
    scored = [t for group in groups for t in group.trajectories]
    complete = [group for group in groups if not group.failed and group.trajectories]
    shares, lowest = task_accuracies(groups), task_accuracies(groups, failed_are_wrong=True)
    accuracy, stderr = mean(shares), standard_error(shares)
    low, high = accuracy_interval(accuracy, stderr=stderr, tasks=len(shares), samples=len(scored))
    return {
        "tasks": len(groups),
        "tasks_asked": len(groups) if asked is None else asked,
        "samples": len(scored),
        "failures": sum(len(group.failed) for group in groups),
        "stale": stale,
        "complete": len(complete),
        "avg_at_k": accuracy,
        "avg_at_k_failures_as_zero": mean(lowest) if scored else math.nan,
        "pass_at_k": mean([any(t.correct for t in group.trajectories) for group in complete]),
        "stderr": stderr,
        "interval_low": low,
        "interval_high": high,
        "reward": mean([t.reward for t in scored if t.reward is not None]),
        "tokens": mean([t.sampled_tokens for t in scored]),
        "truncated": mean([t.truncated for t in scored]),
        "well_formed": well_formed_share(scored) if scored else math.nan,
        "thinking_tokens": mean([t.thinking_tokens for t in scored]),
        "answer_tokens": mean([t.answer_tokens for t in scored]),
    } | _parts(scored)


def _parts(scored: Sequence[Trajectory]) -> dict[str, float]:
    """Return the means of the score parts."""
    names = sorted({name for one in scored for name in one.score.parts})
    return {
        f"parts/{name}": mean([one.score.parts[name] for one in scored if name in one.score.parts]) for name in names
    }


def result_lines(result: Mapping[str, Any]) -> list[str]:
    """Return the table of an evaluation's file, one line for each environment. A dash is an unknown value."""
    k = result["k"]
    rows = [("environment", "tasks", f"avg@{k}", "95 %", f"pass@{k}", "reward", "tokens", "cut off", "failed")]
    for env, values in result["envs"].items():
        low, high = _number(values["interval_low"]), _number(values["interval_high"])
        rows.append(
            (
                env,
                str(values["tasks"]),
                _shown(values["avg_at_k"]),
                "-" if math.isnan(low) else f"{low:.3f} to {high:.3f}",
                _shown(values["pass_at_k"]),
                _shown(values["reward"]),
                _shown(values["tokens"], places=0),
                _shown(values["truncated"]),
                str(values["failures"]),
            )
        )
    first, *others = (max(map(len, column)) for column in zip(*rows, strict=True))
    lines = ["  ".join((row[0].ljust(first), *map(str.rjust, row[1:], others))) for row in rows]
    return [f"{result['label']}: answers sampled at {_drawn(result['sampling'])}", *lines]


def _drawn(sampling: Mapping[str, Any]) -> str:
    usual = asdict(PLAIN) | {"temperature": None}
    given = {name: value for name, value in sampling.items() if value != usual.get(name)}
    return ", ".join(
        f"{name} {value:g}" if isinstance(value, float) else f"{name} {value}" for name, value in given.items()
    )


def _number(value: float | None) -> float:
    return math.nan if value is None else float(value)


def _shown(value: float | None, *, places: int = 3) -> str:
    number = _number(value)
    return "-" if math.isnan(number) else f"{number:.{places}f}"
