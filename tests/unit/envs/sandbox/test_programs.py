"""Calls in separate processes, whole programs, numpy, and broken replies."""

import importlib.util
import os
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest

from temper.envs.coding.env import judge
from temper.envs.core.errors import EnvironmentFault
from temper.envs.sandbox.sandbox import Sandbox
from temper.envs.sandbox.sealed_process import Limits, Reply, ReplyKind
from temper.rewards.score import Outcome

LIMITS = Limits(wall_s=30.0, cpu_s=2, memory_mb=256)


@pytest.fixture(scope="module")
def sandbox() -> Iterator[Sandbox]:
    sandbox = Sandbox()
    yield sandbox
    sandbox.close()


def results(sandbox: Sandbox, source: str, *calls: list[object]) -> list[Reply]:
    return list(sandbox.call_each(source, "f", calls, LIMITS))


def test_every_call_has_a_reply_in_order(sandbox: Sandbox) -> None:
    replies = results(sandbox, "def f(x):\n    return 12 // x", [1], [0], [3], [4])
    assert [reply.kind for reply in replies] == [ReplyKind.VALUE, ReplyKind.RAISED, ReplyKind.VALUE, ReplyKind.VALUE]
    assert [reply.value for reply in replies] == [12, None, 4, 3]
    assert replies[1].detail == "ZeroDivisionError: integer division or modulo by zero (line 2)"
    assert results(sandbox, "def f(x):\n    return x") == []


def test_a_source_that_cant_be_loaded_fails_every_call(sandbox: Sandbox) -> None:
    replies = results(sandbox, "x =", [1], [2])
    assert [reply.kind for reply in replies] == [ReplyKind.RAISED] * 2
    assert all(reply.detail.startswith("SyntaxError") for reply in replies)


def test_a_call_sees_nothing_of_other_calls(sandbox: Sandbox) -> None:
    source = (
        "import gc, os\nseen = []\ndef f(x):\n    seen.append(x)\n"
        "    return [seen, sum('other-' + 'call' in str(o) for o in gc.get_objects() if type(o) in (list, str, dict))]"
    )
    replies = results(sandbox, source, ["mine"], ["other-call"], ["mine"])
    assert replies[0].value == [["mine"], 0]
    assert replies[1].value[1] > 0
    assert replies[2].value == [["mine"], 0]


def test_a_call_that_ends_its_process_does_not_stop_the_others(sandbox: Sandbox) -> None:
    replies = results(sandbox, "import os\ndef f(x):\n    return os._exit(0) if x else 7", [0], [1], [0])
    assert [reply.kind for reply in replies] == [ReplyKind.VALUE, ReplyKind.CRASH, ReplyKind.VALUE]


def test_a_caller_that_stops_early_leaves_nothing(sandbox: Sandbox) -> None:
    for reply in sandbox.call_each("def f(x):\n    return x", "f", [[n] for n in range(9)], LIMITS):
        assert reply.value == 0
        break
    assert results(sandbox, "def f(x):\n    return x", [5])[0].value == 5


def test_large_arguments_arrive_whole(sandbox: Sandbox) -> None:
    (reply,) = results(sandbox, "def f(x):\n    return len(x)", ["a" * 3_000_000])
    assert reply.value == 3_000_000


def test_arguments_that_cant_be_given_are_the_tasks_fault(sandbox: Sandbox) -> None:
    with pytest.raises(EnvironmentFault, match="bytes"):
        results(sandbox, "def f(x):\n    return 1", ["a" * 9_000_000])
    with pytest.raises(EnvironmentFault, match="object"):
        results(sandbox, "def f(x):\n    return 1", [object()])


def test_a_source_of_broken_text_is_the_programs_fault(sandbox: Sandbox) -> None:
    (reply,) = results(sandbox, "def f(x):\n    return '\udcff'", [1])
    assert (reply.kind, reply.value) == (ReplyKind.VALUE, "?")


