"""What a process keeps for itself: made once, for each purpose, and not shared with a fork."""

import os

from temper.envs.sandbox.per_process import PerProcess


def test_it_is_made_once_for_each_purpose() -> None:
    kept = PerProcess(object)
    assert kept.get() is kept.get()
    assert kept.get("another") is not kept.get()


def test_a_fork_has_its_own() -> None:
    kept = PerProcess(object)
    ours = kept.get()
    child = os.fork()
    if child == 0:
        os._exit(int(kept.get() is ours))
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
