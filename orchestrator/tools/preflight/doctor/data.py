"""Rows of data, the stages that read them, limits, and evaluation prompts that are trained on."""

from collections.abc import Iterator

from temper.envs.binding import BoundEnv
from temper.envs.data.config import DataConfig
from temper.envs.source import all_rows, data_of
from temper.orchestrator.pipeline.finding import Finding, ok, warning
from temper.orchestrator.pipeline.overlap_check import find_overlaps
from temper.orchestrator.pipeline.overlaps import EvaluationOverlap
from temper.orchestrator.pipeline.start_checks import check_data, check_hangs, check_prompts, check_turns
from temper.orchestrator.tools.preflight.doctor.subject import Subject, to_download

MOST_WORDS = 5_000_000
"""Words of training prompts that are compared with evaluation prompts, which takes a few seconds."""


def look_at_rows(subject: Subject) -> Iterator[Finding]:
    """Read the rows of data of every environment."""
    for name, env in subject.config.environments.items():
        for data in data_of(env):
            if to_download(data):
                yield warning(
                    f"{name}: {data.name} is not on this machine, so nothing is known of it",
                    f"hf download --repo-type dataset {data.path}",
                )
            elif data.streaming:
                yield ok(f"{name}: {data.name}: read as it is needed (streaming)")
            else:
                yield check_rows(env, data)


def check_rows(env: BoundEnv, data: DataConfig) -> Finding:
    """Count the rows of data by what becomes of them. Raise as reading them does."""
    read = all_rows(env, data)
    heldout = sum(each.heldout for each in read.tasks)
    said = f"{env.name}: {data.name}: {len(read.tasks) - heldout} rows to train on, {heldout} held out"
    if read.skipped:
        return warning(
            f"{said}, {read.skipped} that can't be used", f"mend them; envs.{env.name}.on_error=raise says the first"
        )
    return ok(said)


def look_at_stages(subject: Subject) -> Iterator[Finding]:
    """Let each stage check the data that it will read."""
    if subject.data_is_here:
        for one in subject.instances:
            subject.config.require_stage(one)
        yield from check_data(subject.start)


def look_at_prompts(subject: Subject) -> Iterator[Finding]:
    """Compare the longest prompts of rows with the limit of an episode."""
    if subject.data_is_here:
        yield from check_prompts(subject.start)


def look_at_limits(subject: Subject) -> Iterator[Finding]:
    """Compare limits of episodes with environments, and deadlines with each other."""
    found = [*check_turns(subject.start), *check_hangs(subject.start)]
    limits = subject.config.rollout.limits
    yield from found or [ok(f"episodes of {limits.total_tokens} tokens and {limits.timeout_s:g} s")]


def look_at_overlap(subject: Subject) -> Iterator[Finding]:
    """Compare evaluation prompts with training prompts, where both are rows of data."""
    if subject.data_is_here:
        for found in find_overlaps(subject.config, most_words=MOST_WORDS):
            yield check_overlap(found)


def check_overlap(found: EvaluationOverlap) -> Finding:
    """Say how much of an evaluation set is trained on."""
    alike = len(found.found.exact)
    if alike > found.left_out or len(found.found.shared) > max(alike, found.left_out):
        return warning(
            found.note, f"envs.{found.env}.drop_overlap={'exact' if alike else 'ngrams'} leaves such rows out"
        )
    return ok(found.note)
