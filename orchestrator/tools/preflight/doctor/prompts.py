"""Data and prompts: rows, how long prompts are against the limits, and evaluation prompts that are trained on."""

from collections.abc import Iterator, Sequence
from itertools import islice

from temper.envs.binding import BoundEnv
from temper.envs.core.task import Task
from temper.envs.data.blocks import BLOCK
from temper.envs.data.config import DataConfig
from temper.envs.data.rows import is_on_hub
from temper.envs.source import all_rows, data_of, distinct, open_source, row_tasks
from temper.orchestrator.pipeline.data_files import has_files
from temper.orchestrator.pipeline.limit_checks import hang_notes, turn_notes
from temper.orchestrator.pipeline.overlap_check import find_overlaps
from temper.orchestrator.pipeline.overlaps import EvaluationOverlap
from temper.orchestrator.stages.stage import StartCheck
from temper.orchestrator.tools.preflight.doctor.finding import Finding, failure, ok, warning
from temper.orchestrator.tools.preflight.doctor.subject import Subject
from temper.rollout.episodes.episode import EpisodeLimits
from temper.rollout.episodes.renderer import Renderer

GENERATED = 32
"""Tasks of an environment that are looked at where it generates them."""
COUNTED = 16
"""Prompts of the most characters whose tokens are counted."""
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


def to_download(data: DataConfig) -> bool:
    """Return whether data would have to be downloaded."""
    return is_on_hub(data) and not has_files(data)


def is_here(subject: Subject) -> bool:
    """Return whether all that a run reads is on this machine."""
    config = subject.config
    stages = [(one.stage, settings) for one in subject.instances if (settings := config.settings(one)) is not None]
    data = [each for env in config.environments.values() for each in data_of(env)]
    data += [each for stage, settings in stages if (each := stage.data(settings)) is not None]
    return not any(map(to_download, data))


def look_at_stages(subject: Subject) -> Iterator[Finding]:
    """Let each stage look for what it will read."""
    if not is_here(subject):
        return
    for one in subject.instances:
        subject.config.require_stage(one)
        start = StartCheck(config=subject.config, name=one.name, tokenizer=subject.tokenizer, longest=subject.longest)
        one.stage.check(subject.config.settings(one), start)
    yield ok(f"{', '.join(one.name for one in subject.instances)} have what they read")


def look_at_prompts(subject: Subject) -> Iterator[Finding]:
    """Count the tokens of the longest prompts."""
    for name, env in subject.config.environments.items():
        if not any(map(to_download, data_of(env))) and (tasks := some_tasks(env, seed=subject.config.seed)):
            yield check_prompts(name, tasks, subject.renderer, subject.config.rollout.limits)


def some_tasks(env: BoundEnv, *, seed: int) -> list[Task]:
    """Return the tasks that are looked at: of rows all, of streamed ones a block, else some that are generated."""
    if data := data_of(env):
        read = [islice(row_tasks(env, one), BLOCK if one.streaming else None) for one in data]
        return [each.task for rows in read for each in rows]
    if env.definition.generate is None:
        return []
    return distinct(open_source(env, split="train", seed=seed), GENERATED)


def check_prompts(name: str, tasks: Sequence[Task], renderer: Renderer, limits: EpisodeLimits) -> Finding:
    """Say how long the longest prompt is, and what the limits leave for an answer."""
    most = sorted(tasks, key=lambda task: len(str(task.messages)) + len(str(task.tools)))[-COUNTED:]
    longest = max(len(renderer.prompt_ids(task)) for task in most)
    left = limits.total_tokens - longest
    limit = f"rollout.limits.total_tokens={limits.total_tokens}"
    said = f"{name}: the longest of {len(tasks)} prompts has {longest} tokens of {limit}"
    if left <= 0:
        return failure(f"{said}, which leaves none for an answer", "raise the limit, or leave such rows out")
    if left < limits.turn_tokens:
        return warning(
            f"{said}, which leaves {left} for an answer, fewer than rollout.limits.turn_tokens={limits.turn_tokens}",
            f"raise rollout.limits.total_tokens to {longest + limits.turn_tokens}",
        )
    return ok(f"{said}, which leaves {left} for an answer")


def look_at_limits(subject: Subject) -> Iterator[Finding]:
    """Hold the limits of episodes against what environments have, and the deadlines against each other."""
    config, ahead = subject.config, subject.instances
    limits = config.rollout.limits
    notes = turn_notes(config.environments, limits) if any(map(config.plays, ahead)) else []
    notes += hang_notes(config, ahead)
    for note in notes:
        yield warning(note, "leave the smaller setting out, or raise it")
    if not notes:
        yield ok(f"episodes of {limits.total_tokens} tokens and {limits.timeout_s:g} s")


def look_at_overlap(subject: Subject) -> Iterator[Finding]:
    """Compare evaluation prompts with training prompts, where both are rows of data."""
    if is_here(subject):
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
