"""A weight push: its manifest as plain data, and its segment, the bytes of every tensor at its offset, and a footer.

The footer holds version and checksum, and zeros while the segment is written. A segment is verified once, before generation
pauses. After that readers look at the footer, which costs nothing and shows whether the segment was overwritten.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from math import prod
from typing import Any, Literal, TypeVar

import torch
from pydantic import TypeAdapter

from temper.rollout.trajectory import WeightVersion
from temper.rollout.weights import gpu_memory
from temper.rollout.weights.checksum import CHECKSUM_BYTES, tensor_checksum
from temper.rollout.weights.host_memory import MappedFiles

T = TypeVar("T")
ALIGNMENT = 64
"""Every tensor of a segment starts at a multiple of this, in bytes, so that its view is aligned for any dtype."""
FOOTER_BYTES = 64
"""What follows the tensors of a segment: which version they are."""
DOWN, UP = ".lora_A", ".lora_B"
"""The ends of the names of an adapter's two matrices: A, with a row for each rank, and B."""
WireDtype = Literal["float32", "bfloat16", "float16"]
"""The types in which weights travel."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Adapted:
    """The weights that a push of low-rank adapters is to be added to, each product of a pair `scale` times.

    `base` describes them: a segment of its own, of the version with which it came. It travels too unless the adapters are
    sent `alone`.
    """

    base: "WeightManifest"
    scale: float
    alone: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightManifest:
    """One push: the transport that brings it, its version, and name, dtype, shape and offset of each tensor of the segment.

    `names` are those of a saved Hugging Face checkpoint. `nbytes` is the size of the whole segment. `checksum`
    covers its tensors, and is empty if each bucket has one. If the tensors are adapters, `adapted` describes their weights.
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
        """Describe whole weights of these shapes, by their names, which all travel as `dtype`."""
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
        return self.nbytes if self.adapted is None or self.adapted.alone else self.whole_bytes

    @property
    def whole_bytes(self) -> int:
        return self.nbytes if self.adapted is None else self.nbytes + self.adapted.base.nbytes

    def whole(self) -> "WeightManifest":
        """Return the same push with all that it needs: adapters together with the weights to which they are added."""
        return self if self.adapted is None else replace(self, adapted=replace(self.adapted, alone=False))


def from_plain(kind: type[T], data: Mapping[str, Any]) -> T:
    """Return a dataclass, such as a manifest, from what `asdict` made of it, after any way through JSON."""
    return TypeAdapter(kind).validate_python(data)


class WholeWeightsNeeded(ValueError):
    """Adapters alone reached a receiver that does not hold the weights to which they are added: send it the whole weights."""


class NoLongerHeld(ValueError):
    """The learner has other weights by now than those of a push: engines are given these with the next one."""


def require_held(last: WeightManifest | None, version: int) -> WeightManifest:
    """Return the last push. Raises `NoLongerHeld` where that is not this version."""
    if last is None or last.version != version:
        raise NoLongerHeld(f"the weights of version {version} are no longer held; publish again")
    return last


def require_shape(name: str, tensor: torch.Tensor, shape: tuple[int, ...]) -> None:
    """Raise `ValueError` where a weight has another shape than it was published with."""
    if tuple(tensor.shape) != shape:
        raise ValueError(f"{name} has shape {tuple(tensor.shape)}, not {shape}; load the model again")


def unknown_weight(name: str) -> ValueError:
    """Return the error for a weight that is none of the model's."""
    return ValueError(f"{name} is not among the weights that were published; load the model again")


def layout(shapes: dict[str, tuple[int, ...]], *, dtype: str) -> tuple[dict[str, int], int]:
    """Return the offset of each tensor in a segment of weights that travel as `dtype`, and the size of the segment."""
    offsets: dict[str, int] = {}
    nbytes = 0
    for name, shape in shapes.items():
        offsets[name] = nbytes
        size = prod(shape) * wire_dtype(dtype).itemsize
        nbytes += -(-size // ALIGNMENT) * ALIGNMENT
    return offsets, nbytes + FOOTER_BYTES


def wire_dtype(name: str) -> torch.dtype:
    """Return the torch dtype of a `WireDtype`; raise `ValueError` where weights do not travel in it."""
    dtypes = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
    if name not in dtypes:
        raise ValueError(f"weights can not be sent as {name!r}; choose one of {', '.join(dtypes)}")
    return dtypes[name]


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalWeights:
    """A whole segment on this host: its path, under which every process here can map it, and its manifest.

    Adapters lie beside the segment of their `base`.
    """

    path: str
    manifest: WeightManifest
    base: "LocalWeights | None" = None

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


def segment_contents(segment: torch.Tensor) -> torch.Tensor:
    return segment[:-FOOTER_BYTES]


def write_footer(segment: torch.Tensor, *, version: int, checksum: str) -> None:
    """Write the version and the checksum behind the tensors of a segment."""
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
    found = tensor_checksum(segment_contents(segment))
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
    """Return the tensor at `offset` bytes of a segment, whose memory it shares."""
    nbytes = prod(shape) * dtype.itemsize
    return segment[offset : offset + nbytes].view(dtype).view(shape)


def read_weights(
    weights: LocalWeights, mapped: MappedFiles, *, device: torch.device
) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield name and tensor of each weight of a push. Those with an adapter are summed on `device`, where they are.

    The others are views of a segment. Raises `ValueError` if a segment differs from the verified one, or if it changed
    while it was read.
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
    """Return W + scale B A of a weight W (out, in), A = `down` (rank, in) and B = `up` (out, rank), in the type of W.

    The product is rounded to that type before it is added, and on a CPU computed in float32, as peft does: the sum is the
    one that a learner pushes which merges them. Hu et al., "LoRA: Low-Rank Adaptation of Large Language Models", section
    4.1, 2021.
    """
    if weight.device.type == "cpu":
        down, up = down.float(), up.float()
    return (up @ down).mul_(scale).to(weight.dtype).add_(weight)
