"""The learner's side of a push in segments, of weights and of adapters."""

import json
import os
import re
import resource
from collections.abc import Iterator
from dataclasses import asdict

import numpy as np
import pytest
import torch
from support.pushes import ELSEWHERE, HERE, accepted, held, offered, received

from temper.learner.weight_sender import SegmentSender
from temper.rollout.weights.manifest import WeightManifest, WholeWeightsNeeded, from_plain
from temper.rollout.weights.receiver import WeightReceiver, WithBase
from temper.rollout.weights.transports import HostMemory, Receivers

CPU = torch.device("cpu")
WEIGHTS = {"a.weight": torch.arange(6.0).reshape(2, 3), "b.bias": torch.tensor([0.5]), "c": torch.tensor(-2.0)}
SHAPES = {name: tuple(tensor.shape) for name, tensor in WEIGHTS.items()}


def whole_sender(*, dtype="float32"):
    return SegmentSender("shared_memory", shapes=SHAPES, dtype=dtype, device=CPU)


def buckets(scale: float):
    names = list(WEIGHTS)
    for part in (names[:2], names[2:]):
        yield {name: WEIGHTS[name] * scale for name in part}


def test_one_push_leaves_the_segment_of_the_one_before_alone():
    sender = whole_sender()
    receiver = WeightReceiver()
    first = accepted(receiver, sender, sender.push(1, gathered=buckets(1.0)))
    second = accepted(receiver, sender, sender.push(2, gathered=buckets(2.0)))
    assert torch.equal(held(first)["a.weight"], WEIGHTS["a.weight"])
    third = accepted(receiver, sender, sender.push(3, gathered=buckets(3.0)))
    assert third.path == first.path != second.path
    with pytest.raises(ValueError, match="version 1"):
        held(first)
    with pytest.raises(ValueError, match="checksum"):
        receiver.receive(first.manifest, first.path)
    with pytest.raises(ValueError, match="version 2"):
        offered(sender, second.manifest)


def test_a_damaged_or_missing_segment_is_refused():
    sender = whole_sender()
    manifest = sender.push(1, gathered=buckets(1.0))
    path, receiver = str(offered(sender, manifest)), WeightReceiver()
    with open(path, "r+b") as file:
        file.write(b"\x01")
    with pytest.raises(ValueError, match="checksum"):
        receiver.receive(manifest, path)
    os.truncate(path, 10)
    with pytest.raises(ValueError, match="10 bytes"):
        receiver.receive(manifest, path)
    sender.close()
    assert not os.path.exists(path)
    with pytest.raises(ValueError, match=re.escape(path)):
        receiver.receive(manifest, path)


def test_a_push_that_misses_a_weight_is_an_error():
    sender = whole_sender()
    with pytest.raises(ValueError, match="1 weights .* c"):
        sender.push(1, gathered=[{name: WEIGHTS[name] for name in ("a.weight", "b.bias")}])
    with pytest.raises(ValueError, match=r"b.bias has shape \(2,\)"):
        sender.push(1, gathered=[{"b.bias": torch.zeros(2)}])


def test_too_much_memory_is_refused_before_it_is_taken():
    held, (soft, hard) = os.listdir("/proc/self/fd"), resource.getrlimit(resource.RLIMIT_FSIZE)
    # should it be taken after all, this stops it before the machine is full
    resource.setrlimit(resource.RLIMIT_FSIZE, (2**20, hard))
    try:
        with pytest.raises(OSError, match="bytes"):
            HostMemory(2**62)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert os.listdir("/proc/self/fd") == held


Shapes = dict[str, tuple[int, ...]]
BASE: Shapes = {"a.weight": (40, 50), "a.bias": (40,), "b.weight": (8, 40), "norm": (8,)}
ADAPTERS: Shapes = {
    "a.weight.lora_A": (2, 50),
    "a.weight.lora_B": (40, 2),
    "b.weight.lora_A": (2, 40),
    "b.weight.lora_B": (8, 2),
}
SCALE = 1.5
Tensors = dict[str, torch.Tensor]


def drawn(shapes: Shapes, *, seed: int, dtype: torch.dtype = torch.float32) -> Tensors:
    draw = torch.Generator().manual_seed(seed)
    return {name: torch.randn(shape, generator=draw).to(dtype) for name, shape in shapes.items()}


def adapter_sender(*, dtype: str = "float32") -> SegmentSender:
    return SegmentSender("shared_memory", shapes=ADAPTERS, dtype=dtype, device=CPU, base_shapes=BASE, scale=SCALE)


def sums(base: Tensors, adapters: Tensors) -> dict[str, np.ndarray]:
    """The weights that an engine should hold, in float64."""
    exact = {name: tensor.double().numpy() for name, tensor in (base | adapters).items()}
    return {
        name: exact[name] + SCALE * exact[f"{name}.lora_B"] @ exact[f"{name}.lora_A"]
        if f"{name}.lora_A" in exact
        else exact[name]
        for name in base
    }


def close_to(found: Tensors, expected: dict[str, np.ndarray], *, digits: float) -> bool:
    assert list(found) == list(expected)
    return all(np.allclose(found[name].double(), want, rtol=digits, atol=digits) for name, want in expected.items())


@pytest.fixture
def receiver() -> Iterator[WeightReceiver]:
    receiver = WeightReceiver()
    yield receiver
    receiver.close()


