"""Pushes in buckets between plain processes and threads: split, sent by several ranks, verified and loaded."""

import asyncio
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import timedelta
from time import monotonic, sleep
from typing import Any

import pytest
import torch
from support.in_loop import in_loop
from support.pushes import HERE, PlainSender
from unit.rollout.weights.test_push import SHAPES, Weights, nudged, same, weights

from temper.envs.core.process import ProgressCounter, WorkerDied
from temper.learner.config import LearnerConfig
from temper.learner.weight_sender import BucketSender, WeightSender, sender_number
from temper.orchestrator.cluster.this_machine import LOOPBACK, free_port
from temper.rollout.engines.config import SLOWEST_PUSH, EngineConfig
from temper.rollout.trajectory import WeightVersion
from temper.rollout.weights.buckets import (
    Bucket,
    BucketGroup,
    BucketReceiver,
    Buffers,
    Named,
    load_buckets,
    open_bucket,
    pack_buckets,
    send_buckets,
    split_push,
)
from temper.rollout.weights.config import BUCKET_BYTES
from temper.rollout.weights.delivery import Delivery, Offered
from temper.rollout.weights.expert_owners import ExpertOwners
from temper.rollout.weights.manifest import NoLongerHeld, WeightManifest
from temper.rollout.weights.process_group import ALONE_S, GroupMember, ProcessGroup, connect_store, open_store

CPU = torch.device("cpu")
Shapes = dict[str, tuple[int, ...]]


def manifest_of(shapes: Shapes) -> WeightManifest:
    return WeightManifest.of(shapes, dtype="bfloat16", transport="broadcast", version=1)


@pytest.mark.parametrize(("device", "nbytes"), [("cpu", 2**26), ("cuda", 2**29)])
def test_engines_learn_the_size_of_buckets_from_the_sender(device: str, nbytes: int) -> None:
    sender = BucketSender(
        shapes={"w": (4,)}, dtype="float32", rank=0, ranks=1, device=torch.device(device), timeout_s=5.0
    )
    sender.push(1)
    assert sender.offer(1, with_base=True, receivers=HERE).bucket_bytes == nbytes
    sender.close()


def test_buckets_hold_whole_tensors_in_order() -> None:
    shapes: Shapes = {f"w{number}": (size,) for number, size in enumerate((100, 3000, 10, 10, 1000, 1, 5000))}
    buckets = split_push(manifest_of(shapes), senders=2, most_bytes=4096)
    assert [bucket.manifest.names for bucket in buckets] == [
        ("w0",),
        ("w1",),  # larger than a bucket may be
        ("w2", "w3", "w4", "w5"),
        ("w6",),
    ]
    assert [(bucket.number, bucket.sender) for bucket in buckets] == [(0, 0), (1, 1), (2, 0), (3, 1)]
    assert all(bucket.manifest.offsets[0] == 0 for bucket in buckets)
    assert sum(bucket.manifest.nbytes - 64 for bucket in buckets) == manifest_of(shapes).nbytes - 64


def sealed(gathered: list[Weights], *, rank: int, senders: int) -> dict[int, tuple[Bucket, torch.Tensor]]:
    buckets = split_push(manifest_of(SHAPES), senders=senders, most_bytes=64)
    packing = pack_buckets(buckets, gathered, rank=rank, buffers=Buffers(CPU))
    return {bucket.number: (bucket, buffer[: bucket.manifest.nbytes]) for bucket, buffer in packing}


def test_ranks_pack_all_buckets_in_any_gathering_order() -> None:
    given = weights(seed=0)
    names = list(given)
    gathered = [{names[2]: given[names[2]]}, {names[0]: given[names[0]], names[1]: given[names[1]]}]
    both = sealed(gathered, rank=0, senders=2) | sealed(gathered, rank=1, senders=2)
    assert sorted(both) == [0, 1, 2]
    assert same(
        {name: tensor for bucket, segment in both.values() for name, tensor in open_bucket(segment, bucket)}, given
    )


def test_what_was_not_gathered_or_is_not_known_is_named() -> None:
    given = weights(seed=0)
    with pytest.raises(ValueError, match=r"bucket 1 were not gathered, such as b.bias"):
        sealed([{name: given[name] for name in ("a.weight", "c")}], rank=0, senders=1)
    with pytest.raises(ValueError, match="other is not among"):
        sealed([given, {"other": given["c"]}], rank=0, senders=1)
    with pytest.raises(ValueError, match=r"c has shape \(2,\), not \(\)"):
        sealed([given | {"c": torch.zeros(2)}], rank=0, senders=1)


