"""Low-rank adapters that travel without the weights beside which they stand: both ends of such a push have these.

A push is two segments, each with its own manifest, footer and checksum: the weights, which nothing changes, and the adapters.
The engine's process loads the sum of both, by the operations with which the learner would add them.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch

from temper.rollout.weights.host_memory import MappedFiles
from temper.rollout.weights.manifest import Adapted, WeightManifest, WholeWeightsNeeded
from temper.rollout.weights.receiver import WeightReceiver
from temper.rollout.weights.segment import LocalWeights, require_footer, tensors

DOWN, UP = ".lora_A", ".lora_B"
"""What follows the name of a weight in those of its adapter's two matrices: A, with a row for each rank, and B."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WithBase:
    """The offers of adapters and of the weights beside which they stand."""

    adapters: object
    base: object


class AdaptedReceiver:
    """Takes pushes for one engine, also those of adapters alone: the weights beside which they stand it keeps."""

    def __init__(self) -> None:
        self._segments = WeightReceiver()
        self._bases = WeightReceiver()
        self._base: LocalWeights | None = None

    def accept(self, manifest: WeightManifest, offer: object, *, number: int) -> LocalWeights:
        """Take what is offered to engine `number` of the audience, and verify it. See `WeightReceiver.accept`.

        Raises `WholeWeightsNeeded` for adapters alone to weights that are not held.
        """
        adapted = manifest.adapted
        if adapted is None:
            return self._segments.accept(manifest, offer, number=number)
        if isinstance(offer, WithBase):
            self._base = None  # its memory is about to be written to
            self._base = self._bases.accept(adapted.base, offer.base, number=number)
            offer = offer.adapters
        base = self._held(manifest, adapted)
        arrived = self._segments.accept(replace(manifest, adapted=None), offer, number=number)
        return replace(arrived, manifest=manifest, base=base)

    def close(self) -> None:
        """Free the weights."""
        self._base = None
        self._segments.close()
        self._bases.close()

    def _held(self, manifest: WeightManifest, adapted: Adapted) -> LocalWeights:
        held = self._base
        if held is None or held.manifest != adapted.base:
            has = "none" if held is None else f"those of version {held.manifest.version} ({held.manifest.checksum})"
            raise WholeWeightsNeeded(
                f"version {manifest.version} came as adapters to the weights of version {adapted.base.version} "
                f"({adapted.base.checksum}), but this engine holds {has}; send it the whole weights"
            )
        return held


def read_weights(
    weights: LocalWeights, mapped: MappedFiles, *, device: torch.device
) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield name and tensor of each weight of a push. Those with an adapter are summed on `device`, where they are.

    The others are views of a segment. Raises `ValueError` where a segment does not hold what was verified, or, once all
    is read, no longer.
    """
    adapted, base = weights.manifest.adapted, weights.base
    assert (adapted is None) == (base is None), "adapters come beside weights"
    segment = weights.map(mapped)
    if adapted is None or base is None:
        yield from tensors(segment, weights.manifest)
    else:
        adapters = dict(tensors(segment, weights.manifest))
        frozen = base.map(mapped)
        for name, weight in tensors(frozen, base.manifest):
            if name + DOWN in adapters:
                down, up = (adapters[name + part].to(device) for part in (DOWN, UP))
                yield name, summed(weight.to(device), down=down, up=up, scale=adapted.scale)
            else:
                yield name, weight
        require_footer(frozen, base.manifest)
    require_footer(segment, weights.manifest)


def summed(weight: torch.Tensor, *, down: torch.Tensor, up: torch.Tensor, scale: float) -> torch.Tensor:
    """Return W + scale B A of a weight W (out, in), A = `down` (rank, in) and B = `up` (out, rank), in the type of W.

    The product is rounded to that type before it is added, and on a CPU computed in float32, as peft does: the sum is the
    one that a learner pushes which merges them. Hu et al., "LoRA: Low-Rank Adaptation of Large Language Models", section
    4.1, 2021.
    """
    if weight.device.type == "cpu":
        down, up = down.float(), up.float()
    return (up @ down).mul_(scale).to(weight.dtype).add_(weight)
