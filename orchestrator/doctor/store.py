"""The tracker's store: whether it answers. Training never waits for it, so nothing of it is a failure."""

import tempfile
from collections.abc import Iterator
from pathlib import Path

from orchestrator.doctor.finding import Finding, ok, warning
from orchestrator.doctor.subject import Subject
from orchestrator.run.redaction import blanked
from orchestrator.tracking.mlflow.run import known_experiments
from orchestrator.tracking.mlflow.tracker import SQLITE, store_of
from orchestrator.tracking.tracking_error import first_line

GOES_ON = "a run goes on without, and sends what is left when it is there"


def look_at_store(subject: Subject) -> Iterator[Finding]:
    """Ask the store that a run would send to."""
    config = subject.given
    uri = store_of(None if config is None else config.tracking.uri, Path("runs" if config is None else config.runs_dir))
    yield check_store(uri)


def check_store(uri: str) -> Finding:
    """Say whether a store answers; one in a file is not made."""
    shown = blanked(uri)
    file = Path(uri.removeprefix(SQLITE))
    if uri.startswith(SQLITE) and not file.exists():
        there = next(folder for folder in file.parents if folder.exists())
        try:
            tempfile.TemporaryFile(dir=there).close()
        except OSError as error:
            return warning(
                f"{shown} can't be made in {there} ({error.strerror}); {GOES_ON}",
                "give another tracking.uri or runs_dir",
            )
        return ok(f"{shown} will be made")
    try:
        count = known_experiments(uri)
    except Exception as error:  # whatever the tracker's client raises
        return warning(
            f"{shown} does not answer ({blanked(first_line(error))}); {GOES_ON}",
            "start it, or give another tracking.uri",
        )
    return ok(f"{shown} answers, with {count} experiments")
