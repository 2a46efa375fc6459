"""Whether what is installed is what the lock file says."""

import platform
from collections.abc import Iterator, Mapping
from importlib.metadata import distributions
from pathlib import Path

import torch
from packaging.utils import canonicalize_name
from packaging.version import Version

from temper.orchestrator.cluster.this_machine import ROOT
from temper.orchestrator.tools.preflight.doctor.finding import Finding, failure, ok, warning
from temper.orchestrator.tools.preflight.doctor.subject import Subject

PYTHONS = ("3.11", "3.12", "3.13")
"""Those that the locks are made for."""
SHOWN = 5
SETUP = "make setup installs what the lock says"


def look_at_packages(_: Subject) -> Iterator[Finding]:
    """Compare Python and its packages with the lock of the stack that torch is of."""
    lock = ROOT / "requirements" / ("cpu.txt" if torch.version.cuda is None else "gpu.txt")
    yield from check_versions(read_lock(lock), installed(), name=f"requirements/{lock.name}")
    python = platform.python_version()
    if python.rpartition(".")[0] not in PYTHONS:
        yield warning(
            f"Python {python}; the lock is made for {', '.join(PYTHONS)}", "make setup with PYTHON=python3.11"
        )


def check_versions(locked: Mapping[str, str], found: Mapping[str, str], *, name: str) -> Iterator[Finding]:
    """Compare versions by package; those that are installed beside the lock's do not matter."""
    missing = sorted(package for package in locked if package not in found)
    other = sorted(
        package for package, version in locked.items() if package in found and not _same(version, found[package])
    )
    if missing:
        yield failure(f"{len(missing)} of {len(locked)} packages of {name} are missing: {_listed(missing)}", SETUP)
    if other:
        said = [f"{package} {found[package]} in place of {locked[package]}" for package in other]
        yield warning(
            f"{len(other)} of {len(locked)} packages are of other versions than in {name}: {_listed(said)}", SETUP
        )
    if not missing and not other:
        yield ok(f"{len(locked)} packages as in {name}")


def read_lock(file: Path) -> dict[str, str]:
    """Return the versions of a lock file by package."""
    lines = file.read_text(encoding="utf-8").splitlines()
    pairs = (line.split(" ")[0].split("==") for line in lines if "==" in line and not line.startswith((" ", "#")))
    return {canonicalize_name(name): version for name, version in pairs}


def installed() -> dict[str, str]:
    """Return the versions of the installed packages."""
    found: dict[str, str] = {}
    for one in distributions():  # in the order in which Python looks for them: the first is what is imported
        found.setdefault(canonicalize_name(one.metadata["Name"]), one.version)
    return found


def _same(locked: str, found: str) -> bool:
    """Say whether it is the same version; a build such as +cpu counts where the lock names one."""
    wanted, there = Version(locked), Version(found)
    return wanted == there if wanted.local else wanted.public == there.public


def _listed(names: list[str]) -> str:
    return ", ".join(names[:SHOWN]) + (f" and {len(names) - SHOWN} more" if len(names) > SHOWN else "")
