"""The files of a checkpoint, and those of its model in Hugging Face's sharded format, which are divided among ranks.

A rank copies its pieces to main memory and writes them later, so that training continues.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors.torch import save_file
from transformers import PreTrainedModel

from temper.rollout.weights.expert_owners import UNSHARED, ExpertOwners
from temper.rollout.weights.weight_files import INDEX

SHARD_BYTES = 2**30
"""Bytes of a file from which the next tensor begins another."""
Piece = Callable[[Path], None]
"""Writes a part of a checkpoint from its copy into a directory."""
METADATA = {"format": "pt"}
"""Metadata that transformers expects in each file."""


def copy_to_cpu(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().to("cpu", copy=True).contiguous()


def file_piece(name: str, tensors: dict[str, torch.Tensor], metadata: dict[str, str] | None = None) -> Piece:
    return lambda directory: save_file(tensors, directory / name, metadata=metadata)


def bytes_piece(name: str, content: bytes) -> Piece:
    def write(directory: Path) -> None:
        (directory / name).write_bytes(content)

    return write


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFile:
    """A file with the tensors that one rank writes into it."""

    name: str
    rank: int
    tensors: frozenset[str]


def split_model(sizes: Mapping[str, int], *, ranks: int, owners: ExpertOwners = UNSHARED) -> list[ModelFile]:
    """Divide tensors of these bytes evenly among the ranks that hold them, in files of up to `SHARD_BYTES` bytes."""
    parts: list[tuple[int, list[str]]] = []
    newest: dict[int, list[str]] = {}
    held, filled = [0] * ranks, [0] * ranks
    for name, size in sizes.items():
        owner = owners.find_owner(name)
        holders = range(ranks) if owner is None else range(owner, ranks, owners.ranks)
        rank = min(holders, key=held.__getitem__)
        if rank not in newest or filled[rank] + size > SHARD_BYTES:
            newest[rank], filled[rank] = [], 0
            parts.append((rank, newest[rank]))
        newest[rank].append(name)
        held[rank] += size
        filled[rank] += size
    of = f"-of-{len(parts):05d}"
    return [
        ModelFile(
            name=f"model{f'-{number:05d}{of}' if len(parts) > 1 else ''}.safetensors",
            rank=rank,
            tensors=frozenset(names),
        )
        for number, (rank, names) in enumerate(parts, start=1)
    ]


def write_config(directory: Path, *, model: PreTrainedModel, files: Sequence[ModelFile], nbytes: int) -> None:
    """Write the configuration of a model, and the index of its files if there are several."""
    model.config.dtype = str(model.dtype).removeprefix("torch.")
    model.config.architectures = [type(model).__name__]
    model.config.save_pretrained(directory)
    if model.can_generate():
        model.generation_config.save_pretrained(directory)
    if len(files) > 1:
        places = {tensor: file.name for file in files for tensor in sorted(file.tensors)}
        index = {"metadata": {"total_size": nbytes}, "weight_map": places}
        (directory / INDEX).write_text(json.dumps(index, indent=1), encoding="utf-8")
