"""Analysis of a row's code: the names that it needs from the program, and the tests in a check function.

Only text of data rows is parsed here, never model output.
"""

import ast
import builtins
import sys
from collections import deque
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from symtable import SymbolTable, symtable
from typing import TypeVar

from temper.envs.core.row_format import Row, field
from temper.rewards.program_text import has_definition

MODULES = frozenset(sys.stdlib_module_names)
SHORT_NAMES = {"np": "import numpy as np"}
BUILT_INS = frozenset((*dir(builtins), "__name__"))
SYMBOLS = partial(symtable, filename="<unknown>", compile_type="exec")
CHECK = "check"
T = TypeVar("T")


def parse_source(source: str, field: str) -> ast.Module:
    return _read(ast.parse, source, field)


def _read(read: Callable[[str], T], source: str, field: str) -> T:
    try:
        return read(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise ValueError(f"field {field!r} is not Python: {error}") from error


def is_completable(source: str, entry_point: str) -> bool:
    """Return whether a source defines the entry point and is Python with a body, so that a model may complete it."""
    try:
        parse_source(f"{source.rstrip()}\n    pass", "")
    except ValueError:
        return False
    return has_definition(source, entry_point)


def walk_nodes(tree: ast.AST) -> Iterator[ast.AST]:
    """Yield the nodes of a tree, outer ones first, without constants in lists, of which tests may have a million."""
    todo = deque([tree])
    while todo:
        node = todo.popleft()
        yield node
        if isinstance(node, ast.List | ast.Tuple | ast.Set):
            todo.extend(item for item in node.elts if not isinstance(item, ast.Constant))
        else:
            todo.extend(ast.iter_child_nodes(node))


def find_bound_names(tree: ast.AST) -> list[str]:
    """Return the names that a tree binds anywhere, in text order: definitions, imports, targets, arguments."""
    names: list[str] = []
    for node in walk_nodes(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            names.append(node.name)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            names += [(alias.asname or alias.name).partition(".")[0] for alias in node.names]
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.append(node.id)
        elif isinstance(node, ast.arg):
            names.append(node.arg)
        elif isinstance(node, ast.ExceptHandler) and node.name:
            names.append(node.name)
    return names


@dataclass(frozen=True, slots=True, kw_only=True)
class Names:
    """The names in a source."""

    used: list[str]
    """Names that it reads, in order, without built-ins."""
    bound: set[str]
    """Names that it binds anywhere: definitions, imports, targets, arguments."""
    defined: set[str]
    """Names that it binds at its top level, not by an import."""


def names_of(source: str, field: str) -> Names:
    """Return the names in a source, from the compiler's symbol table: a walk in Python takes ten times as long."""
    names = Names(used=[], bound=set(), defined=set())
    tables: list[SymbolTable] = [_read(SYMBOLS, source, field)] if source.strip() else []
    for level, table in enumerate(tables):
        for symbol in table.get_symbols():
            name, assigned, imported = symbol.get_name(), symbol.is_assigned(), symbol.is_imported()
            if symbol.is_referenced() and name not in BUILT_INS:
                names.used.append(name)
            if assigned or imported or symbol.is_parameter():
                names.bound.add(name)
            if assigned and not imported and level == 0:
                names.defined.add(name)
        tables += table.get_children()
    return names


def find_unbound_names(names: Names) -> list[str]:
    """Return the distinct names that a source uses but does not bind, in order."""
    return list(dict.fromkeys(name for name in names.used if name not in names.bound))


def find_called_names(tree: ast.AST) -> list[str]:
    return [node.func.id for node in walk_nodes(tree) if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)]


def imports_for(names: Sequence[str]) -> str:
    """Return imports of the modules among these names, which data sets' tests use without importing them."""
    lines = [SHORT_NAMES.get(name, f"import {name}") for name in names if name in MODULES or name in SHORT_NAMES]
    return "".join(f"{line}\n" for line in lines)


def find_required_names(free: Sequence[str], solution: str | None) -> tuple[list[str], str]:
    """Return the names that tests need from a program, and imports of the modules among the others.

    A program provides the top-level names of its solution, or every name that is not a module if there is no solution.
    """
    held = None if solution is None else names_of(solution, "solution").defined
    names = [name for name in free if (name in held if held is not None else not imports_for([name]))]
    return names, imports_for([name for name in free if name not in names])


def entry_point_of(row: Row) -> str:
    name = field(row, "entry_point", str).strip()
    if not name.isidentifier():
        raise ValueError(f"field 'entry_point' is {name!r}; set the name of a function")
    return name


def check_of(tree: ast.Module) -> ast.FunctionDef | None:
    found = [node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == CHECK]
    return found[-1] if found and len(found[-1].args.args) == 1 else None


def has_name(tree: ast.AST, names: Collection[str]) -> bool:
    return any(isinstance(node, ast.Name) and node.id in names for node in walk_nodes(tree))


def join_check(test: str, entry_point: str, names: Collection[str]) -> str:
    """Return a test with a check function as one test. It calls the test's `check`, even if the program defines one."""
    if CHECK not in names:
        return f"{test}\n\n{CHECK}({entry_point})\n"
    return f"_named = {CHECK}\n{test}\n\n_judge, {CHECK} = {CHECK}, _named\n_judge({entry_point})\n"


def split_check(test: str, entry_point: str, names: Collection[str]) -> list[str]:
    """Split a check function into one test per judging statement. Return an empty list if it can't be split.

    Each test is the whole source of a check, with the earlier statements but without the other judging ones.
    """
    tree = ast.parse(test)
    check = check_of(tree)
    if check is None or any(isinstance(node, ast.Return | ast.Nonlocal | ast.Global) for node in walk_nodes(check)):
        return []
    candidate = check.args.args[0].arg
    head = ast.unparse(ast.Module([node for node in tree.body if node is not check], []))
    tests, setup = [], [f"{candidate} = {entry_point}"]
    for statement, judges in _statements(check, {candidate, *names}):
        text = ast.unparse(statement)
        if judges:
            tests.append("\n".join([head, *setup, text]))
        else:
            setup.append(text)
    return tests


def _statements(check: ast.FunctionDef, touched: set[str]) -> Iterator[tuple[ast.stmt, bool]]:
    """Yield the statements of a check with whether they judge the program's results. `touched` are the names of these
    results.
    """
    for statement in check.body:
        touches = has_name(statement, touched)
        asserts = any(isinstance(node, ast.Assert) for node in walk_nodes(statement))
        calls = isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Call)
        if touches and (asserts or calls) and not isinstance(statement, ast.FunctionDef):
            yield statement, True
        elif not isinstance(statement, ast.Assert):
            touched |= set(find_bound_names(statement)) if touches else set()
            yield statement, False
