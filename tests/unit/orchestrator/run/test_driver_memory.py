"""Memory settings of the driver's process."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = """
import ctypes, gc, sys, threading
from temper.orchestrator.run.driver import keep_driver_small
if sys.argv[2] == "kept":
    keep_driver_small()
together = threading.Barrier(8)
def work():
    together.wait()
    held = [bytes(1000 + n) for n in range(200)]
    together.wait()
threads = [threading.Thread(target=work) for _ in range(8)]
for thread in threads: thread.start()
for thread in threads: thread.join()
libc = ctypes.CDLL(None)
libc.fopen.restype = ctypes.c_void_p
file = libc.fopen(sys.argv[1].encode(), b"w")
libc.malloc_info(0, ctypes.c_void_p(file))
libc.fclose(ctypes.c_void_p(file))
print(gc.get_freeze_count())
"""


def heaps_and_frozen(tmp_path: Path, kept: str) -> tuple[int, int]:
    """Return the number of heaps for eight concurrent threads, and the number of objects that garbage collection skips."""
    info = tmp_path / "malloc.xml"
    command = [sys.executable, "-c", PROGRAM, str(info), kept]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    return len(re.findall(r"<heap nr=", info.read_text(encoding="utf-8"))), int(done.stdout)


@pytest.mark.skipif(sys.platform != "linux", reason="reads glibc's malloc")
def test_threads_of_the_driver_share_two_heaps_and_its_imports_are_no_garbage(tmp_path: Path) -> None:
    plain, kept = heaps_and_frozen(tmp_path, "plain"), heaps_and_frozen(tmp_path, "kept")
    assert plain[0] > 2, "the program does not show the difference"
    assert plain[1] == 0
    assert kept[0] <= 2
    assert kept[1] > 1000


def test_what_is_kept_is_collected_at_the_end_where_libraries_count_what_is_left() -> None:
    program = "import triton; from temper.orchestrator.run.driver import keep_driver_small; keep_driver_small()"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert "leaked" not in done.stderr
