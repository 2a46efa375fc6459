"""The batch of a step in a file of safetensors: what training took and made of each token, and how long it is kept.

ids       the ids of all turns, context and then sampled, in order
behaviour the engine's log-probability of each sampled token
logprobs  the trainer's of each trained token; advantages and factors only of answers whose tokens have several
experts   the expert choices of the turns that have some; as bytes, one higher, where all are under 255
head      all else as JSON, in UTF-8, packed by zlib
"""

import json
import os
import platform
import re
import shutil
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from errno import ENOSPC
from functools import cache
from importlib.metadata import version
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from temper.envs.core.errors import Failure, FailureKind
from temper.envs.core.task import EnvRef, Task
from temper.learner.batches.builder import BatchBuilder
from temper.learner.config import LearnerConfig, OptimConfig
from temper.learner.losses.config import LossConfig
from temper.learner.token_records import TokenRecord
from temper.orchestrator.config.loop import LoopConfig
from temper.orchestrator.config.schema import typed
from temper.orchestrator.run.checkpoint import steps
from temper.orchestrator.run.folder import RunDir
from temper.rollout.sampling import Sampling, sampling_to_json
from temper.rollout.token_arrays import as_floats, as_ids, as_marks
from temper.rollout.trajectory import Group, Stop, Ticket, Trajectory, Turn, TurnFault, WeightVersion


@dataclass(frozen=True, kw_only=True)
class TrainedWith:
    """`steps` are those of the whole stage, which the learning rate's schedule goes by, and `pad_id` the tokenizer's.

    `beside_engines` says whether engines generate while the learner works, which decides on its threads.
    """

    learner: LearnerConfig = field(default_factory=LearnerConfig)
    optim: OptimConfig = field(default_factory=OptimConfig)
    loss: LossConfig = field(default_factory=LossConfig)
    steps: int = 1
    updates_per_step: int = 1
    epochs: int = 1
    beside_engines: bool = False
    pad_id: int = 0

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
        )

    @property
    def builder(self) -> BatchBuilder:
        return BatchBuilder(config=self.learner, pad_id=self.pad_id)

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
    found = typed(TrainedWith, data)
    assert isinstance(found, TrainedWith)
    return found


COMPUTED_BY = ("torch", "transformers", "deepspeed")
"""The packages whose version decides on the last digits of what is computed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepBatch:
    """Step `step` of the instance `stage`, with `version` of the weights that were trained.

    A group that was read back has no tasks, texts and scores, but all that training reads. `records` are those of the
    answers with a trained token, in the order of `TokenRecord.place`. `packages` are the versions that computed it.
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
        """The answers with a score, by their places."""
        return [answer for group in self.groups for answer in group.trajectories]

    @property
    def rows(self) -> list[int]:
        """The row of each answer with a score in the step's file of trajectories, which has failed ones too."""
        rows: list[int] = []
        first = 0
        for group in self.groups:
            rows += range(first, first + len(group.trajectories))
            first += len(group.trajectories) + len(group.failed)
        return rows


@cache
def packages_here() -> dict[str, str]:
    return {name: version(name) for name in COMPUTED_BY} | {"machine": platform.machine()}


FORMAT = 2
"""What a change of the file that an older program could not read adds one to."""
READ = (1, FORMAT)
"""The formats that are read: in the first, expert choices were not written as bytes."""
HEAD = "head"


def head_of(file: Any) -> dict[str, Any]:
    """Return the head of an open file of safetensors. Raise `ValueError` for another format."""
    head: dict[str, Any] = json.loads(zlib.decompress(file.get_tensor(HEAD).tobytes()))
    if head["format"] not in READ:
        raise ValueError(f"it has format {head['format']}, and this version of Temper reads format {FORMAT}")
    return head


NOT_KEPT = ({"role": "user", "content": ""},)
"""The messages of a task that is read back: its prompt is among the ids."""
LOST = Failure(kind=FailureKind.ENVIRONMENT, message="not recorded")
Arrays = dict[str, list[NDArray[Any]]]
TYPES: dict[str, type[np.generic]] = {
    "ids": np.int32,
    "behaviour": np.float32,
    "logprobs": np.float32,
    "advantages": np.float32,
    "factors": np.float32,
    "experts": np.int16,
}


