"""Rows of programming data with inputs and expected outputs of a program, or of a named function.

Supported layouts: `input_output` (APPS, TACO: JSON of `inputs`, `outputs` and optionally `fn_name`), `public_test_cases`
and `private_test_cases` (LiveCodeBench: JSON of `input`, `output`, `testtype`, with the function's name in `metadata`;
packed private tests stay packed), `public_tests`, `private_tests` and `generated_tests` (CodeContests: lists `input` and
`output`), `tests`, `test_cases`, `official_tests`, `examples` (lists of `input` and `output`), and `inputs` with `outputs`.
"""

from functools import partial
from typing import Any

from temper.envs.coding.io_tests import Pair, function_tests, is_packed, pairs_of, program_tests
from temper.envs.core.prompts import USUAL, Prompts
from temper.envs.core.row_format import Row, RowFormat, read_json
from temper.envs.core.task import Task

TEXTS = ("question", "question_content", "prompt", "problem", "description", "problem_statement", "text")
PUBLIC = ("examples", "public_tests", "public_test_cases")
HIDDEN = (
    "input_output", "tests", "test_cases", "official_tests", "private_tests", "private_test_cases", "generated_tests",
)  # fmt: skip
PACKED = "private_test_cases"
WRAPPED = "input_output"
CHECKERS = ("checker", "checker_code", "generated_checker", "custom_checker", "special_judge", "spj", "interactor")
"""Fields of a row that accepts outputs other than the listed ones."""
SOLUTIONS = ("solution", "solutions", "code", "canonical_solution", "reference_solution")
LEETCODE = (
    "import bisect, collections, functools, heapq, itertools, math, operator, random, re, string\n"
    "from bisect import *\nfrom collections import *\nfrom functools import *\nfrom heapq import *\n"
    "from itertools import *\nfrom math import inf, gcd, sqrt, ceil, floor, comb, isqrt\nfrom typing import *\n"
)
OPENED = (
    "string", "re", "datetime", "collections", "heapq", "bisect", "copy", "math", "random", "statistics", "itertools",
    "functools", "operator", "io", "sys", "json", "builtins", "typing",
)  # fmt: skip
LIVECODEBENCH = (
    "".join(f"from {module} import *\n" for module in OPENED)
    + "".join(f"import {module}\n" for module in OPENED)
    + "sys.setrecursionlimit(50000)\n"
)
"""Imports that LiveCodeBench's harness puts before every program."""
PROGRAM = (
    "{}\n\nWrite a Python program that reads standard input and writes standard output. Answer with it in a code block."
)
FUNCTION = "{}\n\nWrite the Python function `{}`. Answer with the whole program in a code block.{}"
STARTER = "\n\nIt begins so:\n\n```python\n{}\n```"


def load(row: Row, prompts: Prompts = USUAL) -> Task:
    text = next((row[name] for name in TEXTS if isinstance(row.get(name), str) and row[name].strip()), None)
    if text is None:
        raise ValueError(f"no text of the problem; the row has {sorted(row)} and needs one of {', '.join(TEXTS)}")
    checker = next((name for name in CHECKERS if row.get(name)), None)
    if checker is not None:
        raise ValueError(
            f"field {checker!r} names a checker for several right outputs, which is not supported; remove this row"
        )
    public = _distinct([pair for name in PUBLIC for pair in pairs_of(row.get(name), name)])
    packed = row[PACKED] if is_packed(row.get(PACKED)) else None
    hidden = [name for name in HIDDEN if packed is None or name != PACKED]
    pairs = public + [pair for name in hidden for pair in pairs_of(row.get(name), name)]
    if "inputs" in row:
        pairs += pairs_of({"inputs": row["inputs"], "outputs": row.get("outputs")}, "inputs")
    pairs = _distinct(pairs)
    if not pairs and packed is None:
        raise ValueError(f"no tests; add one of {', '.join((*PUBLIC, *HIDDEN))}, or inputs and outputs")
    function, starter = _function(row), str(row.get("starter_code") or "")
    spec: dict[str, Any] = {"shown": len(public)}
    if function is None:
        spec["stdio"] = program_tests(pairs)
        request = PROGRAM.format(text.strip())
    else:
        spec |= {"entry_point": function, "tests": function_tests(pairs), "json": True}
        if row.get(WRAPPED):
            spec["wrapped"] = True
        spec["imports"] = LEETCODE
        if "class Solution" in starter:
            spec["method"] = True
        request = FUNCTION.format(text.strip(), function, STARTER.format(starter.rstrip()) if starter.strip() else "")
    if packed is not None:
        spec |= {"packed": packed, "imports": LIVECODEBENCH}
    if function is not None:
        spec["imports"] += f"globals().pop({function!r}, None)\n"  # `from heapq import *` defines `merge`
    solution = _solution(row)
    if solution is not None:
        spec["solution"] = solution
    kind = "program" if function is None else "function"
    fields = {"question": text.strip(), "name": function or "", "test": "", "tests": "", "starter": starter.rstrip()}
    return Task(messages=prompts.messages(kind, request, fields), spec=spec)


def _distinct(pairs: list[Pair]) -> list[Pair]:
    return [pair for index, pair in enumerate(pairs) if pair not in pairs[:index]]


def _function(row: Row) -> str | None:
    places: list[Any] = [row]
    for name in ("input_output", "metadata"):
        value = row.get(name)
        places.append(read_json(value, name) if isinstance(value, str) and value.strip().startswith("{") else value)
    for place in places:
        for name in ("fn_name", "func_name", "entry_point"):
            if isinstance(place, dict) and isinstance(place.get(name), str) and place[name].isidentifier():
                return str(place[name])
    return None


def _solution(row: Row) -> str | None:
    """Return the first Python solution of the row that is a text."""
    for name in SOLUTIONS:
        value = row.get(name)
        if isinstance(value, str) and name == "solutions" and value.lstrip().startswith("["):
            value = read_json(value, name)
        if isinstance(value, list):
            value = next((item for item in value if isinstance(item, str)), None)
        if isinstance(value, str) and value.strip():
            return value
    return None


def matches(row: Row) -> bool:
    for name in (*PUBLIC, *HIDDEN):
        value = row.get(name)
        if isinstance(value, str) and value.lstrip()[:1] in ("[", "{"):
            return name != "tests" or '"input"' in value
        if isinstance(value, dict) or (isinstance(value, list) and value and isinstance(value[0], dict)):
            return True
    return "inputs" in row and "outputs" in row


def formats(prompts: Prompts) -> tuple[RowFormat, ...]:
    return (RowFormat(name="stdio", matches=matches, load=partial(load, prompts=prompts), questions=TEXTS),)
