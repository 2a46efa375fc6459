"""Atomic checkpoints: each is written to a temporary folder, described by a manifest and renamed into place.

A stage's checkpoints are in `<stage_dir>/<step>/`. Each has a `manifest.json` with the SHA-256 of every file, written last, so
a folder that has the files of its manifest is whole, wherever it is. Foreign files in it, such as a note, are named once and
never loaded. Those that a library would load, and those of a removed checkpoint, move to `<stage_dir>/<step>.foreign/`.
"""

import errno
import hashlib
import json
import logging
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from temper.envs.core.bounds import require_not_negative
from temper.envs.core.setting import free, scheduled
from temper.rollout.weights.own_files import MANIFEST, find_files, own_files, read_manifest

Best = Literal["max", "min"]
TRAJECTORIES_EVERY = 10
"""Default steps between trajectory files."""


@dataclass(frozen=True, kw_only=True)
class CheckpointConfig:
    """Retention of checkpoints and trajectories for each stage. Damaged checkpoints do not count."""

    keep: int = free(2)
    """Newest checkpoints to keep. With 1 there is no fallback for a damaged one."""
    best: str | None = free(None)
    """Metric of the best checkpoint, which is kept in addition to the newest. A step metric such as env/math/reward counts as
    its mean over 10 steps. A metric of the evaluations between steps, eval/avg_at_k or eval/math/avg_at_k, counts as it is."""
    best_is: Best = free("max")
    """Which value is best: max or min."""
    batches: int = free(25)
    """Steps after each kept checkpoint whose batches are kept for `temper debug replay`, about 20 bytes for each sampled
    token. With `learner.router_replay` each expert choice of a token takes 1 byte more (2 above 255 experts). 0 keeps none."""
    trajectories_every: int = scheduled(TRAJECTORIES_EVERY, unit="steps")
    """Steps between kept trajectory files for `temper view`, about 90 bytes for each sampled token. The last step, skipped
    steps and steps with an alarm are always kept."""

    def __post_init__(self) -> None:
        if self.keep < 1:
            raise ValueError(f"checkpoints.keep={self.keep} must be at least 1")
        require_not_negative("checkpoints.batches", self.batches)
        if self.trajectories_every < 1:
            raise ValueError(f"checkpoints.trajectories_every={self.trajectories_every} must be at least 1")


@dataclass(frozen=True, slots=True, kw_only=True)
class Retention:
    """The whole checkpoints of a stage to keep: the `last` newest, and the one with the highest score."""

    last: int = 2
    scores: Mapping[int, float] = field(default_factory=dict)

    def kept(self, whole: Sequence[int]) -> set[int]:
        scored = [step for step in whole if step in self.scores]
        best = max(scored, key=lambda step: (self.scores[step], step), default=None)
        return {*whole[-self.last :], *([] if best is None else [best])}


UNFINISHED = ".unfinished"
"""Suffix of an unfinished checkpoint. A leftover one is renamed into place if whole, else removed."""
FOREIGN = ".foreign"
"""Suffix of the folder of a checkpoint's foreign files."""
LOADED = (".safetensors", ".bin", ".pt", ".pth", ".json", ".jinja", ".model", "vocab.txt", "merges.txt")
"""Endings of files that libraries load from a model directory even if no other file names them."""

LAST_TWO = Retention(last=2)
"""The newest checkpoint, and the one before as a fallback."""
NO_TEXTS: Mapping[str, str] = {}

logger = logging.getLogger(__name__)

Facts = dict[str, tuple[int, int, int]]
_verdicts: dict[Path, tuple[Facts, str]] = {}
"""Results of earlier checks by directory: size, time and inode of its files, and the problem found ("" if whole). Hashing a
large checkpoint takes minutes, so only a changed one is hashed again."""
_named: set[Path] = set()
"""Foreign files that a warning has named."""


class DamagedCheckpointError(Exception):
    """A checkpoint whose files do not match its manifest."""


def begin(stage_dir: Path, step: int, *, needed_bytes: int) -> Path:
    """Create an empty directory for the checkpoint of `step`, which `commit` finishes.

    Raise `OSError` (ENOSPC) before any write if the disk has fewer than `needed_bytes` free.
    """
    stage_dir.mkdir(parents=True, exist_ok=True)
    _finish_interrupted(stage_dir)
    for leftover in stage_dir.glob(f"*{UNFINISHED}"):
        _remove(leftover)
    free = shutil.disk_usage(stage_dir).free
    if free < needed_bytes:
        raise _no_space(stage_dir, needed_bytes=needed_bytes, free=free)
    directory = stage_dir / f"{step:06d}{UNFINISHED}"
    directory.mkdir(exist_ok=not find_files(directory))  # a hidden file of a file system may be left
    return directory


