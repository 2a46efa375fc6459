"""Runs a program, and ends it with all of its descendants: `subreaper.py DESCRIPTOR COMMAND...`. Standard library only.

A process whose parent ended becomes a child of the next subreaper above it, whatever its session (prctl(2),
PR_SET_CHILD_SUBREAPER). So no descendant is lost, unless it kills this process first. This process ends after all of them:
once the program ends, or once the caller closes its side of the socket DESCRIPTOR.
"""

import ctypes
import os
import signal
import sys
import threading
import time

PR_SET_CHILD_SUBREAPER = 36
KILL_S, LOOK_S = 5.0, 0.002
"""Most seconds that killed processes may take, and the pause between two looks."""
NOT_STARTED, SIGNALLED = 127, 128
"""The status of a program that did not start, and the one that a signal's number is added to, as in a shell."""


def main() -> int:
    caller, command = int(sys.argv[1]), sys.argv[2:]
    os.set_inheritable(caller, False)
    if ctypes.CDLL(None, use_errno=True).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0):
        raise OSError(ctypes.get_errno(), "prctl")
    try:  # in a session of its own, because scripts signal their group; Python ignores SIGPIPE
        program = os.posix_spawnp(command[0], command, os.environ, setsid=True, setsigdef=[signal.SIGPIPE])
    except OSError as error:
        print(error, file=sys.stderr)
        return NOT_STARTED
    threading.Thread(target=end_with_caller, args=(caller, program), daemon=True).start()
    ended, status = os.waitpid(-1, 0)
    while ended != program:
        ended, status = os.waitpid(-1, 0)
    end_children()
    code = os.waitstatus_to_exitcode(status)
    return code if code >= 0 else SIGNALLED - code


def end_with_caller(caller: int, program: int) -> None:
    os.read(caller, 1)  # returns at its end
    os.kill(program, signal.SIGKILL)


def end_children() -> None:
    """Kill the children until none is left. The children of a killed one become ours."""
    deadline = time.monotonic() + KILL_S
    while time.monotonic() < deadline:
        try:
            ended, _ = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if not ended:
            for child in children():
                os.kill(child, signal.SIGKILL)
            time.sleep(LOOK_S)


def children() -> list[int]:
    """Return the children of this process. The list in /proc/PID/task is missing in some kernels."""
    found = []
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{name}/stat", "rb") as file:
                parent = int(file.read().rpartition(b")")[2].split()[1])
        except OSError:  # it has ended
            continue
        if parent == os.getpid():
            found.append(int(name))
    return found


if __name__ == "__main__":
    sys.exit(main())
