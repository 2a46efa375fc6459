"""What weights travel by is known before a model is loaded: chosen by the cluster, or refused with what would be right."""

from dataclasses import replace

import pytest

from temper.orchestrator.cluster.transport_choice import Ground, choose

ALONE = Ground(machines=1, gpus=0, shared=False, memory=10**9, object_store=10**8)
TWO_MACHINES = replace(ALONE, machines=2)


def chosen(wanted: str, ground: Ground, *, sparse: bool = False, nbytes: int = 10**6) -> str:
    return choose(wanted, ground, sparse=sparse, nbytes=nbytes).transport


def test_auto_takes_shared_memory_on_one_machine_and_ray_between_several_and_says_why() -> None:
    assert chosen("auto", ALONE) == "shared_memory"
    found = choose("auto", TWO_MACHINES, sparse=True, nbytes=10**6)
    assert (found.transport, found.why) == ("ray", "the cluster has 2 machines for learner and engines")


def test_auto_takes_a_broadcast_where_each_process_has_a_gpu_unless_changes_alone_shall_travel() -> None:
    each = replace(TWO_MACHINES, gpus=16)
    assert chosen("auto", each) == chosen("broadcast", each) == chosen("broadcast", ALONE) == "broadcast"
    assert chosen("auto", each, sparse=True) == chosen("auto", replace(each, gpus=8, shared=True)) == "ray"


def test_what_is_named_is_taken_where_it_reaches_the_engines() -> None:
    assert chosen("ray", ALONE) == chosen("ray", TWO_MACHINES) == "ray"
    assert chosen("cuda_ipc", replace(ALONE, gpus=1, shared=True)) == "cuda_ipc"


@pytest.mark.parametrize(
    ("wanted", "ground", "nbytes", "message"),
    [
        ("shared_memory", TWO_MACHINES, 1, "machine alone, and the cluster has 2 .*; set learner.transport=auto"),
        (
            "broadcast",
            replace(ALONE, gpus=1, shared=True),
            1,
            "on its devices, and here engines share these with it; set learner.transport=auto",
        ),
        ("broadcast", replace(ALONE, shared=True), 1, "here engines share these with it; set learner"),
        ("cuda_ipc", ALONE, 1, "on the same GPU, and here they have no GPUs; set learner.transport=auto"),
        ("cuda_ipc", replace(ALONE, gpus=2), 1, "they have 2 GPUs; set learner.transport=auto"),
        ("cuda_ipc", replace(ALONE, gpus=8, shared=True), 1, "they have 8 GPUs; set learner.transport=auto"),
        (
            "auto",
            ALONE,
            600_000_000,
            "keeps 1,200,000,000 bytes .* 1,000,000,000 are available; set learner.wire_dtype",
        ),
        (
            "auto",
            TWO_MACHINES,
            100_000_001,
            "100,000,001 bytes of weights do not fit .* 100,000,000 .*--object-store-memory",
        ),
    ],
)
def test_what_does_not_reach_the_engines_or_has_no_room_is_an_error(
    wanted: str, ground: Ground, nbytes: int, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        chosen(wanted, ground, nbytes=nbytes)
