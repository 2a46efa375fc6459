"""Makes the folder to carry to a GPU machine without a network: `python -m requirements.carry --out FOLDER --limit 64MiB`.

That machine has Python, pip and torch. A call brings the checkout and at most `--limit` bytes of files to it, and runs a
command. The wheels that it lacks are downloaded or built here, cut into pieces that fit, and packed into a folder for each
call. The calls are printed in order. Each runs the parts of the GPU check that need no more than the wheels that are whole by
then.
"""

import argparse
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[1]
LOCK, MAMBA = ROOT / "requirements" / "gpu.txt", ROOT / "requirements" / "mamba.txt"
BASE = "torch"
"""The package that the machine has, with all packages that it needs."""
Needs = Literal["none", "deepspeed", "vllm"]
"""The library that a part needs besides torch and transformers. vllm means the whole stack, Ray among it."""
PARTS: dict[Needs, tuple[str, ...]] = {
    "none": ("kernels", "shared_prompts"),
    "deepspeed": ("learning",),
    "vllm": ("first_runner", "second_runner", "pushes", "sharing"),
}
"""The parts of `tests/gpu/measure.py` by need."""
ROOTS: dict[Needs, tuple[str, ...]] = {
    "none": ("transformers", "psutil"),
    "deepspeed": ("deepspeed", "peft", "xxhash"),
    "vllm": (),
}
"""Packages that parts of the check need by kind, in addition to the kinds before. vllm takes the whole lock."""
OURS = ("transformers", "deepspeed", "vllm")
"""Packages that are carried at the version of the lock, regardless of the machine's version."""
UNITS = {"": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30}
PLATFORMS = [f"manylinux_2_{minor}_x86_64" for minor in range(31, 16, -1)] + [
    "manylinux2014_x86_64",
    "manylinux1_x86_64",
]
KEPT = "$HOME/.temper-carried"
"""Folder of that machine in which pieces are gathered, and packages installed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pin:
    """A line of the lock."""

    name: str
    version: str
    needed_by: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """A part of a wheel."""

    wheel: Path
    number: int
    start: int
    size: int
    needs: Needs
    is_last: bool
    """Whether the wheel is whole with it."""

    @property
    def name(self) -> str:
        """The name of its file. Pieces of a wheel sort in their order."""
        return f"{self.wheel.name}.{self.number:03d}"


def main(arguments: Sequence[str] | None = None) -> int:
    """Make the folder and print the calls. Return 0, or 2 with a message if something is missing."""
    parser = argparse.ArgumentParser(prog="python -m requirements.carry", description=__doc__)
    parser.add_argument("--out", type=Path, required=True, help="new folder in the checkout")
    parser.add_argument("--limit", default="64MiB", help="most bytes of a call (default: 64MiB)")
    parser.add_argument("--python", default="3.12", help="Python of that machine (default: 3.12)")
    parser.add_argument("--have", type=Path, help="its packages: the output of `pip list --format=freeze` there")
    parser.add_argument("--for", dest="kind", choices=list(ROOTS), default="deepspeed", help="needs of the parts")
    parser.add_argument("--wheels", type=Path, help="folder of wheels that are taken before any download")
    parser.add_argument(
        "--mamba", type=Path, help="source folder, archive or wheel of mamba-ssm, if its pin can't be fetched"
    )
    given = parser.parse_args(arguments)
    try:
        limit = size_of(given.limit)
        have = set() if given.have is None else names_in(given.have.read_text(encoding="utf-8"))
        with tempfile.TemporaryDirectory(prefix="temper-carry-") as folder:
            wheels = gather(
                Path(folder), given.kind, have=have, python=given.python, found=given.wheels, mamba=given.mamba
            )
            calls = packed(wheels, limit=limit)
            write(calls, given.out)
        print("\n\n".join(instructions(calls, given.out)))
    except (ValueError, OSError) as error:
        print(f"carry: {error}", file=sys.stderr)
        return 2
    return 0


def size_of(text: str) -> int:
    """Return the bytes that a text such as 64MiB means. Raise `ValueError` for another."""
    found = re.fullmatch(r"(\d+)(|KiB|MiB|GiB)", text)
    if found is None or not int(found[1]):
        raise ValueError(f"--limit {text}: give a size such as 64MiB, in KiB, MiB, GiB or bytes")
    return int(found[1]) * UNITS[found[2]]


def names_in(listed: str) -> set[str]:
    """Return the packages of lines such as `numpy==2.3.5`."""
    return {canonicalize_name(re.split(r"[ =@]", line, maxsplit=1)[0]) for line in listed.splitlines() if line.strip()}


def pins_of(lock: str) -> dict[str, Pin]:
    """Return the lines of a lock by name, each with the packages that need it."""
    found = {}
    for block in re.split(r"\n(?=[a-z])", lock):
        head, *rest = block.splitlines()
        if "==" in head and not head.startswith("#"):
            name, version = re.sub(r"\[.*?\]", "", head.split(" ")[0]).split("==")
            above = re.findall(r"#\s+(?:via )?([a-z0-9][a-z0-9.-]*)(?: |$)", "\n".join(rest), re.MULTILINE)
            found[name] = Pin(name=name, version=version, needed_by=tuple(one for one in above if one != "via"))
    return found


def closure(pins: dict[str, Pin], roots: Iterable[str]) -> set[str]:
    """Return these packages and all that they need."""
    found, before = set(roots), set[str]()
    while found != before:
        before = set(found)
        found |= {pin.name for pin in pins.values() if found & set(pin.needed_by)}
    return found


def wanted(pins: dict[str, Pin], kind: Needs, *, have: set[str]) -> list[tuple[Pin, Needs]]:
    """Return the packages to carry for parts that need up to `kind`, in the order of need."""
    taken, found = closure(pins, [BASE]) | (have - set(OURS)), []
    kinds = list(ROOTS)
    for need in kinds[: kinds.index(kind) + 1]:
        names = closure(pins, ROOTS[need]) if ROOTS[need] else set(pins)
        found += [(pins[name], need) for name in sorted(names - taken)]
        taken |= names
    return found


def gather(
    folder: Path, kind: Needs, *, have: set[str], python: str, found: Path | None, mamba: Path | None
) -> list[tuple[Path, Needs]]:
    """Return the wheels to carry, in the order of need. Raise `ValueError` with a remedy if one can't be had."""
    wheels: list[tuple[Path, Needs]] = [(mamba_wheel(folder / "mamba", mamba), "none")]
    for pin, need in wanted(pins_of(LOCK.read_text(encoding="utf-8")), kind, have=have):
        wheels.append((_wheel(pin, folder / pin.name, python=python, found=found), need))
    return wheels


