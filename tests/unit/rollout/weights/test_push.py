"""A weight push from end to end: what carries the bytes, deltas, and who refuses what."""

import multiprocessing
import os
import signal
from hashlib import blake2b

import numpy as np
import pytest
import torch
from support.pushes import HERE, accepted, held, offered

from temper.learner.config import LearnerConfig
from temper.learner.publisher import WeightPublisher
from temper.rollout.weights.checksum import KEYS, PIECE_ROWS, checksum, device_checksum
from temper.rollout.weights.delta import BLOCK, apply_changes, changes
from temper.rollout.weights.manifest import WholeWeightsNeeded, wire_dtype
from temper.rollout.weights.receiver import WeightReceiver
from temper.rollout.weights.segment import map_segment, require_footer
from temper.rollout.weights.transports.catalog import open_transport
from temper.rollout.weights.transports.cuda_ipc import CudaIpc

SHAPES = {"a.weight": (40, 50), "b.bias": (7,), "c": ()}
BY_HAND = ("shared_memory", "ray")
Weights = dict[str, torch.Tensor]


@pytest.fixture
def receiver():
    receiver = WeightReceiver()
    yield receiver
    receiver.close()


def publisher(transport: str, *, sparse: bool, dtype: str = "bfloat16") -> WeightPublisher:
    return WeightPublisher(open_transport(transport), shapes=SHAPES, dtype=dtype, sparse=sparse)


def weights(*, seed: int) -> Weights:
    draw = torch.Generator().manual_seed(seed)
    return {name: torch.randn(shape, generator=draw) for name, shape in SHAPES.items()}


def nudged(old: Weights, *, count: int) -> Weights:
    """The same weights with a few entries of the matrix moved."""
    new = {name: tensor.clone() for name, tensor in old.items()}
    new["a.weight"].view(-1)[:count] += 1.0
    return new


def same(found: Weights, expected: Weights) -> bool:
    return all(torch.equal(found[name].float(), tensor.bfloat16().float()) for name, tensor in expected.items())


@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("transport", BY_HAND)
def test_every_push_arrives_whatever_carries_it(receiver, transport, sparse):
    sender = publisher(transport, sparse=sparse)
    current = weights(seed=0)
    for version in (3, 4, 5, 6):
        manifest = sender.push(version, gathered=[current])
        assert (manifest.delta is not None) == (sparse and version > 3)
        arrived = accepted(receiver, sender, manifest)
        assert arrived.manifest.version == version
        assert same(held(arrived), current)
        current = nudged(current, count=version)
    sender.close()


def test_the_shared_memory_of_a_sender_that_is_killed_is_gone_with_it():
    named = set(os.listdir("/dev/shm"))
    ours, theirs = multiprocessing.Pipe()
    child = os.fork()
    if not child:
        sender = publisher("shared_memory", sparse=False)
        theirs.send(offered(sender, sender.push(1, gathered=[weights(seed=0)])))
        signal.pause()
    path = ours.recv()
    assert os.path.exists(path)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    assert not os.path.exists(path)
    assert {name for name in os.listdir("/dev/shm") if name.startswith("temper")} <= named


def test_a_delta_is_small_and_ends_in_the_checksum_of_a_whole_push():
    sparse, full = (publisher("ray", sparse=on) for on in (True, False))
    current = weights(seed=0)
    sparse.push(1, gathered=[current])
    current = nudged(current, count=10)
    delta, whole = (sender.push(2, gathered=[current]) for sender in (sparse, full))
    assert delta.checksum == whole.checksum
    assert delta.sent_bytes == 4 + 10 * (2 + 2)  # a count for the only block, then a place and a value for each
    assert whole.sent_bytes == whole.nbytes > 4000


def test_a_receiver_without_the_base_refuses_a_delta_and_takes_the_whole_weights(receiver):
    sender = publisher("ray", sparse=True)
    first = sender.push(1, gathered=[weights(seed=0)])
    changed = nudged(weights(seed=0), count=5)
    second = sender.push(2, gathered=[changed])
    with pytest.raises(WholeWeightsNeeded, match="changes to version 1 .* holds none; send it the whole weights"):
        accepted(receiver, sender, second)
    assert same(held(accepted(receiver, sender, second.whole())), changed)
    with pytest.raises(WholeWeightsNeeded, match="holds version 2"):
        accepted(receiver, sender, second)
    again = nudged(changed, count=1)
    assert same(held(accepted(receiver, sender, sender.push(3, gathered=[again]))), again)
    assert first.checksum != second.checksum


def test_damaged_changes_are_refused_before_they_touch_the_base(receiver):
    sender = publisher("ray", sparse=True)
    accepted(receiver, sender, sender.push(1, gathered=[weights(seed=0)]))
    changed = nudged(weights(seed=0), count=5)
    manifest = sender.push(2, gathered=[changed])
    damaged = np.array(offered(sender, manifest))
    damaged[4] ^= 1
    with pytest.raises(ValueError, match="the changes have checksum"):
        receiver.accept(manifest, damaged, number=0)
    assert same(held(accepted(receiver, sender, manifest)), changed)


