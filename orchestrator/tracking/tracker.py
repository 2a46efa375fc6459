"""Where a run reports to, as those see it who run it; and several such places as one."""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any, Literal, Protocol


class Ended(Enum):
    """How a run came to its end, in MLflow's words."""

    FINISHED = "FINISHED"  # all that was asked for is done
    FAILED = "FAILED"  # a fault ended it
    KILLED = "KILLED"  # somebody stopped it


@dataclass(frozen=True, slots=True, kw_only=True)
class DataSet:
    """Data that a stage read. `digest` has at most 36 characters, `facts` are further names and values."""

    name: str
    digest: str
    kind: Literal["file", "generated"]
    source: str
    context: Literal["train", "eval"]
    facts: tuple[tuple[str, Any], ...] = ()


class Tracker(Protocol):
    """Where a run reports to; its metrics are read from its metrics file. No call blocks, except `close`."""

    def params(self, values: dict[str, str]) -> None:
        """Send the run's configuration."""
        ...

    def artifact(self, path: Path) -> None:
        """Store a file with the run, as it is when it is sent."""
        ...

    def episodes(self, path: Path) -> None:
        """Show a sample of the episodes in a file of trajectories."""
        ...

    def describe(self, note: str) -> None:
        """Make a text in Markdown what the run says of itself.

        `RUN_PAGE` in it stands for the address of its page, `RUN_FILE/` for what comes before the names of its files.
        """
        ...

    def stage(
        self, name: str, params: dict[str, str], seconds: float | None = None, *, data: Sequence[DataSet] = ()
    ) -> None:
        """Tell that a stage has begun, with its settings and the data that it reads, or is done, in so many `seconds`."""
        ...

    def model(self, path: Path, facts: dict[str, str]) -> None:
        """Tell which checkpoint the run has left, with further facts by name."""
        ...

    def close(self, ended: Ended) -> None:
        """Send what is left, within a deadline, and end the run."""
        ...


class Trackers:
    """Several places to which a run reports, each told the same; without any it reports nowhere."""

    def __init__(self, *places: Tracker) -> None:
        self._places = places

    def params(self, values: dict[str, str]) -> None:
        self._each(lambda place: place.params(values))

    def artifact(self, path: Path) -> None:
        self._each(lambda place: place.artifact(path))

    def episodes(self, path: Path) -> None:
        self._each(lambda place: place.episodes(path))

    def describe(self, note: str) -> None:
        self._each(lambda place: place.describe(note))

    def stage(
        self, name: str, params: dict[str, str], seconds: float | None = None, *, data: Sequence[DataSet] = ()
    ) -> None:
        self._each(lambda place: place.stage(name, params, seconds, data=data))

    def model(self, path: Path, facts: dict[str, str]) -> None:
        self._each(lambda place: place.model(path, facts))

    def close(self, ended: Ended) -> None:
        """Close them at the same time, so that it takes as long as the slowest."""
        with ThreadPoolExecutor(max(1, len(self._places))) as closing:
            for done in [closing.submit(place.close, ended) for place in self._places]:
                done.result()

    def _each(self, tell: Callable[[Tracker], None]) -> None:
        for place in self._places:
            tell(place)
