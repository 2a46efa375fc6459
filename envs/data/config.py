"""What names data: where it lies, which of its rows, and under which names their columns are wanted."""

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Literal

from temper.envs.core.setting import Kind, free, immutable, required

OnError = Literal["raise", "skip"]
BOUNDS = {"min", "max"}
HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")


def number_of(value: object) -> float | None:
    if not isinstance(value, str | int | float):
        return None
    try:
        return float(value)
    except ValueError:
        return None


@dataclass(frozen=True, kw_only=True)
class DataConfig:
    """Rows of data. A text alone is its path."""

    SHORTHAND: ClassVar[str] = "path"

    path: str = field(metadata=required(Kind.IMMUTABLE))
    """A file (.parquet, .csv, .tsv, .json; any other has a JSON object a line), a folder as a data set on the hub has it, or
    the name of one there: `openai/gsm8k`."""
    config: str | None = immutable(None)
    """The configuration of a folder or of a data set on the hub; null where it has only one."""
    split: str | None = immutable(None)
    """Its split, such as train or test; null where it has only one."""
    revision: str | None = immutable(None)
    """Commit, tag or branch of a data set on the hub; null is its newest state when the run begins."""
    columns: dict[str, str] = immutable({})
    """Columns under the names that the rows need, as `needed: given`: {question: problem, answer: solution.text}."""
    filter: dict[str, Any] = immutable({})
    """Rows that are used, by given columns: a value, a list, {min: 1, max: 5}, for dates {min: 2024-08-01}; all must hold."""
    format: str | None = immutable(None)
    """Format of the rows; null is that of its owner, or finds it out."""
    on_error: OnError | None = immutable(None)
    """What a bad row does: raise or skip; null is as its owner says."""
    streaming: bool = free(False)
    """Whether rows are read as they are needed, so that memory never holds all of them."""

    def __post_init__(self) -> None:
        if not self.path.strip():
            raise ValueError("path='' names no data; give a file, a folder or a name on the hub")
        for column, wanted in self.filter.items():
            if isinstance(wanted, dict) and not (wanted and wanted.keys() <= BOUNDS):
                raise ValueError(
                    f"filter={self.filter}: {column} may have a value, a list of values, or min and max, not {wanted}"
                )
            if isinstance(wanted, dict) and not _is_range(list(wanted.values())):
                raise ValueError(
                    f"filter={self.filter}: min and max of {column} are {wanted}; give numbers, or texts such as dates"
                )

    @property
    def name(self) -> str:
        """What it is called in messages: its path, with configuration and split where they are given."""
        return ":".join(part for part in (self.path, self.config, self.split) if part)


def _is_range(bounds: list[Any]) -> bool:
    given = [bound for bound in bounds if bound is not None]
    return all(number_of(bound) is not None for bound in given) or all(isinstance(bound, str) for bound in given)


def names_hub(path: str, files: tuple[str, ...] = ()) -> bool:
    """Return whether a path is a name on the hub: it looks like one, has no ending of `files`, and its first part is no folder
    here, in which it would be looked for.
    """
    if not HUB_NAME.fullmatch(path) or path.lower().endswith(files):
        return False
    return not Path(path.partition("/")[0]).is_dir()


def why_no_name(path: str) -> str:
    """Return the reason if a path that looks like a name on the hub is none, as the end of an error, else an empty text."""
    owner = path.partition("/")[0]
    if not HUB_NAME.fullmatch(path) or not Path(owner).is_dir():
        return ""
    return (
        f" ({owner} is a folder here, so that this is no name on the hub; what is there comes into it with hf download)"
    )
