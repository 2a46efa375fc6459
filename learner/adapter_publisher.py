"""The learner's end of pushes of adapters: the weights beside which they stand are written once, then the adapters alone."""

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import torch

from temper.learner.publisher import WeightPublisher
from temper.rollout.weights.adapted import DOWN, UP, WithBase
from temper.rollout.weights.manifest import Adapted, WeightManifest, require_held
from temper.rollout.weights.transports.transport import Audience, SegmentTransport

Gathered = Iterable[dict[str, torch.Tensor]]


class AdapterPublisher:
    """Writes versions of one model's adapters where the transport has room, beside the weights that stay as they are."""

    def __init__(
        self,
        transport: SegmentTransport[Any],
        *,
        base_shapes: dict[str, tuple[int, ...]],
        shapes: dict[str, tuple[int, ...]],
        dtype: str,
        scale: float,
    ) -> None:
        """`shapes` are those of the adapters by the names that they travel by, `base_shapes` those of the weights; an adapter
        counts `scale` times.
        """
        assert {name.removesuffix(DOWN).removesuffix(UP) for name in shapes} <= base_shapes.keys(), (
            "each is beside a weight"
        )
        self.transport = transport
        self.scale = scale
        self._adapters = WeightPublisher(transport, shapes=shapes, dtype=dtype, room="adapters ")
        self._bases = WeightPublisher(transport, shapes=base_shapes, dtype=dtype, room="base ")
        self._base: WeightManifest | None = None
        self._last: WeightManifest | None = None

    def push(self, version: int, *, gathered: Gathered, base: Gathered | None) -> WeightManifest:
        """Write one version and describe it; the first one, which has a `base`, is to be sent with it, those after it alone.

        Raises `ValueError` unless exactly the tensors known were gathered.
        """
        self._last = None
        if base is not None:
            self._base = self._bases.push(version, gathered=base)
        assert self._base is not None, "the first push brings the weights too"
        adapted = Adapted(base=self._base, scale=self.scale, alone=base is None)
        self._last = replace(self._adapters.push(version, gathered=gathered), adapted=adapted)
        return self._last

    def offer(self, version: int, *, whole: bool, audience: Audience) -> object:
        """Return what engines need to get at the last push: the adapters, and the weights too with `whole` or the first push.

        Raises `ValueError` where the last push is not this version.
        """
        adapted = require_held(self._last, version).adapted
        assert adapted is not None
        adapters = self._adapters.offer(version, whole=True, audience=audience)
        if adapted.alone and not whole:
            return adapters
        return WithBase(adapters=adapters, base=self._bases.offer(adapted.base.version, whole=True, audience=audience))

    def close(self) -> None:
        """Free what the transport holds."""
        self.transport.close()
