"""Runs the stages of a run in order. It skips finished stages and resumes interrupted ones."""

import asyncio
import shlex
import signal
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from temper.envs.core.process import LearnerDied
from temper.orchestrator.cluster.actors import run_in_task
from temper.orchestrator.cluster.bundles import reserve
from temper.orchestrator.cluster.ray_cluster import has_open_access, start_ray
from temper.orchestrator.evaluation.outcome import read_outcome
from temper.orchestrator.loop.deadline import STOPPED, StopFlag, StopRequested, in_thread, within
from temper.orchestrator.pipeline.config import Config
from temper.orchestrator.pipeline.continuation import check_continuation
from temper.orchestrator.pipeline.finding import warnings_of
from temper.orchestrator.pipeline.overlap_check import overlaps_of
from temper.orchestrator.pipeline.prepare import plan_run, prepare_run, wanted_processes
from temper.orchestrator.pipeline.profiles.resolve import profile_notes
from temper.orchestrator.pipeline.start_checks import check_before, check_model
from temper.orchestrator.pipeline.tracking import send_model, send_note, send_run, send_stage, tracker_of
from temper.orchestrator.run.checkpoint import place, resumed_step, set_aside
from temper.orchestrator.run.checkpoint import steps as steps_in
from temper.orchestrator.run.crash_report import crash_reporter
from temper.orchestrator.run.driver import keep_driver_small, noise_to, warnings_to
from temper.orchestrator.run.folder import RunDir, RunState
from temper.orchestrator.run.progress import Progress
from temper.orchestrator.run.redaction import blank_text
from temper.orchestrator.run.source import source_commit
from temper.orchestrator.session.run import Run
from temper.orchestrator.stages.stage import Role, StageInstance
from temper.orchestrator.tracking.backend import RunStatus

STOPS = (signal.SIGINT, signal.SIGTERM)


async def run_pipeline(
    config: Config, *, only: str | None = None, quiet: bool = False, notes: Sequence[str] = ()
) -> int:
    """Run the declared stages, or only the stage `only`. Return the exit status.

    0 after all stages, 130 after a stop. Errors are raised, errors of the start before any write. `notes` are shown first.
    Output of libraries goes to the run's log, with `quiet` progress too.
    """
    keep_driver_small()
    ready = prepare_run(config, only=only)
    folder, ahead = ready.folder, ready.ahead
    found = check_before(config, ahead, folder.root, ready.model)
    said = [*notes, *profile_notes(config, {one.stage.name for one in ahead}), *warnings_of(found)]
    measured = {name: value for one in found for name, value in one.metrics.items()}
    folder.open()
    try:
        said += check_continuation(config, folder, reads=ready.reads)
        if ready.reads:
            said += [overlap.note for overlap in overlaps_of(config, folder)]
        planned = plan_run(config, folder, folder.state(), only)
        with (
            crash_reporter(folder.faults, folder.log, blank_text(shlex.join(sys.orig_argv))),
            noise_to(folder.log) as screen,
            Progress(config.name, stream=sys.stdout if quiet else screen) as progress,
            warnings_to(progress.note),
        ):
            for note in [*said, *planned.notes, f"what libraries print: {folder.log}"]:
                progress.note(note)
            for name in folder.state().stages:
                for step in steps_in(folder.checkpoints(name)):
                    set_aside(place(folder.checkpoints(name), step))
            return await _tracked(config, folder, progress, planned.ahead, measured)
    finally:
        folder.close()


async def _tracked(
    config: Config, folder: RunDir, progress: Progress, ahead: list[StageInstance], measured: dict[str, float]
) -> int:
    """Run the stages. `measured` has metrics of the checks before the start."""
    stop = StopFlag()
    _stop_on_signals(stop, progress)
    tracker = tracker_of(config, folder, notify=progress.note)
    will_train = any(one.stage.trains for one in ahead)
    run = Run(config, folder=folder, tracker=tracker, progress=progress, stop=stop, will_train=will_train)
    ended = RunStatus.FAILED
    try:
        if measured:
            run.metrics.append_next("start", measured)
        send_run(tracker, config, folder, notify=progress.note)
        await stop.wait_or(_start_cluster(run, config, ahead))
        async with run.supervision.watching():
            for one in ahead:
                stop.check()
                await _run_stage(run, one, config)
        send_model(tracker, folder)
        ended = RunStatus.FINISHED
        return 0
    except StopRequested:
        ended = RunStatus.KILLED
        progress.note("stopped; rerun the same command to resume")
        return STOPPED
    except (KeyboardInterrupt, asyncio.CancelledError):  # a second signal
        ended = RunStatus.KILLED
        raise
    except Exception as error:
        run.supervision.record_end(error)
        raise
    finally:
        await run.close()
        await run.copy_output()
        await in_thread(tracker.close, ended)
        progress.note(await in_thread(read_outcome, folder.root))


