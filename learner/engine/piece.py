"""Pieces of a checkpoint: copies in main memory that are written later, during training."""

from collections.abc import Callable
from pathlib import Path

import torch
from safetensors.torch import save_file

Piece = Callable[[Path], None]
"""Writes a part of a checkpoint from its copy into a directory."""


def copy_to_cpu(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().to("cpu", copy=True).contiguous()


def file_piece(name: str, tensors: dict[str, torch.Tensor]) -> Piece:
    return lambda directory: save_file(tensors, directory / name)


def bytes_piece(name: str, content: bytes) -> Piece:
    def write(directory: Path) -> None:
        (directory / name).write_bytes(content)

    return write
