"""What lacks where the processes of a run do not fit on a cluster's GPUs."""

from orchestrator.cluster.placement import Gpus


def test_what_lacks_is_said_in_gpus() -> None:
    gpus = Gpus(total=16, free=4)
    assert gpus.lacking(12) == "8 more GPUs are needed, 12 of 16 are taken"
    assert gpus.lacking(4) == ""


def test_processes_share_a_gpu_only_where_there_are_too_few() -> None:
    assert [Gpus(total=2, free=2).share(actors) for actors in (1, 2, 3)] == [1.0, 1.0, 0.5]
    assert Gpus(total=2, free=2).lacking(6 * 0.5) == "1 more GPUs are needed, 0 of 2 are taken"
    assert Gpus(total=0, free=0).share(3) == 0
    assert Gpus(total=0, free=0).lacking(0) == ""
