"""The disk that holds the runs: how fast it is, and how long and how large checkpoints would be."""

import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from temper.orchestrator.pipeline.start_checks import require_disk
from temper.orchestrator.run.checkpoint import size_of
from temper.orchestrator.run.folder import RunDir
from temper.orchestrator.tools.preflight.doctor.finding import Finding, ok, warning
from temper.orchestrator.tools.preflight.doctor.subject import Subject

CHUNK = 2**24
MOST_BYTES = 2**26
"""Bytes that are written to find out how fast a disk is."""
MOST_S = 2.0
"""After which no more are written."""
GB = 1e9


def look_at_room(subject: Subject) -> Iterator[Finding]:
    """Compare what is free with what checkpoints take."""
    folder, free = subject.folder, shutil.disk_usage(subject.folder).free
    if subject.given is None:
        yield ok(f"{folder} has {free / GB:.1f} GB free")
        return
    config, run = subject.config, RunDir(Path(subject.config.runs_dir) / subject.config.name)
    there = [size_of(run.checkpoints(one.name)) for one in subject.instances if one.stage.trains]
    if not there:
        yield ok(f"{folder} has {free / GB:.1f} GB free, and no stage writes checkpoints")
        return
    size = subject.planner.model.checkpoint_bytes
    require_disk(folder, size, subject.parameters)
    yield check_room(folder, free=free, size=size, keep=config.checkpoints.keep, there=there)


def check_room(folder: Path, *, free: int, size: int, keep: int, there: list[int]) -> Finding:
    """Say whether a folder has room for all checkpoints that a run keeps, one of them being written.

    `there` are the bytes of those that it has, by stage; each stage keeps `keep` of them, of `size` bytes.
    """
    count = keep * len(there) + 1
    needed = size + sum(max(0, keep * size - nbytes) for nbytes in there)
    kept = f"{count} checkpoints of {size / GB:.3g} GB take {needed / GB:.3g}" + (" more" if any(there) else "")
    said = f"{folder} has {free / GB:.1f} GB free, {kept}"
    if needed > free:
        return warning(said, "lower checkpoints.keep, free some, or give runs_dir= on a larger disk")
    return ok(said)


def look_at_speed(subject: Subject) -> Iterator[Finding]:
    """Write a little and flush it, and say how long a checkpoint would take so."""
    speed = measured(subject.folder)
    if subject.given is None or not any(one.stage.trains for one in subject.instances):
        yield ok(f"{subject.folder} takes {speed / 1e6:.0f} MB/s, flushed")
        return
    size = subject.planner.model.checkpoint_bytes
    yield check_speed(speed, size=size, deadline=subject.config.deadlines.files(size).seconds)


def check_speed(speed: float, *, size: int, deadline: float) -> Finding:
    """Say how long a checkpoint takes at so many bytes a second, and whether that is within its deadline in seconds."""
    seconds = size / speed
    said = f"{speed / 1e6:.0f} MB/s, flushed: a checkpoint of {size / GB:.3g} GB takes {seconds:.2g} s"
    if seconds > deadline / 2:
        return warning(
            f"{said}, and has {deadline:.0f}",
            "lower deadlines.megabytes_per_s, or give runs_dir= on a faster disk",
        )
    return ok(said)


def measured(folder: Path) -> float:
    """Return the bytes a second that a folder's disk takes, flushed, of a file that is gone afterwards.

    Raise `OSError` where nothing can be written there.
    """
    chunk = os.urandom(CHUNK)  # some file systems pack
    try:
        with tempfile.TemporaryFile(dir=folder) as file:
            began, written = time.monotonic(), 0
            while written < MOST_BYTES and time.monotonic() - began < MOST_S:
                file.write(chunk)
                file.flush()
                os.fsync(file.fileno())
                written += CHUNK
            return written / (time.monotonic() - began)
    except OSError as error:
        raise OSError(
            error.errno, f"nothing can be written into {folder} ({error.strerror}); give another runs_dir="
        ) from error
