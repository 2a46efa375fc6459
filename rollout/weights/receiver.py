"""The engines' end of a weight push: verifies what arrived, and has it where the engine's process can map it."""

from typing import Any

import numpy as np

from temper.rollout.weights.checksum import checksum
from temper.rollout.weights.delta import apply_changes
from temper.rollout.weights.host_memory import HostMemory
from temper.rollout.weights.manifest import WeightDelta, WeightManifest, WholeWeightsNeeded, wire_dtype
from temper.rollout.weights.segment import LocalWeights, clear_footer, contents, verify, write_footer
from temper.rollout.weights.transports.catalog import open_transport
from temper.rollout.weights.transports.transport import Placed, SegmentTransport


class WeightReceiver:
    """Takes pushes for one engine, whatever brings them. A copy of its own it holds only where the engine's process can't
    map what arrived, or later pushes may be changes to it.
    """

    def __init__(self) -> None:
        self._transports: dict[str, SegmentTransport[Any]] = {}
        self._memory: HostMemory | None = None
        self._cached: WeightManifest | None = None

    def accept(self, manifest: WeightManifest, offer: object, *, number: int) -> LocalWeights:
        """Take what is offered to engine `number` of the audience, and verify it.

        Raises `WholeWeightsNeeded` for a delta whose base is not held, and `ValueError` where what arrived is not what
        was sent.
        """
        base = None if manifest.delta is None else self._base(manifest, manifest.delta)
        arrived = self._transport(manifest.transport).take(offer, number=number, nbytes=manifest.sent_bytes)
        if isinstance(arrived, Placed) and base is None and not manifest.cache:
            verify(arrived.segment, manifest)
            return LocalWeights(path=arrived.path, manifest=manifest)
        data = arrived.segment.numpy() if isinstance(arrived, Placed) else arrived
        if data.nbytes != manifest.sent_bytes:
            raise ValueError(f"{data.nbytes} bytes arrived, version {manifest.version} needs {manifest.sent_bytes}")
        if manifest.delta is not None:
            _verify_changes(data, manifest.delta)
        memory = base or self._room(manifest.nbytes)
        self._cached = None
        clear_footer(memory.data)
        target = contents(memory.data).numpy()
        if base is None:
            target[:] = data[: len(target)]
        else:
            apply_changes(target, data, itemsize=wire_dtype(manifest.dtypes[0]).itemsize)
        verify(memory.data, manifest)
        write_footer(memory.data, version=manifest.version, checksum=manifest.checksum)
        self._cached = manifest.whole()
        return LocalWeights(path=memory.path, manifest=self._cached)

    def close(self) -> None:
        """Free the weights."""
        for transport in self._transports.values():
            transport.close()
        self._free()

    def _transport(self, name: str) -> SegmentTransport[Any]:
        if name not in self._transports:
            self._transports[name] = open_transport(name)
        return self._transports[name]

    def _base(self, manifest: WeightManifest, delta: WeightDelta) -> HostMemory:
        """Return the copy that a delta changes."""
        held = self._cached
        if held is None or self._memory is None or held.checksum != delta.base or held.nbytes != manifest.nbytes:
            has = "none" if held is None else f"version {held.version} ({held.checksum})"
            raise WholeWeightsNeeded(
                f"version {manifest.version} came as changes to version {delta.base_version} ({delta.base}), but this "
                f"engine holds {has}; send it the whole weights"
            )
        return self._memory

    def _room(self, nbytes: int) -> HostMemory:
        """Return memory for a copy: that of the last one, where it is as large."""
        if self._memory is None or self._memory.data.numel() != nbytes:
            self._free()
            self._memory = HostMemory(nbytes)
        return self._memory

    def _free(self) -> None:
        self._cached = None
        if self._memory is not None:
            self._memory.close()
            self._memory = None


def _verify_changes(data: np.ndarray, delta: WeightDelta) -> None:
    """Raise `ValueError` where the changes are not those that were sent: they would ruin the base."""
    found = checksum(data)
    if found != delta.checksum:
        raise ValueError(f"the changes have checksum {found}, they were sent with {delta.checksum}; push again")
