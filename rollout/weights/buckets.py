"""Weight pushes in buckets of whole tensors, each with a checksum and a number: the sending and the receiving side.

A bucket is a range of a segment's tensors with its own footer. Both sides compute the buckets from the manifest, so only
their bytes are sent. Rank n modulo the number of senders sends bucket n, in its own process group with all engine
processes. If ranks share the experts, an owner sends a bucket of experts.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from itertools import pairwise
from typing import Any

import torch

from temper.rollout.weights.checksum import tensor_checksum
from temper.rollout.weights.config import AHEAD
from temper.rollout.weights.expert_owners import UNSHARED, ExpertOwners
from temper.rollout.weights.manifest import (
    FOOTER_BYTES,
    WeightManifest,
    require_footer,
    require_shape,
    segment_contents,
    tensor_view,
    tensors,
    unknown_weight,
    wire_dtype,
    write_footer,
)
from temper.rollout.weights.process_group import GroupMember, ProcessGroup, connect_store

MET = b"yes"
Named = list[tuple[str, torch.Tensor]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Bucket:
    """One part of a push: its number, its sending rank, and its manifest."""

    number: int
    sender: int
    manifest: WeightManifest

    @property
    def mark(self) -> int:
        """Identifier of push and bucket, in the place of the footer's version."""
        return self.manifest.version * 2**24 + self.number


def split_push(
    manifest: WeightManifest, *, senders: int, most_bytes: int, owners: ExpertOwners = UNSHARED
) -> list[Bucket]:
    """Cut a push into buckets of at most `most_bytes`, in the order of its tensors. A bucket's sender has all of them.

    Sender n has the place n modulo `owners.ranks` in its group of ranks.
    """
    held_by = [owners.find_owner(name) for name in manifest.names]
    end = manifest.nbytes - FOOTER_BYTES
    stops = [*manifest.offsets[1:], end]
    starts = [0]
    for index, stop in enumerate(stops):
        first = starts[-1]
        if index > first and (stop - manifest.offsets[first] > most_bytes or held_by[index] != held_by[first]):
            starts.append(index)

    def sender(number: int, owner: int | None) -> int:
        group = number // owners.ranks * owners.ranks
        return (number if owner is None else group + owner) % senders

    cuts = pairwise([*starts, len(manifest.names)])
    return [
        Bucket(
            number=number, sender=sender(number, held_by[first]), manifest=_part(manifest, first, last, stops[last - 1])
        )
        for number, (first, last) in enumerate(cuts)
    ]


def _part(manifest: WeightManifest, first: int, last: int, stop: int) -> WeightManifest:
    begin = manifest.offsets[first]
    return replace(
        manifest,
        names=manifest.names[first:last],
        dtypes=manifest.dtypes[first:last],
        shapes=manifest.shapes[first:last],
        offsets=tuple(offset - begin for offset in manifest.offsets[first:last]),
        nbytes=stop - begin + FOOTER_BYTES,
    )


def seal_bucket(segment: torch.Tensor, bucket: Bucket) -> None:
    """Write a bucket's footer, with a checksum computed on its device."""
    write_footer(segment, version=bucket.mark, checksum=tensor_checksum(segment_contents(segment)))


def open_bucket(segment: torch.Tensor, bucket: Bucket) -> Named:
    """Return a received bucket's tensors, as views. Raises `ValueError` if it is damaged, or the wrong one."""
    found = tensor_checksum(segment_contents(segment))
    require_footer(segment, replace(bucket.manifest, version=bucket.mark, checksum=found))
    return tensors(segment, bucket.manifest)


