"""Where a run reports to, as the run sees it."""

import re
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from temper.orchestrator.tracking.backend import Backend, DataSet, RunStatus
from temper.orchestrator.tracking.sending import Sender

STAGE_STEP = re.compile(r"(.+)-[0-9]+")


class Tracker:
    """The places to which a run reports, perhaps none; they read its metrics file. No call blocks, except `close`.

    A call that waits is replaced by a newer one about the same thing.
    """

    def __init__(self, *senders: Sender) -> None:
        self._senders = senders
        self._params: dict[str, str] = {}

    def params(self, values: dict[str, str]) -> None:
        """Send the run's configuration."""
        self._params = given = self._params | values
        self._each("the configuration", lambda backend: backend.send_params(given))

    def artifact(self, path: Path) -> None:
        """Store a file with the run, as it is when it is sent."""
        self._each(str(path), lambda backend: backend.store(path) if path.exists() else None)

    def episodes(self, path: Path) -> None:
        """Show a sample of the episodes in a file of trajectories."""
        self._each(f"episodes of {stage_of(path)}", lambda backend: backend.store_episodes(path))

    def describe(self, note: str) -> None:
        """Make a text in Markdown the run's own part of its description; `PAGE` and `FILE` in it become addresses."""
        self._each("the description", lambda backend: backend.describe(note))

    def stage(
        self, name: str, params: dict[str, str], seconds: float | None = None, *, data: Sequence[DataSet] = ()
    ) -> None:
        """Report that a stage has begun, with its settings and data, or is done, in so many `seconds`."""
        self._each(f"the stage {name}", lambda backend: backend.stage(name, params, seconds, data))

    def model(self, path: Path, facts: dict[str, str]) -> None:
        """Report the checkpoint that the run has left, with further facts by name."""
        self._each("the model", lambda backend: backend.register(path, facts))

    def close(self, status: RunStatus, *, timeout_s: float | None = None) -> None:
        """Send what is left and end the run, in all places at the same time; by default each has its own deadline."""
        with ThreadPoolExecutor(max(1, len(self._senders))) as closing:
            for done in [closing.submit(one.close, status, timeout_s=timeout_s) for one in self._senders]:
                done.result()

    def _each(self, key: str, call: Callable[[Backend], None]) -> None:
        for sender in self._senders:
            sender.add(key, call)


def stage_of(path: Path) -> str:
    """Return the stage of a file STAGE-STEP, else its name: the episodes of a stage's newest file replace older ones."""
    found = STAGE_STEP.fullmatch(path.stem)
    return path.stem if found is None or path.stem.startswith("eval-") else found[1]
