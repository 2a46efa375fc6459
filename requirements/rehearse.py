"""Rehearses the calls of `requirements.carry` without a GPU: `python -m requirements.rehearse runs/carry`.

The stand-in for the borrowed machine has Python, torch, transformers and their needs, no network and an empty home. Each call
finds a fresh copy of the checkout and its folder, as there, and its parts run in their small form. The limits of that machine
are checked: bytes of a call, seconds, and files that come back. The CUDA build of vLLM starts no engine without a GPU, so
its parts only import it. The CPU build needs its own torch: `carry --gpu 0`, then `rehearse --torch 2.13.0`.
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from requirements.carry import ROOT, SCRIPT

TORCH, TRANSFORMERS = "2.11.0", "5.17.0"
"""Versions of the borrowed machine."""
CALL_MIB, CALL_S = 64, 600
"""Most MiB of a call with the checkout, and its most seconds."""
FILES, FILE_MIB = 8, 16
"""Most files that come back from a call, and the most MiB of each."""
ALONE = ("unshare", "--user", "--map-root-user", "--net", "--pid", "--fork", "--kill-child", "--mount-proc")
"""Without a network, in its own process namespace, so that processes which a call leaves end with it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rehearsed:
    """A call that ran."""

    mib: float
    seconds: float
    status: int
    parts: list[str]
    faults: list[str]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the calls in order and print a line for each. Return 0, 1 if one fails or exceeds a limit, or 2 if none could run."""
    parser = argparse.ArgumentParser(prog="python -m requirements.rehearse", description=__doc__)
    parser.add_argument("calls", type=Path, help="folder that carry wrote")
    parser.add_argument("--out", type=Path, default=ROOT / "runs" / "rehearsal", help="folder of the stand-in")
    parser.add_argument("--python", default="python3.12", help="that machine's Python (default: python3.12)")
    parser.add_argument("--torch", default=TORCH, help=f"version of its torch (default: {TORCH})")
    given = parser.parse_args(arguments)
    try:
        calls = sorted(given.calls.glob(f"call-*/{SCRIPT}"), key=lambda script: int(script.parent.name[5:]))
        if not calls:
            raise ValueError(f"{given.calls} has no calls: run python -m requirements.carry --out {given.calls}")
        if subprocess.run([*ALONE, "true"], check=False, capture_output=True).returncode:
            raise ValueError("unshare can't make a network namespace here: allow user namespaces, or run as root")
        machine = make_machine(given.out / f"torch-{given.torch}", given.python, given.torch)
        home = given.out / "home"
        shutil.rmtree(home, ignore_errors=True)
        home.mkdir()
        fine = True
        for script in calls:
            done = rehearse(script.parent, given.out, machine, home)
            fine = fine and not done.faults
            word = "; ".join(done.faults) or "within all limits"
            print(f"{script.parent.name}: {done.mib:.1f} MiB with the checkout, {done.seconds:.0f} s, ", end="")
            print(f"status {done.status}: {word}")
            print(*(f"  {part}" for part in done.parts), sep="\n", flush=True)
    except (ValueError, OSError, subprocess.CalledProcessError) as error:
        print(f"rehearse: {error}", file=sys.stderr)
        return 2
    return 0 if fine else 1


def make_machine(folder: Path, python: str, torch: str) -> Path:
    """Return the stand-in's environment, which is made once."""
    if not (folder / "made").exists():
        subprocess.run([python, "-m", "venv", "--clear", folder], check=True)
        packages = [f"torch=={torch}", f"transformers=={TRANSFORMERS}"]
        subprocess.run([folder / "bin" / "python", "-m", "pip", "install", "--quiet", *packages], check=True)
        (folder / "made").touch()
    return folder


def rehearse(call: Path, out: Path, machine: Path, home: Path) -> Rehearsed:
    """Run a call in a copy of the checkout."""
    checkout, back = out / "checkout", out / call.name
    for folder in (checkout, back):
        shutil.rmtree(folder, ignore_errors=True)
    back.mkdir()
    size = bring(call, checkout)
    path = f"{machine.resolve()}/bin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
    there = {"HOME": str(home.resolve()), "OUT": str(back.resolve()), "PATH": path, "LANG": "C.UTF-8"}
    script = (call / SCRIPT).resolve().relative_to(ROOT)
    command = [*ALONE, "bash", "-c", f"ip link set lo up && bash {script}"]
    began = time.monotonic()
    with (out / f"{call.name}.log").open("wb") as log:
        try:
            ran = subprocess.run(command, cwd=checkout, env=there, stdout=log, stderr=log, timeout=CALL_S, check=False)
            status = ran.returncode
        except subprocess.TimeoutExpired:
            status = 124
    seconds = time.monotonic() - began
    faults = [f"{CALL_MIB} MiB at most"] if size > CALL_MIB * 2**20 else []
    faults += ["failed"] if status else []
    faults += faults_of(back)
    page = back / "gpu.md"
    found = re.findall(r"^`([a-z_]+)`(, .*)", page.read_text(encoding="utf-8"), re.MULTILINE) if page.exists() else []
    asked = (call / SCRIPT).read_text(encoding="utf-8").split()
    return Rehearsed(
        mib=size / 2**20,
        seconds=seconds,
        status=status,
        parts=[name + words for name, words in found if name in asked],
        faults=faults,
    )


def bring(call: Path, checkout: Path) -> int:
    """Copy the checkout and the call's folder, as they travel. Return the bytes."""
    listed = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"]
    names = subprocess.run(listed, cwd=ROOT, check=True, capture_output=True, text=True).stdout.split("\0")
    files = [ROOT / name for name in names if name] + list(call.resolve().iterdir())
    size = 0
    for file in files:
        if file.is_file():
            copy = checkout / file.relative_to(ROOT)
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(file, copy, follow_symlinks=False)
            size += file.lstat().st_size
    return size


def faults_of(back: Path) -> list[str]:
    """Return what would not come back whole from a call's folder."""
    files = [file for file in back.rglob("*") if file.is_file()]
    faults = [f"{len(files)} files come back, {FILES} at most"] if len(files) > FILES else []
    return faults + [f"{one.name} is over {FILE_MIB} MiB" for one in files if one.stat().st_size > FILE_MIB * 2**20]


if __name__ == "__main__":
    os.umask(0o022)
    sys.exit(main())