class Buffers:
    """Reused memory for buckets to send: an allocation costs several times a copy."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._free: list[torch.Tensor] = []

    def take(self, nbytes: int) -> torch.Tensor:
        buffer = self._free.pop() if self._free else None
        if buffer is None or buffer.numel() < nbytes:
            buffer = torch.zeros(nbytes, dtype=torch.uint8, device=self._device)
        return buffer

    def give(self, buffer: torch.Tensor) -> None:
        self._free.append(buffer)


def pack_buckets(
    buckets: Sequence[Bucket],
    gathered: Iterable[dict[str, torch.Tensor]],
    *,
    rank: int,
    buffers: Buffers,
    owners: ExpertOwners = UNSHARED,
) -> Iterator[tuple[Bucket, torch.Tensor]]:
    """Yield the sealed buckets of a rank in order, each as soon as its tensors and all earlier buckets are gathered.

    Each is at the start of one of the `buffers`, to which the sender returns it. All of `gathered` is consumed, because
    gathering is collective. A rank that sent before an earlier bucket was gathered would wait for engines, which wait for
    that bucket, and its sender waits for this rank. Owners of experts gather without each other, so only a rank's own buckets
    count. Raises `ValueError` if `gathered` does not match the buckets.
    """
    place = {name: (bucket, at) for bucket in buckets for at, name in enumerate(bucket.manifest.names)}
    counted = [bucket for bucket in buckets if bucket.sender == rank] if owners.ranks > 1 else buckets
    lacking = {bucket.number: set(bucket.manifest.names) for bucket in counted}
    held: dict[int, torch.Tensor] = {}
    due = 0
    for tensors_by_name in gathered:
        for name, tensor in tensors_by_name.items():
            if name not in place:
                raise unknown_weight(name)
            bucket, at = place[name]
            if bucket.sender == rank:
                if bucket.number not in held:
                    held[bucket.number] = buffers.take(bucket.manifest.nbytes)
                _write(held[bucket.number], bucket, at, tensor)
            if bucket.number in lacking:
                lacking[bucket.number].discard(name)
            while due < len(counted) and not lacking[counted[due].number]:
                ready = counted[due]
                if ready.sender == rank:
                    buffer = held.pop(ready.number)
                    seal_bucket(buffer[: ready.manifest.nbytes], ready)
                    yield ready, buffer
                due += 1
    if due < len(counted):
        number = counted[due].number
        raise ValueError(
            f"weights of bucket {number} were not gathered, such as {min(lacking[number])}; reload the model"
        )


def _write(segment: torch.Tensor, bucket: Bucket, at: int, tensor: torch.Tensor) -> None:
    manifest = bucket.manifest
    require_shape(manifest.names[at], tensor, manifest.shapes[at])
    dtype = wire_dtype(manifest.dtypes[at])
    tensor_view(segment, dtype=dtype, shape=manifest.shapes[at], offset=manifest.offsets[at]).copy_(tensor)


def load_buckets(
    buckets: Sequence[Bucket],
    begin: Callable[[Bucket, torch.Tensor], Callable[[], None]],
    load: Callable[[Named], object],
    *,
    device: torch.device,
) -> None:
    """Load buckets as they arrive, while the next one is received.

    `begin` starts to receive a bucket into memory, and returns a function that waits for it. Raises `ValueError` for a
    damaged bucket, and errors of `load`. After an error the rest is received, but not loaded, because other processes take
    part.
    """
    coming: list[tuple[Bucket, torch.Tensor, Callable[[], None]]] = []
    damage: Exception | None = None
    for bucket in [*buckets, *[None] * (AHEAD - 1)]:
        if bucket is not None:
            # New memory each time: the loader keeps the tensors of an incomplete layer.
            memory = torch.empty(bucket.manifest.nbytes, dtype=torch.uint8, device=device)
            coming.append((bucket, memory, begin(bucket, memory)))
        if len(coming) == AHEAD or (bucket is None and coming):
            arrived, segment, wait = coming.pop(0)
            wait()
            try:
                if damage is None:
                    load(open_bucket(segment, arrived))
            except Exception as error:
                damage = error
    if damage is not None:
        raise damage


@dataclass(frozen=True, slots=True, kw_only=True)
class BucketGroup:
    """How engines join the senders: the store of rank 0, the number of sending ranks, each with its own group on that
    store, the bucket size, and the owners of experts.
    """

    rendezvous: GroupMember
    senders: int
    bucket_bytes: int
    owners: ExpertOwners = UNSHARED

    def buckets(self, manifest: WeightManifest) -> list[Bucket]:
        return split_push(manifest, senders=self.senders, most_bytes=self.bucket_bytes, owners=self.owners)

    def group(self, store: Any, *, sender: int, member: int) -> ProcessGroup:
        """Return a sending rank's group, with this process as `member`. Member 0 sends."""
        return ProcessGroup(replace(self.rendezvous, rank=member), store, name=f"sender {sender}")

    def join(self, store: Any, *, sender: int, member: int, device: torch.device) -> ProcessGroup:
        """Return a sending rank's group once all its processes have joined.

        Engines join one sender after the other. A sender waits for the one before; only then its timeout starts. It returns
        after the last one, so that no bucket waits for a group. Raises `RuntimeError` if a process is missing, in this or
        an earlier group.
        """
        group = self.group(store, sender=sender, member=member)
        if member:
            group.join(device)
            return group
        each = 2 * group.member.limit()  # longer than one takes, so a failing sender ends the wait of the next
        met = b""
        try:
            if sender:
                _require_met(store, sender - 1, limit=sender * each)
            group.join(device)
            met = MET
        finally:
            store.set(_met(sender), met)
        _require_met(store, self.senders - 1, limit=(self.senders - sender) * each)
        return group