def test_damaged_and_misplaced_buckets_are_refused() -> None:
    first, second, _ = sealed([weights(seed=0)], rank=0, senders=1).values()
    with pytest.raises(ValueError, match="push again"):
        open_bucket(first[1], replace(first[0], number=1))
    with pytest.raises(ValueError, match="push again"):
        open_bucket(second[1], replace(second[0], manifest=replace(second[0].manifest, version=2)))
    second[1][3] ^= 1
    with pytest.raises(ValueError, match="push again"):
        open_bucket(second[1], second[0])


def arriving(
    sent: dict[int, tuple[Bucket, torch.Tensor]], did: list[str]
) -> Callable[[Bucket, torch.Tensor], Callable[[], None]]:
    def begin(bucket: Bucket, memory: torch.Tensor) -> Callable[[], None]:
        did.append(f"begin {bucket.number}")
        memory.copy_(sent[bucket.number][1])
        return lambda: did.append(f"wait {bucket.number}")

    return begin


def test_receiving_overlaps_loading_until_a_damaged_bucket() -> None:
    sent = sealed([weights(seed=0)], rank=0, senders=1)
    sent[1][1][3] ^= 1
    did: list[str] = []
    begin = arriving(sent, did)

    def load(named: Named) -> None:
        did.extend(f"load {name}" for name, _ in named)

    with pytest.raises(ValueError, match="push again"):
        load_buckets([bucket for bucket, _ in sent.values()], begin, load, device=CPU)
    assert did == ["begin 0", "begin 1", "wait 0", "load a.weight", "begin 2", "wait 1", "wait 2"]


def test_the_rest_is_received_after_a_refused_bucket() -> None:
    sent, did = sealed([weights(seed=0)], rank=0, senders=1), list[str]()

    def load(named: Named) -> None:
        raise KeyError(named[0][0])

    with pytest.raises(KeyError, match="a.weight"):
        load_buckets([bucket for bucket, _ in sent.values()], arriving(sent, did), load, device=CPU)
    assert did == ["begin 0", "begin 1", "wait 0", "begin 2", "wait 1", "wait 2"]


class Engine:
    """An engine that keeps its loaded weights. Its first `damaged` pushes are damaged on the way."""

    def __init__(self, *, damaged: int = 0, name: str = "engine") -> None:
        self.name = name
        self.receiver = BucketReceiver()
        self.weights: Weights = {}
        self.damaged = damaged

    async def load_weights(self, manifest: WeightManifest, offer: Offered, number: int) -> WeightVersion:
        bucket_group = await offer
        assert isinstance(bucket_group, BucketGroup)
        taken = replace(manifest, version=manifest.version + (self.damaged > 0))  # other footers than it expects
        self.damaged -= 1
        await asyncio.to_thread(self.receiver.receive, taken, bucket_group, self.load, member=1 + number, device=CPU)
        return manifest.weight_version

    def load(self, named: Named) -> None:
        self.weights |= {name: tensor.clone() for name, tensor in named}


def test_at_most_eight_ranks_send_spread_over_all() -> None:
    many = BucketSender(
        shapes={f"w{number}": (64,) for number in range(100)},
        dtype="bfloat16",
        rank=0,
        ranks=64,
        device=CPU,
        timeout_s=30.0,
        bucket_bytes=64,
    )
    many.push(1)
    assert many.offer(1, with_base=True, receivers=HERE).senders == 8
    many.close()
    numbers = [sender_number(rank, ranks=64, senders=8) for rank in range(64)]
    assert [(rank, number) for rank, number in enumerate(numbers) if number is not None] == [
        (8 * number, number) for number in range(8)
    ]
    assert [sender_number(rank, ranks=3, senders=2) for rank in range(3)] == [0, 1, None]


