"""A data set as a tracker shows it: what it is called, where it comes from and a digest by which it is told from another."""

from dataclasses import dataclass
from typing import Any, Literal


@dataclass(frozen=True, slots=True, kw_only=True)
class DataSet:
    """Data that a stage read. `digest` has at most 36 characters, `facts` are further names and values."""

    name: str
    digest: str
    kind: Literal["file", "generated"]
    source: str
    context: Literal["train", "eval"]
    facts: tuple[tuple[str, Any], ...] = ()
