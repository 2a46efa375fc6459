"""Rows of programming data with inputs and expected outputs, of a program or, with a function's name, of a function.

The spellings of the usual data sets are taken: `input_output` (APPS, TACO: JSON of `inputs`, `outputs` and perhaps
`fn_name`), `public_test_cases` and `private_test_cases` (LiveCodeBench: JSON of `input`, `output`, `testtype`; the
function's name in `metadata`), `public_tests`, `private_tests` and `generated_tests` (CodeContests: lists `input` and
`output`), `tests`, `test_cases`, `official_tests`, `examples` (lists of `input` and `output`), and `inputs` with `outputs`.
"""

import ast
import json
from typing import Any

from envs.core.row_format import Row, RowFormat
from envs.core.task import Task

TEXTS = ("question", "question_content", "prompt", "problem", "description", "problem_statement", "text")
PUBLIC = ("examples", "public_tests", "public_test_cases")
HIDDEN = (
    "input_output",
    "tests",
    "test_cases",
    "official_tests",
    "private_tests",
    "private_test_cases",
    "generated_tests",
)
INPUTS, OUTPUTS = ("input", "inputs", "stdin"), ("output", "outputs", "expected_output", "expected", "stdout")
SOLUTIONS = ("solution", "solutions", "code", "canonical_solution", "reference_solution")
LEETCODE = (
    "import bisect, collections, functools, heapq, itertools, math, operator, random, re, string\n"
    "from bisect import *\nfrom collections import *\nfrom functools import *\nfrom heapq import *\n"
    "from itertools import *\nfrom math import inf, gcd, sqrt, ceil, floor, comb, isqrt\nfrom typing import *\n"
)
PROGRAM = (
    "{}\n\nWrite a Python program that reads standard input and writes standard output. Answer with it in a code block."
)
FUNCTION = "{}\n\nWrite the Python function `{}`. Answer with the whole program in a code block.{}"
STARTER = "\n\nIt begins so:\n\n```python\n{}\n```"


def load(row: Row) -> Task:
    """Make a task of a row. The tests that the data set calls public may be shown, or all where none is."""
    text = next((row[name] for name in TEXTS if isinstance(row.get(name), str) and row[name].strip()), None)
    if text is None:
        raise ValueError(f"no text of the problem; it would be one of {', '.join(TEXTS)}, the row has {sorted(row)}")
    public = [pair for name in PUBLIC for pair in _pairs(row.get(name), name)]
    pairs = public + [pair for name in HIDDEN for pair in _pairs(row.get(name), name)]
    if "inputs" in row:
        pairs += _pairs({"inputs": row["inputs"], "outputs": row.get("outputs")}, "inputs")
    pairs = [pair for index, pair in enumerate(pairs) if pair not in pairs[:index]]
    if not pairs:
        raise ValueError(f"no tests; they would be in one of {', '.join((*PUBLIC, *HIDDEN))} or in inputs and outputs")
    function, starter = _function(row), str(row.get("starter_code") or "")
    spec: dict[str, Any] = {"shown": len(public)} if public else {}
    if function is None:
        spec["stdio"] = [{"input": _text(given, "input"), "output": _text(wanted, "output")} for given, wanted in pairs]
        request = PROGRAM.format(text.strip())
    else:
        tests = [{"args": _arguments(given), "expected": _expected(given, wanted)} for given, wanted in pairs]
        spec |= {"entry_point": function, "tests": tests, "json": True}
        if "class Solution" in starter:
            spec |= {"method": True, "imports": LEETCODE}
        request = FUNCTION.format(text.strip(), function, STARTER.format(starter.rstrip()) if starter.strip() else "")
    solution = _solution(row)
    if solution is not None:
        spec["solution"] = solution
    return Task(messages=({"role": "user", "content": request},), spec=spec)


def _pairs(value: Any, name: str) -> list[tuple[Any, Any]]:
    """Return the inputs and outputs of a field, which may be JSON text, a list of pairs, or two lists."""
    if isinstance(value, str):
        value = _json(value, name) if value.strip() else None
    if not value:
        return []
    if isinstance(value, list) and all(isinstance(item, dict) for item in value):
        return [(_one(item, INPUTS, name), _one(item, OUTPUTS, name)) for item in value]
    if isinstance(value, dict):
        inputs, outputs = _one(value, INPUTS, name), _one(value, OUTPUTS, name)
        if isinstance(inputs, list) and isinstance(outputs, list) and len(inputs) == len(outputs):
            return list(zip(inputs, outputs, strict=True))
    raise ValueError(f"field {name!r} must hold as many inputs as outputs; it is {str(value)[:80]!r}")


def _one(pair: dict[str, Any], names: tuple[str, ...], field: str) -> Any:
    for name in names:
        if name in pair:
            return pair[name]
    raise ValueError(f"field {field!r} has a test without {' or '.join(names)}; it has {sorted(pair)}")


def _json(text: str, name: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ValueError(
            f"field {name!r} is no JSON (packed or pickled tests must be unpacked before): {error}"
        ) from error


def _function(row: Row) -> str | None:
    """Return the name of the function, None for a program that reads its input."""
    places: list[Any] = [row]
    for name in ("input_output", "metadata"):
        value = row.get(name)
        places.append(_json(value, name) if isinstance(value, str) and value.strip().startswith("{") else value)
    for place in places:
        for name in ("fn_name", "func_name", "entry_point"):
            if isinstance(place, dict) and isinstance(place.get(name), str) and place[name].isidentifier():
                return str(place[name])
    return None


def _text(value: Any, what: str) -> str:
    """Return the text of an input or output, which some rows give as a list of lines."""
    if isinstance(value, list) and all(isinstance(line, str | int | float) for line in value):
        return "\n".join(map(str, value))
    if isinstance(value, str | int | float):
        return str(value)
    raise ValueError(f"a test's {what} must be text, not {type(value).__name__}")


def _arguments(given: Any) -> list[Any]:
    """Return the arguments of a call: a list of them, or a text with one in JSON on each line."""
    if isinstance(given, str):
        return [_literal(line) for line in given.splitlines() if line.strip()]
    return given if isinstance(given, list) else [given]


def _expected(given: Any, wanted: Any) -> Any:
    """Return the expected result, which is text in JSON beside arguments in text."""
    if isinstance(given, str) and isinstance(wanted, str):
        return _literal(wanted)
    return wanted


def _literal(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        pass
    try:
        return ast.literal_eval(text.strip())
    except (ValueError, SyntaxError, RecursionError, MemoryError) as error:
        raise ValueError(f"a test's value is neither JSON nor a Python literal: {text[:80]!r}") from error


def _solution(row: Row) -> str | None:
    """Return the first solution in Python that the row gives as text."""
    for name in SOLUTIONS:
        value = row.get(name)
        if isinstance(value, str) and name == "solutions" and value.lstrip().startswith("["):
            value = _json(value, name)
        if isinstance(value, list):
            value = next((item for item in value if isinstance(item, str)), None)
        if isinstance(value, str) and value.strip():
            return value
    return None


def matches(row: Row) -> bool:
    """Tell whether a row holds inputs and outputs."""
    for name in (*PUBLIC, *HIDDEN):
        value = row.get(name)
        if isinstance(value, str) and value.lstrip()[:1] in ("[", "{"):
            return name != "tests" or '"input"' in value
        if isinstance(value, dict) or (isinstance(value, list) and value and isinstance(value[0], dict)):
            return True
    return "inputs" in row and "outputs" in row


FORMATS = (RowFormat(name="stdio", matches=matches, load=load),)
