"""The metrics of one step of the loop, and the training rows of its answers."""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from statistics import fmean
from typing import Any

from temper.envs.core.process import LearnerDied, StoredResult
from temper.learner.token_records import TokenRecord
from temper.learner.trainer_group import TrainerGroup
from temper.orchestrator.loop.buffer import Occupancy
from temper.orchestrator.loop.deadline import Deadline, within
from temper.orchestrator.loop.shaping import earned_rewards
from temper.orchestrator.loop.step import StepReport
from temper.orchestrator.session.recording import StepBatch, write_batch
from temper.rewards.rounding import has_different_rewards
from temper.rewards.score import JUDGE_COSTS, Outcome
from temper.rollout.stored_turns import read_all_groups
from temper.rollout.trajectory import Group, Resumption, WeightVersion, well_formed_share
from temper.rollout.trajectory_json import write_groups


def step_metrics(report: StepReport) -> dict[str, float]:
    """Return flat metrics of a step: the learner's, times, staleness, and the rewards of each environment.

    Measures of an environment are over all answered groups. Trained groups alone are neither all right nor all wrong, so
    their mean reward is near the middle for any model. `reward_trained` is over those groups.
    """
    trajectories = [t for group in report.groups for t in group.trajectories]
    everything = [*report.groups, *report.dropped.groups]
    carried = Counter(t.resumption for group in everything for t in (*group.trajectories, *group.failed))
    sampled = sum(t.all_sampled_tokens for t in trajectories)
    forced = [one for t in trajectories for one in t.forced_answers]
    metrics = {f"train/{name}": value for name, value in report.learner.items()}
    metrics |= {
        **_staleness(report),
        "rollout/tokens_per_s": sampled / report.times.total,
        "rollout/answers": float(len(trajectories)),
        **_of_all_groups([*report.groups, *report.dropped.groups]),
        "rollout/dropped_zero_advantage": float(report.dropped.zero_advantage),
        "rollout/dropped_failed": float(report.dropped.failed),
        "rollout/episodes_resumed": float(carried[Resumption.RESUMED]),
        "rollout/episodes_restarted": float(carried[Resumption.RESTARTED]),
        "push/bytes": float(report.pushed_bytes),
        "push/share": report.pushed_share,
        "push/load_s": report.load_s,
    }
    if forced:
        metrics["rollout/forced_answers"] = float(len(forced))
        metrics["rollout/forced_failed"] = float(sum(one.failure is not None for one in forced))
    metrics |= report.times.metrics() | _buffer_metrics(report.occupancy) | _episode_metrics(everything)
    metrics |= {f"engine/{name}": float(value) for name, value in asdict(report.engine).items()}
    if report.engine.drafted_tokens:
        metrics["engine/accepted_share"] = report.engine.accepted_tokens / report.engine.drafted_tokens
    trained, answered = _by_env(report.groups), _by_env(everything)
    for env, groups in sorted(answered.items()):
        measured = _env_metrics(groups) | {"groups_trained": float(len(trained.get(env, [])))}
        rewards = [reward for group in trained.get(env, []) for reward in group.rewards_G]
        if rewards:
            measured["reward_trained"] = fmean(rewards)
        metrics |= {f"env/{env}/{name}": value for name, value in measured.items()}
    return metrics


def _staleness(report: StepReport) -> dict[str, float]:
    """Return the lags of groups since admission, and of tokens since the version that sampled them.

    A partial rollout has tokens of several versions.
    """
    now = report.version.step
    lags = [now - group.ticket.admitted.step for group in report.groups]
    answers = [t.totals for group in report.groups for t in group.trajectories]
    sampled = [one for one in answers if one.sampled_tokens]
    measured = {
        "train/lag_max": float(max(lags)),
        "train/lag_mean": fmean(lags),
        "buffer/left_over": float(report.left_over),
    }
    if not sampled:
        return measured
    mean = sum(one.version_sum for one in sampled) / sum(one.sampled_tokens for one in sampled)
    return measured | {
        "train/lag_tokens": float(now - mean),
        "rollout/partial": fmean([one.has_several_versions for one in sampled]),
    }


def _of_all_groups(groups: list[Group]) -> dict[str, float]:
    answered = [group for group in groups if group.trajectories]
    if not answered:
        return {}
    return {
        "rollout/truncated": fmean([t.truncated for group in answered for t in group.trajectories]),
        "rollout/branches": fmean([len(t.branches) for group in answered for t in group.trajectories]),
        "rollout/nonzero_advantage": fmean([has_different_rewards(earned_rewards(group)) for group in answered]),
    }


def _buffer_metrics(occupancy: Occupancy) -> dict[str, float]:
    held = {f"buffer/{state.value}": slots for state, slots in occupancy.held.items()}
    return held | {"buffer/free": occupancy.free, "buffer/slots": float(occupancy.slots)}


def _episode_metrics(groups: list[Group]) -> dict[str, float]:
    """Return the mean seconds of an episode by cause, failed ones included. They add up to `episode/s`."""
    episodes = [t for group in groups for t in (*group.trajectories, *group.failed)]
    seconds = fmean([t.seconds for t in episodes])
    by_wait = {
        "queue_s": fmean([t.times.queue_s for t in episodes]),
        "generate_s": fmean([t.times.generate_s for t in episodes]),
        "step_s": fmean([t.times.step_s for t in episodes]),
    }
    measured = {"s": seconds, **by_wait, "rest_s": seconds - sum(by_wait.values())}
    return {f"episode/{name}": value for name, value in measured.items()} | {
        "episode/longest_s": max(t.seconds for t in episodes)
    }


