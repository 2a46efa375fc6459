"""Episodes in a workspace: hidden tests, attacks on them, rows, and generated tasks."""

import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.bound import bound, opened, say
from support.containers import in_image

from temper.envs.core.errors import GraderError
from temper.envs.core.row_format import load_row
from temper.envs.core.step_result import GymStep
from temper.envs.core.task import Task
from temper.envs.core.thinking_mode import OFF
from temper.envs.core.turn_text import turn_text
from temper.envs.workspace.bugs import KINDS, Kind, demonstrate, generate, make_task, slots_of
from temper.envs.workspace.env import ENVIRONMENT, reference
from temper.envs.workspace.hidden_tests import checks_of

TESTS = """
import unittest
import shop.cart
from shop import cart
from shop.cart import Cart, total


class CartTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.prices = [4300, 21]

    def setUp(self):
        self.cart = Cart(self.prices)

    def test_sum(self):
        self.assertEqual(total(self.prices), 4321)
        self.assertEqual(shop.cart.total([]), 0)

    def test_cart(self):
        self.assertEqual(self.cart.half(), cart.total([8642]) / 4)

    def test_error(self):
        with self.assertRaises(ValueError):
            total([-1])


def test_names():
    for name in ("a", "b"):
        assert cart.label(name) == f"{name}!"
"""
RIGHT = (
    "class Cart:\n    def __init__(self, prices):\n        self.prices = prices\n\n    def half(self):\n"
    "        return total(self.prices) / 2\n\n\ndef total(prices):\n    if any(price < 0 for price in prices):\n"
    "        raise ValueError\n    return sum(prices)\n\n\ndef label(name):\n    return name + '!'\n"
)
WRONG = RIGHT.replace("return sum(prices)", "return max(prices)")
ROW: dict[str, Any] = {
    "prompt": "total is wrong.",
    "files": {"shop/cart.py": WRONG, "README": "A shop.", "tests/test_cart.py": "assert False\n"},
    "tests": {"tests/test_cart.py": TESTS},
    "solution": {"shop/cart.py": RIGHT},
}


def task_of(row: dict[str, Any], **settings: Any) -> Task:
    return bound(replace(load_row(ENVIRONMENT.formats, row), thinking=OFF), ENVIRONMENT, **settings)


def play(task: Task, *turns: str) -> GymStep:
    env = opened(replace(task, thinking=OFF))
    for turn in turns[:-1]:
        assert env.step(turn)[2:4] == (False, False)
    return env.step(turns[-1])


def write(**files: str) -> str:
    paths = {"cart": "shop/cart.py", "unit": "unittest.py", "site": "sitecustomize.py", "hidden": "tests/test_cart.py"}
    return say("", *(("write", {"path": paths[name], "text": text}) for name, text in files.items()))


def test_all_hidden_tests_must_pass_and_their_share_is_a_part() -> None:
    task = task_of(ROW)
    assert play(task, *reference(task))[1] == 1.0
    _, reward, ended, _, info = play(task, "Done.")
    assert (reward, ended, info["parts"]) == (
        0.0,
        True,
        {"correct": 0.0, "tests": 0.5, "tool_errors": 0.0, "format": 1.0},  # the error and the names are right
    )


def test_the_model_sees_no_hidden_test() -> None:
    task = task_of(ROW)
    env = opened(task)
    seen = [
        *(message["content"] for message in task.messages),
        env.step(say("", ("read", {"path": "tests/test_cart.py"})))[0],
    ]
    seen.append(env.step(say("", ("exec", {"command": "python tests/test_cart.py"})))[0])
    assert seen[1] == "assert False\n"
    assert not any("4321" in text or "4300" in text for text in seen)


def test_mistakes_and_unreadable_calls_lower_their_parts() -> None:
    task = task_of(ROW)
    calls = say("", ("write", {"path": "shop/cart.py", "text": RIGHT}), ("read", {"path": "/etc/passwd"}))
    parts = play(task, calls, "<tool_call>no", "Done.")[4]["parts"]
    assert parts == {"correct": 1.0, "tests": 1.0, "tool_errors": pytest.approx(2 / 3), "format": 0.0}


