"""Run folders as stages write them, without training."""

from dataclasses import replace

from temper.orchestrator.run.folder import RunDir


def with_checkpoint(folder: RunDir, name: str, step: int = 1, *, done: bool = False) -> None:
    """Add a training stage from the newest model, with a checkpoint. If `done`, it is the newest model."""
    place = folder.checkpoints(name) / f"{step:06d}"
    place.mkdir(parents=True)
    state = folder.state()
    began = state.began | ({} if name in state.began else {name: str(state.model)})
    stages = state.stages | {name: name.split("-")[0].split("_tools")[0]}
    if done:
        model = str(place.relative_to(folder.root))
        state = replace(state, done=state.done | {name: step}, model=model, label=name)
    folder.store(replace(state, began=began, stages=stages))
