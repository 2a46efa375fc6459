"""The run resolves its transport from the cluster before it loads a model, or refuses it with a remedy."""

from dataclasses import replace

import pytest

from temper.orchestrator.cluster.transport_choice import ClusterFacts, choose_transport

ALONE = ClusterFacts(machines=1, gpus=0, colocated=False, memory=10**9, object_store=10**8)
TWO_MACHINES = replace(ALONE, machines=2)


def chosen(wanted: str, ground: ClusterFacts, *, nbytes: int = 10**6) -> str:
    return choose_transport(wanted, ground, nbytes=nbytes).transport


def test_auto_broadcasts_if_each_process_has_a_gpu_and_else_shares_memory() -> None:
    each = replace(TWO_MACHINES, gpus=16)
    assert chosen("auto", ALONE) == chosen("auto", TWO_MACHINES) == "shared_memory"
    assert chosen("auto", each) == "broadcast"
    assert chosen("auto", replace(each, gpus=8, colocated=True)) == "shared_memory"


def test_a_transport_is_used_if_it_reaches_the_engines() -> None:
    assert chosen("shared_memory", ALONE) == chosen("shared_memory", TWO_MACHINES) == "shared_memory"
    assert chosen("broadcast", replace(TWO_MACHINES, gpus=16)) == chosen("broadcast", ALONE) == "broadcast"
    assert chosen("cuda_ipc", replace(ALONE, gpus=1, colocated=True)) == "cuda_ipc"


@pytest.mark.parametrize(
    ("wanted", "ground", "nbytes", "message"),
    [
        ("broadcast", replace(ALONE, gpus=1, colocated=True), 1, "learner.transport=auto"),
        ("broadcast", replace(ALONE, colocated=True), 1, "learner.transport=auto"),
        ("cuda_ipc", ALONE, 1, "no GPUs .*learner.transport=auto"),
        ("cuda_ipc", replace(ALONE, gpus=2), 1, "2 GPUs .*learner.transport=auto"),
        ("cuda_ipc", replace(ALONE, gpus=8, colocated=True), 1, "8 GPUs .*learner.transport=auto"),
        ("auto", ALONE, 600_000_000, "1,200,000,000 bytes .* 1,000,000,000 .*learner.wire_dtype"),
        ("auto", TWO_MACHINES, 100_000_001, "100,000,001 bytes .* 100,000,000 .*--object-store-memory"),
    ],
)
def test_a_transport_that_does_not_reach_the_engines_or_has_no_room_is_an_error(
    wanted: str, ground: ClusterFacts, nbytes: int, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        chosen(wanted, ground, nbytes=nbytes)
