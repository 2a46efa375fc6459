"""What a command would do to a run, found without starting or writing anything."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from envs.core.setting import Kind
from orchestrator.pipeline.config import Config
from orchestrator.pipeline.continuation import Changes, allowed_changes
from orchestrator.pipeline.runner import placed, prepared
from orchestrator.run.checkpoint import steps as steps_in
from orchestrator.run.folder import RunDir
from orchestrator.run.redaction import blanked
from orchestrator.stages.stage import StageInstance

Would = Literal["is done", "begins", "goes on"]


@dataclass(frozen=True, slots=True, kw_only=True)
class StagePreview:
    """What would become of one line of `stages`."""

    name: str
    stage: str
    would: Would
    steps: int
    """As many as the configuration wants; 0 of a stage that has none."""
    after: int
    """The step of its newest checkpoint; 0 without one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Preview:
    """What a command would do."""

    run: Path
    """The run's folder."""
    exists: bool
    stages: tuple[StagePreview, ...]
    """In order: those that are done, then those ahead."""
    ranks: int
    engines: int
    gpus_each: int
    """GPUs of an engine, where there are any."""
    changed: dict[str, tuple[str | None, str | None]]
    """Settings that differ from those that the run went on with last: what they were, what they would be."""
    notes: tuple[str, ...]
    """What the start would say: what the profile chooses, limits that may be met."""


def preview(config: Config, *, only: str | None = None) -> Preview:
    """Return what a run of all stages, or of the one of this name, would do. Raise as the run itself would at its start."""
    ready = prepared(config, only=only)
    changes = allowed_changes(config, ready.folder, reads=ready.reads)
    changed: Changes = changes[Kind.IDENTITY] | changes[Kind.SCHEDULE] | changes[Kind.RUNNING]
    names = {one.name for one in ready.ahead}
    done = [one for one in config.instances if one.name not in names and one.name in ready.folder.state().done]
    stages = [_stage(one, "is done", config, ready.folder) for one in done if only is None]
    stages += [_stage(one, "begins", config, ready.folder) for one in ready.ahead]
    wanted = placed(config, ready.ahead)
    return Preview(
        run=ready.folder.root,
        exists=ready.folder.config.is_file(),
        stages=tuple(stages),
        ranks=wanted.ranks,
        engines=wanted.engines,
        gpus_each=wanted.processes,
        changed=changed,
        notes=tuple(map(blanked, ready.notes)),
    )


def _stage(one: StageInstance, would: Would, config: Config, folder: RunDir) -> StagePreview:
    after = max(steps_in(folder.checkpoints(one.name)), default=0) if one.stage.trains else 0
    return StagePreview(
        name=one.name,
        stage=one.stage.name,
        would="goes on" if after and would == "begins" else would,
        steps=config.steps(one) if one.stage.trains else 0,
        after=after,
    )


def lines(found: Preview) -> list[str]:
    """Return it for people."""
    said = [f"{found.run}: {'goes on' if found.exists else 'a new run'}", *found.notes]
    said += [f"changed: {key}: {before} -> {now}" for key, (before, now) in found.changed.items()]
    wide = max((len(one.name) for one in found.stages), default=0)
    said += [f"  {one.name:{wide}}  {_in_words(one)}" for one in found.stages]
    counts = [f"{number} {noun}" for number, noun in ((found.ranks, "rank(s)"), (found.engines, "engine(s)")) if number]
    said += [f"processes: {', '.join(counts)}"] if counts else []
    return [*said, "nothing was started or written (--dry-run)"]


def _in_words(one: StagePreview) -> str:
    if not one.steps:
        return one.would
    if one.would == "begins":
        return f"begins: {one.steps} steps"
    return f"{one.would} after step {one.after}" + (f" of {one.steps}" if one.would == "goes on" else "")