def write_batch(path: Path, batch: StepBatch, *, leave: int = 0) -> int:
    """Write a batch, whole or not at all; return its bytes. Raise `OSError` if fewer than `leave` bytes would be left."""
    arrays: Arrays = {name: [] for name in TYPES}
    head = {
        "format": FORMAT,
        "stage": batch.stage,
        "step": batch.step,
        "version": batch.version.step,
        "trained_with": batch.trained_with.as_json(),
        "teacher": batch.teacher,
        "packages": batch.packages,
        "groups": [_group_head(group, arrays) for group in batch.groups],
        "records": [_record_head(record, arrays) for record in batch.records],
    }
    flat = {
        name: np.concatenate([np.empty(0, dtype=TYPES[name]), *(each.ravel() for each in own)])
        for name, own in arrays.items()
    }
    flat["experts"] = _packed_experts(flat["experts"])
    packed = np.frombuffer(zlib.compress(json.dumps(head).encode()), dtype=np.uint8)
    data, temporary = save(flat | {HEAD: packed}), path.with_name(path.name + ".tmp")
    if leave and shutil.disk_usage(path.parent).free - len(data) < leave:
        raise OSError(ENOSPC, f"{leave} bytes are kept for a checkpoint")
    try:
        temporary.write_bytes(data)
        os.replace(temporary, path)
    except OSError:
        temporary.unlink(missing_ok=True)
        raise
    return len(data)


