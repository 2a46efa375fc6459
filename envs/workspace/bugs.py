"""Generated tasks: a small function with a fault, described in words, with one failing call.

Level 1 shows the file of one function with one-digit constants, so that one replacement solves it. Level 2 has two functions
with longer names, larger constants and more kinds, and only the name of the file.
"""

import random
from dataclasses import dataclass
from typing import Any

from temper.envs.core.task import Message, Task
from temper.envs.core.turn_text import call_message
from temper.envs.workspace.tools import TOOLS, WRITTEN, exec_text

Arguments = list[Any]
LETTERS = "bcdghjkpqrtuvwxyz"
# fmt: off
NAMES = (
    "amount", "balance", "bonus", "charge", "cost", "count", "credit", "debt", "delay", "fee", "grade", "height", "income",
    "length", "level", "limit", "mass", "offset", "price", "quota", "rate", "score", "share", "size", "stock", "tax", "weight",
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


EASY = (
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
        code="def {f}({x}):\n    if {x} < 0:\n        return 0\n    return {x} + {n}\n",
        bugs=(("if {x} < 0:\n        return 0\n    return {x}", "return {x}"), ("{x} < 0", "{x} > 0")),
        takes="number",
    ),
)
HARD = (
    Kind(
        words="the sum of the numbers from 1 to {x}, times {n}",
        code="def {f}({x}):\n    return sum(range(1, {x} + 1)) * {n}\n",
        bugs=(("range(1, {x} + 1)", "range(1, {x})"),),
        takes="number",
    ),
    Kind(
        words="the product of {x}, plus {n}",
        code="def {f}({x}):\n    {y} = 1\n    for {z} in {x}:\n        {y} *= {z}\n    return {y} + {n}\n",
        bugs=(("{y} = 1", "{y} = 0"), ("return {y}", "return {z}"), ("*= {z}", "+= {z}")),
    ),
    Kind(
        words="the largest of {x}, times {n}",
        code="def {f}({x}):\n    {y} = {x}[0]\n    for {z} in {x}:\n        if {z} > {y}:\n            {y} = {z}\n"
        "    return {y} * {n}\n",
        bugs=(("= {x}[0]", "= 0"), ("{z} > {y}", "{z} < {y}"), ("{y} = {z}", "{z} = {y}")),
    ),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Function:
    """A function of a task: the right and the wrong code and passage, and its calls with right and wrong results."""

    name: str
    words: str
    right: str
    wrong: str
    passages: tuple[str, str]
    calls: tuple[Arguments, ...]

    def results(self, code: str) -> list[Any]:
        """Return the results of our own code, None for a call that raises."""
        namespace: dict[str, Any] = {}
        exec(code, namespace)
        return [_result(namespace[self.name], arguments) for arguments in self.calls]

    def call(self, arguments: Arguments) -> str:
        return f"{self.name}({', '.join(map(repr, arguments))})"


def _result(function: Any, arguments: Arguments) -> Any:
    try:
        return function(*arguments)
    except Exception:
        return None


def make_function(kind: Kind, bug: tuple[str, str], names: list[str], numbers: list[int]) -> Function:
    """Fill the slots of a kind with four names and two numbers, and put in one of its bugs."""
    n, m = numbers
    slots = dict(zip("fxyz", names, strict=True)) | {"n": str(n), "m": str(m), "k": str(m + 1)}
    right, fixed, spoilt = (text.format_map(slots) for text in (kind.code, *bug))
    calls: dict[str, tuple[Arguments, ...]] = {
        "number": ([-7], [-1], [0], [3], [12]),
        "pair": ([2, 5], [7, 0], [-3, 4]),
        "list": ([[m - 1, m, m + 1, m + 2]], [[-4, -2]], [[*range(m + 3, 0, -1)]]),
    }
    return Function(
        name=names[0],
        words=kind.words.format_map(slots),
        right=right,
        wrong=right.replace(fixed, spoilt),
        passages=(spoilt, fixed),
        calls=calls[kind.takes],
    )


def generate(rng: random.Random, level: int) -> Task:
    kind = rng.choice(EASY if level == 1 else EASY + HARD)
    numbers = rng.sample(range(2, 10) if level == 1 else range(10, 20), 2)
    names = rng.sample(LETTERS if level == 1 else NAMES, 4)
    module = rng.choice(LETTERS if level == 1 else MODULES)
    function = make_function(kind, rng.choice(kind.bugs), names, numbers)
    rights = function.results(function.right)
    failing = [
        (arguments, right)
        for arguments, right, wrong in zip(function.calls, rights, function.results(function.wrong), strict=True)
        if right != wrong
    ]
    arguments, expected = min(failing, key=lambda case: len(repr(case)))
    report = f"{function.name} is {function.words}. {function.call(arguments)} must be {expected}."
    other = "" if level == 1 else _other(rng, names)
    path, tests = f"{module}.py", [
        f"assert {function.call(arguments)} == {right}\n"
        for arguments, right in zip(function.calls, rights, strict=True)
    ]
    prompt = f"{path}:\n{function.wrong}\n{report}" if level == 1 else f"{report} See {path}."
    spec = {
        "files": {path: other + function.wrong},
        "tests": {f"test_{path}": f"from {module} import {function.name}\n\n{''.join(tests)}"},
        "solution": {path: other + function.right},
        "passages": list(function.passages),
        "example": [f"print({module}.{function.call(arguments)})", str(expected)],
    }
    return Task(messages=({"role": "user", "content": prompt},), spec=spec, tools=TOOLS)


def _other(rng: random.Random, names: list[str]) -> str:
    """Return a right function with other names."""
    kind = rng.choice(EASY)
    others = rng.sample([name for name in NAMES if name not in names], 4)
    return make_function(kind, kind.bugs[0], others, rng.sample(range(20, 30), 2)).right + "\n\n"


def demonstrate(task: Task) -> list[Message]:
    """Solve a generated task: one replacement, at level 2 after a look at the file and before a run of the example."""
    if "passages" not in task.spec:
        raise ValueError("a row of data has no demonstration; use a generated task")
    spec = task.spec
    (path, text), (old, new) = next(iter(spec["files"].items())), spec["passages"]
    fix = _call(f"{old} to {new}", "write", WRITTEN, path=path, old=old, new=new)
    done: Message = {"role": "assistant", "reasoning_content": "done", "content": "Done."}
    if text in task.messages[-1]["content"]:
        return [*fix, done]
    example, expected = spec["example"]
    command = f'python -c "import {path.removesuffix(".py")}; {example}"'
    return [
        *_call("look", "read", text, path=path),
        *fix,
        *_call("try", "exec", exec_text(0, f"{expected}\n"), command=command),
        done,
    ]


def _call(reasoning: str, name: str, result: str, **arguments: Any) -> list[Message]:
    calls = [call_message(name, arguments)]
    return [
        {"role": "assistant", "reasoning_content": reasoning, "content": "", "tool_calls": calls},
        {"role": "tool", "content": result},
    ]
