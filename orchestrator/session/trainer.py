"""The learner's ranks with deadlines: they load models and checkpoints, and save while the loop continues."""

import asyncio
import errno
import math
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from dataclasses import replace
from functools import partial
from pathlib import Path
from statistics import fmean
from time import monotonic
from typing import Any, TypeVar

from temper.envs.core.process import LearnerDied, ProcessInfo
from temper.learner.batches.builder import BatchBuilder
from temper.learner.config import OptimConfig
from temper.learner.losses.config import LossConfig
from temper.learner.trainer_group import TrainerGroup
from temper.learner.training_state import LoadedModel
from temper.orchestrator.cluster.bundles import Bundles, describe_used_gpus, read_facts
from temper.orchestrator.cluster.run_actors import start_trainer_group
from temper.orchestrator.cluster.transport_choice import choose_transport
from temper.orchestrator.loop.deadline import StopRequested, in_thread, within
from temper.orchestrator.loop.interfaces import LEARNING, DevicePhases
from temper.orchestrator.run.checkpoint import (
    CheckpointConfig,
    Retention,
    begin,
    commit,
    discard_on_failure,
    is_complete,
    latest,
    place,
    size_of,
    step_of,
)
from temper.orchestrator.run.declared_model import generation_file
from temper.orchestrator.run.folder import RunDir, evaluations_of
from temper.orchestrator.run.metrics_log import MetricsRow
from temper.orchestrator.session.context import RunContext
from temper.orchestrator.session.recording import make_room
from temper.rollout.pool.restarts import RestartLimit
from temper.rollout.tokenizer import load_tokenizer, pad_id
from temper.rollout.weights.host_memory import available_bytes
from temper.rollout.weights.manifest import wire_dtype
from temper.rollout.weights.weight_files import require_complete


def begin_with_room(folder: RunDir, name: str, step: int, *, needed: int, notify: Callable[[str], None]) -> Path:
    """Create the folder of a checkpoint (`begin`). If the disk is full, remove recorded batches first and notify.

    Raise `OSError` (ENOSPC) if that is not enough.
    """
    place = folder.checkpoints(name)
    try:
        return begin(place, step, needed_bytes=needed)
    except OSError as error:
        if error.errno != errno.ENOSPC or not (removed := make_room(folder, place, needed=needed)):
            raise
    notify(
        f"{name} step {step}: the disk was full; recorded batches were removed for the checkpoint "
        f"({', '.join(sorted(path.stem for path in removed))}), so their steps cannot be replayed. Use a larger disk, or lower "
        f"checkpoints.batches"
    )
    return begin(place, step, needed_bytes=needed)


OF_EVALUATION = "eval/"
"""Prefix of a metric of the evaluations between steps, in checkpoints.best."""
SCORED_OVER = 10
"""Steps in the mean that scores a checkpoint, since a single step is noisy."""


class BackgroundWriter:
    """The write in progress of a checkpoint or of a step's records, during the loop.

    An error is logged at once and raised to the next waiter.
    """

    def __init__(self, notify: Callable[[str], None]) -> None:
        self._notify = notify
        self._writing: asyncio.Task[None] | None = None
        self._needed = 0
        self._kept = False

    @property
    def needs(self) -> int:
        """Bytes that the current checkpoint may still need."""
        return 0 if self._writing is None or self._writing.done() else self._needed

    def start(self, writing: Coroutine[Any, Any, None], *, what: str, needed: int = 0) -> None:
        """Write during the loop. `writing` has its own deadline and needs up to `needed` bytes. `what` names it in messages."""
        assert self._writing is None, "wait for the previous write"
        self._needed, self._kept = needed, False
        self._writing = asyncio.create_task(writing)
        self._writing.add_done_callback(lambda task: self._log_failure(task, what))

    def keep(self) -> None:
        """Record that the write no longer needs the ranks. From now on it is awaited, not cancelled."""
        self._kept = True

    def _log_failure(self, task: asyncio.Task[None], what: str) -> None:
        error = "it was given up" if task.cancelled() else task.exception()
        if error:
            self._notify(f"{what} was not written: {error}")

    async def wait_ended(self) -> None:
        """Wait for the current write. Leave its error to the next waiter."""
        if self._writing is not None:
            await asyncio.wait({self._writing})  # cancelling the waiter does not cancel the write

    async def wait_written(self) -> None:
        """Wait for the current write and raise its error."""
        await self.wait_ended()
        self.raise_failed()

    def raise_failed(self) -> None:
        """Raise the error of a failed write."""
        if self._writing is not None and self._writing.done():
            ended, self._writing = self._writing, None
            ended.result()

    async def drain(self, *, at_most_s: float | None = None) -> None:
        """Wait for the current write, or cancel it while it needs the ranks. Raise nothing.

        A commit in a thread is always awaited. Otherwise it could appear while the newest checkpoint is read.
        """
        if self._writing is not None:
            _, late = await asyncio.wait({self._writing}, timeout=at_most_s)
            if late and self._kept:
                await asyncio.wait(late)
            for task in late:
                task.cancel()
            self._writing = None


