"""The way of buckets from the learner's ranks to the processes of the engines: a process group for each rank that sends."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import timedelta
from typing import Any

import torch

from temper.rollout.weights.buckets import AHEAD, BUCKET_BYTES, Bucket, Buffers, Named, buckets_of, load_buckets, packed
from temper.rollout.weights.manifest import WeightManifest
from temper.rollout.weights.process_group import GroupMember, ProcessGroup, connected

MET = b"yes"


@dataclass(frozen=True, slots=True, kw_only=True)
class BucketWays:
    """Where engines join: the store of rank 0, and how many ranks send, each in a group of its own on that store; and how large
    a bucket is at the most.
    """

    rendezvous: GroupMember
    senders: int
    bucket_bytes: int = BUCKET_BYTES

    def buckets(self, manifest: WeightManifest) -> list[Bucket]:
        """Return the buckets of a push on these ways."""
        return buckets_of(manifest, senders=self.senders, most_bytes=self.bucket_bytes)

    def group(self, store: Any, *, sender: int, member: int) -> ProcessGroup:
        """Return the group of a rank that sends, as its member of this number: 0 sends."""
        return ProcessGroup(replace(self.rendezvous, rank=member), store, name=f"sender {sender}")

    def join(self, store: Any, *, sender: int, member: int, device: torch.device) -> ProcessGroup:
        """Return the group of a sender once all its processes have met, as `group` does.

        Engines meet the senders one after the other. A sender waits until the one before has met them, and only then do the
        seconds of the group count. It returns when the last one has met them too, so that no bucket waits for a group.
        Raises `RuntimeError` if a process is missing here, or was in the group of another sender.
        """
        group = self.group(store, sender=sender, member=member)
        if member:
            group.join(device)
            return group
        each = 2 * group.member.limit()  # to connect, and for the first broadcast
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
    """Return the name under which a store has whether a sender and the engines have met."""
    return f"sender {sender} met"


def _require_met(store: Any, sender: int, *, limit: timedelta) -> None:
    """Wait until a sender and the engines have met. Raises `RuntimeError` if they did not."""
    store.wait([_met(sender)], limit)
    if store.get(_met(sender)) != MET:
        raise RuntimeError(f"sender {sender} and the engines did not meet")


@dataclass(frozen=True, slots=True, kw_only=True)
class ComingWeights:
    """A push that an engine is about to take in buckets, as number `number` of the engines that it is for."""

    manifest: WeightManifest
    ways: BucketWays
    number: int

    def to_json(self) -> dict[str, Any]:
        """Return plain values, from which `from_json` makes the same."""
        return {"manifest": self.manifest.to_json(), "ways": asdict(self.ways), "number": self.number}

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> "ComingWeights":
        """Make it of what `to_json` returned."""
        ways = BucketWays(**data["ways"] | {"rendezvous": GroupMember(**data["ways"]["rendezvous"])})
        return cls(manifest=WeightManifest.from_json(data["manifest"]), ways=ways, number=data["number"])


class BucketSender:
    """One rank's end, for as long as the audience stays the same."""

    def __init__(self, group: ProcessGroup, *, device: torch.device) -> None:
        """`device` is where the weights lie."""
        self._group = group
        self._buffers = Buffers(device)

    def send(self, buckets: Sequence[Bucket], gathered: Iterable[dict[str, torch.Tensor]], *, rank: int) -> None:
        """Send a rank's share of buckets in their order; the next one is packed while one is on its way.

        Raises `RuntimeError` where a member is missing for the seconds of the group.
        """
        going: list[tuple[torch.Tensor, Callable[[], None]]] = []
        for bucket, buffer in packed(buckets, gathered, rank=rank, buffers=self._buffers):
            going.append((buffer, self._group.begin(buffer[: bucket.manifest.nbytes])))
            if len(going) == AHEAD:
                self._arrived(*going.pop(0))
        for buffer, wait in going:
            self._arrived(buffer, wait)

    def _arrived(self, buffer: torch.Tensor, wait: Callable[[], None]) -> None:
        wait()
        self._buffers.give(buffer)


class BucketReceiver:
    """One process's end, in an engine."""

    def __init__(self) -> None:
        self._ways: BucketWays | None = None
        self._groups: list[ProcessGroup] = []

    def receive(
        self,
        manifest: WeightManifest,
        ways: BucketWays,
        load: Callable[[Named], object],
        *,
        member: int,
        device: torch.device,
    ) -> None:
        """Take a push, and have its tensors loaded bucket by bucket. `member` is this process's number in each group.

        Raises `ValueError` where a bucket was damaged, and `RuntimeError` where another process of a group is missing: part
        of the weights is loaded then, and the push has to come again.
        """
        try:
            if self._ways != ways:
                store = connected(ways.rendezvous)
                self._groups = [
                    ways.join(store, sender=sender, member=member, device=device) for sender in range(ways.senders)
                ]
                self._ways = ways
            load_buckets(
                ways.buckets(manifest),
                lambda bucket, memory: self._groups[bucket.sender].begin(memory),
                load,
                device=device,
            )
        except RuntimeError:
            self.close()  # nobody meets in these groups again
            raise

    def close(self) -> None:
        """Leave the groups."""
        self._ways, self._groups = None, []
