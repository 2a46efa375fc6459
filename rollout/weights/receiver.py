"""The receiving host's end of a weight push: verifies what arrived, and has it where the engine's process can map it."""

import os
from dataclasses import replace

import numpy as np
import torch

from rollout.weights import gpu_memory
from rollout.weights.checksum import checksum
from rollout.weights.delta import apply_changes
from rollout.weights.manifest import (
    STAMP_BYTES,
    WeightDelta,
    WeightManifest,
    WholeWeightsNeeded,
    contents,
    map_segment,
    own_path,
    reserve,
    segment_inode,
    stamp,
    unstamp,
    verify,
    wire_dtype,
)
from rollout.weights.process_group import Seat, WeightGroup


class WeightReceiver:
    """Takes pushes for one engine. Where bytes arrive by broadcast, as an argument or as a delta, it holds the weights itself.

    Its segment is memory without a name, which ends with this process; the engine's process reaches it through /proc. By
    broadcast between GPUs it lies on this process's GPU, where the engine's process opens it by its name.
    """

    def __init__(self) -> None:
        self._file: int | None = None
        self._segment: torch.Tensor | None = None
        self._name = ""  # under which the engine's process finds the segment
        self._held: WeightManifest | None = None
        self._mapped: dict[str, tuple[int, torch.Tensor]] = {}
        self._group: WeightGroup | None = None

    def accept(self, manifest: WeightManifest) -> WeightManifest:
        """Verify a push; the manifest of a segment on this host that holds it whole.

        Raises `WholeWeightsNeeded` for a delta whose base is not held, and `ValueError` where what arrived is not what
        was sent.
        """
        if manifest.seat is not None:
            return self._broadcast(manifest, manifest.seat)
        if manifest.delta is None and manifest.payload is None and not manifest.keep:
            verify(self._map(manifest), manifest)
            return manifest  # the engine reads the publisher's own segment
        if manifest.delta is None:
            self._held = None
            segment = self._room(manifest.nbytes)
            unstamp(segment)
            contents(segment).numpy()[:] = _whole(manifest)
        else:
            segment = self._base(manifest, manifest.delta)
            delta = _delta_bytes(manifest.delta, manifest.payload)
            self._held = None
            unstamp(segment)
            size = wire_dtype(manifest.dtypes[0]).itemsize
            apply_changes(contents(segment).numpy(), delta, itemsize=size)
        verify(segment, manifest)
        stamp(segment, version=manifest.version, digest=manifest.checksum)
        self._held = replace(manifest.whole(), path=self._name)
        return self._held

    def _broadcast(self, manifest: WeightManifest, seat: Seat) -> WeightManifest:
        """Receive what the learner sends to all engines at once."""
        if self._group is None or self._group.seat != seat:
            self._group = WeightGroup(seat)
        segment = self._room(manifest.nbytes, on_gpu=torch.cuda.is_available())
        self._group.broadcast(segment)
        verify(segment, manifest)
        return replace(manifest.whole(), path=self._name)

    def close(self) -> None:
        """Free the weights."""
        self._mapped.clear()
        self._segment = self._held = None
        if self._file is not None:
            os.close(self._file)
            self._file = None

    def _map(self, manifest: WeightManifest) -> torch.Tensor:
        """The publisher's segment. Kept mapped for later pushes: a new mapping costs half of what copying would."""
        if manifest.path.startswith(gpu_memory.SCHEME):
            return map_segment(manifest.path, nbytes=manifest.nbytes)
        inode = segment_inode(manifest.path, nbytes=manifest.nbytes)
        known, mapped = self._mapped.get(manifest.path, (0, None))
        if mapped is None or known != inode:
            mapped = map_segment(manifest.path, nbytes=manifest.nbytes)
            self._mapped[manifest.path] = inode, mapped
        return mapped

    def _base(self, manifest: WeightManifest, delta: WeightDelta) -> torch.Tensor:
        held = self._held
        if held is None or self._segment is None or held.checksum != delta.base or held.nbytes != manifest.nbytes:
            has = "none" if held is None else f"version {held.version} ({held.checksum})"
            raise WholeWeightsNeeded(
                f"version {manifest.version} came as changes to version {delta.base_version} ({delta.base}), but this "
                f"engine holds {has}; send it the whole weights"
            )
        return self._segment

    def _room(self, nbytes: int, *, on_gpu: bool = False) -> torch.Tensor:
        if self._segment is None or self._segment.numel() != nbytes:
            self.close()
            if on_gpu:
                self._segment = torch.zeros(nbytes, dtype=torch.uint8, device="cuda")
                self._name = gpu_memory.segment_name(self._segment)
                return self._segment
            self._file = reserve(nbytes)
            self._name = own_path(self._file)
            self._segment = map_segment(self._name, nbytes=nbytes)
        return self._segment


def _whole(manifest: WeightManifest) -> np.ndarray:
    """The tensors' bytes as they arrived."""
    segment = manifest.payload
    if segment is None:
        segment = map_segment(manifest.path, nbytes=manifest.nbytes).numpy()
    if segment.nbytes != manifest.nbytes:
        raise ValueError(f"{segment.nbytes} bytes arrived, version {manifest.version} needs {manifest.nbytes}")
    return segment[:-STAMP_BYTES]


def _delta_bytes(delta: WeightDelta, payload: np.ndarray | None) -> np.ndarray:
    """The changes as they arrived, verified: changes that are damaged would ruin the base."""
    arrived = map_segment(delta.path, nbytes=delta.nbytes).numpy() if payload is None else payload
    found = checksum(arrived)
    if found != delta.checksum:
        raise ValueError(f"the changes have checksum {found}, they were sent with {delta.checksum}; push again")
    return arrived
