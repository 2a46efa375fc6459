"""The learner's side of a weight push: rank 0 writes a segment that engines read, or each rank sends buckets."""

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Protocol

import torch
import torch.distributed as dist

from temper.envs.core.process import ProgressCounter
from temper.learner.config import LearnerConfig
from temper.rollout.weights.buckets import BucketGroup, Buffers, send_buckets, split_push
from temper.rollout.weights.checksum import tensor_checksum
from temper.rollout.weights.config import BROADCAST, BUCKET_BYTES, COPIES
from temper.rollout.weights.expert_owners import UNSHARED, ExpertOwners
from temper.rollout.weights.host_memory import release_free_memory
from temper.rollout.weights.manifest import (
    DOWN,
    UP,
    Adapted,
    NoLongerHeld,
    WeightManifest,
    clear_footer,
    layout,
    require_held,
    require_shape,
    segment_contents,
    tensor_view,
    unknown_weight,
    wire_dtype,
    write_footer,
)
from temper.rollout.weights.process_group import GroupMember, ProcessGroup, connect_store, open_store
from temper.rollout.weights.receiver import WithBase
from temper.rollout.weights.transports import (
    Memory,
    Receivers,
    allocate,
    is_non_blocking,
    make_offer,
    resolve_transport,
)

Gathered = Iterable[dict[str, torch.Tensor]]
Shapes = dict[str, tuple[int, ...]]
MOST_SENDERS = 8
"""Maximum of ranks that send buckets. Each adds a process group to every engine, which costs seconds and device memory."""


class TrainedModel(Protocol):
    """The model under training: see `learner/engine/deepspeed_engine.py`. Gathering is collective."""

    @property
    def model(self) -> torch.nn.Module: ...

    @property
    def device(self) -> torch.device: ...

    @property
    def has_adapters(self) -> bool: ...

    @property
    def expert_owners(self) -> ExpertOwners: ...

    def checkpoint_shapes(self) -> Shapes: ...

    def adapter_shapes(self) -> Shapes: ...

    def checkpoint_parameters(self) -> Iterator[dict[str, torch.Tensor]]: ...

    def own_checkpoint_parameters(self) -> Iterator[dict[str, torch.Tensor]]: ...

    def base_parameters(self) -> Iterator[dict[str, torch.Tensor]]: ...

    def adapter_parameters(self) -> Iterator[dict[str, torch.Tensor]]: ...


class WeightSender:
    """One rank's part in the pushes of one model. After `close` the next push may be of another model."""

    def __init__(self, config: LearnerConfig, *, rank: int, progress_counter: ProgressCounter) -> None:
        self._config, self._rank, self._progress_counter = config, rank, progress_counter
        self._transport = resolve_transport(config.transport)
        self._sender: SegmentSender | BucketSender | None = None
        self._has_base = False  # whether the base weights of the adapters are published

    def publish(self, version: int, engine: TrainedModel) -> WeightManifest | None:
        """Write the weights into a segment, or announce them for buckets. Rank 0 returns the manifest."""
        sender = self._sender_of(engine)
        if isinstance(sender, BucketSender):
            manifest = sender.push(version)
            return manifest if self._rank == 0 else None
        with self._progress_counter.busy("publish"):
            base = None
            if sender.has_base and not self._has_base:
                base = self._progress_counter.advance_each(engine.base_parameters())
            gathered = engine.adapter_parameters() if sender.has_base else engine.checkpoint_parameters()
            own = self._progress_counter.advance_each(gathered)
            if self._rank == 0:
                written = sender.push(version, gathered=own, base=base)
            else:
                for part in (base or (), own):  # gathering is collective
                    for _ in part:
                        continue
            self._has_base = True
            return written if self._rank == 0 else None

    def merge_reason(self, engine: TrainedModel) -> str:
        """Return why pushes carry adapters merged into the weights; empty if they carry only the adapters."""
        config = self._config
        if not is_non_blocking(config.transport):
            return f"learner.transport={config.transport} carries whole weights"
        trained = {parameter.dtype for parameter in engine.model.parameters()}
        if trained != {wire_dtype(config.wire_dtype)}:
            return f"learner.wire_dtype={config.wire_dtype} is not the type that the learner computes in"
        try:
            engine.adapter_shapes()
        except ValueError as error:
            return str(error)
        return ""

    def offer(self, version: int, *, with_base: bool, receivers: Receivers) -> object:
        """Return the engines' access to the last push, on rank 0.

        Raises `NoLongerHeld` if the last push is not this version, or if this model's weights are not published yet.
        """
        if self._sender is None:
            raise NoLongerHeld(f"version {version} is not published on this rank; call publish first, and use rank 0")
        return self._sender.offer(version, with_base=with_base, receivers=receivers)

    def send(self, version: int, engine: TrainedModel) -> None:
        """Send this rank's buckets while the engines receive the last push. Segments are read, not sent."""
        if isinstance(self._sender, BucketSender):
            with self._progress_counter.busy("send"):
                self._sender.send(version, self._progress_counter.advance_each(engine.own_checkpoint_parameters()))

    def forget(self) -> None:
        if isinstance(self._sender, BucketSender):
            self._sender.forget()

    def close(self) -> None:
        """Free the memory of this model's pushes."""
        if self._sender is not None:
            self._sender.close()
            self._sender = None
        self._has_base = False

    def _sender_of(self, engine: TrainedModel) -> "SegmentSender | BucketSender":
        if self._sender is None:
            config, shapes, dtype = self._config, engine.checkpoint_shapes(), self._config.wire_dtype
            if self._transport == BROADCAST:
                self._sender = BucketSender(
                    shapes=shapes,
                    dtype=dtype,
                    rank=self._rank,
                    ranks=config.ranks,
                    device=engine.device,
                    timeout_s=config.collective_timeout_s,
                    owners=engine.expert_owners,
                )
            elif engine.has_adapters and not self.merge_reason(engine):
                self._sender = SegmentSender(
                    self._transport,
                    shapes=engine.adapter_shapes(),
                    dtype=dtype,
                    device=engine.device,
                    base_shapes=shapes,
                    scale=config.lora.scale,
                )
            else:
                self._sender = SegmentSender(self._transport, shapes=shapes, dtype=dtype, device=engine.device)
        return self._sender


