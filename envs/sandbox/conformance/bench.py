"""Figures of the sandbox: trivial programs per second and their latency, with and without numpy, and 10-test samples.

python -m temper.envs.sandbox.conformance.bench [programs] [threads]
"""

import json
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from temper.envs.sandbox.sandbox import Sandbox
from temper.envs.sandbox.sealed_process import Limits

LIMITS = Limits(wall_s=30.0)
SOURCES = {"": "print(1)", "_numpy": "import numpy\nprint(numpy.arange(2).sum())"}
FUNCTION = "def f(x):\n    return x + 1"
TESTS = 10


def measure(programs: int, threads: int) -> dict[str, float]:
    """Return figures at levels 2 and 3 for so many runs of a trivial program, started by so many threads at a time.

    `level_3_per_s`, `level_3_p50_ms`, `level_3_p99_ms`: programs per second of wall time; median and 99th percentile
    of the time from asking for a program to having its output and having it killed. `_numpy` stands in the names of a
    program that imports numpy. `level_3_samples_per_s`: samples of 10 tests, each test in a process of its own.
    """
    figures: dict[str, float] = {}
    for level in (2, 3):
        sandbox = Sandbox(min_level=level, max_level=level)
        for name, source in SOURCES.items():
            rate, seconds = _timed(lambda sandbox=sandbox, source=source: _run(sandbox, source), programs, threads)  # type: ignore[misc]
            figures[f"level_{level}{name}_per_s"] = rate
            figures[f"level_{level}{name}_p50_ms"] = 1000 * seconds[len(seconds) // 2]
            figures[f"level_{level}{name}_p99_ms"] = 1000 * seconds[len(seconds) * 99 // 100]
        figures[f"level_{level}_samples_per_s"], _ = _timed(
            lambda sandbox=sandbox: _grade(sandbox),  # type: ignore[misc]
            max(programs // TESTS, threads),
            threads,
        )
        sandbox.close()
    return {name: round(value, 2) for name, value in figures.items()}


def _timed(action: Callable[[], None], times: int, threads: int) -> tuple[float, list[float]]:
    """Return actions per second, and how long each took in seconds, shortest first; a first one is not counted."""
    action()

    def timed(_: int) -> float:
        start = time.perf_counter()
        action()
        return time.perf_counter() - start

    start = time.perf_counter()
    with ThreadPoolExecutor(threads) as pool:
        seconds = sorted(pool.map(timed, range(times)))
    return times / (time.perf_counter() - start), seconds


def _run(sandbox: Sandbox, source: str) -> None:
    reply = sandbox.run_main(source, "", LIMITS)
    assert reply.value == "1\n", reply


def _grade(sandbox: Sandbox) -> None:
    replies = sandbox.call_each(FUNCTION, "f", [[n] for n in range(TESTS)], LIMITS)
    assert [reply.value for reply in replies] == list(range(1, TESTS + 1))


if __name__ == "__main__":
    print(json.dumps(measure(*(int(text) for text in sys.argv[1:3] or ("1000", "2"))), indent=1))
