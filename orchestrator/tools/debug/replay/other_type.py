"""A checkpoint for training in the other type: float32 in place of bfloat16, or the reverse, from the same float32 weights."""

import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from transformers import PreTrainedModel

from temper.learner.engine.deepspeed_engine import ADAPTERS_FILE
from temper.learner.engine.optimizer_state import MASTER, SHARDS, STEP
from temper.learner.models.loading import read_model
from temper.learner.training_state import FACTS, STATE_FOLDER, CheckpointFacts

MASTERS_FILE = SHARDS.replace("*", "masters")


def in_type(checkpoint: Path, *, bf16: bool, to: Path) -> Path:
    """Return a checkpoint of the same step that is trained in bfloat16 or float32: itself, or one that is written to `to`.

    The float32 weights that the optimiser steps are the same: those of the model's file, or those that training in bfloat16
    keeps beside it. Holds the model in main memory. Raise `ValueError` where adapters are trained.
    """
    facts = CheckpointFacts.read(checkpoint)
    if facts.bf16 == bf16:
        return checkpoint
    if (checkpoint / STATE_FOLDER / ADAPTERS_FILE).exists():
        raise ValueError(
            f"{checkpoint} has adapters, and learner.bf16 can't be set otherwise for those that are trained"
        )
    (to / STATE_FOLDER).mkdir(parents=True)
    model = read_model(checkpoint)
    if bf16:
        _link(checkpoint, to, leave=())
        state = {STEP} | {name for path in _shards(to) for name in load_file(path)}
        trained = {name.partition("/")[2] for name in state - {STEP}}
        masters = {
            f"{MASTER}/{name}": p.detach().contiguous() for name, p in model.named_parameters() if name in trained
        }
        if len(masters) < len(trained):
            raise ValueError(
                f"{checkpoint} names its tensors otherwise than its optimiser's state does: it can't be converted"
            )
        save_file(masters, to / STATE_FOLDER / MASTERS_FILE)
    else:
        _link(checkpoint, to, leave=("model", SHARDS.partition("*")[0]))
        _write_float32(model, checkpoint, to)
    start = os.path.relpath((checkpoint.parent / facts.start).resolve(), to.parent.resolve())
    (to / FACTS).unlink()
    replace(facts, bf16=bf16, start=start).write(to)
    return to


def _shards(checkpoint: Path) -> Iterator[Path]:
    return (checkpoint / STATE_FOLDER).glob(SHARDS)


def _link(checkpoint: Path, to: Path, *, leave: tuple[str, ...]) -> None:
    """Let the files of a checkpoint be there too, but for those whose names begin so."""
    for path in sorted(checkpoint.rglob("*")):
        if path.is_file() and not (path.suffix in (".safetensors", ".json") and path.name.startswith(leave or ("\0",))):
            there = to / path.relative_to(checkpoint)
            there.parent.mkdir(parents=True, exist_ok=True)
            there.symlink_to(path.resolve())


def _write_float32(model: PreTrainedModel, checkpoint: Path, to: Path) -> None:
    """Write the float32 weights of an optimiser as the model, and its state without them."""
    parameters = dict(model.named_parameters())
    for path in _shards(checkpoint):
        tensors = load_file(path)
        for name in [name for name in tensors if name.startswith(f"{MASTER}/")]:
            with torch.no_grad():
                parameters[name.partition("/")[2]].copy_(tensors.pop(name))
        save_file(tensors, to / STATE_FOLDER / path.name)
    (to / "config.json").unlink()
    (to / "generation_config.json").unlink(missing_ok=True)
    model.save_pretrained(to)
