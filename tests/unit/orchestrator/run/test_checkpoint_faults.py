"""One save of a checkpoint with a fault at each disk operation: step k or step k + 1 is always complete."""

import errno
import os
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
import torch

from temper.learner.engine.model_files import bytes_piece, copy_to_cpu, file_piece
from temper.orchestrator.run.checkpoint import (
    Retention,
    begin,
    commit,
    discard_on_failure,
    is_complete,
    latest,
    place,
    steps,
)

ASKED = {"open", "mkdir", "write", "serialize_file", "fsync", "rename", "unlink", "rmdir"}
"""The C calls of a save that change the disk."""
KILLED, RAISED, DONE = 9, 7, 3
"""Exit statuses of a child: killed, disk error, or no call left for the fault."""
BEST = Retention(last=2, scores={5: 2.0, 10: 1.0, 20: 0.5, 30: 0.5})


def save(stage: Path, step: int) -> None:
    """Save as the learner and the driver do: pieces from copies, then the commit."""
    directory = begin(stage, step, needed_bytes=1000)
    with discard_on_failure(directory, needed_bytes=1000):
        (directory / "learner").mkdir()
        weights = {"weight": copy_to_cpu(torch.full((64,), float(step)))}
        file_piece("model.safetensors", weights)(directory)
        file_piece("optimizer-00000.safetensors", weights)(directory / "learner")
        bytes_piece("tokenizer.json", b"{}")(directory)
    with discard_on_failure(directory, needed_bytes=1000):
        commit(directory, texts={"loop.json": f'{{"step": {step}}}'}, retention=BEST)


def at_call(number: int, fault: Callable[[str], None]) -> Callable[[Any, str, Any], None]:
    """Return a profile function that calls `fault` right before the n-th call that changes the disk."""
    left, last = [number], [""]

    def seen(_frame: Any, event: str, called: Any) -> None:
        if event == "c_call" and called.__name__ in ASKED:
            left[0] -= 1
            if left[0] == 0:
                fault(last[0])
        if event == "c_call" and called.__name__ == "setprofile" and left[0] > 0:
            os._exit(DONE)
        if event == "c_return" and called.__name__ in ("open", "serialize_file"):
            last[0] = newest(Path.cwd())
        if event == "c_return" and called.__name__ == "fsync":
            last[0] = ""  # synced data survives

    return seen


def newest(folder: Path) -> str:
    return str(
        max((path for path in folder.rglob("*") if path.is_file()), key=lambda p: p.stat().st_mtime_ns, default="")
    )


def kill(last: str) -> None:
    """End the process and leave half of the unfinished file, like an interrupted write."""
    if ".unfinished" in last and os.path.exists(last):
        os.truncate(last, os.path.getsize(last) // 2)
    os._exit(KILLED)


def full(_last: str) -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


def broken(_last: str) -> None:
    raise OSError(errno.EIO, "Input/output error")


def in_child(stage: Path, step: int, hook: Callable[[Any, str, Any], None]) -> int:
    """Save in a child process under a profile function. Return its exit status."""
    child = os.fork()
    if child:
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    os.chdir(stage)
    sys.setprofile(hook)
    try:
        save(stage, step)
    except OSError:
        os._exit(RAISED)
    except BaseException:
        os._exit(1)
    sys.setprofile(None)
    os._exit(0)


@pytest.fixture
def in_memory() -> Iterator[Path]:
    shared = "/dev/shm"
    with TemporaryDirectory(dir=shared if os.path.isdir(shared) else None) as folder:
        yield Path(folder)


@pytest.mark.parametrize(
    ("fault", "step"),
    [
        (kill, 30),
        (full, 30),
        pytest.param(kill, 20, marks=pytest.mark.slow),
        pytest.param(broken, 20, marks=pytest.mark.slow),
    ],
)
def test_whatever_happens_in_a_save_the_step_before_or_the_new_one_is_whole_and_the_best_is_kept(
    in_memory: Path, fault: Callable[[str], None], step: int
) -> None:
    begun = in_memory / "begun"
    for one in (5, 10, 20):
        save(begun, one)
    assert steps(begun) == [5, 10, 20]
    for number in range(1, 200):
        stage = shutil.copytree(begun, in_memory / str(number))
        status = in_child(stage, step, at_call(number, fault))
        assert status in ((KILLED, DONE) if fault is kill else (0, RAISED, DONE)), number
        found = latest(stage)
        assert found in (place(stage, 20), place(stage, step)), number
        assert is_complete(place(stage, 5)), number
        if status == DONE and step == 30:
            assert steps(stage) == [5, 20, 30]
        save(stage, 40)  # the next save finds its place and removes leftovers
        assert sorted(path.name for path in stage.iterdir()) == sorted(f"{n:06d}" for n in (5, *steps(stage)[-2:]))
        assert latest(stage) == place(stage, 40)
        if status == DONE:
            assert number > 40, "every call had its turn"
            return
    raise AssertionError("the child never finished")
