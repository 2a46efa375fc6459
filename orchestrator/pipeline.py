"""The stages of a run as one declared pipeline: in order, skipping what is done, continuing what was interrupted."""

import asyncio
import signal
import time
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path

from learner.checkpoint import begin, commit
from learner.fresh_model import make_model
from orchestrator.cluster import start_ray
from orchestrator.config import Config, flat_config
from orchestrator.deadline import StopFlag, StopRequested
from orchestrator.model_checks import check_before, check_model
from orchestrator.progress import Progress
from orchestrator.report import write_report
from orchestrator.run import Run, check_continuation
from orchestrator.run_dir import RunDir
from orchestrator.stage_distill import run_distill
from orchestrator.stage_dpo import run_dpo
from orchestrator.stage_eval import run_eval
from orchestrator.stage_rl import run_rl
from orchestrator.stage_self_sft import run_self_sft
from orchestrator.stage_sft import run_sft
from orchestrator.tracking import Ended, MlflowTracker

TRAINING = {"sft", "self_sft", "dpo", "rl", "distill"}
STOPPED = 130
"""Exit status of a run that a signal stopped."""


async def run_pipeline(config: Config, *, only: str | None = None) -> int:
    """Run the declared stages, or only one of them; returns the exit status.

    0 where all is done, 130 where a signal asked to stop (the same command continues). Faults are raised.
    """
    folder = RunDir(Path(config.runs_dir).resolve() / config.name)
    folder.open()
    try:
        ahead = config.stages[folder.state().done :] if only is None else [only]
        check_before(config, ahead)
        check_continuation(config, folder)
        with Progress(config.name) as progress:
            return await _tracked(config, folder, progress, only, ahead)
    finally:
        folder.close()


async def _tracked(config: Config, folder: RunDir, progress: Progress, only: str | None, ahead: list[str]) -> int:
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
    will_train = not TRAINING.isdisjoint(ahead)
    run = Run(config, folder=folder, tracker=tracker, progress=progress, stop=stop, will_train=will_train)
    ended = Ended.FAILED
    try:
        for path in folder.artifacts:  # a process that was killed may not have sent them
            tracker.artifact(path)
        if not (TRAINING | {"eval"}).isdisjoint(ahead):
            start_ray(slots=config.actors, min_sandbox_level=config.sandbox.min_level)
        _stop_on_signals(stop, progress)  # after Ray, whose own handler of SIGTERM would abort the run
        await _stages(run, only)
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
        await asyncio.to_thread(tracker.close, ended)


async def _stages(run: Run, only: str | None) -> None:
    if only is not None:
        await _one(run, only)
        return
    stages = run.config.stages
    for position in range(run.folder.state().done, len(stages)):
        run.stop.check()
        await _one(run, stages[position])
        run.folder.store(replace(run.folder.state(), done=position + 1))


async def _one(run: Run, stage: str) -> None:
    label = f"eval-{run.folder.state().label}" if stage == "eval" else stage
    began = time.monotonic()
    run.progress.note(f"{label}: begins")
    await STAGE_FUNCTIONS[stage](run)
    seconds = run.folder.state().seconds | {label: time.monotonic() - began}
    run.folder.store(replace(run.folder.state(), seconds=seconds))
    run.progress.note(f"{label}: done in {seconds[label]:.0f} s")


async def _init(run: Run) -> None:
    if run.config.model.path is not None:
        model = Path(run.config.model.path).resolve()
        check_model(model, run.config)
        run.folder.store(replace(run.folder.state(), model=str(model), label="init"))
        return
    directory = begin(run.folder.checkpoints("init"), 0, needed_bytes=0)
    count = await asyncio.to_thread(make_model, directory, run.config.model.fresh, seed=run.config.seed)
    target = await asyncio.to_thread(commit, directory)
    check_model(target, run.config)
    run.progress.note(f"init: a fresh hybrid of {count:,} parameters")
    run.folder.store(replace(run.folder.state(), model=str(target.relative_to(run.folder.root)), label="init"))


def _training(label: str, stage: Callable[[Run], Awaitable[Path]]) -> Callable[[Run], Awaitable[None]]:
    """A stage whose last checkpoint becomes the run's newest model."""

    async def train(run: Run) -> None:
        final = await stage(run)
        run.folder.store(replace(run.folder.state(), model=str(final.relative_to(run.folder.root)), label=label))

    return train


async def _eval(run: Run) -> None:
    run.tracker.artifact(await run_eval(run))


async def _report(run: Run) -> None:
    paths = await asyncio.to_thread(write_report, run.folder.root)
    run.tracker.artifact(paths.html)
    run.tracker.artifact(paths.json)
    if paths.curves is not None:
        run.tracker.artifact(paths.curves)
    if run.config.tracking.trajectories:
        for path in sorted(run.folder.trajectories.glob("*.jsonl"))[-3:]:
            run.tracker.artifact(path)
    run.progress.note(f"report: {paths.html}")


STAGE_FUNCTIONS: dict[str, Callable[[Run], Awaitable[None]]] = {
    "init": _init,
    "sft": _training("sft", run_sft),
    "self_sft": _training("self_sft", run_self_sft),
    "dpo": _training("dpo", run_dpo),
    "rl": _training("rl", run_rl),
    "distill": _training("distill", run_distill),
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
