"""Signals to a run: the first signal requests a stop, a second one of any kind ends the run at once."""

import subprocess
import sys

PROGRAM = """
import asyncio, os, signal, sys
from types import SimpleNamespace
from temper.orchestrator.loop.deadline import StopFlag
from temper.orchestrator.pipeline.runner import _stop_on_signals

async def work():
    _stop_on_signals(StopFlag(), SimpleNamespace(note=lambda text: print(text, flush=True)))
    try:
        for name in sys.argv[1:]:
            os.kill(os.getpid(), signal.Signals[name])
            await asyncio.sleep(0.2)
        await asyncio.sleep(600)
    finally:
        await asyncio.sleep(0.1)
        print("closed", flush=True)

try:
    asyncio.run(work())
except KeyboardInterrupt:
    sys.exit(130)
"""


def test_a_second_signal_ends_a_run_at_once_and_closes_what_it_started() -> None:
    command = [sys.executable, "-c", PROGRAM, "SIGTERM", "SIGINT"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=200, check=False)
    assert done.returncode == 130, done.stderr
    stopping, closed = done.stdout.splitlines()
    assert stopping.startswith("SIGTERM: ")
    assert closed == "closed"
