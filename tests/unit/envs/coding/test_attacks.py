"""Programs that try to get a reward, or cause a fault of ours, without a solution, in every format."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import pytest
from support.code_tasks import play, task_of

from temper.envs.coding import suite
from temper.envs.coding.checks import run_checks
from temper.envs.sandbox.sandbox import shared_sandbox
from temper.envs.sandbox.sealed_process import Limits

CHECK = "def check(candidate):\n    assert candidate(7) == 4321\n    assert candidate(8) == [4322, None]\n"
ZIP = (
    "def check(candidate):\n    for given, right in zip(map(candidate, [7, 8]), [4321, [4322]]):\n"
    "        assert given == right\n"
)
ROWS: dict[str, dict[str, Any]] = {
    "check": {"prompt": "def f(x):\n", "entry_point": "f", "test": CHECK},
    "zip": {"prompt": "def f(x):\n", "entry_point": "f", "test": ZIP},
    "assertions": {
        "text": "Write f.",
        "code": "def f(x): pass",
        "test_list": ["assert f(7) == 4321", "assert f(8) == {1.5}"],
    },
    "values": {"question": "Write f.", "fn_name": "f", "inputs": [[7], [8]], "outputs": [4321, "x"]},
    "program": {"question": "Print.", "tests": [{"input": "7\n", "output": "4321\n"}, {"input": "8", "output": "9"}]},
}
BRIDGE = """
import sys


def f(x):
    frame = sys._getframe()
    while "ask" not in frame.f_locals or not callable(frame.f_locals["ask"]):
        frame = frame.f_back
    ask = frame.f_locals["ask"]
    {}
