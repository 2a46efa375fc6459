"""The batch of a step in a safetensors file for replay: training input, training results by token, and retention.

ids       token ids of all turns, context and then sampled, in order
behaviour the engine's log-probability of each sampled token
logprobs  the trainer's log-probability of each trained token. advantages and factors are arrays only if they vary
experts   expert choices of turns that have them, as bytes and one higher if all are below 255
head      the rest as JSON in UTF-8, compressed by zlib
"""

import json
import os
import platform
import re
import shutil
import zlib
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
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
from temper.envs.core.thinking_mode import Mode, Thinking, up_to
from temper.learner.batches.builder import BatchBuilder
from temper.learner.batches.packing import ON_CPU, PassCosts
from temper.learner.config import LearnerConfig, OptimConfig
from temper.learner.losses.config import LossConfig
from temper.learner.token_records import TokenRecord
from temper.orchestrator.config.loop import LoopConfig
from temper.orchestrator.config.schema import typed
from temper.orchestrator.loop.deadline import in_thread
from temper.orchestrator.run.checkpoint import steps
from temper.orchestrator.run.folder import RunDir
from temper.rollout.sampling import Sampling, sampling_to_json
from temper.rollout.token_arrays import as_floats, as_ids, as_marks
from temper.rollout.trajectory import NO_THINKING, Group, Stop, Ticket, Trajectory, Turn, TurnFault, WeightVersion


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
    found = typed(TrainedWith, data)
    assert isinstance(found, TrainedWith)
    return found


COMPUTED_BY = ("torch", "transformers", "deepspeed")
"""Packages whose versions affect the last digits of results."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepBatch:
    """Step `step` of the instance `stage`, with the `version` of the trained weights.

    A group read from a file has no tasks, texts and scores, but all training input. `records` are the answers with a trained
    token, by `TokenRecord.place`. `packages` are the versions that computed them.
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


FORMAT = 4
"""Version of the file. A change of its keys adds one."""
HEAD = "head"


def head_of(file: Any) -> dict[str, Any]:
    """Return the head of an open safetensors file. Raise `ValueError` for another format."""
    head: dict[str, Any] = json.loads(zlib.decompress(file.get_tensor(HEAD).tobytes()))
    if head["format"] != FORMAT:
        raise ValueError(f"it has format {head['format']}, and this version of Temper reads format {FORMAT}")
    return head


NOT_KEPT = ({"role": "user", "content": ""},)
"""The messages of a task read from a file. The ids contain its prompt."""
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
    """Write a batch atomically and return its bytes. Raise `OSError` if fewer than `leave` bytes would be free."""
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
        raise ValueError(f"{path} cannot be read: {error}; replay a step that does not need it") from error


def _packed_experts(experts: NDArray[Any]) -> NDArray[Any]:
    """Return expert choices as bytes if they are low enough. -1 is none."""
    low = experts.size and experts.min() >= -1 and experts.max() < np.iinfo(np.uint8).max
    return (experts + 1).astype(np.uint8) if low else experts


class _Parts:
    """Arrays that are read in the order of writing."""

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
        "nested_budgets": list(ticket.task.thinking.nested_budgets),
        "answers": [_answer_head(answer, arrays) for answer in group.trajectories],
    }


def _answer_head(answer: Trajectory, arrays: Arrays) -> dict[str, Any]:
    forced = [one for one in answer.forced_answers if one.failure is None]
    return {
        "budget": answer.task.thinking.budget,
        "reward": answer.reward,
        "stop": answer.stop.value,
        "turns": [_turn_head(turn, arrays) for turn in answer.turns],
        "forced": [_answer_head(one, arrays) for one in forced],
        "parents": list(answer.parents),
    }


def _turn_head(turn: Turn, arrays: Arrays) -> dict[str, Any]:
    arrays["ids"] += [turn.context_ids, turn.sampled_ids]
    arrays["behaviour"].append(turn.logprobs_T)
    head: dict[str, Any] = {
        "context": len(turn.context_ids),
        "sampled": len(turn.sampled_ids),
        "answer_tokens": turn.thinking.answer_tokens,
        "versions": _runs(turn.versions_T.tolist()),
    }
    if turn.injected_T.any():
        head["injected"] = _runs(turn.injected_T.tolist())
    if turn.faults:
        head["faults"] = [fault.value for fault in turn.faults]
    if turn.truncated:
        head["truncated"] = True
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
    thinking = Thinking(mode=Mode.UNLIMITED, nested_budgets=tuple(head["nested_budgets"]))
    task = Task(env=EnvRef(name=head["env"]), key=head["key"], messages=NOT_KEPT, spec={}, thinking=thinking)
    admitted, sampling = WeightVersion(step=head["admitted"]), Sampling(**head["sampling"])
    return Group(
        ticket=Ticket(number=head["ticket"], task=task, admitted=admitted, sampling=sampling),
        trajectories=tuple(_answer(one, task, parts) for one in head["answers"]),
        failed=(Trajectory(task=task, turns=(), stop=Stop.FAILURE, failure=LOST),) * head["failed"],
    )


def _answer(head: dict[str, Any], task: Task, parts: _Parts) -> Trajectory:
    budget = head["budget"]
    return Trajectory(
        task=task if budget is None else replace(task, thinking=up_to(budget)),
        turns=tuple(_turn(turn, parts) for turn in head["turns"]),
        stop=Stop(head["stop"]),
        reward=head["reward"],
        forced_answers=tuple(_answer(one, task, parts) for one in head["forced"]),
        parents=tuple(head.get("parents", ())),
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
        thinking=replace(NO_THINKING, answer_tokens=head["answer_tokens"]),
        faults=tuple(TurnFault(fault) for fault in head.get("faults", ())),
        truncated=head.get("truncated", False),
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
    """Return runs of equal values as [value, count]."""
    return [[value, len(list(members))] for value, members in groupby(values)]


def _spread(runs: Sequence[Sequence[Any]]) -> Iterator[Any]:
    for value, count in runs:
        yield from [value] * count


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