def test_each_bucket_of_experts_is_sent_by_a_rank_that_has_them() -> None:
    """16 ranks in groups of 4, of which each rank has 2 of 8 experts in two layers."""
    owners, ranks = ExpertOwners(ranks=4, experts_per_rank=2), 16
    shapes: Shapes = {}
    for at in range(2):
        shapes |= {f"l{at}.gate": (64,)} | {f"l{at}.experts.{n}.up": (16,) for n in range(8)}
    manifest = manifest_of(shapes)
    sender = BucketSender(
        shapes=shapes,
        dtype="bfloat16",
        rank=0,
        ranks=ranks,
        device=CPU,
        timeout_s=30.0,
        bucket_bytes=128,
        owners=owners,
    )
    sender.push(1)
    bucket_group = sender.offer(1, with_base=True, receivers=HERE)
    assert bucket_group.senders == 8
    ranks_of = {sender_number(rank, ranks=ranks, senders=8, group_size=4): rank for rank in range(ranks)}
    assert sorted(number for number in ranks_of if number is not None) == list(range(8))
    buckets = bucket_group.buckets(manifest)
    assert [name for bucket in buckets for name in bucket.manifest.names] == list(manifest.names)
    for bucket in buckets:
        assert {owners.find_owner(name) for name in bucket.manifest.names} <= {None, ranks_of[bucket.sender] % 4}
    assert len({bucket.sender for bucket in buckets}) > 4  # of more than one group
    sender.close()


class SlowEngineBuckets(BucketGroup):
    """The buckets' group of an engine that joins each sender late."""

    def group(self, store: Any, *, sender: int, member: int) -> ProcessGroup:
        sleep(0.7)
        return super().group(store, sender=sender, member=member)


def test_a_sender_waits_for_engines_at_other_senders() -> None:
    first, store = open_store(GroupMember(host=LOOPBACK, port=0, rank=0, size=2, timeout_s=1.0))
    bucket_group = BucketGroup(rendezvous=first, senders=3, bucket_bytes=64)
    manifest, wanted, engine = manifest_of(SHAPES), weights(seed=0), BucketReceiver()
    got: Weights = {}
    groups: list[ProcessGroup] = []  # kept: the engine may still be reading after the sender

    def receive() -> None:
        slow = SlowEngineBuckets(rendezvous=first, senders=3, bucket_bytes=64)
        engine.receive(manifest, slow, lambda named: got.update(named), member=1, device=CPU)

    def send(number: int) -> None:
        group = bucket_group.join(store if number == 0 else connect_store(first), sender=number, member=0, device=CPU)
        groups.append(group)
        send_buckets(group, bucket_group.buckets(manifest), [wanted], rank=number, buffers=Buffers(CPU))

    with ThreadPoolExecutor(4) as ends:
        for end in [ends.submit(receive), *(ends.submit(send, number) for number in range(3))]:
            end.result(timeout=60)
    assert same(got, wanted)


def test_missing_engines_end_the_wait_of_all_senders() -> None:
    first, store = open_store(GroupMember(host=LOOPBACK, port=0, rank=0, size=2, timeout_s=1.0))
    bucket_group = BucketGroup(rendezvous=first, senders=3, bucket_bytes=64)
    stores = [store, connect_store(first), connect_store(first)]
    with ThreadPoolExecutor(3) as ends:
        for end in [ends.submit(bucket_group.join, stores[n], sender=n, member=0, device=CPU) for n in range(3)]:
            assert isinstance(end.exception(timeout=60), RuntimeError)


@pytest.fixture
def sender() -> Iterator[BucketSender]:
    made = BucketSender(shapes=SHAPES, dtype="bfloat16", rank=0, ranks=1, device=CPU, timeout_s=30.0)
    yield made
    made.close()


def delivery(sender: BucketSender, *, version: int) -> tuple[Delivery, WeightManifest, Weights]:
    wanted = nudged(weights(seed=0), count=version)
    plain = PlainSender(sender, lambda number: sender.send(number, [nudged(weights(seed=0), count=number)]))
    return Delivery(plain, processes=1), sender.push(version), wanted


@in_loop
async def test_consecutive_pushes_reuse_the_groups(sender: BucketSender) -> None:
    engines = [Engine(), Engine()]
    bucket_group, _, _ = delivery(sender, version=1)
    for version in (1, 2, 3):
        _, manifest, wanted = delivery(sender, version=version)
        assert await bucket_group.deliver_push(manifest, engines, limit_s=60.0) == [WeightVersion(step=version)] * 2
        assert all(same(engine.weights, wanted) for engine in engines)