@pytest.mark.parametrize(("dtype", "digits"), [("float32", 1e-6), ("bfloat16", 2**-7)])
@pytest.mark.parametrize("receivers", [HERE, ELSEWHERE])
def test_pushes_after_the_first_bring_adapters_alone(
    receiver: WeightReceiver, receivers: Receivers, dtype: str, digits: float
) -> None:
    sender, wire = adapter_sender(dtype=dtype), getattr(torch, dtype)
    base = drawn(BASE, seed=0, dtype=wire)
    for version in (3, 4, 5, 6):
        adapters = drawn(ADAPTERS, seed=version, dtype=wire)
        manifest = sender.push(version, gathered=[adapters], base=[base] if version == 3 else None)
        told = from_plain(WeightManifest, json.loads(json.dumps(asdict(manifest))))
        assert told == manifest
        found = held(accepted(receiver, sender, told, receivers))
        assert all(tensor.dtype == wire for tensor in found.values())
        assert close_to(found, sums(base, adapters), digits=digits)
        assert all(torch.equal(found[name], base[name]) for name in ("a.bias", "norm"))
        least = sum(tensor.nbytes for tensor in adapters.values())
        if version == 3:
            assert (
                manifest.sent_bytes == manifest.bytes_with_base > least + sum(tensor.nbytes for tensor in base.values())
            )
        else:
            assert least <= manifest.sent_bytes < least + 64 * (len(ADAPTERS) + 1)  # as each begins at a multiple of 64
    sender.close()


@pytest.mark.parametrize("receivers", [HERE, ELSEWHERE])
def test_a_later_engine_gets_the_weights_too(receiver: WeightReceiver, receivers: Receivers) -> None:
    sender, base = adapter_sender(), drawn(BASE, seed=0)
    first, second = drawn(ADAPTERS, seed=1), drawn(ADAPTERS, seed=2)
    accepted(receiver, sender, sender.push(1, gathered=[first], base=[base]), receivers)
    manifest = sender.push(2, gathered=[second], base=None)
    new_worker = WeightReceiver()
    with pytest.raises(WholeWeightsNeeded, match=r"version 1 .* none"):
        accepted(new_worker, sender, manifest, receivers)
    assert close_to(
        held(accepted(new_worker, sender, manifest.with_base(), receivers)), sums(base, second), digits=1e-6
    )
    assert close_to(held(accepted(receiver, sender, manifest, receivers)), sums(base, second), digits=1e-6)
    third = drawn(ADAPTERS, seed=3)
    manifest = sender.push(3, gathered=[third], base=None)
    for one in (new_worker, receiver):
        assert close_to(held(accepted(one, sender, manifest, receivers)), sums(base, third), digits=1e-6)
    new_worker.close()
    sender.close()


def test_adapters_to_other_weights_are_refused(receiver: WeightReceiver) -> None:
    """A restarted learner has the same weights in another segment. The dead learner's segment is gone."""
    dead, base, adapters = adapter_sender(), drawn(BASE, seed=0), drawn(ADAPTERS, seed=1)
    accepted(receiver, dead, dead.push(1, gathered=[adapters], base=[base]))
    dead.close()
    other = adapter_sender()
    other.push(2, gathered=[adapters], base=[base])
    manifest = other.push(3, gathered=[adapters], base=None)
    with pytest.raises(WholeWeightsNeeded, match=r"version 2 .* version 1"):
        accepted(receiver, other, manifest)
    assert close_to(held(accepted(receiver, other, manifest.with_base())), sums(base, adapters), digits=1e-6)
    other.close()


@pytest.mark.parametrize("part", ["base", "adapters"])
def test_damage_of_either_part_is_refused(receiver: WeightReceiver, part: str) -> None:
    sender = adapter_sender()
    manifest = sender.push(1, gathered=[drawn(ADAPTERS, seed=1)], base=[drawn(BASE, seed=0)])
    offer = offered(sender, manifest)
    assert isinstance(offer, WithBase)
    path = str(offer.base if part == "base" else offer.adapters)
    with open(path, "r+b") as file:
        file.write(b"\x01\x02\x03")
    with pytest.raises(ValueError, match="checksum"):
        receiver.receive(manifest, offer)
    sender.close()


def test_overwritten_adapters_are_noticed(receiver: WeightReceiver) -> None:
    sender = adapter_sender()
    sender.push(1, gathered=[drawn(ADAPTERS, seed=1)], base=[drawn(BASE, seed=0)])
    first = accepted(receiver, sender, sender.push(2, gathered=[drawn(ADAPTERS, seed=2)], base=None).with_base())
    for version in (3, 4):  # two segments take turns
        sender.push(version, gathered=[drawn(ADAPTERS, seed=version)], base=None)
    with pytest.raises(ValueError, match="version 2"):
        held(first)
    with pytest.raises(ValueError, match="version 2"):
        offered(sender, first.manifest)
    sender.close()


def test_what_is_missing_is_an_error_and_no_push() -> None:
    sender, adapters = adapter_sender(), drawn(ADAPTERS, seed=1)
    with pytest.raises(ValueError, match="1 weights .* norm"):
        sender.push(1, gathered=[adapters], base=[{name: torch.zeros(BASE[name]) for name in BASE if name != "norm"}])
    base = drawn(BASE, seed=0)
    manifest = sender.push(1, gathered=[adapters], base=[base])
    assert close_to(received(sender, manifest), sums(base, adapters), digits=1e-6)
    sender.close()
