"""Training state in a checkpoint's files, read without an engine: tensors by name, and the model of averaged weights."""

import json
import math
import shutil
from collections.abc import Iterable
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from transformers.core_model_loading import revert_weight_conversion

from temper.learner.engine.model_files import METADATA
from temper.learner.engine.optimizer import EMA
from temper.learner.models.adapters import ADAPTER, is_adapter
from temper.learner.models.loading import TOKENIZER_FILES, read_structure
from temper.learner.training_state import STATE_FOLDER, CheckpointFacts
from temper.rollout.weights.own_files import own_files
from temper.rollout.weights.weight_files import INDEX

SHARDS = "optimizer-*.safetensors"
RANKS = "ranks"
"""The number of ranks that wrote a file, in its metadata."""
ADAPTERS_FILE = "adapters.safetensors"


@dataclass(slots=True, kw_only=True)
class SavedTensor:
    """A tensor of a checkpoint's training state, read from the files of one rank or of several."""

    name: str
    shape: torch.Size
    parts: list[tuple[int, Any]] = field(default_factory=list)
    """The first entry of each part, and its open file."""

    def entries(self, first: int, end: int) -> torch.Tensor:
        """Return these entries of the flat tensor. Raises `ValueError` if the files lack some."""
        found = []
        for start, file in sorted(self.parts, key=lambda part: part[0]):
            flat = file.get_tensor(self.name).flatten()  # mapped, so that only the pages in use are read
            found.append(flat[max(first - start, 0) : max(end - start, 0)])
        entries = found[0] if len(found) == 1 else torch.cat(found)
        if len(entries) != end - first:
            raise ValueError(f"a checkpoint has {len(entries)} instead of {end - first} entries of {self.name}")
        return entries

    def join(self) -> torch.Tensor:
        """Return the tensor from the parts of all files."""
        return self.entries(0, math.prod(self.shape)).view(self.shape)


def open_state(files: Iterable[Path], stack: ExitStack) -> dict[str, SavedTensor]:
    """Open files of training state until `stack` closes. Returns their tensors by name.

    Raises `ValueError`, with the file, for a damaged one.
    """
    tensors: dict[str, SavedTensor] = {}
    for path in sorted(files):
        file = stack.enter_context(safe_open(path, framework="pt"))
        places = file.metadata() or {}
        for name in file.keys():  # noqa: SIM118 - not a mapping
            try:
                first, shape = json.loads(places[name]) if name in places else (0, file.get_slice(name).get_shape())
            except (ValueError, TypeError, RecursionError) as error:
                raise ValueError(f"{path} is damaged: the place of {name} can't be read ({error})") from error
            saved = tensors.setdefault(name, SavedTensor(name=name, shape=torch.Size(shape)))
            saved.parts.append((first, file))
    return tensors


def state_files(directory: Path, *patterns: str) -> list[Path]:
    """Return the files of a checkpoint's training state that match, without foreign ones."""
    return [path for one in patterns for path in own_files(directory.parent, f"{directory.name}/{one}")]


def require_all_ranks(directory: Path) -> None:
    """Raise `ValueError` if the files of a rank are missing."""
    ranks, found = 1, set()
    for number, path in ((int(path.stem.rpartition("-")[2]), path) for path in state_files(directory, SHARDS)):
        with safe_open(path, framework="pt") as file:
            ranks = int((file.metadata() or {}).get(RANKS, 1))
        found.add(number % ranks)
    if found and len(found) < ranks:
        raise ValueError(
            f"{directory} has optimiser state of {len(found)} of {ranks} ranks; use a runs_dir on storage that all machines "
            "share, and remove this checkpoint to resume from the previous one"
        )


def write_averaged_model(checkpoint: Path, directory: Path) -> None:
    """Write the model of a checkpoint into an empty directory, with the averages of its trained weights or adapters.

    Memory holds one file and one parameter at a time. Raises `ValueError` if the checkpoint has no averages or lacks the files
    of a rank. It also does if an average has no tensor of its name and shape.
    """
    state = checkpoint / STATE_FOLDER
    require_all_ranks(state)
    with ExitStack() as stack:
        saved = open_state(state_files(state, SHARDS, ADAPTERS_FILE), stack)
        names = [name.removeprefix(f"{EMA}/") for name in saved if name.startswith(f"{EMA}/")]
        if not names:
            raise ValueError(
                f"{checkpoint} has no averages of weights; set optim.ema_decay in the stage that trains it"
            )
        scale, model = CheckpointFacts.read(checkpoint).adapter_scale, read_structure(checkpoint)
        parameters = {name: parameter.detach() for name, parameter in model.named_parameters()}
        trained = {f"{name.partition('.lora_')[0]}.weight" if is_adapter(name) else name for name in names}
        places = {key: name for name in trained for key in revert_weight_conversion(model, {name: parameters[name]})}
        for path in own_files(checkpoint, "*.safetensors"):
            tensors = load_file(path)
            for name in sorted({places[key] for key in tensors if key in places}):
                average = _adapter_change(saved, name, scale=scale) if scale else saved[f"{EMA}/{name}"].join()
                in_file = revert_weight_conversion(model, {name: average})
                for key in in_file.keys() & tensors.keys():
                    if tensors[key].shape == in_file[key].shape:
                        tensors[key].copy_(tensors[key] + in_file[key] if scale else in_file[key])
                        del places[key]
            save_file(tensors, directory / path.name, metadata=METADATA)
        if places:
            raise ValueError(
                f"{checkpoint} has other tensors than {min(places)}; model.ema does not support its {model.config.model_type}"
            )
    for path in (
        path for pattern in (*TOKENIZER_FILES, "*config.json", INDEX) for path in own_files(checkpoint, pattern)
    ):
        shutil.copyfile(path, directory / path.name)


def _adapter_change(saved: dict[str, SavedTensor], name: str, *, scale: float) -> torch.Tensor:
    """Return the change of a weight, in float32, if the averages of its adapters replace them."""
    (up, down), (last_up, last_down) = (
        [saved[f"{kind}{name.removesuffix('weight')}lora_{part}.{ADAPTER}.weight"].join().float() for part in "BA"]
        for kind in (f"{EMA}/", "")
    )
    return scale * (up @ down - last_up @ last_down)
