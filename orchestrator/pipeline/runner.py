"""The stages of a run as one declared pipeline: in order, skipping what is done, continuing what was interrupted."""

import asyncio
import signal
import time
from collections.abc import Awaitable, Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from learner.models.fresh import make_model
from learner.models.weight_files import require_whole
from orchestrator.cluster.actors import gpu_share
from orchestrator.cluster.ray_cluster import start_ray
from orchestrator.deadline import STOPPED, StopFlag, StopRequested, beside
from orchestrator.reporting.report import write_report
from orchestrator.run.checkpoint import begin, commit
from orchestrator.run.checkpoint import steps as steps_in
from orchestrator.run.folder import RunDir, RunState
from orchestrator.run.progress import Progress
from orchestrator.run.tracking import Ended, MlflowTracker
from orchestrator.pipeline.config import Config, flat_config
from orchestrator.pipeline.continuation import check_continuation, reached
from orchestrator.pipeline.limit_checks import plays
from orchestrator.settings.model_checks import check_model
from orchestrator.pipeline.stage_list import TRAINING, Stage
from orchestrator.stages.distill import run_distill
from orchestrator.stages.dpo import run_dpo
from orchestrator.stages.eval import run_eval
from orchestrator.pipeline.plan import Plan, plan, single
from orchestrator.stages.rl import run_rl
from orchestrator.stages.self_sft import run_self_sft
from orchestrator.stages.session import Run
from orchestrator.stages.sft import run_sft
from orchestrator.pipeline.start_checks import check_before

Function = Callable[[Run, Stage], Awaitable[None]]


async def run_pipeline(config: Config, *, only: str | None = None) -> int:
    """Run the declared stages, or only one of them; returns the exit status.

    0 where all is done, 130 where a signal asked to stop (the same command continues). Faults are raised; what can be
    known at the start is found before a file is written.
    """
    folder = RunDir(Path(config.runs_dir).resolve() / config.name)
    state = folder.state()
    ahead = _planned(config, folder, state, only).ahead
    reads = any(stage.stage != "report" for stage in ahead)
    if (holds := reached(config, folder, reads=reads)) != state:
        state, ahead = holds, _planned(config, folder, holds, only).ahead
    notes = check_before(config, ahead, folder.root, state.model)
    folder.open()
    try:
        check_continuation(config, folder, reads=reads)
        planned = _planned(config, folder, folder.state(), only)
        with Progress(config.name) as progress:
            for note in [*notes, *planned.notes]:
                progress.note(note)
            return await _tracked(config, folder, progress, planned.ahead)
    finally:
        folder.close()


def _planned(config: Config, folder: RunDir, state: RunState, only: str | None) -> Plan:
    """What is to be done in a run's folder after what was reached. Raises `ValueError` where that can't be done."""
    steps = {stage: config.sections[stage].steps for stage in TRAINING}  # a command's stage need not be listed
    steps |= {stage.name: config.settings(stage).steps for stage in config.instances if stage.trains}
    state = replace(state, began={name: state.began[name] for name in folder.begun() if name in state.began})
    found = (
        plan(config.instances, state, steps=steps)
        if only is None
        else single(only, config.instances, state, steps=steps)
    )
    if state.model is None and found.ahead and found.ahead[0].stage not in ("init", "report"):
        raise ValueError(f"{folder.root} has no model yet; run the stage `init` first, or name it first in stages")
    for stage in found.ahead:
        place = folder.checkpoints(stage.name)
        if stage.trains and stage.name not in state.began and steps_in(place):
            raise ValueError(
                f"{place} has checkpoints of which the run knows nothing; move it away to begin {stage.name}"
            )
    return found


async def _tracked(config: Config, folder: RunDir, progress: Progress, ahead: list[Stage]) -> int:
    tracker = MlflowTracker(
        run_name=config.name,
        experiment=config.tracking.experiment,
        metrics=folder.metrics,
        memory=folder.tracking,
        uri=config.tracking.uri,
        local_dir=folder.root.parent,
        say=progress.note,
    )
    tracker.params(flat_config(config))
    stop = StopFlag()
    will_train = any(stage.trains for stage in ahead)
    run = Run(config, folder=folder, tracker=tracker, progress=progress, stop=stop, will_train=will_train)
    ended = Ended.FAILED
    try:
        for path in folder.artifacts:  # a process that was killed may not have sent them
            tracker.artifact(path)
        if wanted := processes(config, ahead):
            start_ray(slots=config.actors, min_sandbox_level=config.sandbox.min_level)
            await gpu_share(config.actors, wanted=wanted)
        _stop_on_signals(stop, progress)  # after Ray, whose own handler of SIGTERM would abort the run
        await _stages(run, ahead)
        ended = Ended.FINISHED
        return 0
    except StopRequested:
        ended = Ended.KILLED
        progress.note("stopped as asked; the same command continues the run")
        return STOPPED
    except (KeyboardInterrupt, asyncio.CancelledError):  # stopped at once, by a second signal
        ended = Ended.KILLED
        raise
    finally:
        await run.close()
        await beside(tracker.close, ended)