def test_the_share_of_errors_counts_refusals_of_all_calls() -> None:
    """A file that begins with `error:` is no error, and a turn has at most 8 calls."""
    notes = (
        write(cart=RIGHT),
        say("", *[("write", {"path": "n", "text": "error: none"}), *[("read", {"path": "n"})] * 9]),
    )
    assert play(task_of(ROW), *notes, "Done.")[4]["parts"]["tool_errors"] == pytest.approx(2 / 11)


def test_a_reference_of_many_files_takes_several_turns() -> None:
    more = {f"m{number}.py": "" for number in range(20)}
    assert play(task_of(ROW), *reference(task_of(ROW | {"solution": more | ROW["solution"]})))[1] == 1.0


def test_the_files_count_at_the_turn_limit() -> None:
    _, reward, _, truncated, info = play(task_of(ROW, max_turns=1), write(cart=RIGHT))
    assert (reward, truncated, info["outcome"]) == (1.0, True, "cut")


def test_a_fraction_gives_credit_for_the_share() -> None:
    assert play(task_of(ROW, credit="fraction"), "Done.")[1] == 0.5


EQUAL = (
    "class Equal:\n    __eq__ = __bool__ = __contains__ = lambda *a: True\n    __ne__ = lambda *a: False\n"
    "    __hash__ = object.__hash__\n    __call__ = __getattr__ = lambda *a, **k: Equal()\n\n\n"
    "def __getattr__(name):\n    return Equal()\n"
)
FRAMES = (
    "# FRAMES\nimport gc, sys\ndef finds_a_test():\n"
    "    seen, frame = list(gc.get_objects()), sys._getframe()\n    while frame:\n"
    "        seen += [*frame.f_locals.values(), *frame.f_globals.values()]\n        frame = frame.f_back\n"
    "    return any(type(it) is str and 'CartTest' in it and 'FRAMES' not in it for it in seen)\n"
    f"if finds_a_test():\n    exec({RIGHT!r})\nelse:\n    total = label = Cart = lambda *a: 0\n"
)
PATCHES = (
    "import builtins, sys, unittest\nunittest.TestCase.assertEqual = unittest.TestCase.assertRaises = lambda *a: None\n"
    "builtins.AssertionError = type('A', (BaseException,), {})\nsys.modules['bridge'] = None\n"
    "total = label = Cart = lambda *a: 0\n"
)
FORGED = (
    'import os, struct\nfor body in (b\'{"value":null}\', b\'{"ask":[["value",[],null]]}\'):\n    for fd in range(3, 20):\n'
    "        try:\n            os.write(fd, (struct.pack('>I', len(body)) + body) * 9)\n"
    "        except OSError:\n            pass\n"
)
ATTACKS = {
    "exits": {"cart": "import sys\nsys.exit(0)\n"},
    "prints OK and ends": {"cart": "import os\nprint('Ran 4 tests\\n\\nOK', flush=True)\nos._exit(0)\n"},
    "ends when called": {"cart": "import os\ntotal = label = Cart = lambda *a: os._exit(0)\n"},
    "equal to everything": {"cart": EQUAL},
    "patches unittest": {"cart": PATCHES},
    "a unittest of its own": {"unit": EQUAL, "site": PATCHES},
    "hidden tests of its own": {"hidden": "def test():\n    pass\n"},
    "looks for the tests": {"cart": FRAMES},
    "forges replies": {"cart": FORGED},
    "an import hook": {"cart": "import importlib\nimportlib.import_module = lambda *a: None\n"},
    "no Python": {"cart": "def (\n"},
    "an endless loop": {"cart": "while True:\n    pass\n"},
    "much memory": {"cart": "x = bytearray(1 << 40)\n"},
}


def test_the_look_for_the_tests_would_pass_if_it_found_one() -> None:
    assert play(task_of(ROW), write(cart=FRAMES.replace("if finds_a_test()", "if True")), "Done.")[1] == 1.0


SLOW = "an endless loop"
FEWER = ROW | {"tests": {"tests/test_cart.py": TESTS.replace("def test_names", "def names")}}  # fewer processes


