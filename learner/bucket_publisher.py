"""The learner's end of a push in buckets: each rank sends its share of the parameters as they are, straight from its device.

Nothing is copied when a push is published: what is sent is what the learner has then, so that a push is over before the next
update begins, and its weights are no longer held after it.
"""

from collections.abc import Iterable

import torch
import torch.distributed as dist

from temper.rollout.weights.bucket_ways import BucketSender, BucketWays
from temper.rollout.weights.buckets import BUCKET_BYTES, buckets_of
from temper.rollout.weights.manifest import WeightManifest, require_held
from temper.rollout.weights.process_group import GroupMember, connected, open_store
from temper.rollout.weights.transports.transport import Audience

MOST_SENDERS = 8
"""Ranks that send: each one is a separate process group in every engine, which costs seconds and memory of its device."""


def sender_of(rank: int, *, ranks: int, senders: int) -> int | None:
    """Return the number of a rank among the senders, spread evenly over the ranks, or None if it does not send."""
    number, rest = divmod(rank, ranks // senders)
    return number if rest == 0 and number < senders else None


class BucketPublisher:
    """One rank's part of the pushes of one model's weights by a transport of buckets.

    `shapes` and `dtype` are those of `WeightPublisher`.
    """

    def __init__(
        self,
        *,
        transport: str,
        shapes: dict[str, tuple[int, ...]],
        dtype: str,
        rank: int,
        ranks: int,
        device: torch.device,
        timeout_s: float,
        bucket_bytes: int = BUCKET_BYTES,
    ) -> None:
        self.transport, self.shapes, self.dtype = transport, shapes, dtype
        self._rank, self._ranks = rank, ranks
        self._device, self._timeout_s = device, timeout_s
        self._bucket_bytes = bucket_bytes
        self._last: WeightManifest | None = None
        self._audience: Audience | None = None
        self._ways: BucketWays | None = None
        self._store: object = None
        self._met: tuple[BucketWays, BucketSender] | None = None

    def push(self, version: int) -> WeightManifest:
        """Describe the weights as they are now, which are sent as this version. To be called on every rank."""
        self._last = WeightManifest.of(self.shapes, dtype=self.dtype, transport=self.transport, version=version)
        return self._last

    def forget(self) -> None:
        """Take note that the weights are about to change."""
        self._last = None

    def offer(self, version: int, *, whole: bool, audience: Audience) -> BucketWays:
        """Return where the engines of an audience join, on rank 0, which begins to listen there for a new audience.

        Raises `NoLongerHeld` where the last push is not this version.
        """
        manifest = require_held(self._last, version)
        if self._ways is None or self._audience != audience:
            buckets = buckets_of(manifest, senders=1, most_bytes=self._bucket_bytes)
            senders = min(self._ranks, len(buckets), MOST_SENDERS)
            first = GroupMember(host=audience.host, port=0, rank=0, size=audience.size + 1, timeout_s=self._timeout_s)
            rendezvous, self._store = open_store(first)
            self._ways = BucketWays(rendezvous=rendezvous, senders=senders, bucket_bytes=self._bucket_bytes)
            self._audience = audience
        return self._ways

    def send(self, version: int, gathered: Iterable[dict[str, torch.Tensor]]) -> None:
        """Send this rank's buckets of what is gathered. To be called on every rank, after the offer.

        Raises `NoLongerHeld` like `offer`, and `RuntimeError` where an engine is missing for the seconds of the group.
        """
        manifest = require_held(self._last, version)
        ways, left = self._agreed(), iter(gathered)
        try:
            number = sender_of(self._rank, ranks=self._ranks, senders=ways.senders)
            if number is not None:
                self._sender(ways, number).send(ways.buckets(manifest), left, rank=number)
            for _ in left:
                continue  # gathering may be collective
        except RuntimeError:
            self._met, self._ways = None, None  # nobody meets there again
            for _ in left:
                continue  # the other ranks continue with it
            raise

    def _sender(self, ways: BucketWays, number: int) -> BucketSender:
        if self._met is None or self._met[0] != ways:
            store = self._store if self._rank == 0 else connected(ways.rendezvous)
            group = ways.join(store, sender=number, member=0, device=self._device)
            self._met = ways, BucketSender(group, device=self._device)
        return self._met[1]

    def _agreed(self) -> BucketWays:
        """Return where this push goes, as rank 0 offered it."""
        told: list[BucketWays | None] = [self._ways]
        if self._ranks > 1:
            dist.broadcast_object_list(told, src=0, device=torch.device("cpu") if self._device.type == "cpu" else None)
        assert told[0] is not None, "it was offered before"
        return told[0]

    def close(self) -> None:
        """Leave the groups."""
        self._met, self._ways, self._store = None, None, None