MAIN = {
    "input": ("print(input() * 2)", "abab\n"),
    "read": ("import sys\nprint(sys.stdin.read().upper(), end='')", "AB\nC"),
    "lines": ("import sys\nfor line in sys.stdin: print(repr(line))", "'ab\\n'\n'c'\n"),
    "bytes": ("import sys\nsys.stdout.buffer.write(sys.stdin.buffer.read())", "ab\nc"),
    "descriptors": ("import os\nos.write(1, os.read(0, os.fstat(0).st_size))", "ab\nc"),
    "file 0": ("print(open(0).read())", "ab\nc\n"),
    "at exit": ("import atexit, sys\natexit.register(lambda: sys.__stdout__.write('late'))", "late"),
    "the guard": ("if __name__ == '__main__': print(1)", "1\n"),
    "exit 0": ("print(1)\nraise SystemExit", "1\n"),
    "exit 3": ("import sys\nprint(1)\nsys.exit(3)", "1\n"),
    "exit()": ("print(1)\nexit()", "1\n"),
    "quit(0)": ("print(1)\nquit(0)", "1\n"),
    "exit without an end": ("import os\nprint(1, flush=True)\nos._exit(0)", "1\n"),
    "exit without what was not flushed": ("import os\nprint(1)\nos._exit(0)", ""),
    "a large stack": (
        "import sys, threading\nsys.setrecursionlimit(10**6)\nthreading.stack_size(2**26)\n"
        "def depth(n): return 0 if n == 0 else 1 + depth(n - 1)\n"
        "threading.Thread(target=lambda: print(depth(20_000))).start()",
        "20000\n",
    ),
    "a pool": (
        "from concurrent.futures import ThreadPoolExecutor as Pool\nwith Pool(8) as pool:\n"
        "    print(sum(pool.map(int, '1234')))",
        "10\n",
    ),
    "a queue": (
        "import queue, threading\nq = queue.Queue()\nthreading.Thread(target=lambda: q.put(input())).start()\n"
        "print(q.get())",
        "ab\n",
    ),
    "200 threads": (
        "import threading\nfor n in range(200):\n    t = threading.Thread(target=int)\n    t.start()\n    t.join()\nprint(n)",
        "199\n",
    ),
    "asyncio": (
        "import asyncio\nasync def main():\n    await asyncio.sleep(0.001)\n"
        "    print(await asyncio.gather(*(asyncio.to_thread(int, d) for d in '12')))\nasyncio.run(main())",
        "[1, 2]\n",
    ),
    "no output": ("", ""),
    "64 KiB": ("print('x' * 65535)", "x" * 65535 + "\n"),
    "not Unicode": ("import sys\nsys.stdout.buffer.write(b'\\xff')", "\ufffd"),
    "annotations": (
        "from __future__ import annotations\nfrom dataclasses import dataclass\n@dataclass\nclass A:\n    x: int\nprint(A(1))",
        "A(x=1)\n",
    ),
    "base64": ("import base64, zlib, bz2, lzma\nprint(base64.b64encode(b'a').decode())", "YQ==\n"),
}


@pytest.mark.parametrize("name", MAIN)
def test_a_whole_program_gives_its_output(sandbox: Sandbox, name: str) -> None:
    source, output = MAIN[name]
    assert sandbox.run_main(source, "ab\nc", LIMITS) == Reply(kind=ReplyKind.VALUE, value=output)


def test_functions_use_threads_also_of_a_source_that_exits(sandbox: Sandbox) -> None:
    source = (
        "import asyncio, threading\ndef f(x):\n    found = []\n"
        "    thread = threading.Thread(target=lambda: found.append(x))\n    thread.start()\n    thread.join()\n"
        "    return found + [asyncio.run(g())]\nasync def g():\n    return 1\nexit()"
    )
    assert [reply.value for reply in results(sandbox, source, [3], [4])] == [[3, 1], [4, 1]]
    failing = source.replace("exit()", "exit(2)")
    assert results(sandbox, failing, [3])[0].kind is ReplyKind.RAISED