def _by_env(groups: list[Group]) -> dict[str, list[Group]]:
    by_env: dict[str, list[Group]] = {}
    for group in groups:
        by_env.setdefault(group.ticket.task.env.name, []).append(group)
    return by_env


def _env_metrics(groups: list[Group]) -> dict[str, float]:
    scored = [t for group in groups for t in group.trajectories]
    failed = sum(len(group.failures) for group in groups)
    metrics = {
        "groups": float(len(groups)),
        "failure_rate": failed / max(1, failed + len(scored)),
        "failures_retried": float(sum(len(group.retried) for group in groups)),
    }
    kinds = Counter(failure.kind.value for group in groups for failure in group.failures)
    metrics |= {f"failures/{kind}": float(count) for kind, count in kinds.items()}
    if scored:
        totals = [t.totals for t in scored]
        metrics |= {
            "reward": fmean([reward for group in groups for reward in group.rewards_G]),
            "tokens": fmean([one.sampled_tokens for one in totals]),
            "turns": fmean([len(t.turns) for t in scored]),
            "step_s": fmean([t.times.step_s for t in scored]),
            "truncated": fmean([t.truncated for t in scored]),
            "policy_faults": fmean([t.score.outcome is Outcome.POLICY_FAULT for t in scored]),
            "truncated_any": fmean([t.score.outcome is Outcome.TRUNCATED for t in scored]),
            "correct": fmean([t.correct for t in scored]),
            "thinking_tokens": fmean([one.thinking_tokens for one in totals]),
            "answer_tokens": fmean([one.answer_tokens for one in totals]),
            "well_formed": well_formed_share(scored),
            "forced_ends": fmean([one.model_tokens < one.sampled_tokens for one in totals]),
        }
    graded = [one.score.evidence for t in scored for one in (t, *t.forced_answers)]
    for name in JUDGE_COSTS:
        if any(name in evidence for evidence in graded):
            metrics[name] = sum(float(evidence.get(name, 0.0)) for evidence in graded) / len(scored)
    at_budget: dict[int, list[float]] = {}
    for t in scored:
        for budget, reward in zip(t.task.thinking.nested_budgets, t.budget_rewards, strict=False):
            at_budget.setdefault(budget, []).append(reward)
    metrics |= {f"reward_at/{budget}": fmean(rewards) for budget, rewards in at_budget.items()}
    for name in sorted({name for t in scored for name in t.score.parts}):
        values = [t.score.parts[name] for t in scored if name in t.score.parts]
        metrics[f"parts/{name}"] = fmean(values)
        if len(values) < len(scored):
            metrics[f"parts/{name}/share"] = len(values) / len(scored)
    return metrics


TRUNCATED = "truncated"
"""Reason for a truncated answer without trained tokens, if such answers are masked."""


async def records_of_step(learner: TrainerGroup, *, limit: Deadline, stage: str) -> list[StoredResult]:
    """Return the records of the last step by rank. There are none if the ranks failed or hang: the next call raises."""
    if learner.is_stuck:
        return []
    asking: Awaitable[list[StoredResult]] = learner.token_records()
    try:
        return await within(limit, asking, stage=stage, waiting_for="the training records of the tokens")
    except LearnerDied:
        return []


async def read_records(stored: Sequence[StoredResult]) -> list[TokenRecord]:
    """Return the records of all ranks by place. Raise `ResultLost`."""
    found = await asyncio.gather(*(one.read() for one in stored))
    return sorted((record for own in found for record in own), key=lambda record: record.place)


def training_rows(
    groups: list[Group], records: list[TokenRecord], *, version: WeightVersion, mask_truncated: bool
) -> list[dict[str, Any] | None]:
    """Return the record of each scored trajectory, or None. `version` is the version of the trained weights."""
    by_place = {record.place: record.as_json() for record in records}
    rows: list[dict[str, Any] | None] = []
    for place, trajectory in enumerate(t for group in groups for t in group.trajectories):
        made = by_place.get(place)
        if made is None and mask_truncated and trajectory.truncated_branches == trajectory.branches:
            made = {"untrained": TRUNCATED}
        rows.append(None if made is None else {"version": version.step} | made)
    return rows


def import_writers() -> None:
    """Import this module in the process that calls the functions below."""


def write_stored_groups(
    path: Path,
    groups: list[Group],
    records: Sequence[StoredResult],
    version: WeightVersion,
    mask_truncated: bool,
    leave: int,
) -> None:
    """Write the trajectory file of a step. Raise `GroupsLost`, `ResultLost`, or as `write_groups`."""
    opened, read = read_all_groups(groups), asyncio.run(read_records(records))
    rows = training_rows(opened, read, version=version, mask_truncated=mask_truncated)
    write_groups(path, opened, leave=leave, training=rows)


def write_stored_batch(path: Path, batch: StepBatch, records: Sequence[StoredResult], leave: int) -> None:
    """Write the batch of a step with its records. Raise `GroupsLost`, `ResultLost`, or as `write_batch`."""
    opened, read = read_all_groups(batch.groups), asyncio.run(read_records(records))
    write_batch(path, replace(batch, groups=opened, records=read), leave=leave)
