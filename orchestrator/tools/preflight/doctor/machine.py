"""This machine: installed packages against the lock file, limits of the system, and the sandbox for programs."""

import platform
import resource
from collections.abc import Iterator, Mapping
from importlib.metadata import distributions
from pathlib import Path

import torch
from packaging.utils import canonicalize_name
from packaging.version import Version

from temper.envs.sandbox.probe import Isolation
from temper.envs.sandbox.sandbox import MAX_LEVEL, MIN_LEVEL, REMEDY, Sandbox
from temper.orchestrator.cluster.this_machine import LOOPBACK, PORTS, ROOT, free_ports
from temper.orchestrator.pipeline.finding import Finding, failure, ok, warning
from temper.orchestrator.tools.preflight.doctor.subject import Subject

PYTHONS = ("3.11", "3.12", "3.13")
"""Those that the locks are made for."""
SHOWN = 5
SETUP = "make setup installs what the lock says"
FILES = 8192
"""Open files that Ray's processes want at their most (its own advice)."""
PORTS_WANTED = 16
"""Ports that a run takes at a time, about: where ranks meet, for pushes, and two for each engine."""


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
    """Return whether the versions are equal. A build such as +cpu counts only if the lock file names one."""
    wanted, there = Version(locked), Version(found)
    return wanted == there if wanted.local else wanted.public == there.public


def _listed(names: list[str]) -> str:
    return ", ".join(names[:SHOWN]) + (f" and {len(names) - SHOWN} more" if len(names) > SHOWN else "")


def look_at_open_files(_: Subject) -> Iterator[Finding]:
    """Look at how many files a process may have open. Ray raises its own limit as far as it may."""
    yield check_open_files(resource.getrlimit(resource.RLIMIT_NOFILE)[1])


def check_open_files(most: int) -> Finding:
    """Say whether so many open files do."""
    if most == resource.RLIM_INFINITY:
        return ok("no limit")
    if most < FILES:
        return warning(f"a process may have {most} files open, Ray's want {FILES}", f"ulimit -n {FILES} before the run")
    return ok(f"a process may have {most} files open")


def look_at_ports(_: Subject) -> Iterator[Finding]:
    """Look for free ports as processes of a run do."""
    yield check_ports(PORTS)


def check_ports(among: range) -> Finding:
    """Say whether enough of these ports can be listened on."""
    try:
        found = free_ports(PORTS_WANTED, among=among)
    except RuntimeError as error:
        what, _, remedy = str(error).rpartition("; ")
        return failure(f"{LOOPBACK} has {what}", remedy)
    return ok(f"{len(found)} free ones of {LOOPBACK} between {among.start} and {among.stop - 1}")


def look_at_sandbox(subject: Subject) -> Iterator[Finding]:
    """Try attacks as the sandbox does where it starts."""
    config = subject.given
    least = MIN_LEVEL if config is None else config.sandbox.min_level
    programs = config is not None and any(env.runs_programs for env in config.environments.values())
    yield check_isolation(tried(), least=least, programs=programs)


def tried(max_level: int = MAX_LEVEL) -> Isolation:
    """Return what a sandbox of this level at most holds against. Raise `SandboxError` where none can be started."""
    sandbox = Sandbox(min_level=0, max_level=max_level)
    try:
        sandbox.warm()
        assert sandbox.isolation is not None
        return sandbox.isolation
    finally:
        sandbox.close()


def check_isolation(isolation: Isolation, *, least: int, programs: bool) -> Finding:
    """Check whether a sandbox isolates enough. `programs` is true if environments run programs of the model."""
    level = isolation.level
    if level < least:
        said = f"level {level} of {MAX_LEVEL}, and sandbox.min_level={least}"
        through = f"{said}: NOT STOPPED: {', '.join(isolation.succeeded)}"
        return failure(through, REMEDY) if programs else warning(f"{through}; no environment needs it", REMEDY)
    return ok(f"level {level} of {MAX_LEVEL} ({', '.join(isolation.layers)})")
