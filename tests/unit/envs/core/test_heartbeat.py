"""Heartbeats of a worker."""

from temper.envs.core.process import ProgressCounter


def test_a_counter_is_quiet_only_while_busy() -> None:
    now = [0.0]
    progress_counter = ProgressCounter(clock=lambda: now[0])
    assert (progress_counter.heartbeat().progress, progress_counter.heartbeat().quiet_s) == (0, 0.0)
    now[0] = 5.0
    assert progress_counter.heartbeat().quiet_s == 0.0
    with progress_counter.busy("train"):
        now[0] = 7.0
        assert (progress_counter.heartbeat().doing, progress_counter.heartbeat().quiet_s) == ("train", 2.0)
        progress_counter.advance(3)
        assert (progress_counter.heartbeat().progress, progress_counter.heartbeat().quiet_s) == (4, 0.0)
    now[0] = 99.0
    assert (
        progress_counter.heartbeat().doing,
        progress_counter.heartbeat().quiet_s,
        progress_counter.heartbeat().progress,
    ) == ("", 0.0, 5)


def test_what_overlaps_is_named_by_what_began_first() -> None:
    progress_counter = ProgressCounter()
    with progress_counter.busy("a group"):
        with progress_counter.busy("weights"):
            assert progress_counter.heartbeat().doing == "a group"
        assert progress_counter.heartbeat().doing == "a group"
    assert progress_counter.heartbeat().doing == ""
