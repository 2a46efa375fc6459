"""Which rows are trained on and which are held out for evaluation."""

import hashlib
import json
from dataclasses import dataclass
from typing import Any, Literal

from temper.envs.core.setting import immutable
from temper.envs.core.task import Task

SPLITS = ("train", "heldout")
SHARE = 1 / 8
HELDOUT = ["test"]
BITS = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class SplitTask:
    """A task of a row, and whether it is held out."""

    task: Task
    heldout: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadRows:
    """All rows of data as tasks, and how many others were skipped as bad."""

    tasks: tuple[SplitTask, ...]
    skipped: int


@dataclass(frozen=True, kw_only=True)
class SplitConfig:
    """How tasks are divided into training and held-out ones."""

    by: Literal["hash", "file", "column"] | None = immutable(None)
    """The hash of the prompt, the file (`data` is trained on, `eval_data` held out), or a column; null is file if there is
    eval_data, else hash."""
    share: float = immutable(SHARE, unit="share")
    """By hash: share of the prompts that is held out; a prompt stays on its side whatever the seed, count or order of rows."""
    column: str | None = immutable(None)
    """By column: its name, after `data.columns`."""
    heldout: list[str] = immutable(HELDOUT)
    """By column: its values in held-out rows; all others are trained on."""

    def check(self, key: str, *, has_data: bool, has_eval_data: bool) -> None:
        """Raise `ValueError`, with the setting below `key`, where the tasks can't be divided so."""
        if not 0 < self.share < 1:
            raise ValueError(f"{key}.share={self.share}: must be above 0 and below 1")
        if has_eval_data and self.by not in (None, "file"):
            raise ValueError(f"{key}.by={self.by}: what eval_data has is held out whole; leave it out, or eval_data")
        if self.by == "file" and not has_eval_data:
            raise ValueError(f"{key}.by=file: give eval_data, whose rows are held out")
        if (self.by == "column") != (self.column is not None):
            raise ValueError(
                f"{key}.by={self.by} and {key}.column={self.column}: by=column needs column, and no other does"
            )
        if self.by == "column" and not (has_data and self.heldout):
            raise ValueError(f"{key}.by=column: give data, and in {key}.heldout the values of held-out rows")
        if self.heldout != HELDOUT and self.by != "column":
            raise ValueError(f"{key}.heldout={self.heldout}: values of a column, which {key}.column has to name")
        if self.share != SHARE and has_data and (has_eval_data or self.by == "column"):
            what = "eval_data" if has_eval_data else f"{key}.column"
            raise ValueError(
                f"{key}.share={self.share}: {what} says what is held out, not a share; leave one of them out"
            )


def digest(data: Any) -> str:
    return hashlib.sha256(json.dumps(data, sort_keys=True).encode()).hexdigest()


def split_of(task: Task, share: float = SHARE) -> str:
    """Return the split of a task by the hash of its prompt messages, of which a share is held out."""
    low = int(digest(task.messages), 16) % 2**BITS
    place = (
        int(f"{low:0{BITS}b}"[::-1], 2) / 2**BITS
    )  # the lowest bit counts most, so that 1/8 is a hash divisible by 8
    return "heldout" if place < share else "train"
