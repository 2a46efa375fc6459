"""This machine: installed packages against the lock file, limits of the system, and the sandbox for programs."""

import platform
import resource
from collections.abc import Iterator, Mapping
from importlib.metadata import distributions
from pathlib import Path

import torch
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

from temper.envs.sandbox.probe import Isolation
from temper.envs.sandbox.sandbox import MAX_LEVEL, MIN_LEVEL, REMEDY, Sandbox
from temper.orchestrator.cluster.this_machine import LOOPBACK, PACKAGE, PORTS, free_ports
from temper.orchestrator.pipeline.finding import Finding, failure, ok, warning
from temper.orchestrator.tools.preflight.doctor.target import CheckTarget

PYTHONS = ("3.11", "3.12", "3.13")
"""The Python versions of the lock files."""
SHOWN = 5
SETUP = "run make setup to install the locked versions"
FILES = 8192
"""Open files that Ray advises."""
PORTS_WANTED = 16
"""Approximate ports per run: for the ranks' group, for pushes, and two per engine."""


def inspect_packages(_: CheckTarget) -> Iterator[Finding]:
    """Compare Python and its packages with the lock of torch's stack."""
    lock = PACKAGE / "requirements" / ("cpu.txt" if torch.version.cuda is None else "gpu.txt")
    yield from check_versions(read_lock(lock), _installed(), name=f"requirements/{lock.name}")
    python = platform.python_version()
    if python.rpartition(".")[0] not in PYTHONS:
        yield warning(
            f"Python {python}. The lock file is for {', '.join(PYTHONS)}", "make setup with PYTHON=python3.11"
        )


def check_versions(locked: Mapping[str, str], found: Mapping[str, str], *, name: str) -> Iterator[Finding]:
    """Compare versions by package. Additional installed packages are fine."""
    missing = sorted(package for package in locked if package not in found)
    # A build suffix such as +cpu counts only if the lock file has one.
    same = {package: SpecifierSet(f"=={version}") for package, version in locked.items() if package in found}
    other = sorted(package for package, one in same.items() if not one.contains(found[package], prereleases=True))
    if missing:
        yield failure(f"{len(missing)} of {len(locked)} packages of {name} are missing: {_listed(missing)}", SETUP)
    if other:
        message = [f"{package} {found[package]} in place of {locked[package]}" for package in other]
        yield warning(f"{len(other)} of {len(locked)} packages differ from {name}: {_listed(message)}", SETUP)
    if not missing and not other:
        yield ok(f"{len(locked)} packages as in {name}")


def read_lock(file: Path) -> dict[str, str]:
    """Return the versions of a lock file by package."""
    lines = file.read_text(encoding="utf-8").splitlines()
    pairs = (line.split(" ")[0].split("==") for line in lines if "==" in line and not line.startswith((" ", "#")))
    return {canonicalize_name(name): version for name, version in pairs}


def _installed() -> dict[str, str]:
    # Python imports the first of several packages with the same name.
    return {canonicalize_name(one.metadata["Name"]): one.version for one in reversed(list(distributions()))}


def _listed(names: list[str]) -> str:
    return ", ".join(names[:SHOWN]) + (f" and {len(names) - SHOWN} more" if len(names) > SHOWN else "")


def inspect_open_files(_: CheckTarget) -> Iterator[Finding]:
    # Ray raises its limit to this value.
    yield check_open_files(resource.getrlimit(resource.RLIMIT_NOFILE)[1])


def check_open_files(most: int) -> Finding:
    if most == resource.RLIM_INFINITY:
        return ok("no limit")
    if most < FILES:
        return warning(f"a process may have {most} files open, Ray's want {FILES}", f"ulimit -n {FILES} before the run")
    return ok(f"a process may have {most} files open")


def inspect_ports(_: CheckTarget) -> Iterator[Finding]:
    yield check_ports(PORTS)


def check_ports(among: range) -> Finding:
    """Check whether a run could listen on enough of these ports."""
    try:
        found = free_ports(PORTS_WANTED, among=among)
    except RuntimeError as error:
        what, _, remedy = str(error).rpartition("; ")
        return failure(f"{LOOPBACK} has {what}", remedy)
    return ok(f"{len(found)} free ports on {LOOPBACK} between {among.start} and {among.stop - 1}")


def inspect_sandbox(target: CheckTarget) -> Iterator[Finding]:
    """Try attacks as the sandbox does at its start."""
    config = target.requested
    least = MIN_LEVEL if config is None else config.sandbox.min_level
    programs = config is not None and any(env.runs_programs for env in config.environments.values())
    yield check_isolation(try_sandbox(), least=least, programs=programs)


def try_sandbox(max_level: int = MAX_LEVEL) -> Isolation:
    """Return the isolation of a sandbox of at most this level. Raise `SandboxError` if no sandbox can start."""
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
        message = f"level {level} of {MAX_LEVEL}, and sandbox.min_level={least}"
        through = f"{message}: NOT STOPPED: {', '.join(isolation.succeeded)}"
        return failure(through, REMEDY) if programs else warning(f"{through}. No environment needs it", REMEDY)
    return ok(f"level {level} of {MAX_LEVEL} ({', '.join(isolation.layers)})")
