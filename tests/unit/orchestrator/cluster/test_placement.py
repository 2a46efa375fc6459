"""What a run wants of a cluster, and what lacks where it has no room."""

from temper.orchestrator.cluster.placement import Node, Wanted, in_order, lacking

NODES = [
    Node(name="a", address="10.0.0.1", gpus=8, free=2),
    Node(name="b", address="10.0.0.2", gpus=8, free=8),
    Node(name="c", address="10.0.0.3"),
]


def test_what_is_wanted_and_what_there_is_are_said_in_gpus() -> None:
    assert lacking(Wanted(ranks=4, engines=4, processes=2), NODES) == (
        "the run wants 12 GPUs, for 4 ranks and 4 engines with 2 GPUs of one machine each; the cluster has 2 of 8 free on "
        "10.0.0.1, 8 of 8 free on 10.0.0.2; free some, or lower rollout.workers or learner.ranks or "
        "rollout.engine.tensor_parallel"
    )
    assert lacking(Wanted(engines=17), NODES).startswith("the run wants 17 GPUs, for 17 engines; the cluster has 2 of")
    assert "9 GPUs, each for a rank and an engine;" in lacking(Wanted(ranks=9, engines=4, shared=True), NODES)
    assert lacking(Wanted(ranks=1), NODES[2:]).startswith("Ray has no CPU left on the cluster's 1 node;")


def test_too_few_gpus_are_said_of_what_was_asked_for_with_the_settings_that_help() -> None:
    two, one = (
        [Node(name="a", address="10.0.0.1", gpus=2, free=2)],
        [Node(name="a", address="10.0.0.1", gpus=1, free=0)],
    )
    assert lacking(Wanted(ranks=2, engines=1), two) == (
        "the run wants 3 GPUs, for 2 ranks and 1 engine; the cluster has 2 of 2 free on 10.0.0.1; "
        "set placement=shared rl.max_lag=0, or lower rollout.workers or learner.ranks"
    )
    assert lacking(Wanted(ranks=3), two).endswith(
        "3 ranks; the cluster has 2 of 2 free on 10.0.0.1; lower learner.ranks"
    )
    assert lacking(Wanted(ranks=3, engines=1), two).endswith("on 10.0.0.1; lower rollout.workers or learner.ranks")
    assert lacking(Wanted(engines=1), one).endswith("0 of 1 free on 10.0.0.1; free some, or lower rollout.workers")


def test_the_only_gpu_is_given_in_halves_and_others_are_not() -> None:
    one = [Node(name="a", address="10.0.0.1", gpus=1, free=1), NODES[2]]
    both = Wanted(ranks=1, engines=1)
    assert both.on(one) == Wanted(ranks=1, engines=1, shared=True)
    assert both.on(one).fits(one)
    for wanted in (Wanted(ranks=2, engines=1), Wanted(ranks=1, engines=2), Wanted(ranks=1, engines=1, processes=2)):
        assert wanted.on(one) == wanted
        assert not wanted.fits(one)
    assert Wanted(ranks=1).on(one) == Wanted(ranks=1)
    two = [Node(name="a", address="10.0.0.1", gpus=2, free=2)]
    assert Wanted(ranks=2, engines=1).on(two) == Wanted(ranks=2, engines=1)
    assert not Wanted(ranks=2, engines=1).on(two).fits(two)
    assert both.on(NODES[2:]) == both  # without GPUs


def test_what_can_never_fit_is_known_before_it_is_waited_for() -> None:
    assert Wanted(ranks=12, engines=2, processes=2).fits(NODES)
    assert not Wanted(ranks=13, engines=2, processes=2).fits(NODES)
    assert not Wanted(engines=1, processes=9).fits(NODES)  # of one machine
    assert Wanted(ranks=16, engines=16, shared=True).fits(NODES)
    assert not Wanted(ranks=17, engines=1, shared=True).fits(NODES)
    assert Wanted(ranks=17, engines=1).fits(NODES[2:])  # without GPUs


def test_nothing_is_wanted_where_nothing_generates_or_trains() -> None:
    assert not Wanted(processes=2)
    assert Wanted(engines=1)


def test_ranks_of_one_machine_follow_each_other_and_those_beside_the_driver_come_first() -> None:
    assert in_order(["b", "a", "b", "c", "a"], first="a") == [1, 4, 0, 2, 3]
    assert in_order(["b", "a", "b"], first="c") == [0, 2, 1]