class SegmentSender:
    """Writes versions of one model's weights into segments, or its adapters plus the base weights once.

    `shapes` has the tensor shapes by checkpoint name. `dtype` is the type on the wire. With `base_shapes` the tensors are
    adapters of weights with these shapes, each scaled by `scale`.
    """

    def __init__(
        self,
        transport: str,
        *,
        shapes: Shapes,
        dtype: str,
        device: torch.device,
        base_shapes: Shapes | None = None,
        scale: float = 1.0,
    ) -> None:
        self._own = Segments(transport, shapes=shapes, dtype=dtype, device=device)
        self._bases: Segments | None = None
        if base_shapes is not None:
            assert {name.removesuffix(DOWN).removesuffix(UP) for name in shapes} <= base_shapes.keys()
            self._bases = Segments(transport, shapes=base_shapes, dtype=dtype, device=device)
        self._scale = scale
        self._base: WeightManifest | None = None
        self._last: WeightManifest | None = None

    @property
    def has_base(self) -> bool:
        return self._bases is not None

    @property
    def nbytes(self) -> int:
        return self._own.nbytes

    def push(self, version: int, *, gathered: Gathered, base: Gathered | None = None) -> WeightManifest:
        """Write one version and describe it. The first push of adapters has a `base`, later ones do not.

        Raises `ValueError` unless exactly the known tensors were gathered.
        """
        self._last = None
        if base is not None:
            assert self._bases is not None, "only adapters have a base"
            self._base = None
            self._base = self._bases.write(version, base)
        manifest = self._own.write(version, gathered)
        if self._bases is not None:
            assert self._base is not None, "the first push includes the weights"
            manifest = replace(manifest, adapted=Adapted(base=self._base, scale=self._scale, alone=base is None))
        self._last = manifest
        release_free_memory()  # once a step: the memory of the update
        return manifest

    def offer(self, version: int, *, with_base: bool, receivers: Receivers) -> object:
        """Return the engines' access to the last push; for adapters with the weights if `with_base`, or in the first push.

        Raises `NoLongerHeld` if the last push is not this version.
        """
        adapted = require_held(self._last, version).adapted
        own = make_offer(self._own.last, receivers)
        if adapted is None or (adapted.alone and not with_base):
            return own
        assert self._bases is not None
        return WithBase(adapters=own, base=make_offer(self._bases.last, receivers))

    def close(self) -> None:
        """Free the segments. Engines that have mapped one keep reading it."""
        self._last = self._base = None
        for segments in (self._own, self._bases):
            if segments is not None:
                segments.close()


class Segments:
    """Alternating segments of one layout: engines may still read the last one while the next is written."""

    def __init__(self, transport: str, *, shapes: Shapes, dtype: str, device: torch.device) -> None:
        self._transport, self._shapes, self._dtype, self._device = transport, shapes, dtype, device
        self._offsets, self.nbytes = layout(shapes, dtype=dtype)
        self._memories: list[Memory] = []  # in the order of writing

    @property
    def last(self) -> Memory:
        return self._memories[-1]

    def write(self, version: int, gathered: Gathered) -> WeightManifest:
        """Write one version. Raises `ValueError` unless exactly the known tensors were gathered."""
        if len(self._memories) < COPIES:
            self._memories.append(allocate(self._transport, self.nbytes, device=self._device))
        else:
            self._memories.append(self._memories.pop(0))
        segment = self.last.data
        clear_footer(segment)
        self._fill(segment, gathered)
        checksum = tensor_checksum(segment_contents(segment))
        write_footer(segment, version=version, checksum=checksum)
        return WeightManifest.of(
            self._shapes, dtype=self._dtype, transport=self._transport, version=version, checksum=checksum
        )

    def close(self) -> None:
        for memory in self._memories:
            memory.close()
        self._memories.clear()

    def _fill(self, segment: torch.Tensor, gathered: Gathered) -> None:
        missing = set(self._shapes)
        dtype = wire_dtype(self._dtype)
        for tensors_by_name in gathered:
            for name, tensor in tensors_by_name.items():
                if name not in self._shapes:
                    raise unknown_weight(name)
                require_shape(name, tensor, self._shapes[name])
                tensor_view(segment, dtype=dtype, shape=self._shapes[name], offset=self._offsets[name]).copy_(tensor)
                missing.discard(name)
        if missing:
            raise ValueError(
                f"{len(missing)} weights are missing from the push, such as {min(missing)}; load the model again"
            )


