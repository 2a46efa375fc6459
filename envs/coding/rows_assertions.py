"""Rows of programming data that are judged by assertions: MBPP, and plain lists of assertions.

Each assertion is a test of its own. The functions and classes that it takes from the program are found from the row:
those that its solution defines, or without a solution all names that are neither defined by the row nor modules.
"""

import ast
from typing import Any

from envs.coding.row_source import called, entry_point_of, is_completed_by, parsed, taken, wanted
from envs.core.row_format import Row, RowFormat, field
from envs.core.task import Task
from rewards.program_text import completed, defines, preamble

TEXTS = ("text", "prompt", "question", "problem", "description", "instruction")
TESTS = ("test_list", "assertions", "asserts", "tests", "test_cases", "test")
SETUPS = ("test_setup_code", "test_imports", "setup_code", "imports")
SOLUTIONS = ("code", "solution", "canonical_solution", "reference_solution")
REQUEST = (
    "{}\n\nAnswer with the whole Python program in a code block. It must define `{}`; for example this must hold:\n\n{}"
)


def load(row: Row) -> Task:
    """Make a task of a row: a text, a list of assertions, optionally set-up code, a solution and the entry point.

    The request shows the first assertion, which tells name and arguments. MBPP's `challenge_test_list` is not used.
    """
    text = field(row, _name(row, TEXTS, "the request"), str)
    tests_field = _name(row, TESTS, "the assertions")
    asserts = _assertions(row[tests_field], tests_field)
    setup = "".join(_lines(row[name], name) for name in SETUPS if row.get(name))
    solution = next((row[name] for name in SOLUTIONS if isinstance(row.get(name), str)), None)
    given = None if row.get("entry_point") is None else entry_point_of(row)
    if solution is not None and given is not None and _completes(text, given) and not defines(solution, given):
        solution = completed(text, solution)
    names, imports = taken(wanted(parsed("\n".join([setup, *asserts]), tests_field)), solution)
    entry_point = _entry_point(asserts, names, tests_field) if given is None else given
    names = [entry_point, *(name for name in names if name != entry_point)]
    for number, source in enumerate(asserts):
        if not set(names) & set(wanted(ast.parse(f"{setup}\n{source}"))):
            raise ValueError(f"field {tests_field!r}: test {number} does not use {entry_point!r}: {source[:80]!r}")
    spec: dict[str, Any] = {"entry_point": entry_point, "checks": asserts, "names": names, "setup": imports + setup}
    if solution is not None:
        spec["solution"] = solution
    if _completes(text, entry_point):
        spec["prompt"] = text
        spec["setup"] = f"{imports}{preamble(text, entry_point)}\n{setup}"
    request = REQUEST.format(text.strip(), entry_point, asserts[0])
    return Task(messages=({"role": "user", "content": request},), spec=spec)


def _name(row: Row, names: tuple[str, ...], what: str) -> str:
    for name in names:
        if name in row:
            return name
    raise ValueError(f"no field with {what}; it would be one of {', '.join(names)}, the row has {sorted(row)}")


def _assertions(value: Any, name: str) -> list[str]:
    """Return the tests of a list, or of a text: its assertions and functions `test...()`, each after what comes before it.

    Imports from a module `solution` name what the program defines.
    """
    if isinstance(value, list) and value and all(isinstance(item, str) for item in value):
        for item in value:
            parsed(item, name)
        return [item.strip() for item in value]
    if not isinstance(value, str) or not value.strip():
        raise ValueError(f"field {name!r} must be a list of assertions, or a text of them; it is {str(value)[:80]!r}")
    before, tests = list[str](), list[str]()
    for statement in parsed(value, name).body:
        source = ast.unparse(statement)
        if isinstance(statement, ast.Assert):
            tests.append("\n".join([*before, source]))
        elif isinstance(statement, ast.FunctionDef) and statement.name.startswith("test") and not statement.args.args:
            tests.append("\n".join([*before, source, f"{statement.name}()"]))
        elif isinstance(statement, ast.ImportFrom) and statement.module == "solution":
            continue
        else:
            before.append(source)
    if not tests:
        raise ValueError(f"field {name!r} holds no assertion")
    return tests


def _lines(value: Any, name: str) -> str:
    """Return set-up code, which is given as a text or as a list of lines."""
    lines = [value] if isinstance(value, str) else value
    if not isinstance(lines, list) or not all(isinstance(line, str) for line in lines):
        raise ValueError(f"field {name!r} must be a text or a list of lines, not {type(value).__name__}")
    return "".join(f"{line}\n" for line in lines)


def _completes(text: str, entry_point: str) -> bool:
    return defines(text, entry_point) and is_completed_by(text, "    pass")


def _entry_point(asserts: list[str], names: list[str], field_name: str) -> str:
    """Return the name that most assertions call, the outermost call of the first one where several are called alike."""
    calls = [[name for name in called(ast.parse(source)) if name in names] for source in asserts]
    found = list(dict.fromkeys(name for row in calls for name in row)) or names
    if not found:
        raise ValueError(f"field {field_name!r} calls nothing that the program would define: {asserts[0][:80]!r}")
    return max(found, key=lambda name: sum(name in row for row in calls))


def _is_mbpp(row: Row) -> bool:
    return "test_list" in row and "code" in row


def _has_assertions(row: Row) -> bool:
    return any(name in row for name in TESTS) and any(name in row for name in TEXTS)


FORMATS = (
    RowFormat(name="mbpp", matches=_is_mbpp, load=load),
    RowFormat(name="assertions", matches=_has_assertions, load=load),
)
