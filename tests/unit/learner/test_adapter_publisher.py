"""Pushes of adapters: what travels, what an engine makes of it, and what is refused."""

import json
from collections.abc import Iterator

import numpy as np
import pytest
import torch
from support.pushes import accepted, held, offered, received

from temper.learner.adapter_publisher import AdapterPublisher
from temper.rollout.weights.adapted import AdaptedReceiver, WithBase
from temper.rollout.weights.manifest import WeightManifest, WholeWeightsNeeded
from temper.rollout.weights.transports.catalog import open_transport

Shapes = dict[str, tuple[int, ...]]
BASE: Shapes = {"a.weight": (40, 50), "a.bias": (40,), "b.weight": (8, 40), "norm": (8,)}
ADAPTERS: Shapes = {
    "a.weight.lora_A": (2, 50),
    "a.weight.lora_B": (40, 2),
    "b.weight.lora_A": (2, 40),
    "b.weight.lora_B": (8, 2),
}
SCALE = 1.5
BY_HAND = ("shared_memory", "ray")
Tensors = dict[str, torch.Tensor]


def drawn(shapes: Shapes, *, seed: int, dtype: torch.dtype = torch.float32) -> Tensors:
    draw = torch.Generator().manual_seed(seed)
    return {name: torch.randn(shape, generator=draw).to(dtype) for name, shape in shapes.items()}


def publisher(transport: str, *, dtype: str = "float32") -> AdapterPublisher:
    return AdapterPublisher(open_transport(transport), base_shapes=BASE, shapes=ADAPTERS, dtype=dtype, scale=SCALE)


def sums(base: Tensors, adapters: Tensors) -> dict[str, np.ndarray]:
    """What an engine should hold, in float64."""
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
def receiver() -> Iterator[AdaptedReceiver]:
    receiver = AdaptedReceiver()
    yield receiver
    receiver.close()


@pytest.mark.parametrize(("dtype", "digits"), [("float32", 1e-6), ("bfloat16", 2**-7)])
@pytest.mark.parametrize("transport", BY_HAND)
def test_the_first_push_brings_the_weights_and_those_after_it_the_adapters_alone(
    receiver: AdaptedReceiver, transport: str, dtype: str, digits: float
) -> None:
    sender, wire = publisher(transport, dtype=dtype), getattr(torch, dtype)
    base = drawn(BASE, seed=0, dtype=wire)
    for version in (3, 4, 5, 6):
        adapters = drawn(ADAPTERS, seed=version, dtype=wire)
        manifest = sender.push(version, gathered=[adapters], base=[base] if version == 3 else None)
        told = WeightManifest.from_json(json.loads(json.dumps(manifest.to_json())))
        assert told == manifest
        found = held(accepted(receiver, sender, told))
        assert all(tensor.dtype == wire for tensor in found.values())
        assert close_to(found, sums(base, adapters), digits=digits)
        assert all(torch.equal(found[name], base[name]) for name in ("a.bias", "norm"))
        least = sum(tensor.nbytes for tensor in adapters.values())
        if version == 3:
            assert manifest.sent_bytes == manifest.whole_bytes > least + sum(tensor.nbytes for tensor in base.values())
        else:
            assert least <= manifest.sent_bytes < least + 64 * (len(ADAPTERS) + 1)  # as each begins at a multiple of 64
    sender.close()


@pytest.mark.parametrize("transport", BY_HAND)
def test_an_engine_that_comes_later_gets_the_weights_too_and_those_that_serve_keep_theirs(
    receiver: AdaptedReceiver, transport: str
) -> None:
    sender, base = publisher(transport), drawn(BASE, seed=0)
    first, second = drawn(ADAPTERS, seed=1), drawn(ADAPTERS, seed=2)
    accepted(receiver, sender, sender.push(1, gathered=[first], base=[base]))
    manifest = sender.push(2, gathered=[second], base=None)
    newcomer = AdaptedReceiver()
    with pytest.raises(
        WholeWeightsNeeded, match=r"adapters to the weights of version 1 .* this engine holds none; send it"
    ):
        accepted(newcomer, sender, manifest)
    assert close_to(held(accepted(newcomer, sender, manifest.whole())), sums(base, second), digits=1e-6)
    assert close_to(held(accepted(receiver, sender, manifest)), sums(base, second), digits=1e-6)
    third = drawn(ADAPTERS, seed=3)
    manifest = sender.push(3, gathered=[third], base=None)
    for one in (newcomer, receiver):
        assert close_to(held(accepted(one, sender, manifest)), sums(base, third), digits=1e-6)
    newcomer.close()
    sender.close()


def test_adapters_to_other_weights_are_refused(receiver: AdaptedReceiver) -> None:
    """The learner that took over from one that died has the same weights elsewhere; those of the dead one are gone."""
    dead, base, adapters = publisher("shared_memory"), drawn(BASE, seed=0), drawn(ADAPTERS, seed=1)
    accepted(receiver, dead, dead.push(1, gathered=[adapters], base=[base]))
    dead.close()
    other = publisher("shared_memory")
    other.push(2, gathered=[adapters], base=[base])
    manifest = other.push(3, gathered=[adapters], base=None)
    with pytest.raises(WholeWeightsNeeded, match=r"the weights of version 2 .* holds those of version 1"):
        accepted(receiver, other, manifest)
    assert close_to(held(accepted(receiver, other, manifest.whole())), sums(base, adapters), digits=1e-6)
    other.close()


@pytest.mark.parametrize("part", ["base", "adapters"])
def test_damage_of_either_part_is_refused_before_anything_is_loaded(receiver: AdaptedReceiver, part: str) -> None:
    sender = publisher("shared_memory")
    manifest = sender.push(1, gathered=[drawn(ADAPTERS, seed=1)], base=[drawn(BASE, seed=0)])
    offer = offered(sender, manifest)
    assert isinstance(offer, WithBase)
    path = str(offer.base if part == "base" else offer.adapters)
    with open(path, "r+b") as file:
        file.write(b"\x01\x02\x03")
    with pytest.raises(ValueError, match="checksum"):
        receiver.accept(manifest, offer, number=0)
    sender.close()


def test_adapters_that_were_overwritten_while_they_were_read_are_noticed(receiver: AdaptedReceiver) -> None:
    sender = publisher("shared_memory")
    sender.push(1, gathered=[drawn(ADAPTERS, seed=1)], base=[drawn(BASE, seed=0)])
    first = accepted(receiver, sender, sender.push(2, gathered=[drawn(ADAPTERS, seed=2)], base=None).whole())
    for version in (3, 4):  # two segments take turns
        sender.push(version, gathered=[drawn(ADAPTERS, seed=version)], base=None)
    with pytest.raises(ValueError, match="was overwritten, it does not hold version 2; push again"):
        held(first)
    with pytest.raises(ValueError, match="version 2 are no longer held; publish again"):
        offered(sender, first.manifest)
    sender.close()


def test_what_is_missing_is_an_error_and_no_push() -> None:
    sender, adapters = publisher("shared_memory"), drawn(ADAPTERS, seed=1)
    with pytest.raises(ValueError, match="1 weights were not sent, such as norm"):
        sender.push(1, gathered=[adapters], base=[{name: torch.zeros(BASE[name]) for name in BASE if name != "norm"}])
    base = drawn(BASE, seed=0)
    manifest = sender.push(1, gathered=[adapters], base=[base])
    assert close_to(received(sender, manifest), sums(base, adapters), digits=1e-6)
    sender.close()
