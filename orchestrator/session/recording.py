"""The batch of a step in a safetensors file for replay: training input, training results by token, and retention.

Arrays of one type are joined, in the order of `StepBatch`, under the name of the type: `int32`, `float32`, `int16` (expert
choices, as bytes and one higher if all are below 255). An array of equal values is its value in the head. `head` has all else
as JSON in UTF-8, compressed by zlib.
"""

import json
import math
import os
import platform
import re
import shutil
import zlib
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from errno import ENOSPC
from functools import cache
from importlib.metadata import version
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load_file, save

from temper.learner.batches.builder import BatchBuilder
from temper.learner.batches.packing import ON_CPU, PassCosts
from temper.learner.config import LearnerConfig, OptimConfig
from temper.learner.losses.config import LossConfig
from temper.learner.token_records import TokenRecord
from temper.orchestrator.config.loop import LoopConfig
from temper.orchestrator.config.schema import to_settings
from temper.orchestrator.loop.deadline import in_thread
from temper.orchestrator.run.checkpoint import steps
from temper.orchestrator.run.folder import RunDir
from temper.rollout.codec import Array, from_data, to_data
from temper.rollout.trajectory import Group, Trajectory, WeightVersion


@dataclass(frozen=True, kw_only=True)
class TrainedWith:
    """Settings of the training. `steps` is the total of the stage, used by the learning rate schedule.

    `beside_engines` is true if engines sample while the learner works, which sets the learner's threads.
    """

    learner: LearnerConfig = field(default_factory=LearnerConfig)
    optim: OptimConfig = field(default_factory=OptimConfig)
    loss: LossConfig = field(default_factory=LossConfig)
    steps: int = 1
    updates_per_step: int = 1
    epochs: int = 1
    beside_engines: bool = False
    pad_id: int = 0
    costs: PassCosts = ON_CPU

    @classmethod
    def of(cls, stage: LoopConfig, builder: BatchBuilder) -> "TrainedWith":
        return cls(
            learner=builder.config,
            optim=stage.optim,
            loss=stage.loss,
            steps=stage.steps,
            updates_per_step=stage.updates_per_step,
            epochs=stage.epochs,
            beside_engines=stage.max_lag > 0,
            pad_id=builder.pad_id,
            costs=builder.costs,
        )

    @property
    def builder(self) -> BatchBuilder:
        return BatchBuilder(config=self.learner, pad_id=self.pad_id, costs=self.costs)

    @property
    def threads(self) -> int:
        return self.learner.threads_during_generation if self.beside_engines else self.learner.threads

    @property
    def total_updates(self) -> int:
        return self.steps * self.updates_per_step * self.epochs

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


def trained_with_from_json(data: dict[str, Any]) -> TrainedWith:
    """Return the settings of a head. Raise `ValueError` for an unknown setting or a wrong value."""
    found = to_settings(TrainedWith, data)
    assert isinstance(found, TrainedWith)
    return found


COMPUTED_BY = ("torch", "transformers", "deepspeed")
"""Packages whose versions affect the last digits of results."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepBatch:
    """Step `step` of the instance `stage`, with the `version` of the trained weights.

    The tasks of groups read from a file have only names and thinking. `records` are the answers with a trained token, by
    `TokenRecord.place`. `packages` are the versions that computed them.
    """

    stage: str
    step: int
    version: WeightVersion
    trained_with: TrainedWith
    groups: Sequence[Group]
    records: Sequence[TokenRecord]
    teacher: str | None
    packages: dict[str, str]

    @property
    def answers(self) -> list[Trajectory]:
        """The scored answers, by place."""
        return [answer for group in self.groups for answer in group.trajectories]

    @property
    def rows(self) -> list[int]:
        """The row of each scored answer in the step's trajectory file, which has failed ones too."""
        rows: list[int] = []
        first = 0
        for group in self.groups:
            rows += range(first, first + len(group.trajectories))
            first += len(group.trajectories) + len(group.failed)
        return rows


@cache
def packages_here() -> dict[str, str]:
    return {name: version(name) for name in COMPUTED_BY} | {"machine": platform.machine()}


FORMAT = 6
"""Version of the file. A change of its keys adds one."""
HEAD = "head"
EXPERTS = "int16"


def write_batch(path: Path, batch: StepBatch, *, leave: int = 0) -> int:
    """Write a batch atomically and return its bytes. Raise `OSError` if fewer than `leave` bytes would be free."""
    parts: defaultdict[str, list[Array]] = defaultdict(list)

    def store(array: Array) -> Any:
        flat = array.ravel()
        if flat.tobytes() == flat[:1].tobytes() * flat.size:
            return flat[0].item() if flat.size else 0
        parts[array.dtype.name].append(flat)
        return None

    bare = replace(batch, groups=[group.without_data for group in batch.groups])
    head = {"format": FORMAT} | to_data(bare, store=store)
    arrays = {name: np.concatenate(own) for name, own in parts.items()}
    if EXPERTS in arrays:
        arrays[EXPERTS] = _packed_experts(arrays[EXPERTS])
    arrays[HEAD] = np.frombuffer(zlib.compress(json.dumps(head).encode()), dtype=np.uint8)
    data, temporary = save(arrays), path.with_name(path.name + ".tmp")
    if leave and shutil.disk_usage(path.parent).free - len(data) < leave:
        raise OSError(ENOSPC, f"{leave} bytes are reserved for a checkpoint")
    try:
        temporary.write_bytes(data)
        os.replace(temporary, path)
    except OSError:
        temporary.unlink(missing_ok=True)
        raise
    return len(data)


