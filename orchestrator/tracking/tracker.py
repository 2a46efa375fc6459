"""The tracking interface of a run."""

import re
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from temper.orchestrator.tracking.backend import Backend, DataSet, RunStatus
from temper.orchestrator.tracking.sending import Sender

STAGE_STEP = re.compile(r"(.+)-[0-9]+")


class Tracker:
    """The tracking backends of a run, possibly none. They read its metrics file. Only `close` blocks.

    A newer call about the same subject replaces a waiting one.
    """

    def __init__(self, *senders: Sender) -> None:
        self._senders = senders
        self._params: dict[str, str] = {}

    def params(self, values: dict[str, str]) -> None:
        """Send the run's configuration."""
        self._params = given = self._params | values
        self._each("the configuration", lambda backend: backend.send_params(given))

    def artifact(self, path: Path) -> None:
        """Store a file with the run, in its state when sent."""
        self._each(str(path), lambda backend: backend.store(path) if path.exists() else None)

    def episodes(self, path: Path) -> None:
        """Show a sample of the episodes in a trajectory file."""
        self._each(f"episodes of {stage_of(path)}", lambda backend: backend.store_episodes(path))

    def describe(self, note: str) -> None:
        """Set the run's part of its description, in Markdown. `PAGE` and `FILE` become addresses."""
        self._each("the description", lambda backend: backend.describe(note))

    def stage(
        self, name: str, params: dict[str, str], seconds: float | None = None, *, data: Sequence[DataSet] = ()
    ) -> None:
        """Report that a stage began, with its settings and data, or ended after `seconds`."""
        self._each(f"the stage {name}", lambda backend: backend.stage(name, params, seconds, data))

    def model(self, path: Path, facts: dict[str, str]) -> None:
        """Report the run's final checkpoint, with further facts by name."""
        self._each("the model", lambda backend: backend.register(path, facts))

    def close(self, status: RunStatus, *, timeout_s: float | None = None) -> None:
        """Send the rest and end the run, in all backends at once. By default each has its own deadline."""
        with ThreadPoolExecutor(max(1, len(self._senders))) as closing:
            for done in [closing.submit(one.close, status, timeout_s=timeout_s) for one in self._senders]:
                done.result()

    def _each(self, key: str, call: Callable[[Backend], None]) -> None:
        for sender in self._senders:
            sender.add(key, call)


def stage_of(path: Path) -> str:
    """Return the stage of a file STAGE-STEP, else its name. A stage's newest episodes replace older ones."""
    found = STAGE_STEP.fullmatch(path.stem)
    return path.stem if found is None or path.stem.startswith("eval-") else found[1]
