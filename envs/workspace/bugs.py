"""Generated tasks: a small function with a fault, described in words, with one failing call.

Level 1 shows the file of one function with one-digit constants, so that one replacement solves it. Level 2 has two functions
with longer names and larger constants, and only the name of the file.
"""

import random
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from temper.envs.core.task import Message, Task
from temper.envs.core.turn_text import make_call_turn
from temper.envs.workspace.tools import TOOLS, WRITTEN

Arguments = list[Any]
LETTERS = "bcdghjkpqrtuvwxyz"
# fmt: off
NAMES = (
    "amount", "balance", "bonus", "charge", "cost", "count", "credit", "debt", "delay", "fee", "grade", "height", "income",
    "level", "limit", "mass", "offset", "price", "rate", "score",
)
MODULES = ("cart", "clock", "ledger", "meter", "orders", "parcel", "report", "shop", "store", "survey", "tally", "tickets")
# fmt: on


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """A function with slots: its name `f`, names `x`, `y`, `z`, and different numbers `n`, `m`. `k` is `m + 1`.

    `bugs` pairs right passages with wrong ones. `takes` names its arguments.
    """

    words: str
    code: str
    bugs: tuple[tuple[str, str], ...]
    takes: str = "list"


KINDS = (
    Kind(
        words="{x} times {n}, plus {m}",
        code="def {f}({x}):\n    return {x} * {n} + {m}\n",
        bugs=(("* {n}", "+ {n}"), ("+ {m}", "- {m}"), ("+ {m}", "+ {k}")),
        takes="number",
    ),
    Kind(
        words="{x} times {n}, minus {y}",
        code="def {f}({x}, {y}):\n    return {x} * {n} - {y}\n",
        bugs=(("- {y}", "- {x}"), ("- {y}", "+ {y}")),
        takes="pair",
    ),
    Kind(
        words="how many of {x} are above {m}",
        code="def {f}({x}):\n    return sum({y} > {m} for {y} in {x})\n",
        bugs=(("> {m}", ">= {m}"), ("> {m}", "< {m}"), ("> {m}", "> {k}")),
    ),
    Kind(
        words="the first {m} of {x}",
        code="def {f}({x}):\n    return {x}[:{m}]\n",
        bugs=(("[:{m}]", "[{m}:]"), ("[:{m}]", "[:{k}]")),
    ),
    Kind(
        words="the sum of {x}, plus {m}",
        code="def {f}({x}):\n    {y} = {m}\n    for {z} in {x}:\n        {y} += {z}\n    return {y}\n",
        bugs=(("{y} = {m}", "{y} = {k}"), ("+= {z}", "-= {z}"), ("return {y}", "return {z}")),
    ),
    Kind(
        words="{x} plus {n}, or 0 if {x} is below 0",
        code="def {f}({x}):\n    return {x} + {n} if {x} >= 0 else 0\n",
        bugs=(("+ {n} if {x} >= 0 else 0", "+ {n}"), (">= 0", "<= 0")),
        takes="number",
    ),
)


def inputs(kind: Kind, m: int) -> list[Arguments]:
    """Return arguments that expose each bug, including lists around `m`."""
    if kind.takes == "number":
        return [[-7], [-1], [0], [3], [12]]
    if kind.takes == "pair":
        return [[2, 5], [7, 0], [-3, 4]]
    return [[[m - 1, m, m + 1, m + 2]], [[-4, -2]], [[*range(m + 3, 0, -1)]]]


def results(code: str, name: str, calls: list[Arguments]) -> list[Any]:
    """Return the results of a function of our own code."""
    namespace: dict[str, Any] = {}
    exec(code, namespace)
    return [namespace[name](*arguments) for arguments in calls]


def slots_of(names: list[str], numbers: list[int]) -> dict[str, str]:
    n, m = numbers
    return dict(zip("fxyz", names, strict=True)) | {"n": str(n), "m": str(m), "k": str(m + 1)}


def generate(rng: random.Random, level: int) -> Task:
    kind = rng.choice(KINDS)
    words, numbers = (LETTERS, range(2, 10)) if level == 1 else (NAMES, range(10, 20))
    names, module = rng.sample(words, 8), rng.choice(LETTERS if level == 1 else MODULES)
    slots = slots_of(names[:4], rng.sample(numbers, 2))
    return make_task(kind, rng.choice(kind.bugs), slots, module, other="" if level == 1 else _other(rng, names[4:]))


def _other(rng: random.Random, names: list[str]) -> str:
    """Return a correct function that precedes the faulty one. Its numbers differ, so the replaced passage is unique."""
    return rng.choice(KINDS).code.format_map(slots_of(names, rng.sample(range(30, 40), 2))) + "\n\n"


def make_task(kind: Kind, bug: tuple[str, str], slots: Mapping[str, str], module: str, *, other: str = "") -> Task:
    """Make the task of one bug. Without another function the prompt shows the file."""
    right, new, old, words = (text.format_map(slots) for text in (kind.code, *bug, kind.words))
    wrong, name, path = right.replace(new, old), slots["f"], f"{module}.py"
    arguments = inputs(kind, int(slots["m"]))
    expected = results(right, name, arguments)
    calls = [f"{name}({', '.join(map(repr, one))})" for one in arguments]
    failing = zip(calls, expected, results(wrong, name, arguments), strict=True)
    call, value = min(((call, wanted) for call, wanted, got in failing if got != wanted), key=lambda case: len(case[0]))
    asserts = "".join(f"assert {call} == {wanted}\n" for call, wanted in zip(calls, expected, strict=True))
    report = f"{name} is {words}. {call} must be {value}."
    prompt = f"{report} See {path}." if other else f"{path}:\n{wrong}\n{report}"
    spec = {
        "files": {path: other + wrong},
        "tests": {f"test_{path}": f"from {module} import {name}\n\n{asserts}"},
        "solution": {path: other + right},
        "passages": [old, new],
        "example": [f'python3 -c "import {module}; print({module}.{call})"', f"{value}\n\nexit 0\n"],
    }
    return Task(messages=({"role": "user", "content": prompt},), spec=spec, tools=TOOLS)


def demonstrate(task: Task) -> list[Message]:
    """Replace the wrong passage, at level 2 between a look at the file and a run of the example."""
    if "passages" not in task.spec:
        raise ValueError("a row of data has no demonstration; use a generated task")
    spec = task.spec
    ((path, text),) = spec["files"].items()
    (old, new), (command, output) = spec["passages"], spec["example"]
    fix = _call(old, "write", WRITTEN, path=path, old=old, new=new)
    done: Message = {"role": "assistant", "reasoning_content": "done", "content": "Done."}
    if text in task.messages[-1]["content"]:
        return [*fix, done]
    look, tried = _call("look", "read", text, path=path), _call("try", "exec", output, command=command)
    return [*look, *fix, *tried, done]


def _call(reasoning: str, name: str, result: str, **arguments: Any) -> list[Message]:
    return [make_call_turn([(name, arguments)], reasoning=reasoning), {"role": "tool", "content": result}]
