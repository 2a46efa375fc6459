"""Engines' temporary files: removed at close, and after a kill by the next engine's start or end."""

import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from uuid import uuid4

import pytest

from temper.envs.core.locked_folder import remove_abandoned
from temper.rollout.engines.scratch_folder import PREFIX, SHORT, ScratchFolder, scratch_base
from temper.rollout.engines.vllm_settings import prepare_environment

ROOT = Path(__file__).resolve().parents[4]
HOLDER = """
import subprocess, sys
from pathlib import Path
from temper.rollout.engines.scratch_folder import ScratchFolder

scratch = ScratchFolder(Path(sys.argv[1]))
with scratch.use():
    child = subprocess.Popen([sys.executable, "-c", "import sys; sys.stdin.read()"], stdin=0)
(scratch.path / "socket").touch()
print(scratch.path, child.pid, flush=True)
sys.stdin.read()
"""


@pytest.fixture
def base() -> Iterator[Path]:
    """A folder on a short path, as sockets need one."""
    with tempfile.TemporaryDirectory(prefix="tf-", dir=SHORT) as folder:
        yield Path(folder)


def folders(base: Path) -> list[Path]:
    return sorted(base.glob(f"{PREFIX}*"))


class Holder:
    """Another process that holds a folder, and has a child that outlives it."""

    def __init__(self, base: Path) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", HOLDER, str(base)],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self.process.stdout is not None
        path, child = self.process.stdout.readline().split()
        self.path, self.child = Path(path), int(child)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def close(self) -> None:
        """End both: the child reads the same input."""
        self.kill()
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.close()
        self.process.stdout.close()


@pytest.fixture
def holder(base: Path) -> Iterator[Holder]:
    made = Holder(base)
    yield made
    made.close()


def test_the_next_folder_removes_a_killed_owners_folder(base: Path, holder: Holder) -> None:
    assert (holder.path / "socket").exists()
    holder.kill()
    os.kill(holder.child, 0)
    scratch = ScratchFolder(base)
    assert folders(base) == [scratch.path]
    scratch.close()
    assert folders(base) == []


def test_the_folder_of_a_living_one_stays(base: Path, holder: Holder) -> None:
    ScratchFolder(base).close()
    remove_abandoned(PREFIX, base)
    assert folders(base) == [holder.path]
    (holder.path / "socket").unlink()
    for file in holder.path.iterdir():  # as a cleaner of old files does
        file.unlink()
    other = ScratchFolder(base)
    assert folders(base) == sorted([holder.path, other.path])
    holder.kill()
    other.close()
    assert folders(base) == []


def test_two_engines_of_one_process_have_a_folder_each(base: Path) -> None:
    first, second = ScratchFolder(base), ScratchFolder(base)
    first.close()
    first.close()
    assert folders(base) == [second.path]
    second.close()
    assert folders(base) == []


def test_unlocked_folders_are_removed_and_foreign_ones_stay(base: Path) -> None:
    (base / f"{PREFIX}begun").mkdir()
    (base / "others").mkdir()
    (base / f"{PREFIX}link").symlink_to(base / "others")
    (base / f"{PREFIX}file").touch()
    remove_abandoned(PREFIX, base)
    assert sorted(path.name for path in base.iterdir()) == ["others", f"{PREFIX}file", f"{PREFIX}link"]
    assert list((base / "others").iterdir()) == []


def test_concurrent_owners_keep_their_folders(base: Path) -> None:
    def come_and_go(_number: int) -> int:
        held = 0
        for _ in range(40):
            scratch = ScratchFolder(base)
            (scratch.path / "socket").touch()
            held += (scratch.path / "socket").exists()
            scratch.close()
        return held

    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(come_and_go, range(8))) == [40] * 8
    assert folders(base) == []


def test_the_block_sets_and_restores_the_temporary_folder(base: Path) -> None:
    before = dict(os.environ), tempfile.gettempdir()
    scratch = ScratchFolder(base)
    with scratch.use():
        assert os.environ["VLLM_RPC_BASE_PATH"] == tempfile.gettempdir() == str(scratch.path)
        told = [sys.executable, "-c", "import tempfile; print(tempfile.gettempdir())"]
        assert subprocess.check_output(told, text=True).strip() == str(scratch.path)
    assert (dict(os.environ), tempfile.gettempdir()) == before
    with pytest.raises(RuntimeError), scratch.use():
        raise RuntimeError
    assert (dict(os.environ), tempfile.gettempdir()) == before
    assert folders(base) == []


@pytest.mark.parametrize("length", [8, 40, 47, 48, 90, 200])
def test_a_socket_fits_below_any_temporary_folder(base: Path, length: int) -> None:
    usual = base / ("x" * (length - len(str(base)) - 1)) if length > len(str(base)) + 1 else base
    usual.mkdir(exist_ok=True)
    tempdir, tempfile.tempdir = tempfile.tempdir, str(usual)
    try:
        below = scratch_base()
        scratch = ScratchFolder()
    finally:
        tempfile.tempdir = tempdir
    assert below == (usual if length <= 47 else SHORT)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(scratch.path / str(uuid4())))
    scratch.close()
    assert not scratch.path.exists()


def test_what_was_compiled_outlives_the_engine(base: Path) -> None:
    prepare_environment()
    before = os.environ["TORCHINDUCTOR_CACHE_DIR"]
    with closing(ScratchFolder(base)) as scratch, scratch.use():
        assert os.environ["TORCHINDUCTOR_CACHE_DIR"] == before
        assert not Path(before).is_relative_to(scratch.path)