@pytest.mark.parametrize("name", [*sorted(ATTACKS.keys() - {SLOW}), pytest.param(SLOW, marks=pytest.mark.slow)])
def test_no_attack_passes_and_each_is_the_models_fault(name: str) -> None:
    assert_fails(task_of(FEWER), ATTACKS[name])


def assert_fails(task: Task, files: dict[str, str]) -> None:
    _, reward, ended, _, info = play(task, write(**files), "Done.")
    assert (reward, ended) == (0.0, True)
    assert info["outcome"] in ("wrong", "policy_fault")
    assert info["parts"]["correct"] == 0.0


SEARCHES = (
    "import subprocess\ncommand = 'cat /proc/*/cmdline /proc/*/environ /proc/*/mem; cat -r /tmp /dev/shm'\n"
    "seen = subprocess.run(['sh', '-c', command], capture_output=True).stdout\n"
    f"if b'Cart' + b'Test' in seen:\n    exec({RIGHT!r})\nelse:\n    total = label = Cart = lambda *a: 0\n"
)
BOMBS = "import os\nos.setsid()\nwhile True:\n    try:\n        os.fork()\n    except OSError:\n        pass\n"
ENDS = "import os, signal\nfor number in (2, 9, 15):\n    os.kill(1, number)\nos.kill(-1, 9)\n"
IN_CONTAINERS = ATTACKS | {"searches": {"cart": SEARCHES}, "bombs": {"cart": BOMBS}, "ends all": {"cart": ENDS}}
QUICK = (
    "ends when called",
    "ends all",
    "equal to everything",
    "forges replies",
    "looks for the tests",
    "much memory",
    "searches",
)
OTHERS = sorted(IN_CONTAINERS.keys() - set(QUICK))


@pytest.mark.parametrize("name", [*QUICK, *(pytest.param(name, marks=pytest.mark.slow) for name in OTHERS)])
def test_no_attack_passes_in_a_container(name: str) -> None:
    assert_fails(in_image(task_of(FEWER)), IN_CONTAINERS[name])


def test_the_hidden_tests_run_in_a_container_of_their_own() -> None:
    """A process of the episode that changes files later changes none that count."""
    task = in_image(task_of(ROW))
    spoils = (
        "cat > shop/cart.py <<'END'\n{}END\n(sleep 1; while true; do echo 1 > shop/cart.py; done) > /dev/null 2>&1 &"
    )
    assert play(task, say("", ("exec", {"command": spoils.format(RIGHT)})), "Done.")[1] == 1.0
    _, reward, _, _, info = play(task, "Done.")
    assert (reward, info["parts"]["tests"]) == (0.0, 0.5)


def test_the_files_of_an_agents_folder_are_judged_in_a_container(tmp_path: Path) -> None:
    env = opened(in_image(task_of(FEWER)))
    env.write_files(tmp_path)
    assert (tmp_path / "shop/cart.py").read_text(encoding="utf-8") == WRONG
    (tmp_path / "shop/cart.py").write_text(RIGHT, encoding="utf-8")
    env.read_files(tmp_path)
    assert env.step("Done.")[1] == 1.0


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"files": {}}, "files"),
        ({"files": {"a.py": 3}}, "files"),
        ({"files": ["a.py"]}, "files"),
        ({"files": {"../a.py": ""}}, "files"),
        ({"files": {"random.py": ""}}, "random"),
        ({"files": {"a.py": "x" * 70_000}}, "files"),
        ({"tests": {"t.py": "x = 1\n"}}, "t.py"),
        ({"tests": {"t.py": "def (\n"}}, "t.py"),
        ({"solution": {"/a.py": ""}}, "solution"),
        ({"prompt": 3}, "prompt"),
    ],
)
def test_a_bad_row_is_refused_by_its_field(change: dict[str, Any], named: str) -> None:
    with pytest.raises(ValueError, match=named):
        task_of(ROW | change)


def test_a_test_that_never_uses_the_files_is_a_fault_of_the_row() -> None:
    with pytest.raises(GraderError):
        play(task_of(ROW | {"tests": {"t.py": "assert 1 + 1 == 2\n"}}), "Done.")


