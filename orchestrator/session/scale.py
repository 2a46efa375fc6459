"""The request for another number of rollout workers: a file in a run's folder, which its driver takes away."""

import json
import os
from pathlib import Path

from temper.orchestrator.run.folder import write_json

SCALE_FILE = "scale.json"
TAKEN = ".taken"
"""What is added to its name while it is read, so that the next request may come meanwhile."""


def ask_for_workers(folder: Path, workers: int) -> Path:
    """Leave the request; returns its file, which is gone once the driver has read it."""
    write_json(folder / SCALE_FILE, {"rollout_workers": workers})
    return folder / SCALE_FILE


def take_request(folder: Path) -> int | None:
    """Return how many rollout workers are asked for, once; None where nobody asks.

    Raise `ValueError` for what is no request.
    """
    path, taken = folder / SCALE_FILE, folder / f"{SCALE_FILE}{TAKEN}"
    try:
        os.replace(path, taken)
    except FileNotFoundError:
        return None
    text = taken.read_text(encoding="utf-8")
    taken.unlink()
    try:
        workers = int(json.loads(text)["rollout_workers"])
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{path} held no request such as {{'rollout_workers': 2}}: {text[:80]!r}") from error
    if workers < 1:
        raise ValueError(f"{path} asked for {workers} rollout workers; a run needs at least 1")
    return workers
