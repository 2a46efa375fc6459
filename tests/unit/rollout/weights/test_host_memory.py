"""Available main memory, and its release."""

import ctypes
import os
from pathlib import Path

import pytest
import torch
from support.process_memory import MB, resident

from temper.rollout.weights import host_memory
from temper.rollout.weights.host_memory import available_bytes, group_limits, release_free_memory

MEMBER = {"memory.max": "0::/job\n", "memory.limit_in_bytes": "5:cpu:/\n4:cpu,memory:/job\n0::/\n"}
"""The file of a group's limit, and the groups of a process in `job`."""


def group(folder: Path, limit_file: str, *, limit: str, used: int) -> None:
    """Make the folder of a group. 30 bytes of its use are files."""
    old = limit_file == "memory.limit_in_bytes"
    stat = "active_file 10\ninactive_file 20\nanon 5\n"
    folder.mkdir(parents=True)
    (folder / limit_file).write_text(f"{limit}\n")
    (folder / ("memory.usage_in_bytes" if old else "memory.current")).write_text(f"{used}\n")
    (folder / "memory.stat").write_text(stat + "".join(f"total_{line}\n" for line in stat.splitlines()) * old)


@pytest.mark.parametrize("limit_file", MEMBER)
def test_all_group_limits_count_without_cached_files(tmp_path: Path, limit_file: str) -> None:
    base = tmp_path / "memory" if limit_file == "memory.limit_in_bytes" else tmp_path
    group(base / "job", limit_file, limit="100", used=80)
    group(base / "other", limit_file, limit="7", used=7)
    assert group_limits(tmp_path, MEMBER[limit_file]) == [(100, 50)]
    assert group_limits(tmp_path, MEMBER[limit_file].replace("/job", "/elsewhere")) == []
    (base / "job" / limit_file).write_text("max\n")
    assert group_limits(tmp_path, MEMBER[limit_file]) == []


def test_a_container_is_limited_by_group_and_machine(tmp_path: Path) -> None:
    bare = tmp_path / "none"
    machine, total = available_bytes(bare)
    assert 0 < machine <= total
    for name in (tmp_path / "v2", tmp_path / "v1" / "memory"):  # as a container sees its own group
        group(name, "memory.max" if name.name == "v2" else "memory.limit_in_bytes", limit="1000", used=630)
    seen = [available_bytes(tmp_path / version) for version in ("v1", "v2")]
    assert (400, 1000) in seen  # the machine of this test has one of them


PIECES = 2000
FLOATS = 25_000  # 100 kB, which malloc takes from a heap


def own_memory() -> int:
    return resident(os.getpid())["RssAnon"]


@pytest.mark.skipif(torch.cuda.is_available(), reason="nothing is given back beside a GPU")
@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "malloc_trim"), reason="the C library is not glibc")
def test_freed_memory_before_what_stays_is_given_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host_memory._Next, "at", 0.0)
    release_free_memory(pause_s=0)
    before = own_memory()
    pieces = [torch.ones(FLOATS) for _ in range(PIECES)]
    stays = torch.ones(FLOATS)
    pieces.clear()
    assert own_memory() - before > 150 * MB  # of 191
    release_free_memory(pause_s=60)
    assert own_memory() - before < 20 * MB
    again = [torch.ones(FLOATS) for _ in range(PIECES)]
    stays_too = torch.ones(FLOATS)
    again.clear()
    release_free_memory()
    assert own_memory() - before > 150 * MB  # too soon
    assert stays_too.sum() == FLOATS
    assert stays.sum() == FLOATS
