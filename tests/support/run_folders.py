"""Run folders as stages write them, without training."""

import json
from dataclasses import replace
from pathlib import Path

from temper.orchestrator.config.supervised import SftConfig
from temper.orchestrator.pipeline.config import load_config
from temper.orchestrator.pipeline.continuation import check_continuation
from temper.orchestrator.run.checkpoint import begin, commit
from temper.orchestrator.run.folder import RunDir

DEMO = Path("configs/demo.yaml")


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


def save_step(folder: RunDir, name: str, step: int, *, start: str) -> Path:
    """Write a checkpoint of a stage that began with the model at `start`, relative to the stage's folder."""
    directory = begin(folder.checkpoints(name), step, needed_bytes=0)
    (directory / "learner").mkdir()
    (directory / "model.safetensors").write_bytes(f"{name} {step}".encode())
    (directory / "learner" / "facts.json").write_text(json.dumps({"steps": step, "bf16": False, "start": start}))
    return commit(directory)


def write_forkable_run(place: Path) -> Path:
    """Write a run "old" with finished init and sft, and 150 of 300 steps of rl."""
    config = load_config(DEMO, [f"runs_dir={place}", "name=old", "stages=[init,sft,eval,rl,eval]", "rl.steps=300"])
    folder = RunDir(place / "old")
    folder.open()
    check_continuation(config, folder)
    save_step(folder, "sft", config.section(SftConfig).steps, start="../init/000000")
    for step in (100, 150):
        save_step(folder, "rl", step, start=f"../sft/{config.section(SftConfig).steps:06d}")
    (folder.evals / "sft.json").write_text('{"label": "sft", "order": 0, "k": 4, "seconds": 1, "envs": {}}')
    sft = f"checkpoints/sft/{config.section(SftConfig).steps:06d}"
    folder.store(
        replace(
            folder.state(),
            done={"init": 0, "sft": config.section(SftConfig).steps, "eval-sft": 0},
            began={"sft": "checkpoints/init/000000", "rl": sft},
            stages={"init": "init", "sft": "sft", "eval-sft": "eval", "rl": "rl"},
            model=sft,
            label="sft",
            version=151,
        )
    )
    folder.close()
    return folder.root