def test_a_base_that_was_damaged_is_noticed_and_mended_by_the_whole_weights(receiver):
    sender = publisher("ray", sparse=True)
    base = accepted(receiver, sender, sender.push(1, gathered=[weights(seed=0)]))
    map_segment(base.path, nbytes=base.manifest.nbytes)[2000] ^= 1
    changed = nudged(weights(seed=0), count=5)
    manifest = sender.push(2, gathered=[changed])
    with pytest.raises(ValueError, match="has checksum .* version 2 was sent with"):
        accepted(receiver, sender, manifest)
    with pytest.raises(WholeWeightsNeeded):
        accepted(receiver, sender, manifest)
    assert same(held(accepted(receiver, sender, manifest.whole())), changed)


def test_a_delta_that_would_be_larger_than_the_weights_is_not_made(receiver):
    sender = publisher("ray", sparse=True)
    accepted(receiver, sender, sender.push(1, gathered=[weights(seed=0)]))
    other = sender.push(2, gathered=[weights(seed=1)])
    assert other.delta is None
    assert other.sent_bytes == other.nbytes
    assert same(held(accepted(receiver, sender, other)), weights(seed=1))


def test_what_was_half_written_is_no_base():
    sender = publisher("ray", sparse=True)
    sender.push(1, gathered=[weights(seed=0)])
    with pytest.raises(ValueError, match="weights were not sent"):
        sender.push(2, gathered=[{"c": torch.tensor(0.0)}])
    with pytest.raises(ValueError, match="version 1 are no longer held; publish again"):
        sender.offer(1, whole=True, audience=HERE)
    assert sender.push(3, gathered=[weights(seed=0)]).delta is None


@pytest.mark.parametrize("transport", BY_HAND)
def test_whole_weights_that_were_damaged_on_the_way_are_refused(receiver, transport):
    sender = publisher(transport, sparse=True)
    manifest = sender.push(1, gathered=[weights(seed=0)])
    sender.transport.room("0", nbytes=manifest.nbytes)[100] ^= 1
    with pytest.raises(ValueError, match="has checksum .* push again"):
        accepted(receiver, sender, manifest)
    if transport == "ray":
        with pytest.raises(ValueError, match="10 bytes arrived, version 1 needs"):
            receiver.accept(manifest, np.array(offered(sender, manifest))[:10], number=0)


def test_the_engine_notices_that_its_segment_was_overwritten_after_it_was_verified(receiver):
    sender = publisher("shared_memory", sparse=False)
    taken = accepted(receiver, sender, sender.push(1, gathered=[weights(seed=0)]))
    segment = taken.map()
    sender.push(2, gathered=[weights(seed=1)])
    require_footer(segment, taken.manifest)
    sender.push(3, gathered=[weights(seed=2)])
    with pytest.raises(ValueError, match="was overwritten, it does not hold version 1; push again"):
        require_footer(segment, taken.manifest)


@pytest.mark.parametrize("kind", [np.uint16, np.uint32])
@pytest.mark.parametrize("share", [0.0, 0.01, 0.5, 1.0])
@pytest.mark.parametrize("size", [1, 100, 4 * 1000 + 1, 2 * BLOCK, 2 * BLOCK + 12345])
def test_changes_turn_the_old_entries_into_the_new(kind, share, size):
    draw = np.random.default_rng(0)
    old = draw.integers(0, 2**16, size, dtype=kind)
    new = np.where(draw.random(size) < share, draw.integers(0, 2**16, size, dtype=kind), old)
    delta = changes(old.view(np.uint8), new.view(np.uint8), itemsize=kind().itemsize)
    count = int((old != new).sum())
    assert delta.nbytes <= 4 * (size // BLOCK + 1) + count * kind().itemsize + min(2 * count, size // 8 + 1 + 2 * 4096)
    target = old.copy()
    apply_changes(target.view(np.uint8), delta, itemsize=kind().itemsize)
    assert np.array_equal(target, new)


def test_a_change_of_sign_or_of_one_nan_into_another_is_a_change():
    old = torch.tensor([0.0, torch.nan, 1.0]).numpy()
    new = torch.tensor([-0.0, torch.nan, 1.0]).numpy()
    target = old.copy()
    apply_changes(target.view(np.uint8), changes(old.view(np.uint8), new.view(np.uint8), itemsize=4), itemsize=4)
    assert target.tobytes() == new.tobytes() != old.tobytes()


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
    sender = WeightPublisher(open_transport("shared_memory"), shapes=shapes, dtype=dtype)
    order = list(given.items())[:: -1 if backwards else 1]
    found = held(accepted(receiver, sender, sender.push(1, gathered=[dict(order[:2]), dict(order[2:])])))
    assert all(torch.equal(found[name].float(), tensor.to(wire_dtype(dtype)).float()) for name, tensor in given.items())
    sender.close()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            {"transport": "nccl"},
            "learner.transport='nccl': choose one of auto, shared_memory, ray, broadcast, cuda_ipc",
        ),
        (
            {"transport": "broadcast", "sparse_push": True},
            "changes are found in main memory; set learner.transport to shared",
        ),
    ],
)
def test_a_transport_that_can_not_be_is_an_error(settings, message):
    with pytest.raises(ValueError, match=message):
        LearnerConfig(**settings)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_the_transport_of_gpu_memory_is_refused_where_there_is_no_gpu():
    with pytest.raises(ValueError, match="cuda_ipc: the learner has no GPU; set learner.transport=auto"):
        CudaIpc.require()