def read_batch(path: Path) -> StepBatch:
    """Read a batch. Raise `ValueError`, with the file, for a damaged file or another format."""
    try:
        arrays = load_file(path)
        head: dict[str, Any] = json.loads(zlib.decompress(arrays.pop(HEAD).tobytes()))
        if head["format"] != FORMAT:
            raise ValueError(
                f"it has format {head['format']}, and this version of Temper reads format {FORMAT}: replay it with the version "
                f"that wrote it"
            )
        if EXPERTS in arrays and arrays[EXPERTS].dtype == np.uint8:
            arrays[EXPERTS] = arrays[EXPERTS].astype(np.int16) - 1
        parts = _Parts(arrays)
        batch = from_data(StepBatch, head, load=parts.load)
        parts.require_read()
        return replace(batch, trained_with=trained_with_from_json(head["trained_with"]))
    except (SafetensorError, zlib.error, ValueError, KeyError, TypeError, RecursionError) as error:
        raise ValueError(f"{path} cannot be read: {error}; replay a step that does not need it") from error


def _packed_experts(experts: Array) -> Array:
    """Return expert choices as bytes if they are low enough. -1 is none."""
    low = experts.min() >= -1 and experts.max() < np.iinfo(np.uint8).max
    return (experts + 1).astype(np.uint8) if low else experts


class _Parts:
    """Arrays that are read in the order of writing."""

    def __init__(self, arrays: dict[str, Array]) -> None:
        self._arrays = arrays
        self._at = dict.fromkeys(arrays, 0)

    def load(self, name: str, shape: list[int], value: Any) -> Array:
        """Return an array of one value, or the next entries of a type. Raise `ValueError` if there are fewer."""
        if value is not None:
            return np.full(shape, value, dtype=name)
        at, count = self._at[name], math.prod(shape)
        found = self._arrays[name][at : at + count]
        if len(found) < count:
            raise ValueError(f"{name} ends after {len(self._arrays[name])} entries")
        self._at[name] = at + count
        return found.reshape(shape)

    def require_read(self) -> None:
        for name, array in self._arrays.items():
            if self._at[name] != len(array):
                raise ValueError(f"{name} has {len(array)} entries, of which {self._at[name]} belong to answers")


NAMED = re.compile(r".+-\d+")
"""The name of a batch. Other files of the folder stay."""


def make_room(folder: RunDir, place: Path, *, needed: int) -> list[Path]:
    """Remove recorded batches until the disk of `place` has `needed` bytes free. Return them.

    The oldest go first. After one checkpoint the last steps go first, since a replay needs all steps before it. Remove none
    if that is not enough, or if they are on another disk.
    """
    lacking = needed - shutil.disk_usage(place).free
    files = {path: path.stat() for path in folder.batches.glob("*.safetensors") if NAMED.fullmatch(path.stem)}
    disk = place.stat().st_dev
    sizes = {path: stat.st_blocks * 512 for path, stat in files.items() if stat.st_dev == disk}
    if lacking <= 0 or sum(sizes.values()) < lacking:
        return []
    removed = []
    for path in _in_turn(folder, {path: files[path].st_mtime for path in sizes}):
        if lacking <= 0:
            break
        path.unlink(missing_ok=True)
        lacking -= sizes[path]
        removed.append(path)
    return removed


def _in_turn(folder: RunDir, written: dict[Path, float]) -> Iterator[Path]:
    """Yield batches, given by their write times, in the order of removal."""
    chains = []
    for stage, own in groupby(sorted(written, key=_named), key=lambda path: _named(path)[0]):
        bases = [0, *steps(folder.checkpoints(stage))]
        by_base = groupby(own, key=lambda path: max(base for base in bases if base < _named(path)[1]))
        chains += [list(chain) for _, chain in by_base]
    for chain in sorted(chains, key=lambda chain: min(written[path] for path in chain)):
        yield from reversed(chain)


def _named(path: Path) -> tuple[str, int]:
    stage, _, step = path.stem.rpartition("-")
    return stage, int(step)


class BatchKeeper:
    """Records the first steps after each checkpoint. Removes batches whose checkpoint is gone."""

    def __init__(self, folder: RunDir, stage: str, *, count: int, after: int) -> None:
        """Record `count` steps after each checkpoint. The stage resumes from step `after`, 0 at its start."""
        self._folder = folder
        self._stage = stage
        self._count = count
        self._base = after
        self._lacks = False

    def saved(self, step: int) -> None:
        """Record that this step will have a checkpoint."""
        self._base, self._lacks = step, False

    def due(self, step: int) -> bool:
        """Return whether to record the batch of a step. After a gap none is useful."""
        return not self._lacks and 0 < step - self._base <= self._count

    async def keep(self, step: int, write: Callable[[Path], Awaitable[object]]) -> None:
        """Write the batch of a step, and remove those that no checkpoint needs. Raise the error of `write`.

        After an error no batch is recorded until the next checkpoint.
        """
        self._lacks = True
        await in_thread(self.remove_old)
        try:
            await write(self._folder.batch_file(self._stage, step))
        finally:
            await in_thread(self.remove_old)
        self._lacks = False

    def remove_old(self) -> None:
        """Remove the batches that no checkpoint needs. A checkpoint in progress counts."""
        bases = {0, self._base, *steps(self._folder.checkpoints(self._stage))}
        for step, path in self._folder.batch_files(self._stage).items():
            if not any(base < step <= base + self._count for base in bases):
                path.unlink(missing_ok=True)