async def _start_cluster(run: Run, config: Config, ahead: list[StageInstance]) -> None:
    """Start Ray if a stage needs it, and reserve resources. Raise `NoRoomError` if there are too few."""
    if wanted := wanted_processes(config, ahead):
        logs = start_ray(slots=config.actors, min_sandbox_level=config.sandbox.min_level)
        run.in_process = run_in_task
        if logs is not None:
            run.printed = logs
            run.progress.note(f"output of engines and ranks: {logs.folder}, copied to {run.folder.printed} at the end")
        if has_open_access():
            run.progress.note(
                "warning: this Ray cluster requires no token, so anyone who reaches its ports can run programs on it; start "
                "it with RAY_AUTH_MODE=token (`ray get-auth-token --generate` makes a token)"
            )
        run.bundles = await reserve(wanted)
        seen = run.bundles.require_folder(run.folder.root)
        await within(config.deadlines.start(), seen, stage="the start", waiting_for="all machines to check runs_dir")


async def _run_stage(run: Run, one: StageInstance, config: Config) -> None:
    began = time.monotonic()
    run.progress.note(f"{one.name}: begins")
    _begin(run, one)
    send_stage(run.tracker, one, config, run.folder)
    try:
        model = await run_with_restart(run, one, config)
    except BaseException:
        with suppress(OSError):  # a full disk must not hide the error
            _add_seconds(run.folder, one, time.monotonic() - began)
        raise
    seconds = _add_seconds(run.folder, one, time.monotonic() - began)
    if model is not None:
        if one.stage.role is Role.BEGIN:
            check_model(model, config)
        inside = model.is_relative_to(run.folder.root)
        newest = str(model.relative_to(run.folder.root) if inside else model)
        run.folder.store(replace(run.folder.state(), model=newest, label=one.name))
    finish(run, one, wanted=config.steps(one) if one.stage.trains else 0)
    send_stage(run.tracker, one, config, run.folder, seconds)
    send_note(run.tracker, run.folder, notify=run.progress.note)
    run.progress.end_stage()
    run.progress.note(f"{one.name}: done in {seconds:.0f} s")


async def run_with_restart(run: Run, one: StageInstance, config: Config) -> Path | None:
    """Run an instance of a stage. After a failure of the learner, resume from its newest checkpoint with new ranks.

    The engines stay. Raise `TooManyRestarts` at the limit.
    """
    while True:
        try:
            return await one.stage.run(run, config.settings(one), one)
        except LearnerDied as death:
            run.supervision.record_failure("the learner", death)
            await run.trainer.restart(death)
            step = await in_thread(resumed_step, run.folder.checkpoints(one.name))
            run.supervision.record_restart(
                "the learner", f"has new ranks, which resume after step {step}", after=(one.name, step)
            )
            run.stop.check()


def _begin(run: Run, one: StageInstance) -> None:
    """Record the start of a stage. A resumed training stage and all stages after it count as unfinished."""
    state, began = run.folder.state(), run.folder.trained_instances()
    done = list(state.done)
    kept = done[: done.index(one.name)] if one.stage.trains and one.name in done else done
    if one.stage.trains and one.name not in began:
        if state.began.get(one.name) != state.model:
            run.folder.answers_file(one.name).unlink(missing_ok=True)  # of another model
        began = began | {one.name: str(state.model)}
    run.folder.store(
        replace(
            state,
            done={name: state.done[name] for name in kept},
            began=began,
            stages=state.stages | {one.name: one.stage.name},
            commits=_commits(state, one),
        )
    )


def _commits(state: RunState, one: StageInstance) -> list[str]:
    """Return a run's commits at the start of a stage. A report is of no commit."""
    now = "" if one.stage.role is Role.REPORT else source_commit()
    return [*state.commits, now] if now and now not in state.commits else state.commits


def _add_seconds(folder: RunDir, one: StageInstance, seconds: float) -> float:
    """Add the time of a start to its stage. Return the sum."""
    state = folder.state()
    total = state.seconds.get(one.name, 0.0) + seconds
    folder.store(replace(state, seconds=state.seconds | {one.name: total}))
    return total


def finish(run: Run, one: StageInstance, *, wanted: int) -> None:
    """Record the end of a stage with its trained steps, which may be more than `wanted`."""
    state = run.folder.state()
    steps = max([wanted, *steps_in(run.folder.checkpoints(one.name))]) if one.stage.trains else 0
    if steps > wanted:
        run.progress.note(f"{one.name}: {one.name}.steps={wanted} is less than the {steps} trained steps, which stay")
    others = {name: count for name, count in state.done.items() if name != one.name}
    run.folder.store(replace(state, done=others | {one.name: steps}))


def _stop_on_signals(stop: StopFlag, progress: Progress) -> None:
    """Let the first SIGINT or SIGTERM stop the run at a safe point, and a second one stop it at once."""
    loop = asyncio.get_running_loop()

    def request_stop(number: signal.Signals) -> None:
        progress.note(f"{number.name}: stopping at the next safe point; repeat it to stop at once")
        stop.set()
        for one in STOPS:  # for the next signal, also in child processes
            loop.remove_signal_handler(one)
            signal.signal(one, signal.default_int_handler)

    for number in STOPS:
        loop.add_signal_handler(number, request_stop, number)
