"""What the limits of a run's episodes mean for its environments: found out before anything is started."""

import json
from collections.abc import Iterable, Mapping
from itertools import islice

from transformers import PreTrainedTokenizerBase

from temper.envs.binding import BoundEnv
from temper.envs.core.task import Task
from temper.envs.data.blocks import BLOCK
from temper.envs.source import data_of, row_tasks
from temper.orchestrator.config.loop import LoopConfig
from temper.orchestrator.pipeline.config import Config
from temper.orchestrator.stages.stage import StageInstance
from temper.rollout.episodes.episode import EpisodeLimits
from temper.rollout.episodes.renderer import Renderer
from temper.rollout.episodes.worker import RolloutConfig

SURELY_SHORT = 2
"""A prompt whose characters, this many times over, are fewer than the limit's tokens is not rendered to be counted."""


def limit_notes(config: Config, ahead: list[StageInstance], tokenizer: PreTrainedTokenizerBase) -> list[str]:
    """Return what a run should say at its start of the limits of its episodes, where a stage that is ahead plays any.

    Raise `ValueError` where rows of data have no room in them.
    """
    if not any(config.plays(one) for one in ahead):
        return []
    return [
        *turn_notes(config.environments, config.rollout.limits),
        *prompt_notes(config.environments, config.rollout, tokenizer),
    ]


def hang_notes(config: Config, ahead: list[StageInstance]) -> list[str]:
    """Return a line for each stage that would give up waiting before a hung process is found."""
    stalled = config.supervision.stalled_s
    told = [(one.name, config.settings(one)) for one in ahead]
    waits = {name: settings.timeout_s for name, settings in told if isinstance(settings, LoopConfig)}
    return [
        f"{name}.timeout_s={waited:g} is not above supervision.stalled_s={stalled:g}: a process that hangs while it answers "
        f"ends the run instead of being replaced"
        for name, waited in waits.items()
        if waited <= stalled
    ]


def turn_notes(envs: Mapping[str, BoundEnv], limits: EpisodeLimits) -> list[str]:
    """Return a line for each environment whose episodes the run's limit of turns cuts short."""
    notes = []
    for name, env in envs.items():
        settings = env.ref.settings
        own = settings.tool_turns if settings.tools and settings.max_turns is not None else settings.max_turns
        if limits.turns is not None and (own is None or limits.turns < own):
            what = f"{own} of its own" if own is not None else "as many as it likes"
            notes.append(f"rollout.limits.turns={limits.turns} cuts the episodes of {name} short, which has {what}")
    return notes


def prompt_notes(envs: Mapping[str, BoundEnv], rollout: RolloutConfig, tokenizer: PreTrainedTokenizerBase) -> list[str]:
    """Return a line for each data file with prompts that leave no token for an answer, where `on_error` lets them pass.

    Their episodes are failures of the kind `prompt_too_long`. Raise `ValueError` where `on_error` is raise.
    """
    renderer, total = Renderer(tokenizer, rollout.thought), rollout.limits.total_tokens
    notes = []
    for name, env in envs.items():
        for data in data_of(env):
            read = islice(row_tasks(env, data), BLOCK if data.streaming else None)
            tasks = [each.task for each in read]
            found = overlong(tasks, renderer, total_tokens=total)
            if not found:
                continue
            key, longest = max(found, key=lambda pair: pair[1])
            said = (
                f"{data.name}: the prompts of {len(found)} of {len(tasks)} rows leave no token for an answer in "
                f"rollout.limits.total_tokens={total}; the longest has {longest} (key {key})"
            )
            if (data.on_error or env.config.on_error) == "raise":
                raise ValueError(f"{said}; raise the limit, or let such episodes fail with envs.{name}.on_error=skip")
            notes.append(f"{said}; their episodes fail as prompt_too_long")
    return notes


def overlong(tasks: Iterable[Task], renderer: Renderer, *, total_tokens: int) -> list[tuple[str, int]]:
    """Return keys and lengths in tokens of the prompts that are as long as a whole episode may be."""
    lengths = ((task.key, len(renderer.prompt_ids(task))) for task in tasks if not _short(task, total_tokens))
    return [(key, length) for key, length in lengths if length >= total_tokens]


def _short(task: Task, total_tokens: int) -> bool:
    return SURELY_SHORT * len(json.dumps([task.messages, task.tools])) < total_tokens
