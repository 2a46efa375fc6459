"""The location of data, its filter and its column names."""

import re
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path
from typing import Any, ClassVar, Literal

from temper.envs.core.bounds import refuse_variable
from temper.envs.core.setting import Kind, free, immutable, required

OnError = Literal["raise", "skip"]
DropOverlap = Literal["none", "exact", "ngrams"]
BOUNDS = {"min", "max"}
LOCAL_FOLDERS = (
    *("data", "dataset", "datasets", "files", "model", "models", "run", "runs", "weights", "checkpoint", "checkpoints"),
    *("output", "outputs", "configs", "tmp", "home", "mnt", "root", "usr", "workspace"),
)
"""Names of folders that are no owners of models or data on the hub."""
HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")


def to_number(value: object) -> float | None:
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
    """A file (.parquet, .csv, .tsv, .json, otherwise JSONL), a folder in the hub's layout, or a hub name such as
    `openai/gsm8k`.
    """
    config: str | None = immutable(None)
    """Configuration of a folder or hub data set. Null if there is only one."""
    split: str | None = immutable(None)
    """Split, such as train or test. Null if there is only one."""
    revision: str | None = immutable(None)
    """Commit, tag or branch of a hub data set. Null uses the newest state at the start of the run."""
    columns: dict[str, str] = immutable({})
    """Columns to rename, as `needed: present`: {question: problem, answer: solution.text}."""
    filter: dict[str, Any] = immutable({})
    """Rows to use, by present columns: a value, a list, {min: 1, max: 5}, or dates {min: 2024-08-01}. All must match."""
    format: str | None = immutable(None)
    """Row format. Null uses the environment's setting, or detects it."""
    on_error: OnError | None = immutable(None)
    """Action on a bad row: raise or skip. Null uses the environment's setting."""
    streaming: bool = free(False)
    """Whether to read rows on demand instead of keeping all in memory."""

    def __post_init__(self) -> None:
        if not self.path.strip():
            raise ValueError("path='' names no data; set a file, a folder or a hub name")
        refuse_variable("path", self.path)
        for column, wanted in self.filter.items():
            if isinstance(wanted, dict) and not (wanted and wanted.keys() <= BOUNDS):
                raise ValueError(
                    f"filter={self.filter}: {column} is {wanted}; set a value, a list of values, or min and max"
                )
            if isinstance(wanted, dict) and not _is_range(list(wanted.values())):
                raise ValueError(
                    f"filter={self.filter}: min and max of {column} are {wanted}; set numbers, or texts such as dates"
                )

    @property
    def name(self) -> str:
        """Its name in messages: the path, and the configuration and split if set."""
        return ":".join(part for part in (self.path, self.config, self.split) if part)


def _is_range(bounds: list[Any]) -> bool:
    given = [bound for bound in bounds if bound is not None]
    return all(to_number(bound) is not None for bound in given) or all(isinstance(bound, str) for bound in given)


def is_hub_name(path: str, files: tuple[str, ...] = ()) -> bool:
    """Return whether a path is a hub name: it looks like one, has no ending of `files`, and its first part is not a local
    folder or a usual name of one.
    """
    if not HUB_NAME.fullmatch(path) or path.lower().endswith(files):
        return False
    owner = path.partition("/")[0]
    return owner.lower() not in LOCAL_FOLDERS and not Path(owner).is_dir()


def near_names(path: Path) -> str:
    """Return the end of an error message for a missing path: the nearest names of its folder, or an empty text."""
    try:
        names = [one.name for one in path.parent.iterdir()]
    except OSError:
        names = []
    near = [name for name in get_close_matches(path.name, names, n=3) if name != path.name]
    return f"; did you mean {' or '.join(str(path.with_name(name)) for name in near)}?" if near else ""


def explain_no_hub_name(path: str) -> str:
    """Return the end of an error message if a path looks like a hub name but is not one, otherwise an empty text."""
    owner = path.partition("/")[0]
    if not HUB_NAME.fullmatch(path):
        return ""
    if Path(owner).is_dir():
        return f" (the local folder {owner} hides the hub name; download its data with hf download)"
    if owner.lower() in LOCAL_FOLDERS:
        return f" ({owner} is a usual name of a folder, so this is no hub name; download its files with hf download)"
    return ""
