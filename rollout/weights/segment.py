"""The bytes of a weight push: every tensor at its offset, and a footer that says which version they are.

The footer holds version and checksum, and zeros while the segment is written. A segment is verified once, before
generation pauses; whoever reads it then looks at the footer, which costs nothing and shows whether it was overwritten.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from math import prod
from typing import Any

import torch

from temper.rollout.weights import gpu_memory
from temper.rollout.weights.checksum import CHECKSUM_BYTES, tensor_checksum
from temper.rollout.weights.host_memory import MappedFiles
from temper.rollout.weights.manifest import FOOTER_BYTES, WeightManifest, wire_dtype

DOWN, UP = ".lora_A", ".lora_B"
"""What follows the name of a weight in those of its adapter's two matrices: A, with a row for each rank, and B."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalWeights:
    """A whole segment on this host: its path, under which every process here can map it, and what it holds.

    Adapters lie beside the segment of their `base`.
    """

    path: str
    manifest: WeightManifest
    base: "LocalWeights | None" = None

    def to_json(self) -> dict[str, Any]:
        """Return plain values, from which `from_json` makes the same."""
        base = None if self.base is None else self.base.to_json()
        return {"path": self.path, "manifest": self.manifest.to_json(), "base": base}

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> "LocalWeights":
        """Make it of what `to_json` returned."""
        base = None if data["base"] is None else cls.from_json(data["base"])
        return cls(path=data["path"], manifest=WeightManifest.from_json(data["manifest"]), base=base)

    def map(self, mapped: MappedFiles | None = None) -> torch.Tensor:
        """Return the segment, by what is `mapped` already. Raises `ValueError` where it no longer holds this version, or is not
        to be reached.
        """
        segment = map_segment(self.path, nbytes=self.manifest.nbytes, mapped=mapped)
        require_footer(segment, self.manifest)
        return segment


def map_segment(path: str, *, nbytes: int, mapped: MappedFiles | None = None) -> torch.Tensor:
    """Return the bytes of a file, or of a named segment on a GPU, as a uint8 tensor that shares memory with it.

    Raises `ValueError` where it is not that large, or not to be reached from here.
    """
    if path.startswith(gpu_memory.SCHEME):
        return gpu_memory.open_segment(path, nbytes=nbytes)
    return (mapped or MappedFiles()).map(path, nbytes=nbytes)


def contents(segment: torch.Tensor) -> torch.Tensor:
    """Return a segment without its footer."""
    return segment[:-FOOTER_BYTES]


def write_footer(segment: torch.Tensor, *, version: int, checksum: str) -> None:
    """Say what the segment holds."""
    said = version.to_bytes(8, "little") + bytes.fromhex(checksum)
    segment[-FOOTER_BYTES:] = torch.frombuffer(bytearray(said.ljust(FOOTER_BYTES, b"\0")), dtype=torch.uint8)


def clear_footer(segment: torch.Tensor) -> None:
    """Say that the segment is being written."""
    segment[-FOOTER_BYTES:] = 0


def require_footer(segment: torch.Tensor, manifest: WeightManifest) -> None:
    """Raise `ValueError` where the segment no longer holds the manifest's version."""
    said = segment[-FOOTER_BYTES:].cpu().numpy().tobytes()
    if said[: 8 + CHECKSUM_BYTES] != manifest.version.to_bytes(8, "little") + bytes.fromhex(manifest.checksum):
        raise ValueError(f"the segment was overwritten, it does not hold version {manifest.version}; push again")


def verify(segment: torch.Tensor, manifest: WeightManifest) -> None:
    """Raise `ValueError` where the bytes have another checksum: a torn, damaged or overwritten push."""
    found = tensor_checksum(contents(segment))
    if found != manifest.checksum:
        raise ValueError(
            f"what arrived has checksum {found}, version {manifest.version} was sent with {manifest.checksum}; push again"
        )


def tensors(segment: torch.Tensor, manifest: WeightManifest) -> list[tuple[str, torch.Tensor]]:
    """Return name and tensor of each weight; the tensors are views of the segment."""
    columns = zip(manifest.names, manifest.dtypes, manifest.shapes, manifest.offsets, strict=True)
    return [
        (name, tensor_view(segment, dtype=wire_dtype(dtype), shape=shape, offset=offset))
        for name, dtype, shape, offset in columns
    ]


def tensor_view(segment: torch.Tensor, *, dtype: torch.dtype, shape: tuple[int, ...], offset: int) -> torch.Tensor:
    """Return the tensor that lies at `offset` bytes of a segment; it shares its memory."""
    nbytes = prod(shape) * dtype.itemsize
    return segment[offset : offset + nbytes].view(dtype).view(shape)


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
