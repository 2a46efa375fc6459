"""A weight push: its manifest as plain data, and its segment, which holds every tensor at its offset, and a footer.

The footer has version and checksum, and zeros during a write. A segment is verified once, before generation pauses. Later
readers check only the footer, which shows whether the segment was overwritten.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from math import prod
from typing import Any, TypeVar

import torch
from pydantic import TypeAdapter

from temper.rollout.trajectory import WeightVersion
from temper.rollout.weights.checksum import CHECKSUM_BYTES, tensor_checksum
from temper.rollout.weights.transports import MappedFiles, map_segment

T = TypeVar("T")
ALIGNMENT = 64
"""Alignment of tensors in a segment, in bytes, for views of any dtype."""
FOOTER_BYTES = 64
"""Size of the footer, which identifies the version."""
DOWN, UP = ".lora_A", ".lora_B"
"""Name suffixes of an adapter's matrices A (a row per rank) and B."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Adapted:
    """The base weights of a push of low-rank adapters, and the scale of their products.

    `base` describes a separate segment. It is sent too, unless the adapters are sent `alone`.
    """

    base: "WeightManifest"
    scale: float
    alone: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightManifest:
    """One push: its transport and version, and name, dtype, shape and offset of each tensor of the segment.

    `names` are those of a Hugging Face checkpoint. `nbytes` is the size of the segment. `checksum` covers its tensors; it
    is empty if each bucket has one. For adapters, `adapted` describes their base weights.
    """

    transport: str
    version: int
    names: tuple[str, ...]
    dtypes: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]
    offsets: tuple[int, ...]
    nbytes: int
    checksum: str
    adapted: Adapted | None = None

    def __post_init__(self) -> None:
        for name, values in (("dtypes", self.dtypes), ("shapes", self.shapes), ("offsets", self.offsets)):
            if len(values) != len(self.names):
                raise ValueError(f"{name} has {len(values)} entries for {len(self.names)} tensors")

    @classmethod
    def of(
        cls,
        shapes: dict[str, tuple[int, ...]],
        *,
        dtype: str,
        transport: str,
        version: int,
        checksum: str = "",
    ) -> "WeightManifest":
        """Describe whole weights by name and shape, all sent as `dtype`."""
        offsets, nbytes = layout(shapes, dtype=dtype)
        return cls(
            transport=transport,
            version=version,
            names=tuple(shapes),
            dtypes=(dtype,) * len(shapes),
            shapes=tuple(shapes.values()),
            offsets=tuple(offsets.values()),
            nbytes=nbytes,
            checksum=checksum,
        )

    @property
    def weight_version(self) -> WeightVersion:
        return WeightVersion(step=self.version)

    @property
    def sent_bytes(self) -> int:
        return self.nbytes if self.adapted is None or self.adapted.alone else self.bytes_with_base

    @property
    def bytes_with_base(self) -> int:
        return self.nbytes if self.adapted is None else self.nbytes + self.adapted.base.nbytes

    def with_base(self) -> "WeightManifest":
        """Return the same push including the base weights of its adapters."""
        return self if self.adapted is None else replace(self, adapted=replace(self.adapted, alone=False))


def from_plain(kind: type[T], data: Mapping[str, Any]) -> T:
    """Return a dataclass from the output of `asdict`, directly or through JSON."""
    return TypeAdapter(kind).validate_python(data)


class WholeWeightsNeeded(ValueError):
    """Adapters reached a receiver without their base weights: send the whole weights."""


class NoLongerHeld(ValueError):
    """The learner no longer holds this version. Engines get its next one."""


def require_held(last: WeightManifest | None, version: int) -> WeightManifest:
    """Return the last push. Raises `NoLongerHeld` if it is another version."""
    if last is None or last.version != version:
        raise NoLongerHeld(f"the weights of version {version} are no longer available; publish again")
    return last


def require_shape(name: str, tensor: torch.Tensor, shape: tuple[int, ...]) -> None:
    """Raise `ValueError` if a weight's shape differs from its published shape."""
    if tuple(tensor.shape) != shape:
        raise ValueError(f"{name} has shape {tuple(tensor.shape)}, not {shape}; reload the model")


def unknown_weight(name: str) -> ValueError:
    """Return the error for a weight that the model does not have."""
    return ValueError(f"{name} is not among the published weights; reload the model")


def layout(shapes: dict[str, tuple[int, ...]], *, dtype: str) -> tuple[dict[str, int], int]:
    """Return each tensor's offset in a segment of this dtype, and the segment's size."""
    offsets: dict[str, int] = {}
    nbytes = 0
    for name, shape in shapes.items():
        offsets[name] = nbytes
        nbytes += align(prod(shape) * wire_dtype(dtype).itemsize)
    return offsets, nbytes + FOOTER_BYTES


