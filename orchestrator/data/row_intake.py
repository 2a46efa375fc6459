"""Rows of supervised data: each is tokenised once on reading, then drawn in shuffled epochs."""

import random
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sized
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

from temper.envs.core.row_fields import unread_counts
from temper.envs.data.blocks import Blocks
from temper.envs.data.config import DataConfig, OnError
from temper.envs.data.repeats import SeenRows
from temper.envs.data.rows import read_rows, read_usable_rows
from temper.orchestrator.data.chat_data import Dialogue, DialogueTokenizer
from temper.rollout.token_arrays import tokens_of

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Position:
    """A position of an endless order: epoch, place in it, and number of the item there."""

    epoch: int
    place: int
    item: int


def positions(step: int, batch_size: int) -> range:
    """Return the positions that a step takes (1 or more)."""
    return range((step - 1) * batch_size, step * batch_size)


class Epochs:
    """The numbers 0 to `count` - 1, shuffled in each epoch. The order depends only on `seed` and the epoch."""

    def __init__(self, count: int, *, seed: str) -> None:
        assert count > 0
        self._count = count
        self._seed = seed
        self._shuffled: tuple[int, list[int]] = (-1, [])

    def at(self, index: int) -> Position:
        epoch, place = divmod(index, self._count)
        held, order = self._shuffled
        if held != epoch:
            order = list(range(self._count))
            random.Random(f"{self._seed}/{epoch}").shuffle(order)
            self._shuffled = (epoch, order)
        return Position(epoch=epoch, place=place, item=order[place])


class EpochBatches(Generic[T]):
    """Batches of items, shuffled in each epoch. Batch `step` depends only on the seed and the step."""

    def __init__(self, count: int, make: Callable[[Position], T], *, batch_size: int, seed: str) -> None:
        """`make` returns each of the `count` items from its position."""
        self._make = make
        self._batch_size = batch_size
        self._epochs = Epochs(count, seed=seed)

    def batch(self, step: int) -> list[T]:
        """Return the items of a step (1 or more)."""
        return [self._make(self._epochs.at(index)) for index in positions(step, self._batch_size)]


ROWS, MALFORMED = "rows", "malformed and skipped"
BROKEN = "contain tags of the chat template, each broken by a zero-width space"
REPEATED = "repeat an earlier row"
OPENED = "begin with an answer, which is not trained"
UNREASONED, REASONED = "turns without reasoning are context", "turns with reasoning are context"
NULLS = "have null arguments of unknown tools, which are trained as they are"
LEFT_OPEN = "end with unanswered messages, which are ignored"


def too_long(max_tokens: int | None) -> str:
    """Return the label of the count of rows over the limit."""
    return f"longer than {max_tokens} tokens and skipped"


def fits(ids: Sized, max_tokens: int | None) -> bool:
    """Return whether ids are within a limit. None is no limit."""
    return max_tokens is None or len(ids) <= max_tokens


def limit_name(stage: str, max_tokens: int | None) -> str:
    """Return the name of an instance's limit: its setting, or the model's."""
    return f"{stage}.max_tokens" if max_tokens is not None else "the model's max_position_embeddings"


@dataclass(frozen=True, slots=True)
class ShuffledRows(Generic[T]):
    """Items of rows, shuffled in each epoch."""

    item: Callable[[int], T]
    """Return the item at a position of the endless order."""
    counts: dict[str, int]
    """The used and filtered rows. Streamed data has only the remarks about its first block."""


