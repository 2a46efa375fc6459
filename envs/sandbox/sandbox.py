"""The sandbox for model-written programs: warm, sealed, and probed at its start.

A program runs in its own process (`sealed_process`), forked by a warm zygote (`zygote_main`) and sealed (`seal`,
`namespaces`). Expected values never enter it: inputs go in, results come out as size-limited JSON literals, and the caller
compares them. `call_each` gives every call its own process, which sees only this call's arguments. Programs can write no
file, so they can't fill a disk. The exit code is ignored.

The level is found by trying attacks (`probe`). All attacks are in `tests/support/sandbox_attacks`:

    3   level 2, and namespaces: a program sees no other process, no file but the standard library, no host name
    2   limits, seccomp and Landlock hold
    1   limits and seccomp hold
    0   neither

Without namespaces the sandbox logs a warning and has level 2. The minimum is 2, or the value of TEMPER_SANDBOX_MIN_LEVEL. A
level once reached is kept. Programs that import numpy run under a second zygote with numpy imported. Only programs that
mention threads may start any, because each of those costs the zygote a listener.
"""

import logging
import os
import re
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar

from temper.envs.core.clock import stop_clock
from temper.envs.core.errors import SandboxError
from temper.envs.core.setting import free
from temper.envs.sandbox.per_process import PerProcess
from temper.envs.sandbox.probe import Isolation, probe
from temper.envs.sandbox.seal_probe import KERNEL, MIN_LEVEL_VARIABLE
from temper.envs.sandbox.sealed_process import Limits, Reply, SealedProcess
from temper.envs.sandbox.stdin_process import StdinProcess
from temper.envs.sandbox.zygote_client import Zygote

LOG = logging.getLogger(__name__)
MIN_LEVEL, MAX_LEVEL = 2, 3
AT_ONCE = 4
STARTED_AHEAD = 2  # processes of one program at the same time
REMEDY = (
    f"use {KERNEL}, for level 3 one that allows user namespaces, "
    f"or set sandbox.min_level or {MIN_LEVEL_VARIABLE} to accept less"
)
NUMPY = re.compile(r"\b(?:import|from)\b[^\n#]*\bnumpy\b")
THREADS = re.compile(r"thread|concurrent|asyncio")
T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class SandboxConfig:
    """The sandbox of model-written programs."""

    min_level: int = free(MIN_LEVEL)
    """Minimum isolation: 3 all layers, 2 without process namespaces, 1 limits and system calls only, 0 none."""

    def __post_init__(self) -> None:
        if self.min_level not in range(4):
            raise ValueError(f"sandbox.min_level={self.min_level}: must be 0, 1, 2 or 3")


class Sandbox:
    """Starts programs and replaces a dead zygote. Thread-safe."""

    def __init__(self, *, min_level: int = MIN_LEVEL, max_level: int = MAX_LEVEL) -> None:
        self.min_level, self.max_level = min_level, max_level
        self.lock = threading.Lock()
        self.zygotes: dict[str | None, Zygote] = {}  # by the folder of its imported numpy, or None
        self.isolation: Isolation | None = None
        self.admit(AT_ONCE)

    def admit(self, programs: int) -> None:
        """Set the number of actions that `attempt` runs at once from now on."""
        self.places = threading.BoundedSemaphore(programs)

    def start(self, limits: Limits, source: str = "") -> SealedProcess:
        """Start an empty process. Its program can use numpy and threads if its later source mentions them."""
        return SealedProcess(self.warm(source), limits, threads=bool(THREADS.search(source)))

    def call_each(self, source: str, name: str, calls: Sequence[list[Any]], limits: Limits) -> Iterator[Reply]:
        """Yield one reply per call of a function, in order, each from a new process that sees only this call.

        If loading the source fails, its result is the reply. The limits apply to each process. The process of the next call
        starts while the previous one runs.
        """
        left = iter(calls)
        started: deque[SealedProcess] = deque()
        try:
            for _ in calls:
                for arguments in islice(left, STARTED_AHEAD - len(started)):
                    started.append(self.start(limits, source))
                    started[-1].send(source, name, arguments)
                reply = started[0].reply()
                started.popleft().close()
                yield reply
        finally:
            for process in started:
                process.close()

    def run_main(self, source: str, stdin: str, limits: Limits, *, most: int = 0) -> Reply:
        """Run a whole program as `__main__`. Return `VALUE` with its standard output, or the reason for its failure."""
        threads = bool(THREADS.search(source))
        with StdinProcess(self.warm(source), limits, stdin=stdin, most=most, threads=threads) as process:
            return process.run(source)

    def attempt(self, action: Callable[["Sandbox"], T]) -> T:
        """Run an action. If the sandbox fails, retry once on a fresh zygote. Raise `SandboxError` if that fails too.

        The action must read all the replies that it needs, since its processes are closed afterwards. The wait for a slot
        and the run time of programs, which has its own limits, do not count for the episode's clock.
        """
        with stop_clock(), self.places:
            try:
                return action(self)
            except SandboxError as error:
                LOG.warning("%s; retrying on a fresh zygote", error)
                return action(self)

    def warm(self, source: str = "") -> Zygote:
        """Return the zygote for a source, started and probed on first use."""
        site = _numpy_folder() if NUMPY.search(source) else None
        with self.lock:
            if site in self.zygotes and self.zygotes[site].broken:
                self.zygotes.pop(site).close()
            if site not in self.zygotes:
                self.zygotes[site] = self._start_zygote(site)
            return self.zygotes[site]

    def _start_zygote(self, site: str | None) -> Zygote:
        zygote = self._highest(site)
        try:
            self.isolation = probe(zygote)
            if self.isolation.level < self.min_level:
                raise SandboxError(f"{self.isolation.line()}; {REMEDY}")
        except SandboxError:
            zygote.close()
            raise
        self.min_level = max(self.min_level, self.isolation.level)
        return zygote

    def _highest(self, site: str | None) -> Zygote:
        if self.max_level >= 3:
            try:
                return Zygote(level=3, site=site)
            except SandboxError as error:
                LOG.warning("the sandbox can't make namespaces, so its level is at most 2: %s", error)
        return Zygote(level=2, site=site)

    def close(self) -> None:
        with self.lock:
            while self.zygotes:
                self.zygotes.popitem()[1].close()


@cache
def _numpy_folder() -> str | None:
    spec = find_spec("numpy")
    return None if spec is None or spec.origin is None else str(Path(spec.origin).resolve().parents[1])


SHARED = PerProcess(lambda: Sandbox(min_level=int(os.environ.get(MIN_LEVEL_VARIABLE, MIN_LEVEL))))


def shared_sandbox() -> Sandbox:
    return SHARED.get()


def report_sandbox() -> str:
    """Start the sandbox and return one line about its isolation and its gaps."""
    sandbox = shared_sandbox()
    sandbox.warm()
    assert sandbox.isolation is not None
    return sandbox.isolation.line()