FAULTS = {
    "too much": ("print('x' * 2**20)", ReplyKind.OUTPUT),
    "a flood": ("while True: print('x' * 1000)", ReplyKind.OUTPUT),
    "an exception": ("print(1)\n1 / 0", ReplyKind.RAISED),
    "exit code 1 without an end": ("import os\nprint(1, flush=True)\nos._exit(1)", ReplyKind.CRASH),
    "a thread that loops": (
        "import threading\ndef f():\n    while True: pass\nthreading.Thread(target=f).start()",
        ReplyKind.TIME,
    ),
    "too many threads": (
        "import threading\nthreading.stack_size(2**15)\n"
        "for _ in range(300): threading.Thread(target=threading.Event().wait, daemon=True).start()",
        ReplyKind.CRASH,
    ),
    "a loop": ("while True: pass", ReplyKind.TIME),
    "an exit that loops": ("import atexit\ndef f():\n    while True: pass\natexit.register(f)", ReplyKind.TIME),
    "memory": ("bytearray(1 << 30)", ReplyKind.MEMORY),
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_whole_program_without_an_end_gives_no_output(sandbox: Sandbox, name: str) -> None:
    source, kind = FAULTS[name]
    reply = sandbox.run_main(source, "", LIMITS)
    assert (reply.kind, reply.value) == (kind, None)
    if name == "an exception":
        assert reply.detail == "ZeroDivisionError: division by zero (line 2)"


def test_a_long_input_is_read_whole(sandbox: Sandbox) -> None:
    assert sandbox.run_main("print(len(open(0).read()))", "x" * 10_000_000, LIMITS).value == "10000000\n"


BROKEN = [
    b"[]", b"{}", b"null", b'"value"', b'{"value":1,"raised":"x"}', b'{"nothing":1}', b'{"value":{"x":1}}',
    b'{"value":{"set":[[1]]}}', b'{"value":{"dict":[[{"set":[]},1]]}}', b'{"value":{"float":[1]}}',
    b'{"value":{"complex":1}}', b'{"value":{"bytes":"xx"}}', b'{"value":"\\ud800"}', b'{"value":' + b"9" * 9999 + b"}",
    b'{"value":' + b"[" * 9999, b'{"value":' + b"[" * 60 + b"]" * 60 + b"}", b"\xff\xfe", b"", b'{"ask":[1]}',
]  # fmt: skip


@pytest.mark.parametrize("body", BROKEN)
def test_a_broken_reply_is_the_programs_own(sandbox: Sandbox, body: bytes) -> None:
    source = f"import os, struct\ndef f():\n    b = {body!r}\n    os.write(3, struct.pack('>I', len(b)) + b)\n    os._exit(0)"
    (reply,) = results(sandbox, source, [])
    assert reply.kind is ReplyKind.UNFIT, reply
    assert reply.detail.startswith("a broken reply")


def test_a_reason_of_broken_text_can_be_written_to_a_file(sandbox: Sandbox) -> None:
    (reply,) = results(sandbox, "def f():\n    raise ValueError('\\udcff')", [])
    assert reply.kind is ReplyKind.RAISED
    assert reply.detail.encode() == b"ValueError: ? (line 2)"


needs_numpy = pytest.mark.skipif(importlib.util.find_spec("numpy") is None, reason="numpy is not installed")
NUMPY = "import numpy as np\ndef f(n):\n    return float((np.ones((n, n)) @ np.ones((n, n))).sum())"


@needs_numpy
def test_a_program_may_use_numpy(sandbox: Sandbox) -> None:
    assert results(sandbox, NUMPY, [10])[0].value == 1000.0
    assert (
        sandbox.run_main("import os, numpy\nprint(numpy.random.default_rng(0).integers(1))", "", LIMITS).value == "0\n"
    )
    with sandbox.start(LIMITS, NUMPY) as program:
        replies = [program.load(NUMPY), program.call("f", [1]), program.call("f", [2])]
    assert [reply.value for reply in replies] == [None, 1.0, 8.0]


@needs_numpy
def test_numpy_is_imported_beforehand_and_limits_hold_beside_it(sandbox: Sandbox) -> None:
    results(sandbox, NUMPY, [1])
    (reply,) = results(sandbox, "import time\nimport numpy\ndef f():\n    return time.process_time()", [])
    assert reply.value < 0.05  # CPU seconds of the process; the import takes more
    assert results(sandbox, "import numpy\ndef f():\n    return len(numpy.ones(2**27))", [])[0].kind is ReplyKind.MEMORY
    for path in ("/etc/passwd", "pytest", "numpy/../pytest/__init__.py"):
        source = f"import numpy, os\ndef f():\n    return open(os.path.join(numpy.__path__[0], '..', {path!r})).read()"
        assert results(sandbox, source, [])[0].kind is ReplyKind.RAISED


def test_a_program_that_hides_its_use_of_numpy_does_without(sandbox: Sandbox) -> None:
    (reply,) = results(sandbox, "def f():\n    return __import__('num' + 'py').__name__", [])
    assert reply.kind is ReplyKind.RAISED
    assert reply.detail.startswith("ModuleNotFoundError")


BUSY = "import time\ndef f(seconds):\n    while time.process_time() < seconds:\n        pass\n    return 7"


@pytest.fixture
def crowded() -> Iterator[Sandbox]:
    """A sandbox that shares one CPU with four busy processes."""
    cpus, others = os.sched_getaffinity(0), list[subprocess.Popen[bytes]]()
    os.sched_setaffinity(0, {min(cpus)})  # what is started from here on has one CPU together
    sandbox = Sandbox()
    try:
        sandbox.warm()
        endless = [sys.executable, "-S", "-c", "while True: pass"]
        others += [subprocess.Popen(endless, start_new_session=True) for _ in range(4)]
        yield sandbox
    finally:
        os.sched_setaffinity(0, cpus)
        for other in others:
            other.kill()
            other.wait()
        sandbox.close()


def test_waiting_for_a_cpu_does_not_count(crowded: Sandbox) -> None:
    limits = Limits(wall_s=0.4, cpu_s=2, memory_mb=256)
    with crowded.start(limits) as program:
        assert program.load(BUSY).kind is ReplyKind.VALUE
        start = time.monotonic()
        assert program.call("f", [0.25]).value == 7
        assert time.monotonic() - start > limits.wall_s
    assert crowded.run_main(f"{BUSY}\nprint(f(0.25))", "", limits).value == "7\n"
    assert crowded.run_main("import time\ntime.sleep(9)", "", limits).kind is ReplyKind.TIME


def test_nor_does_it_count_among_the_time_of_all_tests(crowded: Sandbox) -> None:
    spec, longer = ({"entry_point": "f", "tests": [{"args": [s], "expected": 7}] * 5} for s in (0.2, 0.8))
    start = time.monotonic()
    judged, _ = judge(crowded, BUSY, spec, seconds=1.5)
    assert time.monotonic() - start > 1.5
    assert judged.outcome is Outcome.OK
    sleeps = "import time\ndef f(seconds):\n    time.sleep(seconds)\n    return 7"
    judged, _ = judge(crowded, sleeps, longer, seconds=0.5)
    assert judged.outcome is Outcome.POLICY_FAULT
    assert judged.detail.endswith("the tests before it took 0.5 s")
