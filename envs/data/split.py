"""The split of rows into training and held-out rows."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from temper.envs.core.setting import immutable
from temper.envs.core.task import Task

SPLITS = ("train", "heldout")
SHARE = 1 / 8
HELDOUT = ["test"]
BITS = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class SplitTask:
    """The task of a row, and whether it is held out."""

    task: Task
    heldout: bool
    row: int
    """The number of the row, from 1."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadRows:
    """Rows of data as tasks, the number of skipped bad rows, and remarks on repeated and contradictory ones."""

    tasks: tuple[SplitTask, ...]
    skipped: int
    remarks: tuple[str, ...] = ()
    unread: Mapping[str, int] = field(default_factory=dict)
    """Numbers of rows with fields that nothing reads, by these fields."""


@dataclass(frozen=True, kw_only=True)
class SplitConfig:
    """The division of tasks into training and held-out tasks."""

    by: Literal["hash", "file", "column"] | None = immutable(None)
    """Split by the hash of the prompt, by file (`data` trains, `eval_data` is held out) or by column. Null is file with
    eval_data, otherwise hash.
    """
    share: float = immutable(SHARE, unit="share")
    """By hash: share of held-out prompts. The side of a prompt does not depend on seed, count or order of rows."""
    column: str | None = immutable(None)
    """By column: the column's name, after `data.columns`."""
    heldout: list[str] = immutable(HELDOUT)
    """By column: its values in held-out rows. All others train."""

    def check(self, key: str, *, has_data: bool, has_eval_data: bool) -> None:
        """Raise `ValueError` with the setting below `key` if the tasks can't be split as configured."""
        if not 0 < self.share < 1:
            raise ValueError(f"{key}.share={self.share}: must be above 0 and below 1")
        if has_eval_data and self.by not in (None, "file"):
            raise ValueError(f"{key}.by={self.by}: all of eval_data is held out; remove by or eval_data")
        if self.by == "file" and not has_eval_data:
            raise ValueError(f"{key}.by=file needs eval_data with the held-out rows; set it")
        if (self.by == "column") != (self.column is not None):
            raise ValueError(f"{key}.by={self.by} and {key}.column={self.column}: set column only with by=column")
        if self.by == "column" and not (has_data and self.heldout):
            raise ValueError(f"{key}.by=column needs data and {key}.heldout, the values of held-out rows; set both")
        if self.heldout != HELDOUT and self.by != "column":
            raise ValueError(f"{key}.heldout={self.heldout}: these are column values; set {key}.column")
        if self.share != SHARE and has_data and (has_eval_data or self.by == "column"):
            what = "eval_data" if has_eval_data else f"{key}.column"
            raise ValueError(f"{key}.share={self.share}: {what} already selects the held-out rows; remove one of them")


def digest(data: Any) -> str:
    return hashlib.sha256(json.dumps(data, sort_keys=True).encode()).hexdigest()


def split_of(task: Task, share: float = SHARE) -> str:
    """Return the split of a task by the hash of its request."""
    low = int(digest(task.request), 16) % 2**BITS
    place = int(f"{low:0{BITS}b}"[::-1], 2) / 2**BITS  # the lowest bit counts most: 1/8 are the hashes divisible by 8
    return "heldout" if place < share else "train"