@in_loop
async def test_only_the_engine_with_a_damaged_push_gets_it_again(sender: BucketSender) -> None:
    engines = [Engine(), Engine(damaged=1)]
    bucket_group, manifest, wanted = delivery(sender, version=1)
    assert await bucket_group.deliver_push(manifest, engines, limit_s=60.0) == [WeightVersion(step=1)] * 2
    assert all(same(engine.weights, wanted) for engine in engines)
    fails = [engines[0], Engine(damaged=2)]
    taken, death = await bucket_group.deliver_push(manifest, fails, limit_s=60.0)
    assert taken == WeightVersion(step=1)
    assert isinstance(death, WorkerDied)
    assert "push again" in str(death)


class HangingEngine(Engine):
    """An engine that never joins."""

    async def load_weights(self, manifest: WeightManifest, offer: Offered, number: int) -> WeightVersion:
        return await asyncio.Future()


@in_loop
async def test_a_missing_engine_is_named_and_delays_others_briefly(
    sender: BucketSender, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("temper.rollout.weights.process_group.ALONE_S", 2.0)
    monkeypatch.setattr("temper.rollout.weights.delivery.ALONE_S", 2.0)
    monkeypatch.setattr("temper.rollout.weights.delivery.AFTER_SENDER_S", 2.0)
    monkeypatch.setattr("temper.rollout.weights.delivery.NAMED_AFTER_S", 2.5)
    good = Engine(name="good")
    bucket_group, manifest, wanted = delivery(sender, version=1)
    engines = [good, HangingEngine(name="hanging")]
    began = monotonic()
    taken, death = await bucket_group.deliver_push(manifest, engines, limit_s=100.0)
    assert monotonic() - began < 20
    assert taken == WeightVersion(step=1)
    assert isinstance(death, WorkerDied)
    assert same(good.weights, wanted)
    assert "weight version 1 waits for hanging" in caplog.text


def test_engines_do_not_wait_for_an_aborted_push(sender: BucketSender) -> None:
    manifest, engine, failed = sender.push(1), BucketReceiver(), list[Exception]()
    bucket_group = sender.offer(1, with_base=True, receivers=HERE)

    def receive() -> None:
        try:
            engine.receive(manifest, bucket_group, print, member=1, device=CPU)
        except RuntimeError as error:
            failed.append(error)

    thread = threading.Thread(target=receive)
    thread.start()
    sleep(1.0)  # it waits for the sender by then
    sender.forget()
    with pytest.raises(NoLongerHeld):
        sender.send(1, [])
    with pytest.raises(NoLongerHeld, match="version 1"):
        sender.offer(1, with_base=True, receivers=HERE)
    thread.join(10)
    assert failed


def test_a_late_push_keeps_the_next_offer(sender: BucketSender) -> None:
    sender.push(1)
    sender.forget()
    sender.push(2)
    bucket_group = sender.offer(2, with_base=True, receivers=HERE)
    with pytest.raises(NoLongerHeld, match="version 1"):
        sender.send(1, [])
    assert sender.offer(2, with_base=True, receivers=HERE) == bucket_group


def test_an_offer_without_a_push_is_refused() -> None:
    for transport in ("shared_memory", "broadcast"):
        pushes = WeightSender(LearnerConfig(transport=transport), rank=0, progress_counter=ProgressCounter())
        with pytest.raises(NoLongerHeld, match="version 4"):
            pushes.offer(4, with_base=True, receivers=HERE)


def test_the_group_timeout_is_below_the_push_deadline() -> None:
    member = GroupMember(host="127.0.0.1", port=0, rank=0, size=2, timeout_s=LearnerConfig().collective_timeout_s)
    for nbytes in (0, BUCKET_BYTES["cpu"], 10**10):
        assert member.limit(nbytes).total_seconds() < 0.5 * EngineConfig().push_timeout_s + nbytes / SLOWEST_PUSH
    assert replace(member, timeout_s=2.0).limit(BUCKET_BYTES["cpu"]).total_seconds() == 2.0


def test_whoever_joins_where_nobody_listens_gives_up_as_soon() -> None:
    first, _store = open_store(GroupMember(host=LOOPBACK, port=0, rank=0, size=2, timeout_s=600.0))
    assert connect_store(replace(first, rank=1)).timeout == timedelta(seconds=ALONE_S)
    began = monotonic()
    with pytest.raises(RuntimeError, match="timed out"):
        connect_store(replace(first, rank=1, port=free_port(), timeout_s=0.5))
    assert monotonic() - began < 20
