"""Tracking: whether MLflow's store answers, for which no run waits, and the requirements of further places."""

import tempfile
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path

from temper.orchestrator.pipeline.config import Config
from temper.orchestrator.pipeline.finding import Finding, ok, warning
from temper.orchestrator.run.redaction import blank_text
from temper.orchestrator.tools.preflight.doctor.check import of_error
from temper.orchestrator.tools.preflight.doctor.target import CheckTarget
from temper.orchestrator.tracking.backend import first_line
from temper.orchestrator.tracking.mlflow.run import count_experiments
from temper.orchestrator.tracking.mlflow.stored_run import SQLITE, find_store
from temper.orchestrator.tracking.sinks.config import require_usable

GOES_ON = "the run continues without it, and sends the data later"


def inspect_store(target: CheckTarget) -> Iterator[Finding]:
    config = target.requested
    uri = find_store(
        None if config is None else config.tracking.uri, Path("runs" if config is None else config.runs_dir)
    )
    yield check_store(uri)
    if config is not None:
        for place in config.tracking.also:
            yield _check_place(place, config)


def check_store(uri: str) -> Finding:
    """Check whether a store answers. A file is not created."""
    shown = blank_text(uri)
    file = Path(uri.removeprefix(SQLITE))
    if uri.startswith(SQLITE) and not file.exists():
        there = next(folder for folder in file.parents if folder.exists())
        try:
            tempfile.TemporaryFile(dir=there).close()
        except OSError as error:
            return warning(
                f"{shown} cannot be created in {there} ({error.strerror}); {GOES_ON}",
                "set another tracking.uri or runs_dir",
            )
        return ok(f"{shown} will be created")
    try:
        count = count_experiments(uri)
    except Exception as error:  # of the tracker's client
        return warning(
            f"{shown} does not answer ({blank_text(first_line(error))}); {GOES_ON}",
            "start it, or set another tracking.uri",
        )
    return ok(f"{shown} answers, {count} experiments")


def _check_place(place: str, config: Config) -> Finding:
    """Describe the run at a further tracker. Without the tracker a run does not start."""
    tracking = config.tracking
    try:
        require_usable([place], tracking.wandb)
    except ValueError as error:
        return of_error(error, remedy=f"leave {place} out of tracking.also")
    kept = "uploads at once" if tracking.wandb.uploads else "records in the run's folder, uploads nothing"
    return ok(f"wandb {version(place)} {kept}, project {tracking.wandb.project}")