def mamba_wheel(folder: Path, source: Path | None) -> Path:
    """Return the wheel of mamba-ssm at its pin, or of a source. Raise `ValueError` with a remedy if it can't be had.

    Its kernels are compiled on the machine that runs them.
    """
    (pin,) = [line for line in MAMBA.read_text(encoding="utf-8").splitlines() if not line.startswith("#")]
    if source is not None and not source.exists():
        raise ValueError(f"--mamba {source}: there is no such folder, archive or wheel")
    if source is not None and source.suffix == ".whl":
        return source
    said = _pip(
        ["wheel", "--no-build-isolation", "--wheel-dir", str(folder), str(source or pin)],
        {"MAMBA_SKIP_CUDA_BUILD": "TRUE"},
    )
    if said and source is None:
        raise ValueError(f"{pin} could not be fetched or built; fetch it elsewhere and give --mamba PATH; pip: {said}")
    if said:
        raise ValueError(f"--mamba {source}: no wheel was made of it; give mamba's own source or a wheel; pip: {said}")
    return _only(folder)


def _wheel(pin: Pin, folder: Path, *, python: str, found: Path | None) -> Path:
    """Return the wheel of a pin for that machine: one that was given, one that is downloaded, else one that is built here."""
    near = [] if found is None else ["--find-links", str(found)]
    named = f"{pin.name}=={pin.version}"
    tags = [word for platform in PLATFORMS for word in ("--platform", platform)]
    there = ["--python-version", python, "--only-binary", ":all:", *tags]
    said = _pip(["download", "--dest", str(folder), *near, *there, named], {})
    if said:  # a few, such as DeepSpeed, have a source alone, which is built for any Python
        built = {"DS_BUILD_OPS": "0", "DS_IGNORE_CUDA_DETECTION": "1", "MLFLOW_DISABLE_TELEMETRY": "true"}
        said = _pip(["wheel", "--no-build-isolation", "--wheel-dir", str(folder), *near, named], built)
    if said:
        raise ValueError(
            f"no wheel of {named} could be had: put it into a folder and give --wheels FOLDER; pip: {said}"
        )
    return _only(folder)


