"""The processes that a run requests, and the shortage if the cluster is too small."""

import pytest

from temper.orchestrator.cluster.placement import Node, PlacementRequest, describe_shortage, order_bundles

LOWER = ["rollout.workers", "learner.ranks"]
NODES = [
    Node(name="a", address="10.0.0.1", gpus=8, free=2),
    Node(name="b", address="10.0.0.2", gpus=8, free=8),
    Node(name="c", address="10.0.0.3"),
]


TWO = [Node(name="a", address="10.0.0.1", gpus=2, free=2)]
ONE = [Node(name="a", address="10.0.0.1", gpus=1, free=0)]


@pytest.mark.parametrize(
    ("wanted", "nodes", "gpus", "remedies"),
    [
        (PlacementRequest(ranks=4, engines=4, processes=2), NODES, "12 GPUs", ["free some", *LOWER, "tensor_parallel"]),
        (PlacementRequest(engines=17), NODES, "17 GPUs", ["rollout.workers"]),
        (PlacementRequest(ranks=9, engines=4, colocated=True), NODES, "9 GPUs", ["free some", *LOWER]),
        (PlacementRequest(ranks=2, engines=1), TWO, "3 GPUs", ["placement=colocated rl.max_lag=0", *LOWER]),
        (PlacementRequest(ranks=3), TWO, "3 GPUs", ["learner.ranks"]),
        (PlacementRequest(ranks=3, engines=1), TWO, "4 GPUs", LOWER),
        (PlacementRequest(engines=2, judges=1), TWO, "3 GPUs", ["rollout.workers", "judge.url"]),
        (PlacementRequest(engines=1), ONE, "1 GPU", ["free some", "rollout.workers"]),
        (PlacementRequest(ranks=1), NODES[2:], "no CPU", ["free some"]),
    ],
)
def test_missing_room_is_named_with_the_settings_that_help(
    wanted: PlacementRequest, nodes: list[Node], gpus: str, remedies: list[str]
) -> None:
    line = describe_shortage(wanted, nodes)
    assert gpus in line
    assert all(remedy in line for remedy in remedies)
    assert ("placement=colocated" in line) == ("placement=colocated rl.max_lag=0" in remedies)


def test_the_only_gpu_is_given_in_halves_and_others_are_not() -> None:
    one = [Node(name="a", address="10.0.0.1", gpus=1, free=1), NODES[2]]
    both = PlacementRequest(ranks=1, engines=1)
    assert both.resolve_for(one) == PlacementRequest(ranks=1, engines=1, colocated=True)
    assert both.resolve_for(one).fits(one)
    for wanted in (
        PlacementRequest(ranks=2, engines=1),
        PlacementRequest(ranks=1, engines=2),
        PlacementRequest(ranks=1, engines=1, processes=2),
    ):
        assert wanted.resolve_for(one) == wanted
        assert not wanted.fits(one)
    assert PlacementRequest(ranks=1).resolve_for(one) == PlacementRequest(ranks=1)
    two = [Node(name="a", address="10.0.0.1", gpus=2, free=2)]
    assert PlacementRequest(ranks=2, engines=1).resolve_for(two) == PlacementRequest(ranks=2, engines=1)
    assert not PlacementRequest(ranks=2, engines=1).resolve_for(two).fits(two)
    assert both.resolve_for(NODES[2:]) == both  # nodes without GPUs


def test_what_can_never_fit_is_known_before_it_is_waited_for() -> None:
    assert PlacementRequest(ranks=12, engines=2, processes=2).fits(NODES)
    assert not PlacementRequest(ranks=13, engines=2, processes=2).fits(NODES)
    assert not PlacementRequest(engines=1, processes=9).fits(NODES)  # all processes need the same node
    assert PlacementRequest(ranks=16, engines=16, colocated=True).fits(NODES)
    assert not PlacementRequest(ranks=17, engines=1, colocated=True).fits(NODES)
    assert not PlacementRequest(ranks=16, engines=16, colocated=True, judges=1).fits(NODES)
    assert PlacementRequest(ranks=17, engines=1).fits(NODES[2:])  # nodes without GPUs


def test_nothing_is_wanted_where_nothing_generates_or_trains() -> None:
    assert not PlacementRequest(processes=2)
    assert PlacementRequest(engines=1)


def test_ranks_of_one_machine_follow_each_other_and_those_beside_the_driver_come_first() -> None:
    assert order_bundles(["b", "a", "b", "c", "a"], first="a") == [1, 4, 0, 2, 3]
    assert order_bundles(["b", "a", "b"], first="c") == [0, 2, 1]
