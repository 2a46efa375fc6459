"""Pieces of a checkpoint: copies in main memory that are written later, while the model is trained on."""

from collections.abc import Callable
from pathlib import Path

import torch
from safetensors.torch import save_file

Piece = Callable[[Path], None]
"""Writes a part of a checkpoint, from a copy that nothing changes, into the directory that it is given."""


def copy_to_cpu(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().to("cpu", copy=True).contiguous()


def file_piece(name: str, tensors: dict[str, torch.Tensor]) -> Piece:
    return lambda directory: save_file(tensors, directory / name)


def bytes_piece(name: str, content: bytes) -> Piece:
    def write(directory: Path) -> None:
        (directory / name).write_bytes(content)

    return write
