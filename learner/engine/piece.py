"""Pieces of a checkpoint: copies in main memory that are written later, during training."""

from collections.abc import Callable
from pathlib import Path

import torch
from safetensors.torch import save_file

SHARD_BYTES = 2**30
"""Bytes of a file from which the next tensor begins another."""
Piece = Callable[[Path], None]
"""Writes a part of a checkpoint from its copy into a directory."""


def copy_to_cpu(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().to("cpu", copy=True).contiguous()


def file_piece(name: str, tensors: dict[str, torch.Tensor], metadata: dict[str, str] | None = None) -> Piece:
    return lambda directory: save_file(tensors, directory / name, metadata=metadata)


def bytes_piece(name: str, content: bytes) -> Piece:
    def write(directory: Path) -> None:
        (directory / name).write_bytes(content)

    return write
