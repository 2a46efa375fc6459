"""The learner's end of a weight push: whole parameters into a segment, and what changed since the one before.

How the bytes reach the engines is the transport's part (`rollout/weights/transports/`).
"""

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import torch

from temper.rollout.weights.checksum import checksum, tensor_checksum
from temper.rollout.weights.delta import changes
from temper.rollout.weights.manifest import (
    WeightDelta,
    WeightManifest,
    layout,
    require_held,
    require_shape,
    unknown_weight,
    wire_dtype,
)
from temper.rollout.weights.segment import clear_footer, contents, tensor_view, write_footer
from temper.rollout.weights.spare_memory import give_back
from temper.rollout.weights.transports.transport import Audience, SegmentTransport

DELTA = "delta"


class WeightPublisher:
    """Writes versions of one model's weights where the transport has room.

    `shapes` are those of the tensors by their checkpoint names; `dtype` is the type on the wire. With `sparse` a push
    after the first is a delta, unless that would be larger than the weights. `room` begins the names of its segments.
    """

    def __init__(
        self,
        transport: SegmentTransport[Any],
        *,
        shapes: dict[str, tuple[int, ...]],
        dtype: str,
        sparse: bool = False,
        room: str = "",
    ) -> None:
        self.transport = transport
        self.shapes = shapes
        self.dtype = dtype
        self.sparse = sparse
        self._name = room
        self.offsets, self.nbytes = layout(shapes, dtype=dtype)
        self._slots = max(transport.slots, 2 if sparse else 1)  # a delta needs what was there before
        self._slot = self._slots - 1  # of the last push
        self._last: WeightManifest | None = None

    def push(self, version: int, *, gathered: Iterable[dict[str, torch.Tensor]]) -> WeightManifest:
        """Write one version and describe it. Raises `ValueError` unless exactly the tensors known were gathered."""
        last, self._last = self._last, None  # what is half written is no base
        before = self._slot
        self._slot = (self._slot + 1) % self._slots
        segment = self._room(self._slot)
        clear_footer(segment)
        self._write(segment, gathered)
        digest = tensor_checksum(contents(segment))
        write_footer(segment, version=version, checksum=digest)
        manifest = WeightManifest.of(
            self.shapes,
            dtype=self.dtype,
            transport=self.transport.name,
            version=version,
            checksum=digest,
            cache=self.sparse,
        )
        if self.sparse and last is not None:
            manifest = replace(manifest, delta=self._delta(self._room(before), segment, last=last))
        self._last = manifest
        give_back()  # once a step: what the update took
        return manifest

    def offer(self, version: int, *, whole: bool, audience: Audience) -> object:
        """Return what engines need to get at the last push: at its delta, or the whole where it has none or `whole` is set.

        Raises `ValueError` where the last push is not this version.
        """
        delta = require_held(self._last, version).delta is not None and not whole
        offer: object = self.transport.offer(DELTA if delta else f"{self._name}{self._slot}", audience)
        return offer

    def close(self) -> None:
        """Free what the transport holds."""
        self.transport.close()

    def _room(self, slot: int) -> torch.Tensor:
        return self.transport.room(f"{self._name}{slot}", nbytes=self.nbytes)

    def _write(self, segment: torch.Tensor, gathered: Iterable[dict[str, torch.Tensor]]) -> None:
        missing = set(self.shapes)
        dtype = wire_dtype(self.dtype)
        for tensors_by_name in gathered:
            for name, tensor in tensors_by_name.items():
                if name not in self.shapes:
                    raise unknown_weight(name)
                require_shape(name, tensor, self.shapes[name])
                tensor_view(segment, dtype=dtype, shape=self.shapes[name], offset=self.offsets[name]).copy_(tensor)
                missing.discard(name)
        if missing:
            raise ValueError(f"{len(missing)} weights were not sent, such as {min(missing)}; load the model again")

    def _delta(self, old: torch.Tensor, new: torch.Tensor, *, last: WeightManifest) -> WeightDelta | None:
        """Return the changes since the last push, or None where they are no fewer bytes than the weights."""
        size = wire_dtype(self.dtype).itemsize
        found = changes(contents(old).numpy(), contents(new).numpy(), itemsize=size)
        if found.nbytes >= self.nbytes:
            return None
        self.transport.room(DELTA, nbytes=found.nbytes).numpy()[:] = found
        return WeightDelta(
            base=last.checksum,
            base_version=last.version,
            nbytes=found.nbytes,
            checksum=checksum(found),
        )
