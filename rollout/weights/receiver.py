"""The engines' end of a push that lies in a segment: verifies what arrived, and has it where the engine's processes map it.

Low-rank adapters may travel without the weights to which they are added: then a push is two segments, each with a manifest,
a footer and a checksum, and both ends keep the weights, which nothing changes.
"""

from dataclasses import dataclass, replace

import numpy as np
import torch

from temper.rollout.weights.host_memory import HostMemory, MappedFiles
from temper.rollout.weights.manifest import (
    Adapted,
    LocalWeights,
    WeightManifest,
    WholeWeightsNeeded,
    map_segment,
    verify,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class WithBase:
    """The offers of adapters and of the weights to which they are added."""

    adapters: object
    base: object


class SegmentReceiver:
    """Takes segments of one kind. It holds a copy only if the engine's processes can not map what arrived."""

    def __init__(self) -> None:
        self._mapped = MappedFiles()
        self._memory: HostMemory | None = None

    def receive(self, manifest: WeightManifest, offer: object) -> LocalWeights:
        """Take the offered weights, and verify them. Raises `ValueError` if it is not what was sent."""
        if isinstance(offer, str):
            path, segment = offer, map_segment(offer, nbytes=manifest.nbytes, mapped=self._mapped)
        else:
            assert isinstance(offer, np.ndarray), "an offer is a path, or the bytes"
            path, segment = self._copy(offer, manifest)
        verify(segment, manifest)
        return LocalWeights(path=path, manifest=manifest)

    def close(self) -> None:
        self._mapped.close()
        if self._memory is not None:
            self._memory.close()
            self._memory = None

    def _copy(self, data: np.ndarray, manifest: WeightManifest) -> tuple[str, torch.Tensor]:
        if data.nbytes != manifest.nbytes:
            raise ValueError(f"{data.nbytes} bytes arrived, version {manifest.version} needs {manifest.nbytes}")
        if self._memory is None or self._memory.data.numel() != manifest.nbytes:
            self.close()
            self._memory = HostMemory(manifest.nbytes)
        self._memory.data.numpy()[:] = data
        return self._memory.path, self._memory.data


class WeightReceiver:
    """Takes pushes for one engine, also those of adapters alone: it keeps the weights to which they are added."""

    def __init__(self) -> None:
        self._segments = SegmentReceiver()
        self._bases = SegmentReceiver()
        self._base: LocalWeights | None = None

    def receive(self, manifest: WeightManifest, offer: object) -> LocalWeights:
        """Take the offered weights, and verify them.

        Raises `WholeWeightsNeeded` for adapters to weights that are not here, and `ValueError` if they were damaged on the
        way.
        """
        adapted = manifest.adapted
        if adapted is None:
            return self._segments.receive(manifest, offer)
        if isinstance(offer, WithBase):
            self._base = None  # its memory is about to be written to
            self._base = self._bases.receive(adapted.base, offer.base)
            offer = offer.adapters
        base = self._require_base(manifest, adapted)
        arrived = self._segments.receive(replace(manifest, adapted=None), offer)
        return replace(arrived, manifest=manifest, base=base)

    def close(self) -> None:
        self._base = None
        self._segments.close()
        self._bases.close()

    def _require_base(self, manifest: WeightManifest, adapted: Adapted) -> LocalWeights:
        held = self._base
        if held is None or held.manifest != adapted.base:
            has = "none" if held is None else f"those of version {held.manifest.version} ({held.manifest.checksum})"
            raise WholeWeightsNeeded(
                f"version {manifest.version} came as adapters to the weights of version {adapted.base.version} "
                f"({adapted.base.checksum}), but this engine holds {has}; send it the whole weights"
            )
        return held