def commit(directory: Path, *, texts: Mapping[str, str] = NO_TEXTS, retention: Retention = LAST_TWO) -> Path:
    """Write the manifest of a directory from `begin`, flush its files to disk and rename it into place. Return its path.

    `texts` are further files by name. Older checkpoints are removed afterwards.
    """
    for name, text in texts.items():
        (directory / name).write_text(text, encoding="utf-8")
    files = find_files(directory)
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
def discard_on_failure(directory: Path, *, needed_bytes: int) -> Iterator[None]:
    """Remove a directory from `begin` if the block that writes and commits it fails. Older checkpoints stay.

    Libraries report a full disk in their own errors. This raises `OSError` with the path and the bytes needed instead.
    """
    try:
        yield
    except BaseException as error:
        free = shutil.disk_usage(directory.parent).free
        missing = needed_bytes - sum(path.stat().st_size for path in find_files(directory).values())
        shutil.rmtree(directory, ignore_errors=True)
        if isinstance(error, Exception) and (_is_full(error) or free < missing):
            raise _no_space(directory, needed_bytes=needed_bytes, free=free) from error
        raise


def _is_full(error: Exception) -> bool:
    return isinstance(error, OSError) and error.errno == errno.ENOSPC


def _no_space(path: Path, *, needed_bytes: int, free: int) -> OSError:
    text = f"no space for a checkpoint: it needs {needed_bytes} bytes, {free} are free; free some and rerun"
    return OSError(errno.ENOSPC, text, str(path))


def verify(directory: Path) -> None:
    """Raise `DamagedCheckpointError` for a missing or changed file. Warn once of each foreign one."""
    known, facts = _verdicts.get(directory), _facts(directory)
    if known is None or known[0] != facts:
        known = _verdicts[directory] = (facts, _problem(directory))
    if known[1]:
        raise DamagedCheckpointError(known[1])
    if unnamed := [path for path in _foreign(directory) if path not in _named]:
        _named.update(unnamed)
        names = ", ".join(str(path.relative_to(directory)) for path in unnamed)
        logger.warning("%s has files that are not of the checkpoint, and that are not loaded: %s", directory, names)


def is_complete(directory: Path) -> bool:
    try:
        verify(directory)
    except DamagedCheckpointError:
        return False
    return True


def _problem(directory: Path) -> str:
    """Return the problem of a checkpoint, or ""."""
    try:
        expected = read_manifest(directory)
    except (OSError, ValueError) as error:
        return f"{directory}: no readable {MANIFEST} ({error})"
    for name, entry in expected.items():
        path = directory / name
        try:
            size = path.stat().st_size
            if size != entry["bytes"]:
                return f"{path} has {size} bytes, not {entry['bytes']}"
            digest = file_sha256(path)
        except OSError as error:
            return f"{path} can't be read ({error})"
        if digest != entry["sha256"]:
            return f"{path} has changed: its SHA-256 differs from {MANIFEST}"
    return ""


def _foreign(directory: Path) -> list[Path]:
    """Return the files that the manifest of a checkpoint does not list, also hidden ones. Without a manifest there are none."""
    try:
        listed = {directory / name for name in (MANIFEST, *read_manifest(directory))}
    except (OSError, ValueError):
        return []
    return sorted(path for path in directory.rglob("*") if path not in listed and path.is_file())


def set_aside(directory: Path) -> None:
    """Move a checkpoint's foreign files that a library would load, so that it reads the model as it was saved."""
    _move_aside([path for path in _foreign(directory) if path.name.endswith(LOADED)], directory)


def _move_aside(files: Sequence[Path], directory: Path) -> None:
    """Move foreign files of a checkpoint to the folder for them. Hidden files stay, because file systems hold them."""
    aside = directory.with_name(f"{directory.name.partition('.')[0]}{FOREIGN}")
    kept = find_files(directory)
    for path in files:
        name = str(path.relative_to(directory))
        if name not in kept:
            continue
        target = _free_place(aside, name)
        shutil.move(path, target)  # a linked checkpoint may be on another disk
        logger.warning("%s is not of its checkpoint; it is now %s", path, target)


def _free_place(folder: Path, name: str) -> Path:
    """Return a new path for a file in the folder, or in a numbered one beside it if another file is in the way."""
    chosen, number = folder, 1
    while True:
        with suppress(FileExistsError, NotADirectoryError):
            (chosen / name).parent.mkdir(parents=True, exist_ok=True)
            if not os.path.lexists(chosen / name):
                return chosen / name
        number += 1
        chosen = folder.with_name(f"{folder.name}.{number}")


