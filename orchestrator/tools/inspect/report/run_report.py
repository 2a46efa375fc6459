"""`report`: write the report of the run, which is also a tracker artifact."""

from temper.orchestrator.loop.deadline import in_thread
from temper.orchestrator.session.run import Run
from temper.orchestrator.stages.stage import StageInstance
from temper.orchestrator.tools.inspect.report.report import write_report


async def run_report(run: Run, settings: None, instance: StageInstance) -> None:
    """Write the report, with the figures of every stage that the run has gone through."""
    paths = await in_thread(write_report, run.folder.root)
    trajectories = run.folder.newest_trajectories() if run.config.tracking.trajectories else []
    for path in (paths.html, paths.json, *paths.pictures, *trajectories):
        run.tracker.artifact(path)
    run.progress.note(f"{instance.name}: {paths.html}")
