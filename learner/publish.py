"""The sending end of a weight push: whole parameters into a segment of shared memory that engines on this host map.

Two segments alternate, so that an engine may still read a push while the next one is written.
"""

import atexit
import os
from collections.abc import Iterable
from math import prod

import torch

from rollout.manifest import ALIGNMENT, WeightManifest, checksum, map_segment, tensor_view, wire_dtype


class SharedMemoryPublisher:
    """Writes versions of one model's weights to `<prefix>0` and `<prefix>1` in turn; removes both on close and exit.

    `shapes` are those of the tensors by their checkpoint names; `dtype` is the type on the wire.
    """

    def __init__(self, prefix: str, *, shapes: dict[str, tuple[int, ...]], dtype: str) -> None:
        self.prefix = prefix
        self.shapes = shapes
        self.dtype = dtype
        self.offsets: dict[str, int] = {}
        self.nbytes = 0
        self.pushes = 0
        for name, shape in shapes.items():
            self.offsets[name] = self.nbytes
            size = prod(shape) * wire_dtype(dtype).itemsize
            self.nbytes += -(-size // ALIGNMENT) * ALIGNMENT
        atexit.register(self.close)

    def push(self, version: int, *, buckets: Iterable[dict[str, torch.Tensor]]) -> WeightManifest:
        """Write one version and describe it. Raises `ValueError` if the buckets do not hold exactly the tensors known."""
        path = f"{self.prefix}{self.pushes % 2}"
        self.pushes += 1
        _reserve(path, nbytes=self.nbytes)
        segment = map_segment(path, nbytes=self.nbytes)
        missing = set(self.shapes)
        for bucket in buckets:
            for name, tensor in bucket.items():
                if tuple(tensor.shape) != self.shapes.get(name):
                    raise ValueError(
                        f"{name} has shape {tuple(tensor.shape)}, not {self.shapes.get(name)}; load the model again"
                    )
                self._view(segment, name).copy_(tensor)
                missing.discard(name)
        if missing:
            raise ValueError(f"{len(missing)} weights were not sent, such as {min(missing)}; load the model again")
        return WeightManifest(
            path=path,
            version=version,
            names=tuple(self.shapes),
            dtypes=(self.dtype,) * len(self.shapes),
            shapes=tuple(self.shapes.values()),
            offsets=tuple(self.offsets.values()),
            nbytes=self.nbytes,
            checksum=checksum(segment),
        )

    def _view(self, segment: torch.Tensor, name: str) -> torch.Tensor:
        return tensor_view(segment, dtype=wire_dtype(self.dtype), shape=self.shapes[name], offset=self.offsets[name])

    def close(self) -> None:
        """Remove the segments. Engines that have one mapped keep reading it."""
        remove_segments(self.prefix)
        atexit.unregister(self.close)


def remove_segments(prefix: str) -> None:
    """Remove what publishers with this prefix left, for a process that was killed before it could."""
    for path in (f"{prefix}0", f"{prefix}1"):
        try:
            os.unlink(path)
        except FileNotFoundError:
            continue


def _reserve(path: str, *, nbytes: int) -> None:
    """Make the file of exactly that size, its memory allocated: writing to a full /dev/shm would kill the process."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        os.ftruncate(descriptor, nbytes)
        os.posix_fallocate(descriptor, 0, nbytes)
    except OSError as error:
        raise OSError(error.errno, f"no room for {nbytes} bytes of weights ({error.strerror})", path) from error
    finally:
        os.close(descriptor)
