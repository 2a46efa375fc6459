"""What the system lets a process have: open files, and ports of loopback."""

import resource
from collections.abc import Iterator

from temper.orchestrator.cluster.this_machine import LOOPBACK, PORTS, free_ports
from temper.orchestrator.tools.preflight.doctor.finding import Finding, failure, ok, warning
from temper.orchestrator.tools.preflight.doctor.subject import Subject

FILES = 8192
"""Open files that Ray's processes want at their most (its own advice)."""
PORTS_WANTED = 16
"""Ports that a run takes at a time, about: where ranks meet, for pushes, and two for each engine."""


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