def _only(folder: Path) -> Path:
    (wheel,) = folder.glob("*.whl")
    return wheel


def _pip(arguments: Sequence[str], variables: dict[str, str]) -> str:
    """Run pip for these packages alone. Return the last line of its errors if it fails, else an empty text."""
    command = [
        sys.executable,
        "-m",
        "pip",
        arguments[0],
        "--quiet",
        "--disable-pip-version-check",
        "--no-deps",
        *arguments[1:],
    ]
    ran = subprocess.run(command, capture_output=True, text=True, check=False, env=os.environ | variables)
    return (ran.stderr.strip().splitlines() or ["no word"])[-1] if ran.returncode else ""


def packed(wheels: Iterable[tuple[Path, Needs]], *, limit: int) -> list[list[Piece]]:
    """Return the pieces of wheels call by call: in this order, and at most `limit` bytes in each."""
    calls: list[list[Piece]] = []
    room = 0
    for wheel, needs in wheels:
        start, number, size = 0, 0, wheel.stat().st_size
        while start < size:
            if not room:
                calls.append([])
                room = limit
            taken = min(room, size - start)
            calls[-1].append(
                Piece(wheel=wheel, number=number, start=start, size=taken, needs=needs, is_last=start + taken == size)
            )
            start, number, room = start + taken, number + 1, room - taken
    return calls


def write(calls: Sequence[Sequence[Piece]], out: Path) -> None:
    """Write the folder of each call. Raise `ValueError` for a folder that holds something else."""
    strange = [one.name for one in out.iterdir() if not one.name.startswith("call-")] if out.exists() else []
    if strange:
        raise ValueError(f"--out {out} holds {strange[0]}, which this script did not write: give an empty folder")
    for old in out.glob("call-*"):
        shutil.rmtree(old)
    for number, pieces in enumerate(calls, start=1):
        folder = out / f"call-{number}"
        folder.mkdir(parents=True)
        for piece in pieces:
            with piece.wheel.open("rb") as wheel:
                wheel.seek(piece.start)
                (folder / piece.name).write_bytes(wheel.read(piece.size))


def instructions(calls: Sequence[Sequence[Piece]], out: Path) -> list[str]:
    """Return the files and the command of each call."""
    texts = []
    for number, pieces in enumerate(calls, start=1):
        folder, later = out / f"call-{number}", {piece.needs for call in calls[number:] for piece in call}
        whole = {piece.needs for piece in pieces} - later
        parts = [part for needs, names in PARTS.items() if needs in whole for part in names]
        mib = sum(piece.size for piece in pieces) / 2**20
        run = command(folder, parts, installs=any(piece.is_last for piece in pieces))
        texts.append(f"call {number}: bring the checkout and {folder} ({mib:.1f} MiB), and run there\n{run}")
    return texts


def command(folder: Path, parts: Sequence[str], *, installs: bool) -> str:
    """Return the command of a call: it gathers pieces, installs wheels that are whole now, and runs parts of the check.

    The list of a wheel's files is at its end, so that a wheel is no archive before its last piece has come.
    """
    lines = [f"kept={KEPT} && mkdir -p $kept && cp {shlex.quote(str(folder))}/* $kept"]
    if installs:
        lines += [
            "for first in $kept/*.whl.000; do wheel=${first%.000}; cat $wheel.* > $wheel",
            "  if python3 -m zipfile -t $wheel > /dev/null 2>&1; then rm $wheel.*; else rm $wheel; fi; done",
            "python3 -m pip install --quiet --no-index --no-deps --upgrade --target $kept/site $kept/*.whl && rm $kept/*.whl",
        ]
    if parts:
        check = f"python3 -m gpu.measure --only {' '.join(parts)} --patience 5"
        lines.append("mkdir -p .types && ln -sfn .. .types/temper")
        lines.append(f"PYTHONPATH=.types:tests:$kept/site {check}")
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
