"""The model that an engine has after a push: its weights as they travel, where that rounds what the engine computes with."""

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from transformers import AutoConfig, AutoModelForCausalLM

from temper.orchestrator.tools.debug.parity.setup import Setup
from temper.rollout.weights.manifest import wire_dtype

WEIGHTS = ".safetensors"


@contextmanager
def as_pushed(model: Path, setup: Setup) -> Iterator[Path]:
    """Give the model directory, or for the block one in a temporary folder whose weights are rounded to `learner.wire_dtype`.

    They are stored in the type of the model's files all the same. Buffers are not pushed: they stay.
    """
    if not setup.wire_rounds:
        yield model
        return
    with tempfile.TemporaryDirectory(prefix="temper-parity-") as folder:
        kept = _buffers(model)
        for path in sorted(model.iterdir()):
            if path.suffix == WEIGHTS:
                _write_rounded(path, Path(folder) / path.name, dtype=wire_dtype(setup.learner.wire_dtype), kept=kept)
            else:
                (Path(folder) / path.name).symlink_to(path.resolve())
        yield Path(folder)


def _buffers(model: Path) -> set[str]:
    with torch.device("meta"):
        config = AutoConfig.from_pretrained(model, trust_remote_code=False)
        empty = AutoModelForCausalLM.from_config(config, trust_remote_code=False)
    return {name for name, _ in empty.named_buffers()}


def _write_rounded(path: Path, to: Path, *, dtype: torch.dtype, kept: set[str]) -> None:
    with safe_open(path, framework="pt") as file:
        metadata = file.metadata()
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - not a mapping
    for name, tensor in tensors.items():
        if tensor.is_floating_point() and name not in kept:
            tensors[name] = tensor.to(dtype).to(tensor.dtype)
    save_file(tensors, to, metadata=metadata)
