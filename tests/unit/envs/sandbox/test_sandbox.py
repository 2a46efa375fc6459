"""The sandbox: results cross as plain values, attacks fail, faults are distinguished, nothing is left over."""

import json
import math
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from temper.envs.core.errors import SandboxError
from temper.envs.sandbox import literals
from temper.envs.sandbox.sandbox import Sandbox, report_sandbox
from temper.envs.sandbox.sealed_process import Limits, Reply, ReplyKind, SealedProcess

LIMITS = Limits(wall_s=30.0, cpu_s=4, memory_mb=256)
SHORT = Limits(wall_s=3.0, cpu_s=1, memory_mb=256)


@pytest.fixture(scope="module")
def sandbox() -> Iterator[Sandbox]:
    sandbox = Sandbox(min_level=1)
    yield sandbox
    sandbox.close()


def run(sandbox: Sandbox, source: str, *arguments: object, limits: Limits = LIMITS) -> Reply:
    """Load a source, call its `f` and return the last reply."""
    with sandbox.start(limits) as program:
        loaded = program.load(source)
        return program.call("f", list(arguments)) if loaded.kind is ReplyKind.VALUE else loaded


def children_of(pid: int) -> list[str]:
    return Path(f"/proc/{pid}/task/{pid}/children").read_text().split()


def eventually(true: Callable[[], bool]) -> bool:
    """Return whether something becomes true within 10 s."""
    deadline = time.monotonic() + 10
    while not true() and time.monotonic() < deadline:
        time.sleep(0.01)
    return true()


@pytest.mark.parametrize(
    "values",
    [
        [None, True, 1, -(10**40), 1.5, 2j, "caf\u00e9\n", b"\x00"],
        [[1, [2.0]], (1, (2,)), {1, 2}, frozenset({3}), {1: (2,), "a": None}],
    ],
)
def test_plain_values_cross_unchanged(sandbox: Sandbox, values: list[object]) -> None:
    replies = [run(sandbox, "def f(x):\n    return x", value) for value in values]
    for value, reply in zip(values, replies, strict=True):
        assert literals.decode(json.loads(json.dumps(literals.encode(value)))) == value
        assert (reply.kind, reply.value, type(reply.value)) == (ReplyKind.VALUE, value, type(value))


def test_infinite_floats_and_nan_cross(sandbox: Sandbox) -> None:
    reply = run(sandbox, "def f():\n    return [float('inf'), float('nan'), -0.0]")
    assert reply.value[0] == math.inf
    assert math.isnan(reply.value[1])
    assert str(reply.value[2]) == "-0.0"


def test_broken_literals_are_refused() -> None:
    for form in ('{"list": []}', "{}", '{"set": [[1]]}', '{"dict": [[1]]}', "[" * 10_000, '{"float": "x"}', "x"):
        with pytest.raises((ValueError, TypeError, LookupError, RecursionError)):
            literals.decode(json.loads(form))


def test_the_report_names_level_and_gaps(sandbox: Sandbox) -> None:
    sandbox.warm()
    assert sandbox.isolation is not None
    assert sandbox.isolation.level >= 1
    line = report_sandbox()
    assert line.startswith("sandbox level ")
    assert "not isolated: the kernel" in line


def test_a_level_that_is_not_reached_is_refused() -> None:
    with pytest.raises(SandboxError, match="sandbox.min_level or TEMPER_SANDBOX_MIN_LEVEL"):
        Sandbox(min_level=3, max_level=2).warm()


ENDED = {
    "endless loop": ("while True: pass", ReplyKind.TIME),
    "endless loop in C": ("def f():\n    return sum(iter(int, 1))", ReplyKind.TIME),
    "all signals ignored": (
        "import signal\nfor s in range(1, 65):\n    try: signal.signal(s, signal.SIG_IGN)\n"
        "    except (OSError, ValueError): pass\nwhile True: pass",
        ReplyKind.TIME,
    ),
    "sleep": ("import time\ntime.sleep(99)", ReplyKind.TIME),
    "memory bomb": ("x = []\nwhile True: x.append(bytearray(1 << 20))", ReplyKind.MEMORY),
    "large result": ("def f():\n    return 'a' * (1 << 20)", ReplyKind.OUTPUT),
    "large number": ("def f():\n    return 10 ** 10_000", ReplyKind.UNFIT),
    "deep result": ("def f():\n    x = []\n    for _ in range(9999): x = [x]\n    return x", ReplyKind.UNFIT),
    "exit code 0": ("import os\nos._exit(0)", ReplyKind.CRASH),
    "SystemExit": ("raise SystemExit(0)", ReplyKind.RAISED),
    "crash in C": ("import ctypes\nctypes.string_at(0)", ReplyKind.CRASH),
    "endless recursion": ("def f():\n    return f()", ReplyKind.RAISED),
    "equal to everything": (
        "class E(int):\n    def __eq__(self, other): return True\ndef f():\n    return E(1)",
        ReplyKind.UNFIT,
    ),
    "rubbish on the channel": ("import os\nos.write(3, b'\\xff' * 99)", ReplyKind.OUTPUT),
    "an endless frame": ("import os\nos.write(3, b'\\x00\\x00\\xff\\xff')\nwhile True: pass", ReplyKind.TIME),
    "closed channel": ("import os, time\nos.close(3)\ntime.sleep(99)", ReplyKind.CRASH),
}