def align(nbytes: int) -> int:
    """Return the bytes that a tensor takes in a segment."""
    return -(-nbytes // ALIGNMENT) * ALIGNMENT


def wire_dtype(name: str) -> torch.dtype:
    """Return the torch dtype of a `WireDtype`. Raise `ValueError` for another one."""
    dtypes = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
    if name not in dtypes:
        raise ValueError(f"weights can't be sent as {name!r}; choose one of {', '.join(dtypes)}")
    return dtypes[name]


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalWeights:
    """A whole segment on this host: the path to map it, and its manifest.

    Adapters have the segment of their `base`.
    """

    path: str
    manifest: WeightManifest
    base: "LocalWeights | None" = None

    def map(self, mapped: MappedFiles | None = None) -> torch.Tensor:
        """Return the segment, from the cache `mapped`. Raises `ValueError` if it no longer holds this version, or can't be
        opened.
        """
        segment = map_segment(self.path, nbytes=self.manifest.nbytes, mapped=mapped)
        require_footer(segment, self.manifest)
        return segment


def segment_contents(segment: torch.Tensor) -> torch.Tensor:
    return segment[:-FOOTER_BYTES]


def write_footer(segment: torch.Tensor, *, version: int, checksum: str) -> None:
    footer = version.to_bytes(8, "little") + bytes.fromhex(checksum)
    segment[-FOOTER_BYTES:] = torch.frombuffer(bytearray(footer.ljust(FOOTER_BYTES, b"\0")), dtype=torch.uint8)


def clear_footer(segment: torch.Tensor) -> None:
    """Mark the segment as being written."""
    segment[-FOOTER_BYTES:] = 0


def require_footer(segment: torch.Tensor, manifest: WeightManifest) -> None:
    """Raise `ValueError` if the segment no longer holds the manifest's version."""
    footer = segment[-FOOTER_BYTES:].cpu().numpy().tobytes()
    if footer[: 8 + CHECKSUM_BYTES] != manifest.version.to_bytes(8, "little") + bytes.fromhex(manifest.checksum):
        raise ValueError(f"the segment was overwritten and does not hold version {manifest.version}; push again")


def verify(segment: torch.Tensor, manifest: WeightManifest) -> None:
    """Raise `ValueError` if the checksum differs: the push is incomplete, damaged or overwritten."""
    found = tensor_checksum(segment_contents(segment))
    if found != manifest.checksum:
        raise ValueError(
            f"the received checksum {found} is not {manifest.checksum} of version {manifest.version}; push again"
        )


def tensors(segment: torch.Tensor, manifest: WeightManifest) -> list[tuple[str, torch.Tensor]]:
    """Return name and tensor of each weight. The tensors are views of the segment."""
    columns = zip(manifest.names, manifest.dtypes, manifest.shapes, manifest.offsets, strict=True)
    return [
        (name, tensor_view(segment, dtype=wire_dtype(dtype), shape=shape, offset=offset))
        for name, dtype, shape, offset in columns
    ]


def tensor_view(segment: torch.Tensor, *, dtype: torch.dtype, shape: tuple[int, ...], offset: int) -> torch.Tensor:
    """Return the tensor at an offset in bytes, as a view of the segment."""
    nbytes = prod(shape) * dtype.itemsize
    return segment[offset : offset + nbytes].view(dtype).view(shape)


def read_weights(
    weights: LocalWeights, mapped: MappedFiles, *, device: torch.device
) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield name and tensor of each weight. Weights with an adapter are merged on `device`.

    The others are views of a segment. Raises `ValueError` if a segment is not the verified one, or changes meanwhile.
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
                yield name, merge_adapter(weight.to(device), down=down, up=up, scale=adapted.scale)
            else:
                yield name, weight
        require_footer(frozen, base.manifest)
    require_footer(segment, weights.manifest)


def merge_adapter(weight: torch.Tensor, *, down: torch.Tensor, up: torch.Tensor, scale: float) -> torch.Tensor:
    """Return W + scale B A in the type of W, for W (out, in), A = `down` (rank, in) and B = `up` (out, rank).

    As in peft, the product is computed in float32 on a CPU, and rounded to W's type before the sum. So the result equals a
    learner's merge. Hu et al., "LoRA: Low-Rank Adaptation of Large Language Models", section 4.1, 2021.
    """
    if weight.device.type == "cpu":
        down, up = down.float(), up.float()
    return (up @ down).mul_(scale).to(weight.dtype).add_(weight)
