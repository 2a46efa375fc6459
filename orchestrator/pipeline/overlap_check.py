"""Compares the evaluation prompts that rows of data give with everything that a run trains on."""

from collections.abc import Iterator

from envs.data.overlap import OverlapIndex, prompt_words
from envs.data.rows import usable_rows
from envs.source import RowSource, open_source
from envs.task_rows import evaluation_index, holds, row_tasks
from orchestrator.data.chat_messages import checked_messages
from orchestrator.pipeline.config import Config
from orchestrator.reporting.overlaps import EvaluationOverlap

MOST_WORDS = 100_000_000
"""Words of training prompts after which no more are compared, a minute or so."""
Prompts = Iterator[list[str]]


def find_overlaps(config: Config) -> list[EvaluationOverlap]:
    """Return the overlap of each environment's evaluation prompts with all training prompts, where both are rows of data."""
    training = dict(_training(config))
    held = {name: env for name, env in config.environments.items() if holds(env, "heldout") is not None}
    if not (training and held):
        return []
    indices = {name: evaluation_index(env) for name, env in held.items()}
    complete = _compare(training, indices)
    return [
        EvaluationOverlap(
            env=name,
            training=tuple(training),
            found=index.result(all_compared=complete),
            left_out=_left_out(config, name),
        )
        for name, index in indices.items()
    ]


def _compare(training: dict[str, Prompts], indices: dict[str, OverlapIndex]) -> bool:
    """Compare every training prompt with every index; returns whether all were."""
    left = MOST_WORDS
    for prompts in training.values():
        for words in prompts:
            if left <= 0:
                return False
            left -= len(words)
            for index in indices.values():
                index.compare(words)
    return True


def _training(config: Config) -> Iterator[tuple[str, Prompts]]:
    """Yield the training prompts of each environment and stage that has rows of data, by the name of the data."""
    for env in config.environments.values():
        if env.config.data is not None:
            rows = row_tasks(env, env.config.data)
            yield env.config.data.name, (prompt_words(each.task.messages) for each in rows if not each.heldout)
    for one in config.instances:
        settings = config.settings(one)
        if settings is None or (data := one.stage.data(settings)) is None:
            continue
        chats = usable_rows(data, parse=lambda row, number: prompt_words(checked_messages(row)), on_error="skip")
        yield data.name, chats


def _left_out(config: Config, name: str) -> int:
    env = config.environments[name]
    if env.config.drop_overlap == "none":
        return 0
    source = open_source(env, split="train", seed=config.seed)
    return source.overlapping if isinstance(source, RowSource) else 0
