"""A weight push in a segment from end to end: transports and refusals."""

import multiprocessing
import os
import signal
from hashlib import blake2b

import numpy as np
import pytest
import torch
from support.pushes import ELSEWHERE, HERE, accepted, held, offered
from support.refusals import refuses

from temper.learner.config import LearnerConfig
from temper.learner.weight_sender import SegmentSender
from temper.rollout.weights.checksum import KEYS, PIECE_ROWS, checksum, device_checksum
from temper.rollout.weights.manifest import wire_dtype
from temper.rollout.weights.receiver import WeightReceiver
from temper.rollout.weights.transports import require_usable

CPU = torch.device("cpu")
SHAPES = {"a.weight": (40, 50), "b.bias": (7,), "c": ()}
Weights = dict[str, torch.Tensor]


@pytest.fixture
def receiver():
    receiver = WeightReceiver()
    yield receiver
    receiver.close()


def segment_sender() -> SegmentSender:
    return SegmentSender("shared_memory", shapes=SHAPES, dtype="bfloat16", device=CPU)


def weights(*, seed: int) -> Weights:
    draw = torch.Generator().manual_seed(seed)
    return {name: torch.randn(shape, generator=draw) for name, shape in SHAPES.items()}


def nudged(old: Weights, *, count: int) -> Weights:
    """The same weights with a few changed entries of the matrix."""
    new = {name: tensor.clone() for name, tensor in old.items()}
    new["a.weight"].view(-1)[:count] += 1.0
    return new


def same(found: Weights, expected: Weights) -> bool:
    return all(torch.equal(found[name].float(), tensor.bfloat16().float()) for name, tensor in expected.items())


@pytest.mark.parametrize("receivers", [HERE, ELSEWHERE])
def test_every_push_arrives_on_this_machine_and_on_others(receiver, receivers):
    sender = segment_sender()
    current = weights(seed=0)
    for version in (3, 4, 5, 6):
        arrived = accepted(receiver, sender, sender.push(version, gathered=[current]), receivers)
        assert arrived.manifest.version == version
        assert same(held(arrived), current)
        current = nudged(current, count=version)
    sender.close()


def test_a_killed_senders_shared_memory_is_freed():
    named = set(os.listdir("/dev/shm"))
    ours, theirs = multiprocessing.Pipe()
    child = os.fork()
    if not child:
        sender = segment_sender()
        theirs.send(offered(sender, sender.push(1, gathered=[weights(seed=0)])))
        signal.pause()
    path = ours.recv()
    assert os.path.exists(path)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    assert not os.path.exists(path)
    assert {name for name in os.listdir("/dev/shm") if name.startswith("temper")} <= named


@pytest.mark.parametrize("receivers", [HERE, ELSEWHERE])
def test_weights_that_were_damaged_on_the_way_are_refused(receiver, receivers):
    sender = segment_sender()
    manifest = sender.push(1, gathered=[weights(seed=0)])
    sender._own.last.data[100] ^= 1
    with pytest.raises(ValueError, match="checksum"):
        accepted(receiver, sender, manifest, receivers)
    with pytest.raises(ValueError, match="10 bytes arrived"):
        receiver.receive(manifest, np.array(offered(sender, manifest, ELSEWHERE))[:10])


@pytest.mark.parametrize(
    "computed", [checksum, lambda data: device_checksum(torch.from_numpy(data))], ids=["host", "gpu"]
)
def test_a_checksum_tells_every_changed_byte_and_swapped_words(computed):
    data = np.random.default_rng(0).integers(0, 256, 2 * 4096 + 8 + 3, dtype=np.uint8)
    right = computed(data)
    for place in (0, 7, 4095, 4096, 8191, 8192, 8199, 8200, len(data) - 1):
        for bit in (0, 7):
            changed = data.copy()
            changed[place] ^= 1 << bit
            assert computed(changed) != right
    words = data[:8192].view(np.uint64)
    words[[3, 4]] = words[[4, 3]]
    assert computed(data) != right
    assert computed(np.zeros(16, dtype=np.uint8)) != computed(np.zeros(24, dtype=np.uint8))


@pytest.mark.parametrize("size", [5, 8, 4096, 3 * 4096 + 8 + 3, 4096 * (PIECE_ROWS + 1)])
def test_the_checksum_of_a_gpu_is_that_of_its_formula(size):
    data = np.random.default_rng(0).integers(0, 256, size, dtype=np.uint8)
    rows = data[: size // 4096 * 4096].view(np.uint64).reshape(-1, 512)
    sums = (rows * KEYS).sum(axis=1, dtype=np.uint64)  # modulo 2**64, as unsigned words are
    rest = data[size // 4096 * 4096 :]
    assert (
        device_checksum(torch.from_numpy(data)) == blake2b(sums.tobytes() + rest.tobytes(), digest_size=16).hexdigest()
    )


@pytest.mark.parametrize("backwards", [False, True])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_large_and_turned_tensors_are_pushed_in_any_order(receiver, dtype, backwards):
    draw = torch.Generator().manual_seed(0)
    shapes = {"small": (3,), "large": (1000, 1201), "turned": (700, 600), "last": (5, 7)}
    given = {name: torch.randn(shape, generator=draw) for name, shape in shapes.items()}
    given["turned"] = torch.randn((600, 700), generator=draw).T
    sender = SegmentSender("shared_memory", shapes=shapes, dtype=dtype, device=CPU)
    order = list(given.items())[:: -1 if backwards else 1]
    found = held(accepted(receiver, sender, sender.push(1, gathered=[dict(order[:2]), dict(order[2:])])))
    assert all(torch.equal(found[name].float(), tensor.to(wire_dtype(dtype)).float()) for name, tensor in given.items())
    sender.close()


def test_an_unknown_transport_is_an_error():
    with refuses("learner.transport"):
        LearnerConfig(transport="nccl")


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_the_transport_of_gpu_memory_needs_a_gpu():
    with refuses("learner.transport=cuda_ipc"):
        require_usable("cuda_ipc")
