"""The sandbox for model-written programs: warm, sealed, probed when it starts.

A program runs in its own process (`envs.program`), forked by a warm zygote (`envs.sandbox_zygote`) and sealed
(`envs.sandbox_seal`). Expected values never enter it: inputs go in, results come out as size-capped JSON literals
and are compared by the caller. For speed all calls of one program share its process and may be sent ahead, so a
program can see its inputs, but never a right answer. The exit code means nothing.

Levels, found by trying attacks (`envs.sandbox_probe`): 2 limits, seccomp and Landlock hold; 1 limits and seccomp hold;
0 neither. Level 3 would add process-id namespaces and is not there. The least that is accepted is 2, or the value of
TEMPER_SANDBOX_MIN_LEVEL.
"""

import logging
import os
import threading
from collections.abc import Callable
from typing import TypeVar

from envs.errors import SandboxError
from envs.program import Limits, Program
from envs.sandbox_probe import Isolation, probe
from envs.zygote import Zygote

LOG = logging.getLogger(__name__)
MIN_LEVEL = 2
MIN_LEVEL_VARIABLE = "TEMPER_SANDBOX_MIN_LEVEL"
REMEDY = f"use a Linux kernel of 5.13 or later, or accept less by setting {MIN_LEVEL_VARIABLE}"
T = TypeVar("T")


class Sandbox:
    """Starts programs; replaces its zygote where that died. Usable from several threads."""

    def __init__(self, *, min_level: int = MIN_LEVEL) -> None:
        self.min_level = min_level
        self.lock = threading.Lock()
        self.zygote: Zygote | None = None
        self.isolation: Isolation | None = None

    def program(self, limits: Limits) -> Program:
        """A new empty program."""
        return Program(self.warm(), limits)

    def attempt(self, action: Callable[["Sandbox"], T]) -> T:
        """Runs an action; where the sandbox fails, once more on a fresh zygote. SandboxError where that fails too."""
        zygote = self.warm()
        try:
            return action(self)
        except SandboxError as error:
            LOG.warning("%s; trying again on a fresh zygote", error)
            with self.lock:
                if self.zygote is zygote:
                    zygote.close()
                    self.zygote = None
            return action(self)

    def warm(self) -> Zygote:
        """The zygote, started and probed where there is none; SandboxError where it isolates too little."""
        with self.lock:
            if self.zygote is None:
                zygote = Zygote()
                self.isolation = probe(zygote)
                if self.isolation.level < self.min_level:
                    zygote.close()
                    raise SandboxError(f"{self.isolation.line()}; {REMEDY}")
                self.zygote = zygote
            return self.zygote

    def close(self) -> None:
        """Ends the zygote."""
        with self.lock:
            if self.zygote is not None:
                self.zygote.close()
                self.zygote = None


SHARED_LOCK = threading.Lock()
SHARED: dict[int, Sandbox] = {}


def shared_sandbox() -> Sandbox:
    """The sandbox of this process, by process id so that a fork does not share its parent's."""
    with SHARED_LOCK:
        return SHARED.setdefault(os.getpid(), Sandbox(min_level=int(os.environ.get(MIN_LEVEL_VARIABLE, MIN_LEVEL))))


def sandbox_report() -> str:
    """One line that says which isolation is in force and what is not isolated; starts the sandbox."""
    sandbox = shared_sandbox()
    sandbox.warm()
    assert sandbox.isolation is not None
    return sandbox.isolation.line()