def _met(sender: int) -> str:
    return f"sender {sender} met"


def _require_met(store: Any, sender: int, *, limit: timedelta) -> None:
    """Wait until a sender and the engines have joined. Raises `RuntimeError` if they did not."""
    store.wait([_met(sender)], limit)
    if store.get(_met(sender)) != MET:
        raise RuntimeError(f"sender {sender} and the engines did not meet")


@dataclass(frozen=True, slots=True, kw_only=True)
class IncomingWeights:
    """A push that an engine, as number `number` of the receivers, gets in buckets."""

    manifest: WeightManifest
    bucket_group: BucketGroup
    number: int


def send_buckets(
    group: ProcessGroup,
    buckets: Sequence[Bucket],
    gathered: Iterable[dict[str, torch.Tensor]],
    *,
    rank: int,
    buffers: Buffers,
    owners: ExpertOwners = UNSHARED,
) -> None:
    """Send a rank's buckets in order. The next one is packed while one is sent.

    Raises `RuntimeError` if a member is missing for the group's timeout.
    """
    going: list[tuple[torch.Tensor, Callable[[], None]]] = []

    def finish(buffer: torch.Tensor, wait: Callable[[], None]) -> None:
        wait()
        buffers.give(buffer)

    for bucket, buffer in pack_buckets(buckets, gathered, rank=rank, buffers=buffers, owners=owners):
        going.append((buffer, group.begin(buffer[: bucket.manifest.nbytes])))
        if len(going) == AHEAD:
            finish(*going.pop(0))
    for buffer, wait in going:
        finish(buffer, wait)


class BucketReceiver:
    def __init__(self) -> None:
        self._bucket_group: BucketGroup | None = None
        self._groups: list[ProcessGroup] = []

    def receive(
        self,
        manifest: WeightManifest,
        bucket_group: BucketGroup,
        load: Callable[[Named], object],
        *,
        member: int,
        device: torch.device,
    ) -> None:
        """Receive a push, and load its tensors bucket by bucket. `member` is this process's number in each group.

        Raises `ValueError` for a damaged bucket, and `RuntimeError` if another process of a group is missing. Then the
        weights are incomplete, and the push must be repeated.
        """
        try:
            if self._bucket_group != bucket_group:
                store = connect_store(bucket_group.rendezvous)
                self._groups = [
                    bucket_group.join(store, sender=sender, member=member, device=device)
                    for sender in range(bucket_group.senders)
                ]
                self._bucket_group = bucket_group
            load_buckets(
                bucket_group.buckets(manifest),
                lambda bucket, memory: self._groups[bucket.sender].begin(memory),
                load,
                device=device,
            )
        except RuntimeError:
            self.close()  # these groups are unusable now
            raise

    def close(self) -> None:
        self._bucket_group, self._groups = None, []