def steps(stage_dir: Path) -> list[int]:
    """Return the steps of the finished checkpoints of a stage, in order. They may be damaged."""
    if not stage_dir.is_dir():
        return []
    return sorted(int(path.name) for path in stage_dir.iterdir() if path.is_dir() and path.name.isdecimal())


def latest(stage_dir: Path) -> Path | None:
    """Return the newest whole checkpoint of a stage, or None before the first.

    Warn of damaged ones, and move foreign files that would be loaded. Rename an interrupted whole one into place, so only the
    writing process may call this. Raise `DamagedCheckpointError` if all are damaged, since a restart from scratch would lose
    the training.
    """
    problems: list[str] = []
    _finish_interrupted(stage_dir)
    for step in reversed(steps(stage_dir)):
        directory = place(stage_dir, step)
        set_aside(directory)
        try:
            verify(directory)
        except DamagedCheckpointError as error:
            logger.warning("checkpoint of step %d is damaged, using the one before: %s", step, error)
            problems.append(str(error))
            continue
        return directory
    if problems:
        raise DamagedCheckpointError(
            f"no checkpoint in {stage_dir} is whole; restore one, or remove the folder to start again: "
            + "; ".join(problems)
        )
    return None


def resumed_step(stage_dir: Path) -> int:
    """Return the step of the checkpoint that `latest` will return, 0 without any. If all are damaged, it is the newest one."""
    _finish_interrupted(stage_dir)
    found = steps(stage_dir)
    return next((step for step in reversed(found) if is_complete(place(stage_dir, step))), max(found, default=0))


def place(stage_dir: Path, step: int) -> Path:
    return stage_dir / f"{step:06d}"


def size_of(directory: Path) -> int:
    return sum(path.stat().st_size for path in find_files(directory).values())


def step_of(directory: Path) -> int:
    return int(directory.name)


def _finish_interrupted(stage_dir: Path) -> None:
    """Rename whole leftovers of a killed process into place, unless a whole checkpoint is there."""
    for leftover in stage_dir.glob(f"*{UNFINISHED}"):
        final = leftover.with_name(leftover.name.removesuffix(UNFINISHED))
        if final.name.isdecimal() and is_complete(leftover) and not is_complete(final):
            _move_in(leftover)


def _move_in(directory: Path) -> Path:
    """Rename a whole directory into place. Remove its former content afterwards."""
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
        _remove(condemned)
    return final


def _remove_old(stage_dir: Path, retention: Retention) -> None:
    """Remove checkpoints that are neither among the newest nor the best.

    A best one that cannot be read now stays too.
    """
    found = steps(stage_dir)
    whole = [step for step in found if is_complete(place(stage_dir, step))]
    oldest, kept = whole[-retention.last :][0], retention.kept(whole) | retention.kept(found)
    for step in found:
        if step < oldest and step not in kept:
            _remove(_condemned(place(stage_dir, step)))


def _condemned(directory: Path) -> Path:
    """Rename a checkpoint before its removal, so that an interruption leaves no half checkpoint in place."""
    condemned = directory.with_name(f"{directory.name}.old{UNFINISHED}")
    directory.rename(condemned)
    _verdicts.pop(directory, None)
    return condemned


def _remove(directory: Path) -> None:
    """Remove an old or unfinished checkpoint. A user's files in it, such as notes, move to the folder of foreign files.

    On NFS a file that another process has open stays as `.nfs*`, and its folder too. The next save tries again.
    """
    if directory.is_symlink():  # a user moved the checkpoint elsewhere and keeps it there
        directory.unlink()
        return
    _move_aside(_foreign(directory), directory)
    shutil.rmtree(directory, ignore_errors=True)
    if left := find_files(directory):
        logger.warning("%s can't be removed: %s is left; check its permissions", directory, next(iter(left)))


def copy_checkpoint(source: Path, target: Path) -> None:
    """Copy the files of a checkpoint or a model directory, without the manifest and foreign files."""
    for path in own_files(source):
        (target / path.relative_to(source)).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(path, target / path.relative_to(source))


def _facts(directory: Path) -> Facts:
    """Return the facts of the manifest and of its files that exist."""
    try:
        names = [MANIFEST, *read_manifest(directory)]
    except (OSError, ValueError):
        names = [MANIFEST]
    facts = {}
    for name in names:
        with suppress(OSError):
            found = (directory / name).stat()
            facts[name] = (found.st_size, found.st_mtime_ns, found.st_ino)
    return facts


def file_sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _flush(path: Path) -> str:
    """Flush a file to disk and return its SHA-256."""
    with path.open("rb") as file:
        os.fsync(file.fileno())
        return hashlib.file_digest(file, "sha256").hexdigest()


def sync_folder(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
