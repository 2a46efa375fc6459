"""Programs that try to outlast their limits, to forge their verdict, or to make the sandbox itself fail.

Each function is an attack as in `attacks.py`. The attacks look for the grader's secret, a text `secret-` and 32
hexadecimal digits. Functions in `WHOLE` run as whole programs whose output counts.
"""

import builtins
import ctypes
import functools
import gc
import json
import mmap
import os
import re
import signal
import struct
import sys
import threading
import time
from typing import Any

SECRET = re.compile("secret-[0-9a-f]{32}")
WHOLE = (
    "floods_its_output",
    "leaves_a_grandchild",
    "loops_in_threads",
    "exits_from_a_whole_program",
    "fills_memory_through_its_input",
)
Hint = dict[str, Any]


def _frame(body: bytes) -> bytes:
    return struct.pack(">I", len(body)) + body


def _send(body: bytes) -> None:
    """Write all of it to the channel."""
    while body:
        body = body[os.write(3, body) :]


def loops(hint: Hint) -> Any:
    while True:
        pass


def loops_in_c(hint: Hint) -> Any:
    return sum(iter(int, 1)) or True


def loops_in_a_regular_expression(hint: Hint) -> Any:
    return re.match("(a|a)*b", "a" * 60) is None


def loops_without_signals(hint: Hint) -> Any:
    for number in range(1, 65):
        try:
            signal.signal(number, signal.SIG_IGN)
        except (OSError, ValueError):
            continue
    while True:
        pass


def loops_through_exceptions(hint: Hint) -> Any:
    while True:
        try:
            while True:
                pass
        except BaseException:
            continue


def sleeps(hint: Hint) -> Any:
    time.sleep(1000)
    return True


def stops_itself(hint: Hint) -> Any:
    os.kill(os.getpid(), signal.SIGSTOP)
    return True


def bombs_memory(hint: Hint) -> Any:
    return len([bytearray(2**26) for _ in range(64)])


def maps_memory(hint: Hint) -> Any:
    maps = [mmap.mmap(-1, 2**30) for _ in range(8)]
    return len(maps)


def recurses_in_c(hint: Hint) -> Any:
    """End by a stack overflow in C."""
    sys.setrecursionlimit(10**9)
    value: Any = None
    for _ in range(10**6):
        value = functools.partial(print, value)
    return repr(value)


def bombs_with_threads(hint: Hint) -> Any:
    for _ in range(1000):
        threading.Thread(target=threading.Event().wait, daemon=True).start()
    return True


def bombs_with_small_threads(hint: Hint) -> Any:
    threading.stack_size(2**15)
    for _ in range(1000):
        threading.Thread(target=threading.Event().wait, daemon=True).start()
    return True


def bombs_with_short_threads(hint: Hint) -> Any:
    for _ in range(1000):
        thread = threading.Thread(target=int)
        thread.start()
        thread.join()
    return True


def loops_in_threads(hint: Hint) -> Any:
    def loop() -> None:
        while True:
            pass

    for _ in range(8):
        threading.Thread(target=loop).start()


def leaves_a_thread_behind_its_main_one(hint: Hint) -> Any:
    threading.Thread(target=time.sleep, args=(1000,)).start()
    ctypes.CDLL(None).syscall(93 if os.uname().machine == "aarch64" else 60, 0)
    return True


def leaves_a_grandchild(hint: Hint) -> Any:
    """Leave a process that would outlive the program and keep the output open."""
    if os.fork() == 0:
        os.setsid()
        while True:
            signal.pause()
    os._exit(0)


def floods_its_output(hint: Hint) -> Any:
    for _ in range(1024):
        sys.stdout.write("x" * 2**20)
    return True


def returns_a_gigabyte(hint: Hint) -> Any:
    return "x" * 2**30


def returns_much(hint: Hint) -> Any:
    return "x" * 2**20


def floods_the_channel(hint: Hint) -> Any:
    while True:
        os.write(3, b"\x00" * 2**16)


def fills_memory_through_its_input(hint: Hint) -> Any:
    """Write to the file behind standard input, which is in memory."""
    os.ftruncate(0, 2**30)
    return os.write(0, b"x" * 2**20)


def exits_from_a_whole_program(hint: Hint) -> Any:
    os._exit(0)