def read_batch(path: Path) -> StepBatch:
    """Read a batch. Raise `ValueError`, with the file, if it is damaged or of another format."""
    try:
        with safe_open(path, framework="numpy") as file:
            head = head_of(file)
            arrays = {name: file.get_tensor(name) for name in TYPES}
            if arrays["experts"].dtype == np.uint8:
                arrays["experts"] = arrays["experts"].astype(np.int16) - 1
        parts = _Parts(arrays)
        groups = [_group(one, parts) for one in head["groups"]]
        records = [_record(one, parts) for one in head["records"]]
        parts.require_read()
        return StepBatch(
            stage=head["stage"],
            step=head["step"],
            version=WeightVersion(step=head["version"]),
            trained_with=trained_with_from_json(head["trained_with"]),
            groups=groups,
            records=records,
            teacher=head["teacher"],
            packages=head["packages"],
        )
    except (SafetensorError, zlib.error, ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{path} can't be read: {error}; replay a step that does not need it") from error


def _packed_experts(experts: NDArray[Any]) -> NDArray[Any]:
    """Return expert choices, of which -1 is none, as bytes if they are low enough."""
    low = experts.size and experts.min() >= -1 and experts.max() < np.iinfo(np.uint8).max
    return (experts + 1).astype(np.uint8) if low else experts


class _Parts:
    """Arrays that are read in the order in which they were written."""

    def __init__(self, arrays: dict[str, NDArray[Any]]) -> None:
        self._arrays = arrays
        self._at = dict.fromkeys(arrays, 0)

    def next(self, name: str, count: int) -> NDArray[Any]:
        """Return the next entries of an array. Raise `ValueError` if there are fewer."""
        at = self._at[name]
        found = self._arrays[name][at : at + count]
        if len(found) < count:
            raise ValueError(f"{name} ends after {len(self._arrays[name])} entries")
        self._at[name] = at + count
        return found

    def require_read(self) -> None:
        for name, array in self._arrays.items():
            if self._at[name] != len(array):
                raise ValueError(f"{name} has {len(array)} entries, of which {self._at[name]} belong to answers")


def _group_head(group: Group, arrays: Arrays) -> dict[str, Any]:
    ticket = group.ticket
    return {
        "ticket": ticket.number,
        "admitted": ticket.admitted.step,
        "env": ticket.task.env.name,
        "key": ticket.task.key,
        "sampling": sampling_to_json(ticket.sampling),
        "failed": len(group.failed),
        "answers": [
            {
                "reward": answer.reward,
                "stop": answer.stop.value,
                "turns": [_turn_head(turn, arrays) for turn in answer.turns],
            }
            for answer in group.trajectories
        ],
    }


def _turn_head(turn: Turn, arrays: Arrays) -> dict[str, Any]:
    arrays["ids"] += [turn.context_ids, turn.sampled_ids]
    arrays["behaviour"].append(turn.logprobs_T)
    head: dict[str, Any] = {
        "context": len(turn.context_ids),
        "sampled": len(turn.sampled_ids),
        "versions": _runs(turn.versions_T.tolist()),
    }
    if turn.injected_T.any():
        head["injected"] = _runs(turn.injected_T.tolist())
    if turn.faults:
        head["faults"] = [fault.value for fault in turn.faults]
    if turn.experts is not None:
        head["experts"] = list(turn.experts.shape)
        arrays["experts"].append(turn.experts)
    return head


def _record_head(record: TokenRecord, arrays: Arrays) -> dict[str, Any]:
    arrays["logprobs"].append(record.logprobs_T)
    head: dict[str, Any] = {
        "place": record.place,
        "tokens": len(record.logprobs_T),
        "left_out": _runs(record.mask_reasons_T.tolist()),
    }
    for name, values_T in (("advantages", record.advantages_T), ("factors", record.factors_T)):
        if len(set(values_T.tolist())) == 1:
            head[name] = values_T.tolist()[0]
        else:
            arrays[name].append(values_T)
    return head


def _group(head: dict[str, Any], parts: _Parts) -> Group:
    task = Task(env=EnvRef(name=head["env"]), key=head["key"], messages=NOT_KEPT, spec={})
    admitted, sampling = WeightVersion(step=head["admitted"]), Sampling(**head["sampling"])
    return Group(
        ticket=Ticket(number=head["ticket"], task=task, admitted=admitted, sampling=sampling),
        trajectories=tuple(
            Trajectory(
                task=task,
                turns=tuple(_turn(turn, parts) for turn in one["turns"]),
                stop=Stop(one["stop"]),
                reward=one["reward"],
            )
            for one in head["answers"]
        ),
        failed=(Trajectory(task=task, turns=(), stop=Stop.FAILURE, failure=LOST),) * head["failed"],
    )


def _turn(head: dict[str, Any], parts: _Parts) -> Turn:
    context, sampled, shape = head["context"], head["sampled"], head.get("experts")
    return Turn(
        context_ids=as_ids(parts.next("ids", context)),
        sampled_ids=as_ids(parts.next("ids", sampled)),
        logprobs_T=as_floats(parts.next("behaviour", sampled)),
        versions_T=as_ids(list(_spread(head["versions"]))),
        injected_T=as_marks(list(_spread(head.get("injected", [[False, sampled]])))),
        text="",
        faults=tuple(TurnFault(fault) for fault in head.get("faults", ())),
        experts=None if shape is None else parts.next("experts", int(np.prod(shape))).reshape(shape),
    )


def _record(head: dict[str, Any], parts: _Parts) -> TokenRecord:
    count = head["tokens"]
    advantages, factors = (
        as_floats([head[name]] * count if name in head else parts.next(name, count))
        for name in ("advantages", "factors")
    )
    return TokenRecord(
        place=head["place"],
        logprobs_T=as_floats(parts.next("logprobs", count)),
        advantages_T=advantages,
        factors_T=factors,
        mask_reasons_T=np.array(list(_spread(head["left_out"])), dtype=np.int8),
    )


def _runs(values: Sequence[Any]) -> list[list[Any]]:
    """Return equal neighbours as [value, count]."""
    return [[value, len(list(members))] for value, members in groupby(values)]


def _spread(runs: Sequence[Sequence[Any]]) -> Iterator[Any]:
    for value, count in runs:
        yield from [value] * count


NAMED = re.compile(r".+-\d+")
"""The name of a batch. Other files in the folder are left alone."""


def make_room(folder: RunDir, place: Path, *, needed: int) -> list[Path]:
    """Remove recorded batches until the disk of `place` has `needed` bytes free; return them.

    The oldest go first; of those after one checkpoint the last steps, since a step is replayed by all before it. None is
    removed if that is not enough, or if they are on another disk.
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
    """Yield batches, with the times at which they were written, in the order of removal."""
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
    """Records the first steps after each checkpoint, and removes those whose checkpoint is gone."""

    def __init__(self, folder: RunDir, stage: str, *, count: int, after: int) -> None:
        """Record `count` steps after each checkpoint. The stage resumes from step `after`, 0 for its beginning."""
        self._folder = folder
        self._stage = stage
        self._count = count
        self._base = after
        self._lacks = False

    def saved(self, step: int) -> None:
        """Note that there will be a checkpoint of this step."""
        self._base, self._lacks = step, False

    def due(self, step: int) -> bool:
        """Return whether to record the batch of a step: without the one before it no later one is of use."""
        return not self._lacks and 0 < step - self._base <= self._count

    def keep(self, batch: StepBatch, *, leave: int = 0) -> None:
        """Write a batch, and remove those that no checkpoint needs. Raise `OSError` if it can't be written or would leave fewer
        than `leave` bytes; then nothing is due before the next checkpoint.
        """
        self._lacks = True
        self.remove_old()
        try:
            write_batch(self._folder.batch_file(self._stage, batch.step), batch, leave=leave)
        finally:
            self.remove_old()
        self._lacks = False

    def remove_old(self) -> None:
        """Remove the batches that no checkpoint needs. One that is being written counts as there."""
        bases = {0, self._base, *steps(self._folder.checkpoints(self._stage))}
        for step, path in self._folder.batch_files(self._stage).items():
            if not any(base < step <= base + self._count for base in bases):
                path.unlink(missing_ok=True)
