"""What a weight push is made of: a segment of bytes, and the manifest that says what lies where in it.

A segment holds every tensor at its offset, and its last bytes are a stamp: version and checksum of what it holds, zero
while it is written. It is verified once, before generation pauses; whoever reads it then looks at the stamp, which
costs nothing and shows whether it was overwritten meanwhile.
"""

import errno
import os
from dataclasses import asdict, dataclass, field, replace
from math import prod
from typing import Any

import torch

from rollout.trajectory import WeightVersion
from rollout.weights import gpu_memory
from rollout.weights.checksum import CHECKSUM_BYTES, tensor_checksum
from rollout.weights.process_group import Seat

ALIGNMENT = 64
"""Every tensor of a segment starts at a multiple of this, in bytes, so that its view is aligned for any dtype."""
STAMP_BYTES = 64
"""Size of the stamp at the end of a segment."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightDelta:
    """What changed since the push before; `nbytes` and `checksum` are those of the changes themselves.

    They fit only onto weights with the checksum `base`, those of version `base_version`.
    """

    base: str
    base_version: int
    path: str
    nbytes: int
    checksum: str


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightManifest:
    """One push: the version it brings, and name, dtype, shape and offset of each tensor of the segment.

    `names` are those of a saved Hugging Face checkpoint. `nbytes` is the size of the whole segment and `checksum` that
    of its tensors, also where only a `delta` travels. `path` is the segment's file, or its name on a GPU. Where it is empty
    the bytes are broadcast to the receiver's `seat`, or travel as `payload` (uint8): the changes where there is a delta,
    else the segment. `keep` says that a receiver should keep a copy, since later pushes may be deltas. Once it has arrived
    it is plain data, which crosses any border as JSON.
    """

    path: str
    version: int
    names: tuple[str, ...]
    dtypes: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]
    offsets: tuple[int, ...]
    nbytes: int
    checksum: str
    keep: bool = False
    delta: WeightDelta | None = None
    seat: Seat | None = None
    payload: Any = field(default=None, compare=False, repr=False)

    def __post_init__(self) -> None:
        for name, values in (("dtypes", self.dtypes), ("shapes", self.shapes), ("offsets", self.offsets)):
            if len(values) != len(self.names):
                raise ValueError(f"{name} has {len(values)} entries for {len(self.names)} tensors")

    @property
    def weight_version(self) -> WeightVersion:
        return WeightVersion(step=self.version)

    @property
    def sent_bytes(self) -> int:
        """How many bytes travel."""
        return self.nbytes if self.delta is None else self.delta.nbytes

    def whole(self) -> "WeightManifest":
        """The same push without its delta, and without what brings the bytes."""
        return replace(self, delta=None, payload=None, seat=None)

    def to_json(self) -> dict[str, Any]:
        assert (self.payload, self.seat) == (None, None), "this push has not arrived"
        data = asdict(self)
        del data["payload"], data["seat"]
        return data

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> "WeightManifest":
        return cls(
            path=data["path"],
            version=data["version"],
            names=tuple(data["names"]),
            dtypes=tuple(data["dtypes"]),
            shapes=tuple(tuple(shape) for shape in data["shapes"]),
            offsets=tuple(data["offsets"]),
            nbytes=data["nbytes"],
            checksum=data["checksum"],
            keep=data["keep"],
            delta=None if data["delta"] is None else WeightDelta(**data["delta"]),
        )


class WholeWeightsNeeded(ValueError):
    """A delta reached a receiver that does not hold its base: send it the whole weights."""


def reserve(nbytes: int) -> int:
    """The descriptor of new memory without a name, all of it allocated: writing to memory that is full kills a process.

    Raises `OSError` where there is not as much; the kernel itself would kill a process to make room.
    """
    available = _available_bytes()
    if nbytes > available:
        raise OSError(errno.ENOMEM, f"no room for {nbytes} bytes of weights: {available} bytes of memory are available")
    descriptor = os.memfd_create("temper-weights")
    try:
        os.posix_fallocate(descriptor, 0, nbytes)
    except OSError as error:
        os.close(descriptor)
        raise OSError(error.errno, f"no room for {nbytes} bytes of weights ({error.strerror})") from error
    return descriptor


def _available_bytes() -> int:
    """What this machine can still give without taking memory from a process."""
    with open("/proc/meminfo", encoding="ascii") as file:
        facts = dict(line.split(":") for line in file)
    return int(facts["MemAvailable"].split()[0]) * 1024


def own_path(descriptor: int) -> str:
    """Where other processes of this host and user find what this one holds under a descriptor."""
    return f"/proc/{os.getpid()}/fd/{descriptor}"


def map_segment(path: str, *, nbytes: int) -> torch.Tensor:
    """The bytes of a file, or of a named segment on a GPU, as a uint8 tensor that shares memory with it.

    Raises `ValueError` where it is not that large, or not to be reached from here.
    """
    if path.startswith(gpu_memory.SCHEME):
        return gpu_memory.open_segment(path, nbytes=nbytes)
    segment_inode(path, nbytes=nbytes)
    return torch.from_file(path, shared=True, size=nbytes, dtype=torch.uint8)


def segment_inode(path: str, *, nbytes: int) -> int:
    """Which file it is. Raises `ValueError` where there is none of that size."""
    try:
        facts = os.stat(path)
    except FileNotFoundError as error:
        raise ValueError(
            f"the segment {path} is gone: push again, or with learner.carrier=ray if it is on another machine"
        ) from error
    if facts.st_size != nbytes:
        raise ValueError(f"{path} has {facts.st_size} bytes, the push needs {nbytes}; push again")
    return facts.st_ino


def contents(segment: torch.Tensor) -> torch.Tensor:
    """A segment without its stamp."""
    return segment[:-STAMP_BYTES]


def stamp(segment: torch.Tensor, *, version: int, digest: str) -> None:
    """Say what the segment holds."""
    said = version.to_bytes(8, "little") + bytes.fromhex(digest)
    segment[-STAMP_BYTES:] = torch.frombuffer(bytearray(said.ljust(STAMP_BYTES, b"\0")), dtype=torch.uint8)


def unstamp(segment: torch.Tensor) -> None:
    """Say that the segment is being written."""
    segment[-STAMP_BYTES:] = 0


def require_stamp(segment: torch.Tensor, manifest: WeightManifest) -> None:
    """Raises `ValueError` where the segment no longer holds the manifest's version."""
    said = segment[-STAMP_BYTES:].cpu().numpy().tobytes()
    if said[: 8 + CHECKSUM_BYTES] != manifest.version.to_bytes(8, "little") + bytes.fromhex(manifest.checksum):
        raise ValueError(f"{manifest.path} was overwritten, it does not hold version {manifest.version}; push again")