def exits_at_once(hint: Hint) -> Any:
    os._exit(0)


def exits_by_exception(hint: Hint) -> Any:
    raise SystemExit(0)


def is_equal_to_everything(hint: Hint) -> Any:
    class Equal:
        def __eq__(self, other: object) -> bool:
            return True

        def __hash__(self) -> int:
            return 0

    return Equal()


def is_text_equal_to_everything(hint: Hint) -> Any:
    class Equal(str):
        def __eq__(self, other: object) -> bool:
            return True

        def __hash__(self) -> int:
            return 0

    return Equal("x")


def is_a_container_equal_to_everything(hint: Hint) -> Any:
    class Equal(tuple[int, ...]):
        def __eq__(self, other: object) -> bool:
            return True

        def __hash__(self) -> int:
            return 0

    return Equal()


def walks_frames(hint: Hint) -> Any:
    frame = sys._getframe()
    while frame is not None:
        for value in [*frame.f_locals.values(), *frame.f_globals.values()]:
            if found := SECRET.search(repr(value)):
                return found[0]
        frame = frame.f_back  # type: ignore[assignment]
    return False


def walks_objects(hint: Hint) -> Any:
    for thing in gc.get_objects():
        for value in gc.get_referents(thing):
            if type(value) in (str, bytes) and (found := SECRET.search(str(value))):
                return found[0]
    return False


def scans_memory(hint: Hint) -> Any:
    """Read the memory around its objects."""
    start = id(hint) & ~0xFFF
    pages = ctypes.string_at(start - 2**18, 2**19)
    found = SECRET.search(pages.decode("latin-1"))
    return found and found[0]


def replaces_builtins(hint: Hint) -> Any:
    for name in ("all", "any", "len", "isinstance", "type", "sorted", "repr"):
        setattr(builtins, name, lambda *arguments: True)
    return "wrong"


def replaces_the_checker(hint: Hint) -> Any:
    """Replace every module's functions that could judge, and the encoder of the answer, by functions that approve."""
    for module in list(sys.modules.values()):
        for name in ("is_strictly_equal", "check", "verdict", "compare", "assert_equal"):
            setattr(module, name, lambda *arguments: True)
    yes = '{"value":true,"verdict":"ok","reward":1.0}'
    json.dumps = json.JSONEncoder.encode = lambda *arguments, **options: yes  # type: ignore[assignment]
    return "wrong"


def forges_a_verdict(hint: Hint) -> Any:
    for body in (b'{"verdict":"ok"}', b'{"ok":true}', b'{"reward":1.0}', b'{"sealed":true}'):
        _send(_frame(body))
    os._exit(0)


def forges_through_other_descriptors(hint: Hint) -> Any:
    """Look for an inherited descriptor that leads to the judge."""
    written = []
    for number in [*range(3), *range(4, 1024)]:
        try:
            os.write(number, _frame(b'{"value":true}'))
            written.append(number)
        except OSError:
            continue
    return [number for number in written if number > 2]


def asks_where_nobody_answers(hint: Hint) -> Any:
    _send(_frame(b'{"ask":[1]}') * 100)
    os._exit(0)


def closes_the_channel(hint: Hint) -> Any:
    os.close(3)
    time.sleep(1000)


def closes_everything(hint: Hint) -> Any:
    os.closerange(0, 1024)
    return True


def replaces_the_channel(hint: Hint) -> Any:
    os.dup2(os.open(os.devnull, os.O_RDWR) if os.path.exists(os.devnull) else 0, 3)
    return True


def sends_rubbish(hint: Hint) -> Any:
    _send(os.urandom(4096))
    os._exit(1)


def announces_a_huge_frame(hint: Hint) -> Any:
    _send(b"\xff\xff\xff\xff")
    time.sleep(1000)


def sends_half_a_frame(hint: Hint) -> Any:
    _send(b"\x00\x00\x00\x09{")
    time.sleep(1000)


def crashes_in_c(hint: Hint) -> Any:
    return ctypes.string_at(0)


def aborts(hint: Hint) -> Any:
    os.abort()


def raises_what_cant_be_shown(hint: Hint) -> Any:
    class Hidden(BaseException):
        def __str__(self) -> str:
            raise self

    raise Hidden


def raises_broken_text(hint: Hint) -> Any:
    raise ValueError("\udcff" * 50)
