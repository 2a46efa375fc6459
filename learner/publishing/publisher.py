"""The sending end of a weight push: whole parameters into a segment, and what changed since the one before.

How the bytes reach the engines is the carrier's part (`learner/publishing/transports.py`).
"""

from collections.abc import Iterable
from dataclasses import replace
from math import prod

import numpy as np
import torch

from learner.publishing.transports import Transport
from rollout.weights.checksum import checksum, tensor_checksum
from rollout.weights.delta import changes
from rollout.weights.manifest import (
    ALIGNMENT,
    STAMP_BYTES,
    WeightDelta,
    WeightManifest,
    contents,
    stamp,
    tensor_view,
    unstamp,
    wire_dtype,
)


class WeightPublisher:
    """Writes versions of one model's weights where the carrier has room.

    `shapes` are those of the tensors by their checkpoint names; `dtype` is the type on the wire. With `sparse` a push
    after the first is a delta, unless that would be larger than the weights.
    """

    def __init__(
        self, carrier: Transport, *, shapes: dict[str, tuple[int, ...]], dtype: str, sparse: bool = False
    ) -> None:
        self.carrier = carrier
        self.shapes = shapes
        self.dtype = dtype
        self.sparse = sparse
        self.offsets: dict[str, int] = {}
        self.nbytes = 0
        for name, shape in shapes.items():
            self.offsets[name] = self.nbytes
            size = prod(shape) * wire_dtype(dtype).itemsize
            self.nbytes += -(-size // ALIGNMENT) * ALIGNMENT
        self.nbytes += STAMP_BYTES
        self._slots = max(carrier.slots, 2 if sparse else 1)  # a delta needs what was there before
        self._slot = self._slots - 1  # of the last push
        self._last: WeightManifest | None = None

    def push(self, version: int, *, buckets: Iterable[dict[str, torch.Tensor]]) -> WeightManifest:
        """Write one version and describe it. Raises `ValueError` if the buckets do not hold exactly the tensors known."""
        last, self._last = self._last, None  # what is half written is no base
        before = self._slot
        self._slot = (self._slot + 1) % self._slots
        segment = self._room(self._slot)
        unstamp(segment)
        self._write(segment, buckets)
        digest = tensor_checksum(contents(segment))
        stamp(segment, version=version, digest=digest)
        manifest = WeightManifest(
            path=self.carrier.path(str(self._slot)),
            version=version,
            names=tuple(self.shapes),
            dtypes=(self.dtype,) * len(self.shapes),
            shapes=tuple(self.shapes.values()),
            offsets=tuple(self.offsets.values()),
            nbytes=self.nbytes,
            checksum=digest,
            keep=self.sparse,
        )
        if self.sparse and last is not None:
            manifest = replace(manifest, delta=self._delta(self._room(before), segment, last=last))
        self._last = manifest
        return manifest

    def payload(self, version: int, *, whole: bool) -> np.ndarray:
        """The bytes of the last push: its delta, or the whole segment where it has none or `whole` asks for it."""
        last = self._held(version)
        if whole or last.delta is None:
            return self._room(self._slot).numpy()
        return self.carrier.room("delta", nbytes=last.delta.nbytes).numpy()

    def segment(self, version: int) -> torch.Tensor:
        """The whole segment of the last push, which must be this version."""
        self._held(version)
        return self._room(self._slot)

    def _held(self, version: int) -> WeightManifest:
        if self._last is None or self._last.version != version:
            raise ValueError(f"the weights of version {version} are no longer held; publish again")
        return self._last

    def close(self) -> None:
        """Free what the carrier holds."""
        self.carrier.close()

    def _room(self, slot: int) -> torch.Tensor:
        return self.carrier.room(str(slot), nbytes=self.nbytes)

    def _write(self, segment: torch.Tensor, buckets: Iterable[dict[str, torch.Tensor]]) -> None:
        missing = set(self.shapes)
        dtype = wire_dtype(self.dtype)
        for bucket in buckets:
            for name, tensor in bucket.items():
                shape = self.shapes.get(name)
                if shape is None or tuple(tensor.shape) != shape:
                    raise ValueError(f"{name} has shape {tuple(tensor.shape)}, not {shape}; load the model again")
                tensor_view(segment, dtype=dtype, shape=shape, offset=self.offsets[name]).copy_(tensor)
                missing.discard(name)
        if missing:
            raise ValueError(f"{len(missing)} weights were not sent, such as {min(missing)}; load the model again")

    def _delta(self, old: torch.Tensor, new: torch.Tensor, *, last: WeightManifest) -> WeightDelta | None:
        """The changes since the last push, held by the carrier; None where they are no fewer bytes than the weights."""
        size = wire_dtype(self.dtype).itemsize
        found = changes(contents(old).numpy(), contents(new).numpy(), itemsize=size)
        if found.nbytes >= self.nbytes:
            return None
        self.carrier.room("delta", nbytes=found.nbytes).numpy()[:] = found
        return WeightDelta(
            base=last.checksum,
            base_version=last.version,
            path=self.carrier.path("delta"),
            nbytes=found.nbytes,
            checksum=checksum(found),
        )
