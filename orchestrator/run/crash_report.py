"""Reports a driver that ends without a report, because it is killed, for example for lack of memory, or a library exits.

This file is also the program of the process that reports. It imports the standard library only, so it starts in 20 ms.
"""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

ENDED = b"ended\n"
"""The message of a driver that reports its end itself."""
STOP_S = 5.0
"""Seconds for the reporting process to end."""
LINES, TAIL_BYTES = 5, 4000
"""Most lines and bytes of the log in a report."""


@contextmanager
def crash_reporter(faults: Path, log: Path, command: str) -> Iterator[None]:
    """Let another process report if this one ends within the block: on standard error, and in a file of `faults`.

    The report has the last lines that this process added to `log`, and the `command` that resumes the run.
    """
    start = log.stat().st_size if log.exists() else 0
    program = [sys.executable, "-I", "-S", __file__, str(faults), str(log), str(start), command]
    # In a new session Ctrl-C does not reach it. The pipe closes with this process, however it ends.
    reporter = subprocess.Popen(program, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, start_new_session=True)
    try:
        yield
    finally:
        try:
            reporter.communicate(ENDED, timeout=STOP_S)
        except subprocess.TimeoutExpired:
            reporter.kill()
            reporter.wait()


def watch(faults: Path, log: Path, start: int, command: str) -> None:
    """Wait for the driver's end, which closes standard input, and report it. Its log begins at the byte `start`."""
    for one in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):  # a scheduler sends them to all processes
        signal.signal(one, signal.SIG_IGN)
    if sys.stdin.buffer.read() == ENDED:
        return
    lines = [
        "the driver ended: it was killed, for example because memory ran out, or a library ended it",
        f"when: {time.strftime('%Y-%m-%dT%H:%M:%S+00:00', time.gmtime())}",
        *(f"{log}: {line}" for line in tail(log, start)),
        f"to resume, rerun its command: {command}",
    ]
    with suppress(OSError):  # a full disk
        faults.mkdir(parents=True, exist_ok=True)
        (faults / f"{1 + last_fault(faults):03}-driver.txt").write_text("\n".join([*lines, ""]), encoding="utf-8")
    with suppress(OSError):  # a closed terminal
        print("", *lines, sep="\n", file=sys.stderr, flush=True)


def last_fault(faults: Path) -> int:
    """Return the highest number of the files NUMBER-WHO.txt in a folder of faults, 0 without any."""
    numbers = (path.name.partition("-")[0] for path in faults.glob("*.txt"))
    return max((int(number) for number in numbers if number.isdecimal()), default=0)


def tail(log: Path, start: int) -> list[str]:
    """Return the last lines of a log, from its byte `start` on."""
    with suppress(OSError), log.open("rb") as file:
        file.seek(max(start, os.fstat(file.fileno()).st_size - TAIL_BYTES))
        return file.read().decode(errors="replace").splitlines()[-LINES:]
    return []


if __name__ == "__main__":
    watch(Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]), sys.argv[4])
