"""A checkpoint that lacks disk space takes the space of recorded batches, on a small disk."""

import errno
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.small_disk import SmallDisks

from temper.orchestrator.run.folder import RunDir
from temper.orchestrator.session.recording import make_room
from temper.orchestrator.session.trainer import begin_with_room

PAGE = 4096
BATCH = 10 * PAGE


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[RunDir]:
    """A run folder on a disk of 400 pages, with batches after the checkpoints of steps 0, 10 and 20."""
    try:
        disks = SmallDisks({tmp_path / "run": f"{400 * PAGE // 1024}k"})
    except OSError as error:
        pytest.skip(str(error))
    folder = RunDir(disks.seen(tmp_path / "run"))
    folder.open()
    try:
        for step in (10, 20):
            (folder.checkpoints("rl") / f"{step:06d}").mkdir(parents=True)
        for age, step in enumerate((1, 2, 11, 12, 21, 22)):
            put(folder.batch_file("rl", step), age)
        put(folder.batch_file("rl-2", 1), -1)  # of an instance that trained earlier
        yield folder
    finally:
        folder.close()
        disks.close()


def put(path: Path, age: int) -> None:
    path.write_bytes(bytes(BATCH))
    os.utime(path, (1e9 + age, 1e9 + age))


def free(folder: RunDir) -> int:
    about = os.statvfs(folder.root)
    return about.f_bavail * about.f_frsize


def names(folder: RunDir) -> list[str]:
    return sorted(path.stem for path in folder.batches.iterdir())


def test_the_oldest_go_first_and_no_more_than_it_takes(disk: RunDir) -> None:
    removed = make_room(disk, disk.root, needed=free(disk) + 3 * BATCH + PAGE)
    assert [path.stem for path in removed] == ["rl-2-1", "rl-2", "rl-1", "rl-12"]
    assert names(disk) == ["rl-11", "rl-21", "rl-22"]
    assert make_room(disk, disk.root, needed=free(disk)) == []


def test_none_goes_where_all_are_not_enough(disk: RunDir) -> None:
    assert make_room(disk, disk.root, needed=free(disk) + 7 * BATCH + PAGE) == []
    assert len(names(disk)) == 7


def test_a_checkpoint_begins_in_the_room_of_batches_and_it_is_said(disk: RunDir) -> None:
    said: list[str] = []
    needed = free(disk) + BATCH + PAGE
    assert begin_with_room(disk, "rl", 30, needed=needed, notify=said.append).is_dir()
    assert free(disk) >= needed
    (text,) = said
    assert "rl step 30" in text
    assert "(rl-2, rl-2-1)" in text
    assert begin_with_room(disk, "rl", 30, needed=PAGE, notify=said.append).is_dir()
    assert len(said) == 1


def test_a_checkpoint_that_has_no_room_even_then_is_refused_and_batches_stay(disk: RunDir) -> None:
    before = names(disk)
    with pytest.raises(OSError, match=f"Errno {errno.ENOSPC}"):
        begin_with_room(disk, "rl", 30, needed=500 * PAGE, notify=lambda text: None)
    assert names(disk) == before
