"""Whether the model's format carries what the environments of a run ask of it: found out before anything is started."""

from collections.abc import Iterable, Mapping
from itertools import islice

from transformers import PreTrainedTokenizerBase

from temper.envs.binding import BoundEnv
from temper.envs.core.task import Task
from temper.envs.data.blocks import BLOCK
from temper.envs.source import data_of, open_source, row_tasks
from temper.orchestrator.pipeline.config import Config
from temper.orchestrator.stages.stage import StageInstance
from temper.rollout.episodes.round_trip import Needs, check_round_trip


def format_notes(config: Config, ahead: list[StageInstance], tokenizer: PreTrainedTokenizerBase) -> list[str]:
    """Return what a run should say at its start of the model's format, where a stage that is ahead plays episodes.

    Raise `ValueError` where a gold dialogue of the kind that its environments have does not come back as it was.
    """
    if not any(config.plays(one) for one in ahead):
        return []
    told = [(one.stage, settings) for one in config.instances if (settings := config.settings(one)) is not None]
    left_out = any(stage.leaves_thoughts_out(settings) for stage, settings in told)
    return check_round_trip(tokenizer, needs_of(config.environments, seed=config.seed, left_out=left_out))


def needs_of(envs: Mapping[str, BoundEnv], *, seed: int, left_out: bool) -> Needs:
    """Return what environments ask of a format; `left_out` where stages leave out thoughts."""
    tasks = [task for env in envs.values() for task in _some_tasks(env, seed)]
    return Needs(
        tools=any(task.tools for task in tasks) or any(env.ref.settings.tools for env in envs.values()),
        system=any(message.get("role") == "system" for task in tasks for message in task.messages),
        thinking=any(env.config.thinking for env in envs.values()),
        no_thinking=left_out or any(not env.config.thinking for env in envs.values()),
    )


def _some_tasks(env: BoundEnv, seed: int) -> Iterable[Task]:
    """Return the tasks that are looked at for tools and system texts: of rows all, of streamed ones the first block."""
    data = data_of(env)
    if not data:
        return [] if env.definition.generate is None else [open_source(env, split="train", seed=seed).task(0)]
    read = [islice(row_tasks(env, one), BLOCK if one.streaming else None) for one in data]
    return [each.task for rows in read for each in rows]