def scores(rows: Callable[[str], Iterable[MetricsRow]], name: str, config: CheckpointConfig) -> dict[int, float]:
    """Return the score of an instance's checkpoints by step, higher is better. `rows` returns the rows of a name.

    A step metric is a mean over several steps, an evaluation metric counts as it is. A step without a finite value has no
    score.
    """
    if config.best is None:
        return {}
    metric = config.best.removeprefix(OF_EVALUATION)
    evaluated = metric != config.best
    measured = rows(evaluations_of(name) if evaluated else name)
    values = {row.step: row.values.get(metric, math.nan) for row in measured}
    sign, found = 1 if config.best_is == "max" else -1, {}
    for step, value in values.items():
        if math.isfinite(value):
            first = step if evaluated else step - SCORED_OVER + 1
            near = [values.get(other, math.nan) for other in range(first, step + 1)]
            found[step] = sign * fmean(one for one in near if math.isfinite(one))
    return found


T = TypeVar("T")
SLOW_S = 5.0
"""Seconds that a checkpoint may wait for the previous one without a note."""
STUCK_S = 30.0
"""Seconds that a checkpoint write may still take if a rank may hang."""


async def write_nothing(directory: Path) -> None: ...


class Trainer:
    """Trains the instances of stages one after another. `name` is the instance, also in files and messages."""

    def __init__(self, run: RunContext, *, device_phases: DevicePhases | None = None) -> None:
        self._run = run
        self._phases = device_phases or DevicePhases()
        self._limits = run.config.deadlines
        supervision = run.config.supervision
        self._restarts = RestartLimit(supervision.restarts, window_s=supervision.window_s)
        self.learner: TrainerGroup | None = None
        self.renewals = 0
        self._logged: dict[str, str] = {}
        """Last logged text about the transport of weights, adapters and passes."""
        self._writer = BackgroundWriter(lambda text: run.progress.note(text))
        self._next_bytes = 0
        self._unscored: set[str] = set()
        self._turn_ends: dict[str, str] = {}

    def processes(self) -> list[ProcessInfo]:
        return [] if self.learner is None else self.learner.processes(restarts=self.renewals)

    def batch_builder(self) -> BatchBuilder:
        """Return the builder of batches for the newest model: its tokenizer and, after `begin`, the costs of its passes."""
        pad = pad_id(load_tokenizer(self._run.model_dir))
        loaded = LoadedModel() if self.learner is None else self.learner.loaded
        return BatchBuilder(config=self._run.config.learner, pad_id=pad, costs=loaded.costs)

    async def start(self, name: str) -> TrainerGroup:
        """Return the ranks. Start them for the first instance."""
        config, bundles = self._run.config, self._run.bundles
        if self.learner is None:
            assert bundles is not None
            learner = config.learner
            if bundles.has_engines:
                transport = await self._answer(self._transport(bundles), name, "the machine of the learner's rank 0")
                learner = replace(learner, transport=transport)
            processes = config.rollout.engine.processes
            starting = start_trainer_group(learner, bundles=bundles, engine_processes=processes)
            self.learner = await self._answer(
                starting, name, lambda: f"the learner's ranks to meet{describe_used_gpus()}"
            )
        return self.learner

    async def _answer(
        self, asking: Awaitable[T], name: str, waiting_for: str | Callable[[], str] = "the learner's ranks"
    ) -> T:
        """Wait for an answer of the ranks with the deadline of their start."""
        return await within(self._limits.start(), asking, stage=name, waiting_for=waiting_for)

    async def _transport(self, bundles: Bundles) -> str:
        """Return the transport of pushes for the cluster. Raise `ValueError` if it cannot reach the engines."""
        learner, (memory, _) = self._run.config.learner, await bundles.at_first_rank(available_bytes)
        ground = await in_thread(partial(read_facts, gpus=bundles.gpus, colocated=bundles.colocated, memory=memory))
        parameters = await in_thread(require_complete, self._run.model_dir)
        nbytes = parameters * wire_dtype(learner.wire_dtype).itemsize
        choice = choose_transport(learner.transport, ground, nbytes=nbytes)
        self._log_if_new("weights", f"weights travel by {choice.transport}: {choice.why}")
        return choice.transport

    async def restart(self, death: LearnerDied) -> None:
        """End all ranks after a failure. New ones start for the next instance. Raise `TooManyRestarts` at the limit."""
        await self.drain()
        if self.learner is not None:
            self.learner.kill()
            self.learner = None
        self._restarts.count(death)
        self.renewals += 1

    async def begin(
        self,
        name: str,
        *,
        optim: OptimConfig,
        loss: LossConfig,
        steps: int,
        beside_engines: bool,
        teacher: Path | None = None,
    ) -> tuple[TrainerGroup, int]:
        """Return the ranks, ready to train the instance `name`, and its last step (0 for none).

        A loss with frozen weights uses `teacher`, else the first weights of the stage. Raise `DamagedCheckpointError` for a
        damaged model or checkpoint.
        """
        learner, config = await self.start(name), self._run.config.learner
        await self.wait_written()
        await self._phases.begin(LEARNING)
        threads = config.threads_during_generation if beside_engines else config.threads
        await self._answer(learner.use_threads(threads), name)
        checkpoint = await in_thread(latest, self._run.folder.checkpoints(name))
        base = checkpoint or self._run.model_dir
        await in_thread(self._run.folder.verify_model, base)
        if checkpoint is not None and (config.lora.rank or (loss.needs_reference and teacher is None)):
            await in_thread(self._run.folder.verify_model, self._began_with(name))
        self._turn_ends = await in_thread(generation_file, self._run.model_dir)
        await self._read(learner.load(base, optim=optim, loss=loss, total_steps=steps, teacher=teacher), base, name)
        self._log_if_new("passes", learner.loaded.note)
        if checkpoint is not None:
            await self._read(learner.restore(checkpoint), checkpoint, name)
            self._run.progress.note(f"{name}: resuming after step {step_of(checkpoint)}")
        if loss.needs_reference:
            await self._read(learner.load_reference(), teacher or base, name)
        self._next_bytes = await self._answer(learner.checkpoint_bytes(), name)
        if config.lora.rank and self._run.bundles is not None and self._run.bundles.has_engines:
            await self._log_adapters(learner, name)
        return learner, 0 if checkpoint is None else step_of(checkpoint)

    async def _log_adapters(self, learner: TrainerGroup, name: str) -> None:
        why = await self._answer(learner.merge_reason(), name)
        news = (
            f"pushes send adapters merged into the weights: {why}"
            if why
            else "pushes send only adapters after the first, and the engines add them to the base weights"
        )
        self._log_if_new("adapters", news)

    def _log_if_new(self, what: str, news: str) -> None:
        """Log a text if it is new."""
        if self._logged.get(what) != news:
            self._run.progress.note(news)
            self._logged[what] = news

    def _began_with(self, name: str) -> Path:
        """Return the first model of an instance, to which its adapters or its reference belong."""
        began = self._run.folder.state().began.get(name)
        return self._run.model_dir if began is None else self._run.folder.root / began

    async def _read(self, reading: Awaitable[None], directory: Path, name: str) -> None:
        limit = self._limits.files(size_of(directory))
        await within(limit, reading, stage=name, waiting_for=f"the learner to read {directory}")

    async def save(
        self, name: str, step: int, files: dict[str, str], *, write: Callable[[Path], Awaitable[None]] = write_nothing
    ) -> None:
        """Copy the learner's state. It is committed as checkpoint `step` while the loop continues (`wait_written`).

        `files` are further text files by name. Afterwards `write` writes more into the checkpoint's folder, with its own
        deadline, from data that the loop does not change. Raise the error of the previous checkpoint. Raise `OSError` if the
        disk is full even without recorded batches. Earlier checkpoints stay.
        """
        assert self.learner is not None
        began = monotonic()
        await self.wait_written()
        if (waited := monotonic() - began) > SLOW_S:
            self._run.progress.note(
                f"{name} step {step}: waited {waited:.0f} s for the previous checkpoint; save less often, or use a faster disk"
            )
        folder, notify = self._run.folder, self._run.progress.note
        if await in_thread(is_complete, place(folder.checkpoints(name), step)):
            return  # saved already, without training since
        await self._phases.begin(LEARNING)
        needed = self._next_bytes
        directory = await in_thread(partial(begin_with_room, folder, name, step, needed=needed, notify=notify))
        limit, what = self._limits.files(needed), f"checkpoint {directory}"
        with discard_on_failure(directory, needed_bytes=needed):
            copying = self.learner.save(directory)
            held = await within(limit, copying, stage=name, waiting_for=f"{what} to be copied")
        if not held:
            self._run.progress.note(
                f"{name}: main memory has no room for all copies of step {step}, so some ranks wrote at once"
            )

        async def wait(writing: Awaitable[T]) -> T:
            return await within(limit, writing, stage=name, waiting_for=f"{what} to be written")

        async def write_all(learner: TrainerGroup) -> None:
            with discard_on_failure(directory, needed_bytes=needed):
                await wait(learner.write())
                self._writer.keep()
                await write(directory)
            await wait(self._commit(directory, self._turn_ends | files, needed=needed, name=name))

        self._writer.start(write_all(self.learner), what=what, needed=needed)

    def reserved_bytes(self, folder: Path) -> int:
        """Return the bytes of a folder's disk reserved for the current checkpoint, or the next."""
        place = self._run.folder.root / "checkpoints"
        if folder.stat().st_dev != (place if place.exists() else self._run.folder.root).stat().st_dev:
            return 0
        return self._writer.needs or self._next_bytes

    async def save_before_end(self, name: str, fault: Exception, save: Callable[[], Awaitable[None]]) -> None:
        """Save before a stop or an error ends an instance, if the ranks can.

        An error of the save does not hide `fault`, unless that is a stop.
        """
        if isinstance(fault, LearnerDied) or self.learner is None or self.learner.is_stuck:
            return
        await self.drain()
        try:
            await save()
            await self.wait_written()
        except LearnerDied:
            raise
        except Exception as error:
            if isinstance(fault, StopRequested):
                raise
            self._run.progress.note(f"{name}: its last steps could not be saved: {error}")

    async def _commit(self, directory: Path, files: dict[str, str], *, needed: int, name: str) -> None:
        await in_thread(self._run.metrics.sync)  # a checkpoint needs the rows of its steps, also after a power cut
        retention = await in_thread(self._retention, name)
        await in_thread(partial(_commit, directory, files, needed=needed, retention=retention))

    def _retention(self, name: str) -> Retention:
        config = self._run.config.checkpoints
        found = scores(self._run.rows, name, config)
        if config.best and not found and name not in self._unscored:
            self._unscored.add(name)
            self._run.progress.note(f"{name} does not measure checkpoints.best={config.best}; only the newest are kept")
        return Retention(last=config.keep, scores=found)

    async def wait_written(self) -> None:
        """Wait until the last checkpoint is committed and raise its error. Call it before any read."""
        await self._writer.wait_written()

    def raise_failed(self) -> None:
        self._writer.raise_failed()

    async def drain(self) -> None:
        """Wait like `wait_written`, and raise nothing. The ranks end afterwards."""
        stuck = self.learner is not None and self.learner.is_stuck
        await self._writer.drain(at_most_s=STUCK_S if stuck else None)

    async def wait_for_model(self, name: str) -> Path:
        """Return the newest checkpoint of a finished instance."""
        await self.wait_written()
        model = await in_thread(latest, self._run.folder.checkpoints(name))
        assert model is not None
        return model

    async def close(self) -> None:
        """Stop the ranks after the last checkpoint."""
        await self.drain()
        if self.learner is not None:
            await self.learner.close()


def _commit(directory: Path, files: dict[str, str], *, needed: int, retention: Retention) -> None:
    """Commit a checkpoint, in one thread from start to end, so that nothing removes it meanwhile."""
    with discard_on_failure(directory, needed_bytes=needed):
        commit(directory, texts=files, retention=retention)
