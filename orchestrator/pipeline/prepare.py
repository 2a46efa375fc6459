"""A run before its start: the stages ahead and their processes. It imports no heavy library, so a dry run is fast."""

from dataclasses import dataclass, replace
from pathlib import Path

from temper.orchestrator.cluster.placement import PlacementRequest, build_request
from temper.orchestrator.pipeline.config import Config
from temper.orchestrator.pipeline.continuation import valid_progress
from temper.orchestrator.pipeline.plan import Plan, plan, single
from temper.orchestrator.run.checkpoint import steps as steps_in
from temper.orchestrator.run.folder import RunDir, RunState
from temper.orchestrator.stages.registry import all_stages
from temper.orchestrator.stages.stage import Role, StageInstance


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """Facts about a run before it starts or writes anything."""

    folder: RunDir
    planned: Plan
    """The instances still to run, in order, with notes."""
    reads: bool
    """Whether a stage ahead reads the run's first data and model."""
    model: str | None
    """The newest valid model in the run's folder, if any."""

    @property
    def ahead(self) -> list[StageInstance]:
        return self.planned.ahead


def prepare_run(config: Config, *, only: str | None = None, here: bool = True) -> Prepared:
    """Return the plan of all stages or the stage `only`. `here` is false if data and models are not local.

    Raise `ValueError` if the run cannot be resumed so.
    """
    folder = RunDir(Path(config.runs_dir).resolve() / config.name)
    state = folder.state()
    planned = plan_run(config, folder, state, only)
    reads = here and any(one.stage.role is not Role.REPORT for one in planned.ahead)
    if (holds := valid_progress(config, folder, reads=reads)) != state:
        state, planned = holds, plan_run(config, folder, holds, only)
    return Prepared(folder=folder, planned=planned, reads=reads, model=state.model)


def plan_run(config: Config, folder: RunDir, state: RunState, only: str | None) -> Plan:
    """Return the plan of a run's folder. Raise `ValueError` if it is impossible."""
    trains = [stage for stage in all_stages().values() if stage.trains]  # the stage of a command need not be listed
    steps = {stage.name: config.steps(stage) for stage in trains}
    steps |= {one.name: config.steps(one) for one in config.instances if one.stage.trains}
    state = replace(
        state, began={name: state.began[name] for name in folder.trained_instances() if name in state.began}
    )
    listed = config.instances
    found = plan(listed, state, steps=steps) if only is None else single(all_stages()[only], listed, state, steps=steps)
    if state.model is None and found.ahead and found.ahead[0].stage.role not in (Role.BEGIN, Role.REPORT):
        raise ValueError(f"{folder.root} has no model yet; run the stage `init` first, or list it first in stages")
    for one in found.ahead:
        place = folder.checkpoints(one.name)
        if one.stage.trains and one.name not in state.began and steps_in(place):
            raise ValueError(f"{place} has checkpoints that are not of this run; move it away to start {one.name}")
    return found


def wanted_processes(config: Config, ahead: list[StageInstance]) -> PlacementRequest:
    trains, plays = any(one.stage.trains for one in ahead), any(config.plays(one) for one in ahead)
    return build_request(config, trains=trains, plays=plays)
