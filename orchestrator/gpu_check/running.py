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

from orchestrator.gpu_check.part import Outcome, Part, Report

TAIL = 25
"""Lines of a process's output that are told where it ended without saying why."""
END_S = 10.0
SMALL_TIMES = 4
"""How many times its deadline a part has in its small form, on CPUs that may have other work."""


def run_here(name: str, file: Path, *, small: bool) -> bool:
    """Run a part in this process and write what it finds to a file; returns whether it came to its end."""
    report = Report(name, file)
    if small:
        torch.set_num_threads(1)  # threads that fight for a core cost many times their work
    try:
        importlib.import_module(f"orchestrator.gpu_check.{name}").run(report, small=small)
    except Exception:  # whatever it is: it is what the check found
        report.fault(traceback.format_exc())
        return False
    return True


def run_apart(part: Part, *, small: bool) -> Outcome:
    """Run a part in a process of its own, ended with its children at the part's deadline; returns what it found."""
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="temper-gpu-") as folder:
        file, log = Path(folder) / "found.json", Path(folder) / "log"
        Report(part.name, file)
        command = [sys.executable, "-m", "orchestrator.gpu_check", "--part", part.name, "--found", str(file)]
        seconds = part.seconds * (SMALL_TIMES if small else 1)
        why = _ended([*command, *(["--small"] if small else [])], log, seconds=seconds)
        outcome = Outcome.read(file)
        if why and not outcome.fault:
            said = log.read_text(encoding="utf-8", errors="replace").splitlines()[-TAIL:]
            outcome.fault = "\n".join([why, *said])
    outcome.seconds = time.monotonic() - began
    return outcome


def _ended(command: list[str], log: Path, *, seconds: float) -> str:
    """Run a command to its end or its deadline; returns why it did not end well."""
    with log.open("w") as output:
        process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT, start_new_session=True)
        try:
            status = process.wait(seconds)
        except subprocess.TimeoutExpired:
            return f"it ran past its {seconds:g} s"
        finally:
            _end(process)
    if status < 0:
        return f"its process was ended by {signal.Signals(-status).name}"
    return f"its process ended with status {status}" if status else ""


def _end(leader: subprocess.Popen[bytes]) -> None:
    """End what is left of a process's session."""
    try:
        os.killpg(leader.pid, signal.SIGKILL)
    except ProcessLookupError:
        return
    leader.wait(END_S)
