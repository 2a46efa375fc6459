"""Checkpoints that are whole or not there: written beside their place, described by a manifest, moved in by one rename.

A stage's checkpoints lie at `<stage_dir>/<step>/`, each with a `manifest.json` that holds the SHA-256 of every file.
The manifest is written last, so that a directory which agrees with its own is whole, wherever it lies.
"""

import errno
import hashlib
import json
import logging
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from temper.envs.core.bounds import not_negative
from temper.envs.core.setting import free, scheduled

Best = Literal["max", "min"]
TRAJECTORIES_EVERY = 10
"""Steps between trajectory files, also of runs that do not say it."""


@dataclass(frozen=True, kw_only=True)
class CheckpointConfig:
    """Which checkpoints and answers of each stage are kept. A checkpoint that is damaged does not count."""

    keep: int = free(2)
    """The newest so many; with 1 there is none to fall back on where that is damaged."""
    best: str | None = free(None)
    """A metric: the checkpoint that is best by it is kept beside the newest. One of the stage's steps, such as env/math/reward,
    counts as its mean over the last 10; one of the evaluations between them, eval/avg_at_k or eval/math/avg_at_k, as it is."""
    best_is: Best = free("max")
    """Which value is best: max or min."""
    batches: int = free(25)
    """The steps after each kept checkpoint whose batches are kept too, so that `temper debug replay` can train them
    again: about 20
    bytes for each sampled token, and with `learner.router_replay` one for each expert chosen for an id, those of prompts too
    (two where there are more than 255 experts). 0 keeps none."""
    trajectories_every: int = scheduled(TRAJECTORIES_EVERY, unit="steps")
    """Steps between those whose answers are kept for `temper view` and `temper debug explain`, about 90 bytes for
    each sampled token;
    the last step's always are, those of a step that was skipped, and of one in which a number left its band."""

    def __post_init__(self) -> None:
        if self.keep < 1:
            raise ValueError(f"checkpoints.keep={self.keep} must be at least 1")
        not_negative("checkpoints.batches", self.batches)
        if self.trajectories_every < 1:
            raise ValueError(f"checkpoints.trajectories_every={self.trajectories_every} must be at least 1")


@dataclass(frozen=True, slots=True, kw_only=True)
class Retention:
    """What is kept of one stage's whole checkpoints: the `last` so many, and the one with the highest of `scores` by step."""

    last: int = 2
    scores: Mapping[int, float] = field(default_factory=dict)

    def kept(self, whole: Sequence[int]) -> set[int]:
        scored = [step for step in whole if step in self.scores]
        best = max(scored, key=lambda step: (self.scores[step], step), default=None)
        return {*whole[-self.last :], *([] if best is None else [best])}


MANIFEST = "manifest.json"
UNFINISHED = ".unfinished"
"""Suffix of a checkpoint that is being written. One that is left over was interrupted: moved in if whole, else removed."""

LAST_TWO = Retention(last=2)
"""The newest checkpoint, and the one before in case that is damaged."""
NO_TEXTS: Mapping[str, str] = {}

logger = logging.getLogger(__name__)

Facts = dict[str, tuple[int, int, int]]
_verdicts: dict[Path, tuple[Facts, str]] = {}
"""What this process found in a directory: size, time and inode of its files then, and what is wrong with it ("" if whole).
Hashing a checkpoint takes minutes where it is large, so it is done once, and again only where a file has changed since."""


class DamagedCheckpointError(Exception):
    """A checkpoint whose files are not those of its manifest."""


def begin(stage_dir: Path, step: int, *, needed_bytes: int) -> Path:
    """Make an empty directory for the checkpoint of `step`; finish it with `commit`.

    Raise `OSError` (ENOSPC) if the disk has less than `needed_bytes` left, before anything is written.
    """
    stage_dir.mkdir(parents=True, exist_ok=True)
    _finish_interrupted(stage_dir)
    for leftover in stage_dir.glob(f"*{UNFINISHED}"):
        shutil.rmtree(leftover)
    free = shutil.disk_usage(stage_dir).free
    if free < needed_bytes:
        raise _no_space(stage_dir, needed_bytes=needed_bytes, free=free)
    directory = stage_dir / f"{step:06d}{UNFINISHED}"
    directory.mkdir()
    return directory


def commit(directory: Path, *, texts: Mapping[str, str] = NO_TEXTS, retention: Retention = LAST_TWO) -> Path:
    """Describe the files of a directory from `begin`, flush them to disk, and move it to its place, which is returned.

    `texts` are written into it by name. Older checkpoints are removed after that.
    """
    for name, text in texts.items():
        (directory / name).write_text(text, encoding="utf-8")
    files = _files(directory)
    entries = {name: {"bytes": path.stat().st_size, "sha256": _flush(path)} for name, path in files.items()}
    (directory / MANIFEST).write_text(json.dumps({"files": entries}, indent=1), encoding="ascii")
    _flush(directory / MANIFEST)
    for folder in {path.parent for path in files.values()} | {directory}:
        sync_folder(folder)
    final = _move_in(directory)
    _verdicts[final] = (_facts(final), "")  # hashed just now
    _remove_old(final.parent, retention)
    return final


@contextmanager
def discarded_on_failure(directory: Path, *, needed_bytes: int) -> Iterator[None]:
    """Remove a directory from `begin` if the block, which writes and commits it, fails; older checkpoints stay.

    If the disk was full by then, which libraries report in their own errors, the error says where and how much is needed.
    """
    try:
        yield
    except BaseException as error:
        free = shutil.disk_usage(directory.parent).free
        missing = needed_bytes - sum(path.stat().st_size for path in _files(directory).values())
        shutil.rmtree(directory, ignore_errors=True)
        if isinstance(error, Exception) and (_is_full(error) or free < missing):
            raise _no_space(directory, needed_bytes=needed_bytes, free=free) from error
        raise


