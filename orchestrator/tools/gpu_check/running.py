"""A part in a process of its own: one that faults, hangs or leaves memory of the GPU behind does not stop the others."""

import importlib
import os
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from pathlib import Path

import torch

from temper.orchestrator.tools.gpu_check.part import Outcome, Part, Report

TAIL = 25
"""Lines of a process's output that are told where it ended without saying why."""
END_S = 10.0
POLL_S = 0.2
COMPILE_S = 900.0
"""How long a part may start and compile: 110 kernels of Mamba-2 alone take minutes with a cold cache."""
VERBOSE = {"TRITON_PRINT_AUTOTUNING": "1"}
"""With it the end of a part's output names the kernel that was compiled last."""
SMALL_TIMES = 4
"""How many times its deadline a part has in its small form, on CPUs that may have other work."""


def run_here(name: str, file: Path, *, small: bool) -> bool:
    """Run a part in this process and write what it finds to a file; returns whether it came to its end."""
    report = Report(name, file)
    if small:
        torch.set_num_threads(1)  # threads that fight for a core cost many times their work
    try:
        part = importlib.import_module(f"temper.orchestrator.tools.gpu_check.{name}")
        report.begin()
        part.run(report, small=small)
    except Exception:  # whatever it is: it is what the check found
        report.fault(traceback.format_exc())
        return False
    return True


def run_apart(part: Part, *, small: bool, patience: float = 1.0) -> Outcome:
    """Run a part in a separate process, ended with its children at the part's deadline. Returns its findings.

    Deadlines are `patience` times as long as they are by themselves.
    """
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="temper-gpu-") as folder:
        file, log = Path(folder) / "found.json", Path(folder) / "log"
        Report(part.name, file)
        command = [
            sys.executable,
            "-m",
            "temper.orchestrator.tools.gpu_check",
            "--part",
            part.name,
            "--found",
            str(file),
        ]
        clock = Clock(
            file, seconds=patience * part.seconds * (SMALL_TIMES if small else 1), compile_s=patience * COMPILE_S
        )
        late, why = ended([*command, *(["--small"] if small else [])], log, clock)
        outcome = Outcome.read(file)
        tail = log.read_text(encoding="utf-8", errors="replace").splitlines()[-TAIL:]
        if late:
            outcome.late = "\n".join([late, *tail])
        elif why and not outcome.fault:
            outcome.fault = "\n".join([why, *tail])
    outcome.seconds = time.monotonic() - began
    return outcome


class Clock:
    """Two clocks of a part, of which one runs at a time: one for its work, one for its starts and compiling."""

    def __init__(self, file: Path, *, seconds: float, compile_s: float) -> None:
        """The part's file names the one that runs."""
        self._file, self._limits = file, {False: seconds, True: compile_s}
        self._spent = {False: 0.0, True: 0.0}
        self._since = time.monotonic()

    def late(self) -> str:
        """Count the time since the last call. Returns which limit is passed, "" if none is."""
        now, compiling = time.monotonic(), Outcome.read(self._file).compiling
        self._spent[compiling] += now - self._since
        self._since = now
        if self._spent[compiling] <= self._limits[compiling]:
            return ""
        return f"it ran past its {self._limits[compiling]:g} s" + " of starting and compiling" * compiling


def ended(command: list[str], log: Path, clock: Clock) -> tuple[str, str]:
    """Run a command to its end or a deadline. Returns the deadline that it passed, and why it did not end well otherwise."""
    with log.open("w") as output:
        process = subprocess.Popen(
            command, stdout=output, stderr=subprocess.STDOUT, start_new_session=True, env=os.environ | VERBOSE
        )
        try:
            while (status := _waited(process)) is None:
                if late := clock.late():
                    return late, ""
        finally:
            _end(process)
    if status < 0:
        return "", f"its process was ended by {signal.Signals(-status).name}"
    return "", f"its process ended with status {status}" if status else ""


def _waited(process: subprocess.Popen[bytes]) -> int | None:
    """Return the status of a process, or None if it has not ended a moment later."""
    try:
        return process.wait(POLL_S)
    except subprocess.TimeoutExpired:
        return None


def _end(leader: subprocess.Popen[bytes]) -> None:
    """End what is left of a process's session."""
    try:
        os.killpg(leader.pid, signal.SIGKILL)
    except ProcessLookupError:
        return
    leader.wait(END_S)
