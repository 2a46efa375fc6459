"""Hidden tests of a workspace, judged like the assertions of the `code` environment.

The tests run in one sandbox, and the model's files in another one for each test, or in a new container of an image, so that
the model can't read or change the tests. They see proxies for the modules of the row's files. All files belong to the model,
so a test may import only modules under test. A test is a method `test...` of a `TestCase`, a function `test...()` or an
assertion, with the statements before it.
"""

import ast
from collections.abc import Iterable, Iterator, Mapping, Set
from contextlib import closing, nullcontext
from typing import Any, TypeGuard

from temper.envs.coding.env import judge
from temper.envs.coding.row_source import parse_source
from temper.envs.core.clock import stop_clock
from temper.envs.core.task import Credit
from temper.envs.sandbox.sandbox import shared_sandbox
from temper.envs.workspace.container import Container
from temper.envs.workspace.files import program
from temper.rewards.score import Score

IMPORT = "import_module"
WRITE = """
import sys
from temper.envs.workspace.folder import write_files

write_files("", {!r})
sys.path.insert(0, "")
"""
CASES = {"TestCase", "unittest.TestCase"}
REMEDY = "use undecorated methods of a TestCase, functions test...() without arguments, or assertions"
PROXIES = """
import sys
import types


class _Proxy(types.ModuleType):
    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(import_module(self.__name__), name)


for _name in {names!r}:
    sys.modules[_name] = _Proxy(_name)
    _parent, _, _child = _name.rpartition(".")
    if _parent:
        setattr(sys.modules[_parent], _child, sys.modules[_name])
"""


def verify(files: Mapping[str, str], spec: Mapping[str, Any], *, credit: Credit, image: str = "") -> Score:
    """Return the score of the model's files by all hidden tests. The model's files at the tests' paths are removed."""
    fresh = {path: text for path, text in files.items() if path not in spec["tests"]}
    source = f"{WRITE.format(fresh) if image else program(fresh)}from importlib import {IMPORT}\n"
    modules = module_names(path for path in (*spec["files"], *spec.get("solution", ())) if path not in spec["tests"])
    checks = [check for path, text in spec["tests"].items() for check in checks_of(text, path)]
    suite = {"entry_point": IMPORT, "names": [IMPORT], "checks": checks, "setup": PROXIES.format(names=modules)}
    most = len(checks)
    with stop_clock(), closing(Container(image, clears=True)) if image else nullcontext() as container:
        start = container.start if container else None
        return shared_sandbox().attempt(
            lambda sandbox: judge(sandbox, source, suite, credit=credit, failures=most, start=start)[0]
        )


def checks_of(text: str, path: str) -> list[str]:
    """Return the tests of a file as sources. Raise `ValueError` if it has none, has one that would not run, or is not
    Python.
    """
    tree, before, checks = parse_source(text, f"tests.{path}"), list[str](), list[str]()
    cases = CASES | {node.name for node in tree.body if isinstance(node, ast.ClassDef) and _bases(node) & CASES}
    for statement in tree.body:
        source = ast.unparse(statement)
        if not isinstance(statement, ast.Assert):
            before.append(source)
        calls, others = _calls(statement, source)
        checks += ["\n".join([*before, call]) for call in calls]
        refused = [name for other in others for name in _tests_in(other, cases)]
        if refused:
            raise ValueError(f"tests.{path}: {refused[0]} would not run; {REMEDY}")
    if not checks:
        raise ValueError(f"tests.{path} has no test; {REMEDY}")
    return checks


def _calls(statement: ast.stmt, source: str) -> tuple[list[str], list[ast.stmt]]:
    """Return the calls of a statement's tests, and the statements that may have tests of other forms."""
    match statement:
        case ast.Assert():
            return [source], []
        case ast.FunctionDef(name=name) if _is_test(statement, ""):
            return [f"{name}()"], []
        case ast.ClassDef(name=name, body=body, bases=[_], keywords=[], decorator_list=[]) if (
            _bases(statement) <= CASES
        ):
            methods = [node.name for node in body if _is_test(node, "self")]
            calls = [f"{name}.setUpClass()\n{name}({method!r}).debug()" for method in methods]
            return calls, [node for node in body if not _is_test(node, "self")]
    return [], [statement]


def _is_test(node: ast.stmt, arguments: str) -> TypeGuard[ast.FunctionDef]:
    """Return whether a node is a function `test...` with these arguments that nothing decorates."""
    if not isinstance(node, ast.FunctionDef) or not node.name.startswith("test"):
        return False
    return not node.decorator_list and ast.unparse(node.args) == arguments


def _tests_in(node: ast.AST, cases: Set[str]) -> Iterator[str]:
    """Yield the tests outside functions, and the imports that may hide some."""
    match node:
        case ast.Assert() | ast.ImportFrom(names=[ast.alias(name="*")]):
            yield ast.unparse(node)
        case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
            if name.startswith("test"):
                yield name
            return
        case ast.ClassDef(name=name) if _bases(node) & cases:
            yield name
    for child in ast.iter_child_nodes(node):
        yield from _tests_in(child, cases)


def _bases(node: ast.ClassDef) -> set[str]:
    return {ast.unparse(base) for base in node.bases}


def module_names(paths: Iterable[str]) -> list[str]:
    """Return the modules of these paths, each after its packages."""
    found = set[str]()
    for path in paths:
        if path.endswith(".py"):
            parts = path.removesuffix(".py").removesuffix("/__init__").split("/")
            found |= {".".join(parts[: n + 1]) for n in range(len(parts))}
    return sorted(found)