def verify(segment: torch.Tensor, manifest: WeightManifest) -> None:
    """Raises `ValueError` where what the segment holds is not what was sent: a torn, damaged or overwritten push."""
    found = tensor_checksum(contents(segment))
    if found != manifest.checksum:
        raise ValueError(
            f"{manifest.path or 'what arrived'} has checksum {found}, version {manifest.version} was sent with "
            f"{manifest.checksum}; push again"
        )


def tensors(segment: torch.Tensor, manifest: WeightManifest) -> list[tuple[str, torch.Tensor]]:
    """Name and tensor of each weight; the tensors are views of the segment."""
    columns = zip(manifest.names, manifest.dtypes, manifest.shapes, manifest.offsets, strict=True)
    return [
        (name, tensor_view(segment, dtype=wire_dtype(dtype), shape=shape, offset=offset))
        for name, dtype, shape, offset in columns
    ]


def read_weights(manifest: WeightManifest) -> list[tuple[str, torch.Tensor]]:
    """Name and tensor of each weight of a segment that is a file, verified. A push after the next overwrites them.

    Raises `ValueError` where the segment's size or checksum is not the manifest's.
    """
    segment = map_segment(manifest.path, nbytes=manifest.nbytes)
    verify(segment, manifest)
    return tensors(segment, manifest)


def tensor_view(segment: torch.Tensor, *, dtype: torch.dtype, shape: tuple[int, ...], offset: int) -> torch.Tensor:
    """The tensor that lies at `offset` bytes of a segment; shares its memory."""
    nbytes = prod(shape) * dtype.itemsize
    return segment[offset : offset + nbytes].view(dtype).view(shape)


def wire_dtype(name: str) -> torch.dtype:
    """The torch dtype of a dtype name on the wire: float32, bfloat16 or float16."""
    dtypes = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
    if name not in dtypes:
        raise ValueError(f"weights can not be sent as {name!r}; choose one of {', '.join(dtypes)}")
    return dtypes[name]