class BucketSender:
    """One rank's part of pushes in buckets: its share of the parameters, sent straight from its device.

    Publishing copies nothing. A push ends before the next update begins, and its weights are gone after it. `shapes` and
    `dtype` are as in `SegmentSender`.
    """

    def __init__(
        self,
        *,
        shapes: Shapes,
        dtype: str,
        rank: int,
        ranks: int,
        device: torch.device,
        timeout_s: float,
        bucket_bytes: int | None = None,
        owners: ExpertOwners = UNSHARED,
    ) -> None:
        self._shapes, self._dtype = shapes, dtype
        self._rank, self._ranks = rank, ranks
        self._device, self._timeout_s = device, timeout_s
        self._bucket_bytes = bucket_bytes or BUCKET_BYTES[device.type]
        self._owners = owners
        self._buffers = Buffers(device)
        self._last: WeightManifest | None = None
        self._receivers: Receivers | None = None
        self._bucket_group: BucketGroup | None = None
        self._store: object = None
        self._joined: tuple[BucketGroup, ProcessGroup] | None = None

    def push(self, version: int) -> WeightManifest:
        """Announce the current weights as this version. Call it on every rank."""
        self._last = WeightManifest.of(self._shapes, dtype=self._dtype, transport=BROADCAST, version=version)
        return self._last

    def forget(self) -> None:
        """Invalidate the last push before the weights change."""
        self._last = None

    def offer(self, version: int, *, with_base: bool, receivers: Receivers) -> BucketGroup:
        """Return where the engines join, on rank 0. It opens a new store for new receivers.

        Raises `NoLongerHeld` if the last push is not this version.
        """
        manifest = require_held(self._last, version)
        if self._bucket_group is None or self._receivers != receivers:
            size = self._owners.ranks
            buckets = split_push(manifest, senders=size, most_bytes=self._bucket_bytes, owners=self._owners)
            senders = max(1, min(self._ranks, len(buckets), MOST_SENDERS) // size) * size
            first = GroupMember(host=receivers.host, port=0, rank=0, size=receivers.size + 1, timeout_s=self._timeout_s)
            rendezvous, self._store = open_store(first)
            self._bucket_group = BucketGroup(
                rendezvous=rendezvous, senders=senders, bucket_bytes=self._bucket_bytes, owners=self._owners
            )
            self._receivers = receivers
        return self._bucket_group

    def send(self, version: int, gathered: Gathered) -> None:
        """Send this rank's buckets of the gathered tensors. Call it on every rank, after the offer.

        Raises `NoLongerHeld` like `offer`, and `RuntimeError` if an engine is missing until the timeout.
        """
        try:
            manifest = require_held(self._last, version)
        except NoLongerHeld:
            if self._last is None:  # else the offer belongs to a later version
                self.close()  # engines with the offer notice the closed store
            raise
        bucket_group, left = self._broadcast_group(), iter(gathered)
        try:
            number = sender_number(
                self._rank, ranks=self._ranks, senders=bucket_group.senders, group_size=self._owners.ranks
            )
            if number is not None:
                group = self._group(bucket_group, number)
                buckets = bucket_group.buckets(manifest)
                send_buckets(group, buckets, left, rank=number, buffers=self._buffers, owners=self._owners)
            for _ in left:
                continue  # gathering is collective
        except RuntimeError:
            self.close()  # the process group is unusable
            self._buffers = Buffers(self._device)  # a transfer may still be running
            for _ in left:
                continue  # the other ranks continue with it
            raise

    def _group(self, bucket_group: BucketGroup, number: int) -> ProcessGroup:
        if self._joined is None or self._joined[0] != bucket_group:
            store = self._store if self._rank == 0 else connect_store(bucket_group.rendezvous)
            self._joined = bucket_group, bucket_group.join(store, sender=number, member=0, device=self._device)
        return self._joined[1]

    def _broadcast_group(self) -> BucketGroup:
        shared: list[BucketGroup | None] = [self._bucket_group]
        if self._ranks > 1:
            dist.broadcast_object_list(
                shared, src=0, device=torch.device("cpu") if self._device.type == "cpu" else None
            )
        assert shared[0] is not None, "it was offered before"
        return shared[0]

    def close(self) -> None:
        self._joined, self._bucket_group, self._store = None, None, None


def sender_number(rank: int, *, ranks: int, senders: int, group_size: int = 1) -> int | None:
    """Return a rank's number among the senders, or None if it does not send.

    Senders are groups of `group_size` neighbouring ranks, spread evenly over the ranks.
    """
    group, place = divmod(rank, group_size)
    number, rest = divmod(group, ranks // senders)
    return number * group_size + place if rest == 0 and number < senders // group_size else None