@pytest.mark.parametrize("name", ENDED)
def test_a_program_that_breaks_a_limit_is_told_apart(sandbox: Sandbox, name: str) -> None:
    source, kind = ENDED[name]
    start = time.monotonic()
    limits = SHORT if kind is ReplyKind.TIME else LIMITS
    assert run(sandbox, source, limits=limits).kind is kind
    assert time.monotonic() - start < limits.wall_s + 15  # the time for which it waits for a CPU does not count


def test_output_is_thrown_away(sandbox: Sandbox) -> None:
    reply = run(
        sandbox, "import sys\ndef f():\n    for _ in range(100): sys.stdout.write('x' * 1_000_000)\n    return 1"
    )
    assert reply == Reply(kind=ReplyKind.VALUE, value=1)


def test_a_forged_reply_is_only_the_programs_own_answer(sandbox: Sandbox) -> None:
    forge = (
        "import os, struct\nb = b'{\"value\":true}'\nos.write(3, struct.pack('>I', len(b)) + b)\ndef f():\n    return 2"
    )
    with sandbox.start(LIMITS) as program:
        replies = [program.load(forge), program.call("f", [])]
    assert [reply.value for reply in replies] == [True, None]


def test_programs_do_not_see_each_other(sandbox: Sandbox) -> None:
    assert (
        run(sandbox, "import math\nmath.pi = 3\nimport builtins\nbuiltins.sum = None\ndef f():\n    return 1").value
        == 1
    )
    assert run(sandbox, "import math\ndef f():\n    return [math.pi, sum([1])]").value == [math.pi, 1]


def test_nothing_is_left_after_programs_have_ended(sandbox: Sandbox) -> None:
    for source in ("while True: pass", "import os\nos._exit(0)", "def f():\n    return 1"):
        run(sandbox, source, limits=SHORT)
    zygote = sandbox.warm()
    with sandbox.start(LIMITS) as program:
        assert program.pid is not None
        assert len(children_of(zygote.pid)) == 1
    assert eventually(lambda: children_of(zygote.pid) == [])


def test_a_dead_zygote_is_replaced_and_the_action_tried_again() -> None:
    sandbox = Sandbox(min_level=1)
    first = sandbox.warm()
    os.kill(first.pid, signal.SIGKILL)
    first.process.wait()
    reply = sandbox.attempt(lambda box: run(box, "def f():\n    return 5"))
    assert reply.value == 5
    assert sandbox.warm() is not first
    sandbox.close()


def test_a_zygote_that_dies_in_mid_run_is_the_sandboxs_fault() -> None:
    sandbox = Sandbox(min_level=1)
    runs = 0

    def action(box: Sandbox) -> Reply:
        nonlocal runs
        runs += 1
        with box.start(LIMITS) as program:
            program.load("x = 1")
            os.kill(box.warm().pid, signal.SIGKILL)
            box.warm().process.wait()
            return program.call("f", [])

    with pytest.raises(SandboxError):
        sandbox.attempt(action)
    assert runs == 2
    sandbox.close()


def test_the_zygote_ends_with_its_parent() -> None:
    read, write = os.pipe()
    parent = os.fork()
    if parent == 0:
        sandbox = Sandbox(min_level=1)
        os.write(write, str(sandbox.warm().pid).encode())
        os._exit(0)
    os.waitpid(parent, 0)
    zygote = Path(f"/proc/{int(os.read(read, 20))}/stat")
    assert eventually(lambda: not zygote.exists() or zygote.read_text().split()[2] == "Z")
    os.close(read)
    os.close(write)


def test_programs_run_from_many_threads(sandbox: Sandbox) -> None:
    results: list[int] = []
    threads = [
        threading.Thread(target=lambda n=n: results.append(run(sandbox, "def f(x):\n    return x * x", n).value))
        for n in range(24)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(results) == [n * n for n in range(24)]


def test_a_zygote_started_by_a_thread_outlives_it() -> None:
    sandbox = Sandbox(min_level=1)
    thread = threading.Thread(target=sandbox.warm)
    thread.start()
    thread.join()
    with sandbox.start(LIMITS) as program:
        assert isinstance(program, SealedProcess)
        assert program.load("x = 1").kind is ReplyKind.VALUE
    sandbox.close()
