"""What a weight push is, as plain data: which version it brings, and which tensor lies where in its segment.

A segment is an array of bytes that holds every tensor of a model at its offset, and a footer (`segment.py`).
"""

from dataclasses import asdict, dataclass, replace
from math import prod
from typing import Any, Literal

import torch

from temper.rollout.trajectory import WeightVersion

ALIGNMENT = 64
"""Every tensor of a segment starts at a multiple of this, in bytes, so that its view is aligned for any dtype."""
FOOTER_BYTES = 64
"""What follows the tensors of a segment: which version they are."""
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

    `names` are those of a saved Hugging Face checkpoint. `nbytes` is the size of the whole segment and `checksum` that
    of its tensors; it is empty if each bucket has its own. If the tensors are adapters, `adapted` says to what.
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
        """How many bytes travel."""
        return self.nbytes if self.adapted is None or self.adapted.alone else self.whole_bytes

    @property
    def whole_bytes(self) -> int:
        """How many bytes an engine loads."""
        return self.nbytes if self.adapted is None else self.nbytes + self.adapted.base.nbytes

    def whole(self) -> "WeightManifest":
        """Return the same push with all that it needs: adapters together with the weights to which they are added."""
        return self if self.adapted is None else replace(self, adapted=replace(self.adapted, alone=False))

    def to_json(self) -> dict[str, Any]:
        """Return plain values, from which `from_json` makes the same manifest."""
        return asdict(self)

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> "WeightManifest":
        """Make a manifest of what `to_json` returned, after any way through JSON."""
        return cls(
            transport=data["transport"],
            version=data["version"],
            names=tuple(data["names"]),
            dtypes=tuple(data["dtypes"]),
            shapes=tuple(tuple(shape) for shape in data["shapes"]),
            offsets=tuple(data["offsets"]),
            nbytes=data["nbytes"],
            checksum=data["checksum"],
            adapted=None if (adapted := data["adapted"]) is None else _adapted(adapted),
        )


def _adapted(data: dict[str, Any]) -> Adapted:
    return Adapted(base=WeightManifest.from_json(data["base"]), scale=data["scale"], alone=data["alone"])


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