def _is_full(error: Exception) -> bool:
    return isinstance(error, OSError) and error.errno == errno.ENOSPC


def _no_space(path: Path, *, needed_bytes: int, free: int) -> OSError:
    text = f"no space for a checkpoint: it needs {needed_bytes} bytes, {free} are free; free some and run again"
    return OSError(errno.ENOSPC, text, str(path))


def verify(directory: Path) -> None:
    """Raise `DamagedCheckpointError` unless each file is there, has its size and hash, and there is no other."""
    known, facts = _verdicts.get(directory), _facts(directory)
    if known is None or known[0] != facts:
        known = _verdicts[directory] = (facts, _problem(directory))
    if known[1]:
        raise DamagedCheckpointError(known[1])


def is_whole(directory: Path) -> bool:
    try:
        verify(directory)
    except DamagedCheckpointError:
        return False
    return True


def _problem(directory: Path) -> str:
    """Return the fault of a checkpoint, or ""."""
    try:
        manifest = json.loads((directory / MANIFEST).read_text(encoding="ascii"))
        expected: dict[str, dict[str, object]] = manifest["files"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        return f"{directory}: no readable {MANIFEST} ({error})"
    files = _files(directory)
    if set(files) != set(expected):
        return f"{directory}: missing or unknown files {sorted(set(files) ^ set(expected))}"
    for name, path in files.items():
        size = path.stat().st_size
        if size != expected[name]["bytes"]:
            return f"{path} has {size} bytes, not {expected[name]['bytes']}"
        try:
            digest = file_sha256(path)
        except OSError as error:
            return f"{path} can't be read ({error})"
        if digest != expected[name]["sha256"]:
            return f"{path} has changed: its SHA-256 is not that of {MANIFEST}"
    return ""


def steps(stage_dir: Path) -> list[int]:
    """Return the steps of the finished checkpoints of a stage, in order; they may be damaged."""
    if not stage_dir.is_dir():
        return []
    return sorted(int(path.name) for path in stage_dir.iterdir() if path.is_dir() and path.name.isdecimal())


def latest(stage_dir: Path) -> Path | None:
    """Return the newest whole checkpoint of a stage, or None if it has none yet.

    A damaged one is named in a warning. An interrupted one that is whole is moved in, so only the process that writes them may
    ask. Raise `DamagedCheckpointError` if none is whole: starting from scratch would throw away the training.
    """
    problems: list[str] = []
    _finish_interrupted(stage_dir)
    for step in reversed(steps(stage_dir)):
        directory = place(stage_dir, step)
        try:
            verify(directory)
        except DamagedCheckpointError as error:
            logger.warning("checkpoint of step %d is damaged, trying the one before: %s", step, error)
            problems.append(str(error))
            continue
        return directory
    if problems:
        raise DamagedCheckpointError(
            f"no checkpoint in {stage_dir} is whole; restore one or remove the folder to start afresh: "
            + "; ".join(problems)
        )
    return None


def place(stage_dir: Path, step: int) -> Path:
    return stage_dir / f"{step:06d}"


def size_of(directory: Path) -> int:
    return sum(size for size, _, _ in _facts(directory).values())


def step_of(directory: Path) -> int:
    return int(directory.name)


def _finish_interrupted(stage_dir: Path) -> None:
    """Move in what a process that was killed had written whole, unless a whole checkpoint has its place."""
    for leftover in stage_dir.glob(f"*{UNFINISHED}"):
        final = leftover.with_name(leftover.name.removesuffix(UNFINISHED))
        if final.name.isdecimal() and is_whole(leftover) and not is_whole(final):
            _move_in(leftover)


def _move_in(directory: Path) -> Path:
    """Rename a whole directory to its place, whose former content is removed after that."""
    final = directory.with_name(directory.name.removesuffix(UNFINISHED))
    condemned = _condemned(final) if final.exists() else None
    try:
        directory.rename(final)
    except OSError:
        if condemned is not None:
            condemned.rename(final)
        raise
    sync_folder(final.parent)
    if condemned is not None:
        shutil.rmtree(condemned)
    return final


def _remove_old(stage_dir: Path, retention: Retention) -> None:
    """Remove what is older than the newest whole checkpoints that are kept, and is not the best one.

    A best one that can't be read now stays too, beside the best of those that can.
    """
    found = steps(stage_dir)
    whole = [step for step in found if is_whole(place(stage_dir, step))]
    oldest, kept = whole[-retention.last :][0], retention.kept(whole) | retention.kept(found)
    for step in found:
        if step < oldest and step not in kept:
            shutil.rmtree(_condemned(place(stage_dir, step)))


def _condemned(directory: Path) -> Path:
    """Rename a checkpoint to where it is removed from: an interruption can not leave half of it in its place."""
    condemned = directory.with_name(f"{directory.name}.old{UNFINISHED}")
    directory.rename(condemned)
    _verdicts.pop(directory, None)
    return condemned


def _files(directory: Path) -> dict[str, Path]:
    paths = sorted(path for path in directory.rglob("*") if path.is_file())
    return {str(path.relative_to(directory)): path for path in paths if path != directory / MANIFEST}


def _facts(directory: Path) -> Facts:
    found = {str(path.relative_to(directory)): path.stat() for path in directory.rglob("*") if path.is_file()}
    return {name: (facts.st_size, facts.st_mtime_ns, facts.st_ino) for name, facts in found.items()}


def file_sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _flush(path: Path) -> str:
    """Force a file to disk; returns its SHA-256."""
    with path.open("rb") as file:
        os.fsync(file.fileno())
        return hashlib.file_digest(file, "sha256").hexdigest()


def sync_folder(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
