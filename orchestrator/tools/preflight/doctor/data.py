"""Rows of data, the rewards and stages that read them, settings that conflict, and evaluation prompts that are trained on."""

from collections.abc import Iterator

from temper.envs.binding import BoundEnv
from temper.envs.data.config import DataConfig
from temper.envs.source import data_of, read_all_rows
from temper.orchestrator.pipeline.finding import Finding, ok, warning
from temper.orchestrator.pipeline.overlap_check import find_overlaps
from temper.orchestrator.pipeline.settings_checks import check_settings
from temper.orchestrator.pipeline.start_checks import (
    DIFFERENT_ROWS,
    audit_rewards,
    check_data,
    check_prompts,
    check_rewards,
)
from temper.orchestrator.tools.preflight.doctor.target import CheckTarget, to_download

MOST_WORDS = 5_000_000
"""Words of training prompts to compare with evaluation prompts, which takes a few seconds."""


def inspect_rows(target: CheckTarget) -> Iterator[Finding]:
    for name, env in target.config.environments.items():
        for data in data_of(env):
            if to_download(data):
                yield warning(
                    f"{name}: {data.name} is not downloaded, so it is not checked",
                    f"hf download --repo-type dataset {data.path}",
                )
            elif data.streaming:
                yield ok(f"{name}: {data.name}: read as it is needed (streaming)")
            else:
                yield _rows_of(env, data)


def _rows_of(env: BoundEnv, data: DataConfig) -> Finding:
    """Count the rows of data by their use. Raise as reading them does."""
    read = read_all_rows(env, data)
    heldout = sum(each.heldout for each in read.tasks)
    message = f"{env.name}: {data.name}: {len(read.tasks) - heldout} rows to train on, {heldout} held out"
    message = "; ".join((message, *read.remarks))
    if read.skipped:
        return warning(
            f"{message}, {read.skipped} unusable", f"correct them; envs.{env.name}.on_error=raise shows the first"
        )
    return warning(message, DIFFERENT_ROWS) if read.remarks else ok(message)


def inspect_rewards(target: CheckTarget) -> Iterator[Finding]:
    """Call users' rewards on an empty answer, and audit rewards that may pay for the same answer to all tasks."""
    if target.data_is_here:
        check_rewards(target.start)
        yield from list(audit_rewards(target.start)) or [ok("no reward of a user, and no environment of few answers")]


def inspect_stages(target: CheckTarget) -> Iterator[Finding]:
    """Run each stage's check of its data."""
    if target.data_is_here:
        for one in target.config.instances:
            target.config.require_stage(one)
        yield from check_data(target.start)


def inspect_prompts(target: CheckTarget) -> Iterator[Finding]:
    """Compare the longest prompts of rows with the limit of an episode."""
    if target.data_is_here:
        yield from check_prompts(target.start)


def inspect_limits(target: CheckTarget) -> Iterator[Finding]:
    found = [*check_settings(target.config, target.config.instances)]
    limits = target.config.rollout.limits
    yield from found or [ok(f"episodes of {limits.total_tokens} tokens and {limits.timeout_s:g} s")]


def inspect_overlap(target: CheckTarget) -> Iterator[Finding]:
    """Compare evaluation prompts with training prompts if both are rows of data."""
    if target.data_is_here:
        for one in find_overlaps(target.config, most_words=MOST_WORDS):
            yield warning(one.counts, one.remedy) if one.remedy else ok(one.counts)