"""
ATTACKS = {
    "exits": "import sys\nsys.exit(0)",
    "exits when called": "import os\ndef f(x):\n    os._exit(0)",
    "exits at once": "import os\nos._exit(0)",
    "raises SystemExit": "def f(x):\n    raise SystemExit(0)",
    "ends the loop of the check": "def f(x):\n    raise StopIteration",
    "ends a generator": "def f(x):\n    raise GeneratorExit",
    "an assertion of its own": "def f(x):\n    raise AssertionError",
    "a keyboard": "def f(x):\n    raise KeyboardInterrupt",
    "equal to everything": (
        "class E:\n    __eq__ = __le__ = __ge__ = __contains__ = __bool__ = lambda *a: True\n    __ne__ = lambda *a: False\n"
        "    __hash__ = object.__hash__\n    __len__ = lambda a: 2\n    __iter__ = lambda a: iter([E(), E()])\n"
        "    __getitem__ = __getattr__ = __call__ = lambda *a: E()\ndef f(x):\n    return E()"
    ),
    "an int equal to everything": (
        "class E(int):\n    def __eq__(self, other): return True\n    __hash__ = int.__hash__\ndef f(x):\n    return E(1)"
    ),
    "a list equal to everything": "class E(list):\n    def __eq__(self, other): return True\ndef f(x):\n    return E([1])",
    "a metaclass": (
        "class M(type):\n    __eq__ = __instancecheck__ = lambda *a: True\n    __hash__ = type.__hash__\n"
        "class E(metaclass=M): pass\ndef f(x):\n    return E"
    ),
    "patched built-ins": (
        "import builtins\nbuiltins.AssertionError = type('A', (BaseException,), {})\nbuiltins.isinstance = lambda *a: True\n"
        "builtins.type = lambda *a: int\nbuiltins.len = lambda a: 0\nbuiltins.zip = builtins.map = lambda *a, **k: []\n"
        "def f(x):\n    return 0"
    ),
    "a patched check": (
        "import __main__, sys\ncheck = __main__.check = lambda *a: None\nsys.modules['check'] = __main__\n"
        "def f(x):\n    return 0"
    ),
    "a walk through the frames": (
        "import sys\ndef f(x):\n    frame, seen = sys._getframe(), []\n    while frame:\n"
        "        seen += [*frame.f_locals.values(), *frame.f_globals.values()]\n"
        "        frame = frame.f_back\n    return next((v for v in seen if v in (4321, [4322, None], [4322], {1.5}, 'x')), 0)"
    ),
    "a walk through the heap": (
        "import gc\ndef f(x):\n    for thing in gc.get_objects():\n"
        "        if isinstance(thing, dict) and 'expected' in thing:\n"
        "            return thing['expected']\n"
        "        if isinstance(thing, str) and 'assert' in thing:\n            return 4321\n    return 0"
    ),
    "reading the check": "def f(x):\n    return eval(open('/proc/self/environ').read() or open(__file__).read())",
    "a forged verdict": (
        "import os, struct\ndef f(x):\n"
        "    for body in (b'{\"value\":null}', b'{\"ask\":[[\"value\",[],null]]}', b'{\"ask\":[]}'):\n"
        "        for fd in range(3, 20):\n            try:\n"
        "                os.write(fd, (struct.pack('>I', len(body)) + body) * 3)\n            except OSError:\n"
        "                pass\n    return 0"
    ),
    "rubbish on every descriptor": (
        "import os\ndef f(x):\n    for fd in range(20):\n        try:\n            os.write(fd, b'\\xff' * 9999)\n"
        "        except OSError:\n            pass\nf(1)"
    ),
    "closed descriptors": "import os\nos.closerange(0, 64)\ndef f(x):\n    return 4321",
    "descriptors closed when called": "import os\ndef f(x):\n    os.closerange(0, 64)\n    return 4321",
    "huge output": "print('4321\\n' * 10**6)\ndef f(x):\n    return 'a' * 10**7",
    "a deep result": "def f(x):\n    r = []\n    for _ in range(45):\n        r = [r]\n    return r",
    "a deeper result": "def f(x):\n    r = []\n    for _ in range(800):\n        r = [r]\n    return r",
    "a result that holds itself": "def f(x):\n    r = []\n    r.append(r)\n    return r",
    "an enormous number": "def f(x):\n    return 10**100_000",
    "an endless iterator": "import itertools\ndef f(x):\n    return itertools.count()",
    "lone surrogates": "def f(x):\n    return '\\ud800' * 9",
    "an endless recursion": "def f(x):\n    return f(x)",
    "much memory": "def f(x):\n    return bytearray(1 << 40)",
    "a null byte": "def f(x):\n    return '\\0'\n\0",
    "asks for nothing": BRIDGE.format("ask()"),
    "asks for rubbish": BRIDGE.format("ask(5)"),
    "asks without end": BRIDGE.format("while True:\n        ask(('do', 'call', ('\\0', 'own', 0), [[], {}]))"),
    "has the check execute": BRIDGE.format(
        "ask(('do', 'call', ('\\0', 'built in', 'exec'), [['import os; os._exit(0)'], {}]))"
    ),
    "has the check return": BRIDGE.format("ask(('value', [], ('\\0', 'built in', 'exec')))"),
    "has the check stop": BRIDGE.format("ask(('raised', ['StopIteration'], ''))"),
    "has the check exit": BRIDGE.format("ask(('raised', ['SystemExit', 'BaseException'], ''))"),
    "wants what the check keeps": BRIDGE.format("return ask(('do', 'attribute', ('\\0', 'own', 0), ['__globals__']))"),
    "wants the names of the check": BRIDGE.format("return ask(('do', 'call', ('\\0', 'named', 'f'), [[], {}]))"),
    "deep rubbish": BRIDGE.format("r = 1\n    for _ in range(49):\n        r = (r,)\n    ask(r)"),
    "a flood of NaN": (
        "import os, struct\nbody = b'{\"ask\":[[\"value\",[],[' + b'NaN,' * 10**6 + b'1]]]}'\n"
        "data = memoryview(struct.pack('>I', len(body)) + body)\ndef f(x):\n    for fd in range(3, 20):\n        left = data\n"
        "        try:\n            while left:\n                left = left[os.write(fd, left):]\n"
        "        except OSError:\n            pass\n    return 0"
    ),
    "marks": "def f(x):\n    return ('\\0', 'own', 0)",
}  # fmt: skip


@pytest.mark.parametrize(
    ("name", "credit"),
    [
        ("check", "all"),
        ("values", "all"),
        *(pytest.param(name, "all", marks=pytest.mark.slow) for name in sorted(ROWS.keys() - {"check", "values"})),
        pytest.param("assertions", "fraction", marks=pytest.mark.slow),
    ],
)
def test_no_attack_scores_and_none_is_a_fault_of_ours(name: str, credit: str) -> None:
    task = task_of(ROWS[name], credit=credit)

    def survivors(attack: str) -> list[Any]:
        step = play(task, f"```python\n{ATTACKS[attack]}\n```")
        return [(attack, step[1], step[4])] if step[1] != 0.0 or not step[2] else []

    with ThreadPoolExecutor(12) as pool:
        found = [case for cases in pool.map(survivors, ATTACKS) for case in cases]
    assert found == []


@pytest.mark.parametrize("name", ["check", "zip", "assertions", "values"])
def test_the_right_function_scores_where_the_attacks_do_not(name: str) -> None:
    wanted = {"check": "[4322, None]", "zip": "[4322]", "assertions": "{1.5}", "values": "'x'"}[name]
    assert play(task_of(ROWS[name]), f"def f(x):\n    return 4321 if x == 7 else {wanted}")[1] == 1.0


@pytest.mark.parametrize(
    "look",
    [
        "f.__globals__",
        "f.__code__.co_consts",
        "f.__closure__",
        "type(f)._there",
        "f._bridge.request('attribute', ('own', 0), '__code__')",
        "f._bridge.request('item', ('own', 0), 0)",
        "f._bridge.request('text', ('own', 0))",
        "f._bridge.request('call', ('built in', 'globals'), [], {})",
        "f._bridge.request('call', ('named', 'each'), [], {})",
    ],
)
def test_functions_of_the_check_can_be_called_but_not_read(look: str) -> None:
    row = {
        "text": "Apply.",
        "code": "def each(f, a): pass",
        "test_list": ["assert each(lambda x: x + 1, [1, 2]) == [2, 3]"],
    }
    called = "def each(f, a):\n    return [f(x) for x in a]"
    looked = f"def each(f, a):\n    try:\n        {look}\n    except Exception:\n        return None\n    return [2, 3]"
    assert play(task_of(row), called)[1] == 1.0
    assert play(task_of(row), looked)[1] == 0.0


def test_checks_that_take_long_together_do_not_fail_for_it() -> None:
    check = "import time\nend = time.process_time() + f(0)\nwhile time.process_time() < end:\n    pass"
    limits = Limits(wall_s=30.0, cpu_s=1, memory_mb=512)
    results = run_checks(shared_sandbox(), "def f(x):\n    return 0.3", [check] * 6, ["f"], limits=limits)
    assert [tested.passed for tested in results] == [True] * 6
    results = run_checks(shared_sandbox(), "def f(x):\n    return 3", [check] * 2, ["f"], limits=limits)
    assert [(tested.passed, tested.out_of_time) for tested in results] == [(False, True)] * 2


@pytest.mark.parametrize(
    "source",
    [
        ATTACKS["a flood of NaN"],
        "def f(g):\n    while True:\n        g('x')",
        "def f(g):\n    return [[] for _ in range(2_600_000)]",
    ],
    ids=["a flood of NaN", "calls back without end", "a large result"],
)
def test_a_program_that_costs_the_grader_much_is_at_fault(source: str) -> None:
    (tested,) = run_checks(shared_sandbox(), source, ["assert f(lambda x: x) == 2"], ["f"])
    assert (tested.passed, tested.policy_fault) == (False, True)


def test_an_endless_iterator_does_not_contain_any_value() -> None:
    source = "import itertools\ndef f():\n    return itertools.count()"
    results = run_checks(shared_sandbox(), source, ["assert 5 in f()", "assert 4321 in f()"], ["f"])
    assert [tested.passed for tested in results] == [True, False]


def test_endless_programs_end_the_tests_early(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(suite, "MAIN_LIMITS", replace(suite.MAIN_LIMITS, cpu_s=1))
    tests = [{"input": "1", "output": "1"}] * 1 + [{"input": str(n), "output": "1"} for n in range(2, 50)]
    task = task_of({"question": "Write.", "tests": tests}, credit="fraction")
    _, value, _, _, info = play(task, "print(1)\nwhile input() != '1':\n    input = lambda: '2'")
    assert value == pytest.approx(1 / 49)
    assert info["outcome"] == "policy_fault"
