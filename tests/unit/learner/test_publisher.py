"""The learner's end of a weight push: what is written, and what is refused."""

import json
import os
import resource

import pytest
import torch
from support.pushes import accepted, held, offered, received

from temper.learner.publisher import WeightPublisher
from temper.rollout.weights.host_memory import HostMemory
from temper.rollout.weights.manifest import WeightManifest
from temper.rollout.weights.receiver import WeightReceiver
from temper.rollout.weights.transports.shared_memory import SharedMemory

WEIGHTS = {"a.weight": torch.arange(6.0).reshape(2, 3), "b.bias": torch.tensor([0.5]), "c": torch.tensor(-2.0)}
SHAPES = {name: tuple(tensor.shape) for name, tensor in WEIGHTS.items()}


def publisher(*, dtype="float32"):
    return WeightPublisher(SharedMemory(), shapes=SHAPES, dtype=dtype)


def buckets(scale: float):
    names = list(WEIGHTS)
    for part in (names[:2], names[2:]):
        yield {name: WEIGHTS[name] * scale for name in part}


def test_what_was_pushed_is_read_back_through_a_json_manifest():
    sender = publisher()
    manifest = sender.push(7, gathered=buckets(2.0))
    arrived = WeightManifest.from_json(json.loads(json.dumps(manifest.to_json())))
    assert arrived == manifest
    assert arrived.weight_version.step == 7
    for (name, tensor), (expected_name, expected) in zip(
        received(sender, arrived).items(), WEIGHTS.items(), strict=True
    ):
        assert name == expected_name
        assert torch.equal(tensor, expected * 2.0)


def test_weights_can_travel_in_bfloat16():
    sender = publisher(dtype="bfloat16")
    found = received(sender, sender.push(1, gathered=buckets(1.0)))["a.weight"]
    assert found.dtype == torch.bfloat16
    assert torch.equal(found.float(), WEIGHTS["a.weight"])


def test_one_push_leaves_the_segment_of_the_one_before_alone():
    sender = publisher()
    receiver = WeightReceiver()
    first = accepted(receiver, sender, sender.push(1, gathered=buckets(1.0)))
    second = accepted(receiver, sender, sender.push(2, gathered=buckets(2.0)))
    assert torch.equal(held(first)["a.weight"], WEIGHTS["a.weight"])
    third = accepted(receiver, sender, sender.push(3, gathered=buckets(3.0)))
    assert third.path == first.path != second.path
    with pytest.raises(ValueError, match="was overwritten, it does not hold version 1; push again"):
        held(first)
    with pytest.raises(ValueError, match="has checksum .* push again"):
        receiver.accept(first.manifest, first.path, number=0)
    with pytest.raises(ValueError, match="version 2 are no longer held; publish again"):
        offered(sender, second.manifest)


def test_a_damaged_or_missing_segment_is_refused():
    sender = publisher()
    manifest = sender.push(1, gathered=buckets(1.0))
    path, receiver = str(offered(sender, manifest)), WeightReceiver()
    with open(path, "r+b") as file:
        file.write(b"\x01")
    with pytest.raises(ValueError, match="checksum"):
        receiver.accept(manifest, path, number=0)
    os.truncate(path, 10)
    with pytest.raises(ValueError, match="has 10 bytes, the push needs"):
        receiver.accept(manifest, path, number=0)
    sender.close()
    assert not os.path.exists(path)
    with pytest.raises(ValueError, match="is gone"):
        receiver.accept(manifest, path, number=0)


def test_a_push_that_misses_a_weight_is_an_error():
    sender = publisher()
    with pytest.raises(ValueError, match="1 weights were not sent, such as c"):
        sender.push(1, gathered=[{name: WEIGHTS[name] for name in ("a.weight", "b.bias")}])
    with pytest.raises(ValueError, match=r"b.bias has shape \(2,\)"):
        sender.push(1, gathered=[{"b.bias": torch.zeros(2)}])


def test_more_than_the_machine_has_is_refused_before_any_of_it_is_taken():
    held, (soft, hard) = os.listdir("/proc/self/fd"), resource.getrlimit(resource.RLIMIT_FSIZE)
    # should it be taken after all, this stops it before the machine is full
    resource.setrlimit(resource.RLIMIT_FSIZE, (2**20, hard))
    try:
        with pytest.raises(OSError, match=r"no room for \d+ bytes of weights: \d+ bytes of memory are available"):
            HostMemory(2**62)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert os.listdir("/proc/self/fd") == held
