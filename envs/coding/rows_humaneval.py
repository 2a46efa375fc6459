"""Rows of programming data with a check function: HumanEval."""

import ast
from functools import partial
from typing import Any

from temper.envs.coding.row_source import (
    CHECK,
    check_of,
    entry_point_of,
    find_required_names,
    find_unbound_names,
    has_name,
    is_completable,
    names_of,
    parse_source,
)
from temper.envs.core.prompts import USUAL, Prompts
from temper.envs.core.row_format import RowFormat, field, has_fields
from temper.envs.core.task import Task
from temper.rewards.program_text import complete_body, has_definition, join_code, preamble

CANDIDATE = "_candidate"
COMPLETE = "Complete this Python function. Answer with the whole function in a code block.\n\n```python\n{}\n```"
OTHERS = "\n\nThe program must also define `{}`.{}"
EXAMPLE = " For example this must hold:\n\n{}"
REFERENCE = """
{candidate} = {name}
_reference = {{}}
exec({solution!r}, _reference)
{name} = _reference[{name!r}]
"""
"""Keeps the program's function under another name, since a check that calls it by name refers to the solution."""
WRITE = "{}\n\nAnswer with the whole Python program in a code block. It must define `{}`."


def load(row: dict[str, Any], prompts: Prompts = USUAL) -> Task:
    """Make a task of a row: `prompt`, `entry_point`, `test` (with `check(candidate)`), optionally `canonical_solution`.

    The prompt is code to complete if it defines the entry point, otherwise it is the request in words. HumanEval+ has the
    same fields. The check may use other functions of the program by name, which the usual request then lists. If it calls
    the entry point by name and not as `candidate`, it gets the row's solution.
    """
    prompt, test = field(row, "prompt", str), field(row, "test", str)
    entry_point = entry_point_of(row)
    tree = parse_source(test, "test")
    check = check_of(tree)
    if check is None:
        raise ValueError("field 'test' defines no function check(candidate)")
    completes = is_completable(prompt, entry_point)
    setup = preamble(prompt, entry_point) if completes else ""
    solution = _solution(row.get("canonical_solution"), prompt, entry_point, completes=completes)
    given = names_of(setup, "prompt").bound
    missing = [name for name in find_unbound_names(names_of(test, "test")) if name not in given]
    names, imports = find_required_names([*missing, *[CHECK] * has_name(ast.Module(check.body, []), {CHECK})], solution)
    others = [name for name in names if name != entry_point]
    spec: dict[str, Any] = {"entry_point": entry_point, "check": test, "names": [entry_point, *others]}
    spec["setup"] = imports + setup
    if solution is not None and _compares_with(check, entry_point):
        spec["candidate"] = CANDIDATE
        spec["setup"] += REFERENCE.format(candidate=CANDIDATE, name=entry_point, solution=solution)
    if completes:
        spec["prompt"] = prompt
    if solution is not None:
        spec["solution"] = solution
    request = COMPLETE.format(prompt.rstrip()) if completes else WRITE.format(prompt.rstrip(), entry_point)
    if others:
        examples = [node for node in ast.walk(check) if isinstance(node, ast.Assert) and has_name(node, others)]
        request += OTHERS.format("`, `".join(others), "".join(map(EXAMPLE.format, map(ast.unparse, examples[:1]))))
    kind = "completion" if completes else "function"
    fields = {"question": prompt.strip(), "name": entry_point, "test": "", "tests": "", "starter": ""}
    return Task(messages=prompts.messages(kind, request, fields), spec=spec)


def _compares_with(check: ast.FunctionDef, entry_point: str) -> bool:
    """Return whether a check calls the entry point by name, and only to compare the candidate with it."""
    candidate = check.args.args[0].arg
    named = [statement for statement in check.body if has_name(statement, {entry_point})]
    return candidate != entry_point and bool(named) and all(has_name(statement, {candidate}) for statement in named)


def _solution(given: Any, prompt: str, entry_point: str, *, completes: bool) -> str | None:
    if not isinstance(given, str):
        return None
    if has_definition(given, entry_point):
        return join_code(preamble(prompt, entry_point) if completes else "", given)
    return complete_body(prompt, given) if completes else None


def formats(prompts: Prompts) -> tuple[RowFormat, ...]:
    return (
        RowFormat(
            name="humaneval", matches=has_fields("prompt", "test", "entry_point"), load=partial(load, prompts=prompts)
        ),
    )