class RowIntake:
    """Reads the rows of one file and counts the results."""

    def __init__(self, tokenizer: DialogueTokenizer, *, max_tokens: int | None, setting: str) -> None:
        """Reject rows over `max_tokens`, if set. `setting` names the limit in messages."""
        self._tokenizer = tokenizer
        self._max_tokens = max_tokens
        self._setting = setting
        self._counts: Counter[str] = Counter()
        self._remarks: Counter[str] = Counter()
        self._unread: set[str] = set()
        self._unread_counts: Counter[str] = Counter()

    @property
    def reads_reasoning(self) -> bool:
        """Whether the model has reasoning tags."""
        return self._tokenizer.reads_reasoning

    def read(
        self, data: DataConfig, parse: Callable[[dict[str, Any], int], T], *, on_error: OnError
    ) -> tuple[list[T], dict[str, int]]:
        """Read the items of rows of data. Count rows that are used, skipped or remarkable.

        `parse` calls `require_fits` for the dialogues of a row. If `on_error` is "raise", raise `ValueError` with the place
        of the first unusable row. Raise it if no row is usable.
        """
        assert not data.streaming
        _require_no_format(data)
        items, skipped = read_rows(data, parse=self._counting(parse, SeenRows()), on_error=on_error)
        long = self._counts[too_long(self._max_tokens)]
        return items, _counted({ROWS: len(items), MALFORMED: skipped - long} | self._all_counts())

    def _counting(
        self, parse: Callable[[dict[str, Any], int], T], seen: SeenRows | None = None
    ) -> Callable[[dict[str, Any], int], T]:
        """Return `parse` with the remarks counted about the rows that it accepts."""

        def parsed(row: dict[str, Any], number: int) -> T:
            self._remarks.clear()
            self._unread.clear()
            item = parse(row, number)
            self._remark(REPEATED, seen is not None and seen.add(row))
            self._counts.update(self._remarks)
            self._unread_counts.update(self._unread)
            return item

        return parsed

    def _all_counts(self) -> dict[str, int]:
        return _counted({**self._counts, **unread_counts(self._unread_counts)})

    def shuffled(
        self, data: DataConfig, parse: Callable[[dict[str, Any], int], T], *, on_error: OnError, seed: str
    ) -> ShuffledRows[T]:
        """Read the items of rows of data. Streamed data is read block by block.

        Raise as `read`. An unusable streamed row raises when its block is read, or is skipped each time.
        """
        if data.streaming:
            _require_no_format(data)
            counting = self._counting(parse)
            blocks = Blocks(lambda: read_usable_rows(data, parse=counting, on_error=on_error), seed=seed)
            return ShuffledRows(blocks.item, self._all_counts())
        rows, counts = self.read(data, parse, on_error=on_error)
        epochs = Epochs(len(rows), seed=seed)
        return ShuffledRows(lambda index: rows[epochs.at(index).item], counts)

    def require_fits(self, dialogue: Dialogue) -> tuple[int, ...]:
        """Return the ids of a dialogue. Raise `ValueError` for too many, or for parts that the template omits."""
        if dropped := self._tokenizer.dropped(dialogue):
            raise ValueError(f"the model's chat template omits {', '.join(dropped)}, which the row has")
        sample = self._tokenizer.sample(dialogue)
        ids = sample.ids
        without = UNREASONED if dialogue.task.thinks else REASONED
        if not any(sample.trained_T):
            raise ValueError(f"nothing in the row is trained: its {without}")
        if not fits(ids, self._max_tokens):
            self._counts[too_long(self._max_tokens)] += 1
            raise ValueError(f"the row has {len(ids)} tokens, more than {self._setting}={self._max_tokens}")
        self._remark(BROKEN, self._tokenizer.breaks_tags(dialogue))
        self._remark(OPENED, dialogue.task.messages[0]["role"] == "assistant")
        self._remark(NULLS, _has_null_arguments(dialogue))
        self._remark(LEFT_OPEN, dialogue.reply[-1]["role"] != "assistant")
        self._remark(without, self._tokenizer.context_turns(dialogue))
        return tokens_of(ids)

    def remark_unread(self, fields: Collection[str]) -> None:
        """Count fields of a row that are not read."""
        self._unread.update(fields)

    def _remark(self, what: str, count: int) -> None:
        """Count a remark about the row. The dialogues of a row share it."""
        if count:
            self._remarks[what] = max(self._remarks[what], int(count))


def _has_null_arguments(dialogue: Dialogue) -> bool:
    """Return whether a call of a tool without schema has null arguments, which may be padding of a table."""
    known = {tool.get("function", tool)["name"] for tool in dialogue.task.tools}
    functions = [call["function"] for message in dialogue.reply for call in message.get("tool_calls") or ()]
    return any(None in one["arguments"].values() for one in functions if one["name"] not in known)


def _require_no_format(data: DataConfig) -> None:
    if data.format is not None:
        raise ValueError(
            f"{data.name}: format={data.format}, but rows of chats and of pairs have a fixed format; remove it"
        )


def counts_text(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{count} {what}" for what, count in counts.items())


def require_rows(path: Path, used: int, left_out: Mapping[str, int]) -> dict[str, int]:
    """Count the rows of a file of the run. Raise `ValueError` if none is used."""
    counts = _counted({ROWS: used, **left_out})
    if not used:
        raise ValueError(f"nothing in {path} can be trained on: {counts_text(counts)}")
    return counts


def _counted(counts: Mapping[str, int]) -> dict[str, int]:
    return {what: count for what, count in counts.items() if count}