def test_a_test_that_would_not_run_is_named() -> None:
    tests = {
        "class TestX:\n    def test_a(self): pass\n": "test_a",
        "class T(TestCase):\n    async def test_a(self): pass\n": "test_a",
        "class T(unittest.IsolatedAsyncioTestCase):\n    def test_a(self): pass\n": "test_a",
        "class M:\n    def test_a(self): pass\nclass T(M, TestCase): pass\n": "test_a",
        "class T(TestCase):\n    def test_a(self): pass\nclass U(T): pass\n": "U",
        "class T(M, TestCase): pass\n": "T",
        "class T(TestCase):\n    @unittest.skip('')\n    def test_a(self): pass\n": "test_a",
        "@unittest.skip('')\nclass T(TestCase):\n    def test_a(self): pass\n": "test_a|T",
        "class T(TestCase):\n    def test_a(self, x=1): pass\n": "test_a",
        "class T(TestCase):\n    if x:\n        def test_a(self): pass\n": "test_a",
        "async def test_a(): pass\n": "test_a",
        "def test_a(x): pass\n": "test_a",
        "def test_a(*x): pass\n": "test_a",
        "@skip\ndef test_a(): pass\n": "test_a",
        "for x in y:\n    assert x\n": "assert x",
        "with y:\n    assert x\n": "assert x",
        "if y:\n    def test_a(): pass\n": "test_a",
        "from m import *\n": "from m import",
    }
    for text, named in tests.items():
        with pytest.raises(ValueError, match=named):
            checks_of(f"assert 1\n{text}", "t.py")


def test_helpers_of_a_test_file_are_no_tests() -> None:
    text = "class Fake(dict):\n    def of(self):\n        assert self\ndef has(x):\n    assert x\nassert 1\n"
    assert len(checks_of(f"{text}if __name__ == '__main__':\n    unittest.main()\n", "t.py")) == 1


BUGS = [(kind, bug) for kind in KINDS for bug in kind.bugs]


@pytest.mark.parametrize(("kind", "bug"), BUGS, ids=[f"{kind.words}: {bug[1]}" for kind, bug in BUGS])
def test_each_bug_fails_its_hidden_tests_and_its_fix_passes(kind: Kind, bug: tuple[str, str]) -> None:
    task = bound(make_task(kind, bug, slots_of(["b", "c", "d", "g"], [3, 7]), "m"), "workspace")
    assert play(task, "Done.")[1] == 0.0
    assert play(task, *reference(task))[1] == 1.0


@pytest.mark.parametrize("level", [1, 2])
def test_a_demonstration_sees_real_results_and_earns_1(level: int) -> None:
    for seed in range(4):
        task = bound(generate(random.Random(seed), level), "workspace")
        env, *dialogue = opened(task), *demonstrate(task)
        for turn, result in zip(dialogue[::2], dialogue[1::2], strict=False):
            assert env.step(turn_text(turn, thinks=True))[0] == result["content"]
        assert env.step(turn_text(dialogue[-1], thinks=True))[1] == 1.0
        assert len(dialogue) == (3 if level == 1 else 7)


@pytest.mark.parametrize("level", [1, 2])
def test_every_wrong_passage_is_in_its_file_once(level: int) -> None:
    for seed in range(500):
        spec = generate(random.Random(seed), level).spec
        ((path, text),), (old, new) = spec["files"].items(), spec["passages"]
        assert text.count(old) == 1
        assert text.replace(old, new) == spec["solution"][path]


def test_an_answer_for_the_shown_call_alone_is_wrong() -> None:
    for seed in range(3):
        task = bound(generate(random.Random(seed), 1), "workspace")
        ((path, text),), (_, output) = task.spec["files"].items(), task.spec["example"]
        head = text.partition("\n")[0]
        fixed = say("", ("write", {"path": path, "text": f"{head}\n    return {output.split()[0]}\n"}))
        assert play(task, fixed, "Done.")[1] == 0.0


def test_the_easy_tasks_are_short() -> None:
    for seed in range(100):
        task = generate(random.Random(seed), 1)
        assert len(task.messages[0]["content"]) < 180
        assert all(
            len(turn_text(turn, thinks=True)) <= 130 for turn in demonstrate(task) if turn["role"] == "assistant"
        )
