"""Compares evaluation prompts from rows of data with all training prompts."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from temper.envs.binding import BoundEnv
from temper.envs.data.overlap import OverlapIndex, PromptText, prompt_text
from temper.envs.data.rows import read_usable_rows
from temper.envs.data.split import digest
from temper.envs.source import build_evaluation_index, data_of_split, read_row_tasks
from temper.orchestrator.data.chat_file import all_messages
from temper.orchestrator.pipeline.config import Config
from temper.orchestrator.pipeline.overlaps import EvaluationOverlap, read_overlaps, write_overlaps
from temper.orchestrator.run.folder import RunDir

MOST_WORDS = 100_000_000
"""Most words of training prompts to compare, about a minute."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Training:
    """Training prompts of one setting. Two settings may use different rows of the same file."""

    name: str
    prompts: Iterator[PromptText]
    env: BoundEnv | None = None


def overlaps_of(config: Config, folder: RunDir) -> list[EvaluationOverlap]:
    """Return the overlaps in a run's folder. Find and write them first if settings or files have changed."""
    of, found = digest(folder.state().fingerprint), read_overlaps(folder.root)
    if not found or any(one.of != of for one in found):
        found = [replace(one, of=of) for one in find_overlaps(config)]
        write_overlaps(folder.root, found)
    return found


def find_overlaps(config: Config, *, most_words: int = MOST_WORDS) -> list[EvaluationOverlap]:
    """Return the overlap of each environment's evaluation prompts with training prompts, if both come from rows.

    At most `most_words` words of training prompts are compared.
    """
    training = list(_training(config))
    held = {name: env for name, env in config.environments.items() if data_of_split(env, "heldout") is not None}
    if not (training and held):
        return []
    indices = {name: build_evaluation_index(env) for name, env in held.items()}
    left_out: Counter[str] = Counter()
    kept: dict[str, Counter[str]] = {name: Counter() for name in held}
    complete = _compare(training, indices, left_out, kept, left=most_words)
    return [
        EvaluationOverlap(
            env=name,
            training=tuple(one.name for one in training),
            found=index.result(all_compared=complete),
            left_out=left_out[name],
            kept=dict(kept[name]),
        )
        for name, index in indices.items()
    ]


def _compare(
    training: Sequence[_Training],
    indices: Mapping[str, OverlapIndex],
    left_out: Counter[str],
    kept: Mapping[str, Counter[str]],
    *,
    left: int,
) -> bool:
    """Compare up to `left` words of training prompts with each index. Return whether all were compared.

    Count the rows that are filtered, and the overlapping ones that are not.
    """
    for one in training:
        for prompt in one.prompts:
            if left <= 0:
                return False
            left -= prompt.words
            drops = one.env is not None and indices[one.env.name].has_overlap(prompt, one.env.config.drop_overlap)
            if one.env is not None:
                left_out[one.env.name] += drops
            for name, index in indices.items():
                index.compare(prompt)
                if not drops and index.has_overlap(prompt, "ngrams"):
                    kept[name][one.name] += 1
    return True


def _training(config: Config) -> Iterator[_Training]:
    for name, env in config.environments.items():
        if (data := env.config.data) is not None:
            rows = (prompt_text(each.task.request) for each in read_row_tasks(env, data) if not each.heldout)
            yield _Training(name=f"envs.{name}.data={data.name}", prompts=rows, env=env)
    for one in config.instances:
        settings = config.settings(one)
        if settings is None or (data := one.stage.data(settings)) is None:
            continue
        chats = read_usable_rows(data, parse=lambda row, number: prompt_text(all_messages(row)), on_error="skip")
        yield _Training(name=f"{one.name}.data={data.name}", prompts=chats)
