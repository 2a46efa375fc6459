"""The engines' end of a push in a segment: verifies the data, and stores it where the engine's processes can map it.

Low-rank adapters may be sent without their base weights. Such a push has two segments, each with manifest, footer and
checksum. Both ends keep the base segment, which never changes.
"""

from dataclasses import dataclass, replace

import numpy as np
import torch

from temper.rollout.weights.manifest import Adapted, LocalWeights, WeightManifest, WholeWeightsNeeded, verify
from temper.rollout.weights.transports import HostMemory, MappedFiles, map_segment


@dataclass(frozen=True, slots=True, kw_only=True)
class WithBase:
    """Offers of adapters and of their base weights."""

    adapters: object
    base: object


class SegmentReceiver:
    """Receives segments of one kind. It copies only if the engine's processes can't map the offer."""

    def __init__(self) -> None:
        self._mapped = MappedFiles()
        self._memory: HostMemory | None = None

    def receive(self, manifest: WeightManifest, offer: object) -> LocalWeights:
        """Return the verified weights of an offer. Raises `ValueError` if they are damaged."""
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
            raise ValueError(
                f"{data.nbytes} bytes arrived, but version {manifest.version} has {manifest.nbytes}; push again"
            )
        if self._memory is None or self._memory.data.numel() != manifest.nbytes:
            self.close()
            self._memory = HostMemory(manifest.nbytes)
        self._memory.data.numpy()[:] = data
        return self._memory.path, self._memory.data


class WeightReceiver:
    """Receives pushes for one engine. It keeps the base weights for pushes of adapters alone."""

    def __init__(self) -> None:
        self._segments = SegmentReceiver()
        self._bases = SegmentReceiver()
        self._base: LocalWeights | None = None

    def receive(self, manifest: WeightManifest, offer: object) -> LocalWeights:
        """Return the verified weights of an offer.

        Raises `WholeWeightsNeeded` for adapters without their base weights, and `ValueError` for damaged data.
        """
        adapted = manifest.adapted
        if adapted is None:
            return self._segments.receive(manifest, offer)
        if isinstance(offer, WithBase):
            self._base = None  # its memory is overwritten next
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
                f"version {manifest.version} has adapters for the weights of version {adapted.base.version} "
                f"({adapted.base.checksum}), but this engine holds {has}; send the whole weights"
            )
        return held
