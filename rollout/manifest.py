"""What a weight push is made of: a segment of shared memory and the manifest that says what lies where in it."""

import os
import zlib
from dataclasses import asdict, dataclass
from math import prod
from typing import Any

import torch

from rollout.trajectory import WeightVersion

ALIGNMENT = 64
"""Every tensor of a segment starts at a multiple of this, in bytes, so that its view is aligned for any dtype."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightManifest:
    """One push: the file of the segment, the version it brings, and name, dtype, shape and offset of each tensor.

    `names` are those of a saved Hugging Face checkpoint. `nbytes` is the size of the whole segment and `checksum` the
    CRC-32 of it. Plain data throughout, so that it crosses any process border as JSON.
    """

    path: str
    version: int
    names: tuple[str, ...]
    dtypes: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]
    offsets: tuple[int, ...]
    nbytes: int
    checksum: int

    def __post_init__(self) -> None:
        for name, values in (("dtypes", self.dtypes), ("shapes", self.shapes), ("offsets", self.offsets)):
            if len(values) != len(self.names):
                raise ValueError(f"{name} has {len(values)} entries for {len(self.names)} tensors")

    @property
    def weight_version(self) -> WeightVersion:
        return WeightVersion(step=self.version)

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> "WeightManifest":
        return cls(
            path=data["path"],
            version=data["version"],
            names=tuple(data["names"]),
            dtypes=tuple(data["dtypes"]),
            shapes=tuple(tuple(shape) for shape in data["shapes"]),
            offsets=tuple(data["offsets"]),
            nbytes=data["nbytes"],
            checksum=data["checksum"],
        )


def map_segment(path: str, *, nbytes: int) -> torch.Tensor:
    """The segment's bytes as a uint8 tensor that shares memory with the file."""
    return torch.from_file(path, shared=True, size=nbytes, dtype=torch.uint8)


def checksum(segment: torch.Tensor) -> int:
    """CRC-32 of a uint8 tensor."""
    return zlib.crc32(segment.numpy().data)


def read_weights(manifest: WeightManifest) -> list[tuple[str, torch.Tensor]]:
    """Name and tensor of each weight. The tensors are views of the segment, which the push after the next overwrites.

    Raises `ValueError` where the segment's size or checksum is not the manifest's: a torn or overwritten push.
    """
    try:
        size = os.stat(manifest.path).st_size
    except FileNotFoundError as error:
        raise ValueError(
            f"weights of version {manifest.version}: the segment {manifest.path} is gone; push again"
        ) from error
    if size != manifest.nbytes:
        raise ValueError(
            f"{manifest.path} has {size} bytes, version {manifest.version} needs {manifest.nbytes}; push again"
        )
    segment = map_segment(manifest.path, nbytes=manifest.nbytes)
    found = checksum(segment)
    if found != manifest.checksum:
        raise ValueError(
            f"{manifest.path} has checksum {found:#010x}, version {manifest.version} was sent with "
            f"{manifest.checksum:#010x}; push again"
        )
    weights = []
    for name, dtype_name, shape, offset in zip(
        manifest.names, manifest.dtypes, manifest.shapes, manifest.offsets, strict=True
    ):
        dtype = wire_dtype(dtype_name)
        weights.append((name, tensor_view(segment, dtype=dtype, shape=shape, offset=offset)))
    return weights


def tensor_view(segment: torch.Tensor, *, dtype: torch.dtype, shape: tuple[int, ...], offset: int) -> torch.Tensor:
    """The tensor that lies at `offset` bytes of a segment; shares its memory."""
    nbytes = prod(shape) * dtype.itemsize
    return segment[offset : offset + nbytes].view(dtype).view(shape)


def wire_dtype(name: str) -> torch.dtype:
    """The torch dtype of a dtype name on the wire: float32, bfloat16 or float16."""
    dtypes = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
    if name not in dtypes:
        raise ValueError(f"weights can not be sent as {name!r}; choose one of {', '.join(dtypes)}")
    return dtypes[name]
