"""One rank's part of weight pushes, whatever they travel by: a segment that rank 0 writes, or buckets that each rank sends."""

from collections.abc import Iterable
from typing import Any

from temper.envs.core.member import Heart
from temper.learner.adapter_publisher import AdapterPublisher
from temper.learner.bucket_publisher import BucketPublisher
from temper.learner.config import LearnerConfig
from temper.learner.engine.deepspeed_engine import DeepSpeedEngine
from temper.learner.models.adapters import adapter_shapes
from temper.learner.publisher import WeightPublisher
from temper.rollout.weights.manifest import NoLongerHeld, WeightManifest, wire_dtype
from temper.rollout.weights.transports.catalog import carries_buckets, open_transport, transport_kind
from temper.rollout.weights.transports.transport import Audience, SegmentTransport


class RankPushes:
    """Publishes the weights of one model at a time; `close` ends that, and the next push is of another one."""

    def __init__(self, config: LearnerConfig, *, rank: int, heart: Heart) -> None:
        self._config, self._rank, self._heart = config, rank, heart
        self._transport: SegmentTransport[Any] | None = None  # kept from model to model, as its ways to the engines are
        self._publisher: WeightPublisher | BucketPublisher | AdapterPublisher | None = None
        self._alone: bool | None = None  # whether this model's adapters are pushed without their base, once asked
        self._has_base = False  # whether that was published

    def publish(self, version: int, engine: DeepSpeedEngine) -> WeightManifest | None:
        """Have the weights ready, written where the transport has room, or to be sent as they are; rank 0 returns which."""
        if carries_buckets(self._config.transport):
            manifest = self._buckets(engine).push(version)
            return manifest if self._rank == 0 else None
        with self._heart.busy("publish"):
            if self._alone is None:
                self._alone = engine.has_adapters and not self.why_merged(engine)
            if self._alone:
                return self._push_adapters(version, engine)
            gathered = self._heart.for_each(engine.checkpoint_parameters())
            if self._rank == 0:
                return self._segments(engine).push(version, gathered=gathered)
            _take_part(gathered)
            return None

    def why_merged(self, engine: DeepSpeedEngine) -> str:
        """Return why pushes carry adapters merged into the weights; empty where they carry the adapters alone."""
        config = self._config
        if not transport_kind(config.transport).adapters:
            return f"learner.transport={config.transport} carries whole weights"
        if config.sparse_push:
            return "learner.sparse_push=true sends what changed in the weights"
        trained = {parameter.dtype for parameter in engine.model.parameters()}
        if trained != {wire_dtype(config.wire_dtype)}:
            return f"learner.wire_dtype={config.wire_dtype} is not the type that the learner computes in"
        try:
            adapter_shapes(engine.model)
        except ValueError as error:
            return str(error)
        return ""

    def _push_adapters(self, version: int, engine: DeepSpeedEngine) -> WeightManifest | None:
        """Have the adapters ready, with what they stand beside where that is the first push."""
        base = None if self._has_base else self._heart.for_each(engine.base_parameters())
        gathered = self._heart.for_each(engine.adapter_parameters())
        if self._rank == 0:
            manifest = self._adapters(engine).push(version, gathered=gathered, base=base)
            self._has_base = True
            return manifest
        _take_part(base or ())
        _take_part(gathered)
        self._has_base = True
        return None

    def offer(self, version: int, *, whole: bool, audience: Audience) -> object:
        """Return what engines need to get at the last push, on rank 0. See the publishers' own.

        Raises `NoLongerHeld` also where this model's weights were not published yet.
        """
        if self._publisher is None:
            raise NoLongerHeld(
                f"the weights of version {version} are not held here; call publish first, and ask rank 0"
            )
        return self._publisher.offer(version, whole=whole, audience=audience)

    def send(self, version: int, engine: DeepSpeedEngine) -> None:
        """Send this rank's share while the engines take the last push, where it travels in buckets."""
        if isinstance(self._publisher, BucketPublisher):
            with self._heart.busy("send"):
                self._publisher.send(version, self._heart.for_each(engine.checkpoint_parameters()))

    def forget(self) -> None:
        """Take note that the model is about to change."""
        if isinstance(self._publisher, BucketPublisher):
            self._publisher.forget()

    def close(self) -> None:
        """Free what is held for pushes of this model."""
        if self._publisher is not None:
            self._publisher.close()
            self._publisher = None
        self._alone, self._has_base = None, False

    def _way(self, engine: DeepSpeedEngine) -> SegmentTransport[Any]:
        if self._transport is None:
            self._transport = open_transport(self._config.transport, device=engine.device)
        return self._transport

    def _adapters(self, engine: DeepSpeedEngine) -> AdapterPublisher:
        if self._publisher is None:
            lora = self._config.lora
            self._publisher = AdapterPublisher(
                self._way(engine),
                base_shapes=engine.checkpoint_shapes(),
                shapes=adapter_shapes(engine.model),
                dtype=self._config.wire_dtype,
                scale=lora.alpha / lora.rank,
            )
        assert isinstance(self._publisher, AdapterPublisher)
        return self._publisher

    def _segments(self, engine: DeepSpeedEngine) -> WeightPublisher:
        if self._publisher is None:
            self._publisher = WeightPublisher(
                self._way(engine),
                shapes=engine.checkpoint_shapes(),
                dtype=self._config.wire_dtype,
                sparse=self._config.sparse_push,
            )
        assert isinstance(self._publisher, WeightPublisher)
        return self._publisher

    def _buckets(self, engine: DeepSpeedEngine) -> BucketPublisher:
        if self._publisher is None:
            self._publisher = BucketPublisher(
                transport=self._config.transport,
                shapes=engine.checkpoint_shapes(),
                dtype=self._config.wire_dtype,
                rank=self._rank,
                ranks=self._config.ranks,
                device=engine.device,
                timeout_s=self._config.collective_timeout_s,
            )
        assert isinstance(self._publisher, BucketPublisher)
        return self._publisher


def _take_part(gathered: Iterable[object]) -> None:
    """Take part in the gathering of what rank 0 writes."""
    for _ in gathered:
        continue
