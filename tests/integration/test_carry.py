"""`requirements/carry.py`: the files for a GPU machine without a network, in calls of a limited size."""

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from requirements.carry import (
    LOCK,
    PARTS,
    closure,
    command,
    instructions,
    main,
    mamba_wheel,
    names_in,
    packed,
    pins_of,
    size_of,
    wanted,
    write,
)

PINS = pins_of(LOCK.read_text(encoding="utf-8"))


def wheel(folder: Path, name: str, *, nbytes: int = 0) -> Path:
    """Write a wheel with one module, which is `name`, and a file of so many bytes."""
    path, info = folder / f"{name}-1.0-py3-none-any.whl", f"{name}-1.0.dist-info"
    folder.mkdir(exist_ok=True)
    with zipfile.ZipFile(path, "w") as made:
        made.writestr(f"{name}.py", f"NAME = {name!r}\n")
        made.writestr(f"{name}_data/zeros", bytes(nbytes))
        made.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        made.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        made.writestr(f"{info}/RECORD", "")
    return path


@pytest.mark.parametrize(("text", "size"), [("64MiB", 64 * 2**20), ("1GiB", 2**30), ("2KiB", 2048), ("500", 500)])
def test_a_limit_has_a_unit(text: str, size: int) -> None:
    assert size_of(text) == size


@pytest.mark.parametrize("text", ["64 MB", "0MiB", "-1", "much"])
def test_a_limit_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="--limit"):
        size_of(text)


def test_no_call_brings_more_than_the_limit_and_none_less_before_the_last(tmp_path: Path) -> None:
    sizes = {"a.whl": 10, "b.whl": 30, "c.whl": 5}
    for name, size in sizes.items():
        (tmp_path / name).write_bytes(bytes(range(size)))
    calls = packed([(tmp_path / name, "none") for name in sizes], limit=16)
    assert [[(piece.name, piece.size) for piece in call] for call in calls] == [
        [("a.whl.000", 10), ("b.whl.000", 6)],
        [("b.whl.001", 16)],
        [("b.whl.002", 8), ("c.whl.000", 5)],
    ]
    assert [piece.is_last for call in calls for piece in call] == [True, False, False, True, True]
    write(calls, tmp_path / "out")
    pieces = sorted((tmp_path / "out").rglob("b.whl.*"), key=lambda piece: piece.name)
    assert b"".join(piece.read_bytes() for piece in pieces) == bytes(range(30))


def test_what_the_printed_commands_install_can_be_imported(tmp_path: Path) -> None:
    """The second wheel comes in three calls."""
    made = [
        wheel(tmp_path / "wheels", name, nbytes=nbytes) for name, nbytes in (("carried_a", 10), ("carried_b", 5000))
    ]
    calls, out = packed([(one, "none") for one in made], limit=2500), tmp_path / "out"
    write(calls, out)
    assert len(calls) == 3
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    there = os.environ | {"HOME": str(tmp_path), "PATH": path}
    for number, pieces in enumerate(calls, start=1):
        run = command(out / f"call-{number}", (), installs=any(piece.is_last for piece in pieces))
        subprocess.run(["bash", "-e", "-c", run], env=there, check=True, timeout=240)
    site = tmp_path / ".temper-carried" / "site"
    assert {one.name for one in site.glob("*.py")} == {"carried_a.py", "carried_b.py"}
    assert not list(site.parent.glob("*.whl*"))


def test_each_part_of_the_check_runs_in_the_call_that_completes_what_it_needs(tmp_path: Path) -> None:
    for name in ("a", "b", "c", "d"):
        (tmp_path / name).write_bytes(bytes(10))
    kinds = {"a": "none", "b": "none", "c": "deepspeed", "d": "vllm"}
    texts = instructions(packed([(tmp_path / name, kind) for name, kind in kinds.items()], limit=15), Path("out"))  # type: ignore[misc]
    run = [[part for names in PARTS.values() for part in names if f" {part}" in text] for text in texts]
    assert run == [[], ["kernels", "shared_prompts", "learning"], list(PARTS["vllm"])]


def test_the_lock_is_carried_but_for_what_torch_brings_along() -> None:
    there = closure(PINS, ["torch"])
    assert {"torch", "triton", "nvidia-nvtx"} <= there
    for_learning = {pin.name: kind for pin, kind in wanted(PINS, "deepspeed", have=set())}
    assert (for_learning["transformers"], for_learning["hjson"], for_learning["deepspeed"]) == (
        "none",
        "deepspeed",
        "deepspeed",
    )
    assert not for_learning.keys() & (there | {"vllm", "ray"})
    whole = [pin.name for pin, _ in wanted(PINS, "vllm", have=set())]
    assert sorted(whole) == sorted(PINS.keys() - there)


def test_packages_that_the_machine_has_stay_here_but_for_those_of_the_check() -> None:
    have = names_in("PyYAML==6.0\ntransformers==5.17.0\nhf_xet @ file:///wheels/hf_xet.whl\n")
    assert have == {"pyyaml", "transformers", "hf-xet"}
    names = {pin.name for pin, _ in wanted(PINS, "none", have=have)}
    assert "transformers" in names
    assert not names & {"pyyaml", "hf-xet"}


def test_mamba_is_taken_from_where_it_is_said_to_be(tmp_path: Path) -> None:
    given = wheel(tmp_path, "mamba_ssm")
    assert mamba_wheel(tmp_path / "made", given) == given
    with pytest.raises(ValueError, match="--mamba"):
        mamba_wheel(tmp_path / "made", tmp_path / "absent")


def test_a_folder_with_something_else_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "notes.txt").write_text("mine")
    with pytest.raises(ValueError, match=r"notes\.txt"):
        write([], tmp_path / "out")
    assert main(["--out", str(tmp_path), "--limit", "none"]) == 2