def processes(config: Config, ahead: list[Stage]) -> int:
    """How many processes that generate or train these stages start."""
    workers = config.rollout.workers if any(plays(config, stage) for stage in ahead) else 0
    return workers + (config.learner.ranks if any(stage.trains for stage in ahead) else 0)


async def _stages(run: Run, ahead: list[Stage]) -> None:
    for stage in ahead:
        run.stop.check()
        began = time.monotonic()
        run.progress.note(f"{stage.name}: begins")
        _begin(run, stage)
        await FUNCTIONS[stage.stage](run, stage)
        seconds = time.monotonic() - began
        finish(run, stage, seconds)
        run.progress.note(f"{stage.name}: done in {seconds:.0f} s")


def _begin(run: Run, stage: Stage) -> None:
    """Record that a stage begins; a training stage that was done and goes on is not done, nor is what came after it."""
    state, began = run.folder.state(), run.folder.begun()
    done = list(state.done)
    kept = done[: done.index(stage.name)] if stage.trains and stage.name in done else done
    if stage.trains and stage.name not in began:
        if state.began.get(stage.name) != state.model:
            run.folder.sampled(stage.name).unlink(missing_ok=True)  # by another model
        began = began | {stage.name: str(state.model)}
    run.folder.store(
        replace(
            state,
            done={name: state.done[name] for name in kept},
            began=began,
            stages=state.stages | {stage.name: stage.stage},
        )
    )


def finish(run: Run, stage: Stage, seconds: float) -> None:
    """Record that a stage is done, with as many steps as it has trained, which may be more than it has to by now."""
    state = run.folder.state()
    wanted = run.config.settings(stage).steps if stage.trains else 0
    steps = max([wanted, *steps_in(run.folder.checkpoints(stage.name))]) if stage.trains else 0
    if steps > wanted:
        run.progress.note(
            f"{stage.name}: {stage.name}.steps={wanted} is less than the {steps} steps that were trained; they stay"
        )
    others = {name: count for name, count in state.done.items() if name != stage.name}
    run.folder.store(replace(state, done=others | {stage.name: steps}, seconds=state.seconds | {stage.name: seconds}))


async def _init(run: Run, stage: Stage) -> None:
    if run.config.model.path is not None:
        model = Path(run.config.model.path).resolve()
        await beside(require_whole, model)
        check_model(model, run.config)
        run.folder.store(replace(run.folder.state(), model=str(model), label=stage.name))
        return
    directory = begin(run.folder.checkpoints(stage.name), 0, needed_bytes=0)
    count = await beside(partial(make_model, directory, run.config.model.fresh, seed=run.config.seed))
    target = await beside(commit, directory)
    check_model(target, run.config)
    run.progress.note(f"{stage.name}: a fresh hybrid of {count:,} parameters")
    run.folder.store(replace(run.folder.state(), model=str(target.relative_to(run.folder.root)), label=stage.name))


def _training(train: Callable[[Run, Any, str], Awaitable[Path]]) -> Function:
    """A stage whose last checkpoint becomes the run's newest model."""

    async def run_stage(run: Run, stage: Stage) -> None:
        final = await train(run, run.config.settings(stage), stage.name)
        model = str(final.relative_to(run.folder.root))
        run.folder.store(replace(run.folder.state(), model=model, label=stage.name))

    return run_stage


async def _eval(run: Run, stage: Stage) -> None:
    run.tracker.artifact(await run_eval(run, run.config.settings(stage), stage.name))


async def _report(run: Run, stage: Stage) -> None:
    paths = await beside(write_report, run.folder.root)
    run.tracker.artifact(paths.html)
    run.tracker.artifact(paths.json)
    if paths.curves is not None:
        run.tracker.artifact(paths.curves)
    if run.config.tracking.trajectories:
        for path in sorted(run.folder.trajectories.glob("*.jsonl"))[-3:]:
            run.tracker.artifact(path)
    run.progress.note(f"{stage.name}: {paths.html}")


FUNCTIONS: dict[str, Function] = {
    "init": _init,
    "sft": _training(run_sft),
    "self_sft": _training(run_self_sft),
    "dpo": _training(run_dpo),
    "rl": _training(run_rl),
    "distill": _training(run_distill),
    "eval": _eval,
    "report": _report,
}


def _stop_on_signals(stop: StopFlag, progress: Progress) -> None:
    """The first SIGINT or SIGTERM asks the run to stop; a second one stops it at once."""
    loop = asyncio.get_running_loop()

    def asked(number: signal.Signals) -> None:
        progress.note(f"{number.name}: stopping at the next safe point; once more stops at once")
        stop.set()
        loop.remove_signal_handler(number)
        signal.signal(number, signal.default_int_handler if number is signal.SIGINT else signal.SIG_DFL)

    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, asked, number)
