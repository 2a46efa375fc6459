"""Hidden tests of a workspace, judged as the assertions of the `code` environment are.

The tests run in one sandbox, and the model's files in another one for each test. The tests see proxies for the
modules of the row's files, so that no file of the model replaces a module of theirs, and no expected value reaches the files.
A test is a method `test...` of a `TestCase`, a function `test...()` or an assertion, with the statements before it.
"""

import ast
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from temper.envs.coding.env import judge
from temper.envs.coding.row_source import parse_source
from temper.envs.core.task import Credit
from temper.envs.sandbox.sandbox import shared_sandbox
from temper.envs.workspace.files import program
from temper.rewards.score import Score

IMPORT = "import_module"
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


def verify(files: Mapping[str, str], spec: Mapping[str, Any], *, credit: Credit) -> Score:
    """Return the score of the model's files by all hidden tests. Their paths are free in the files' fresh copy."""
    fresh = {path: text for path, text in files.items() if path not in spec["tests"]}
    source = f"{program(fresh)}from importlib import {IMPORT}\n"
    modules = module_names(path for path in (*spec["files"], *spec.get("solution", ())) if path not in spec["tests"])
    checks = [check for path, text in spec["tests"].items() for check in checks_of(text, path)]
    suite = {
        "entry_point": IMPORT,
        "names": [IMPORT],
        "checks": checks,
        "setup": PROXIES.format(names=modules),
    }
    return shared_sandbox().attempt(lambda sandbox: judge(sandbox, source, suite, credit=credit, failures=len(checks)))[
        0
    ]


def checks_of(text: str, path: str) -> list[str]:
    """Return the tests of a file as sources. Raise `ValueError` if it has none, or is not Python."""
    before, checks = list[str](), list[str]()
    for statement in parse_source(text, f"tests.{path}").body:
        source = ast.unparse(statement)
        if not isinstance(statement, ast.Assert):
            before.append(source)
        checks += ["\n".join([*before, call]) for call in _calls(statement, source)]
    if not checks:
        raise ValueError(f"tests.{path} has no test; add methods of a TestCase, functions test...() or assertions")
    return checks


def _calls(statement: ast.stmt, source: str) -> Iterator[str]:
    match statement:
        case ast.Assert():
            yield source
        case ast.FunctionDef(name=name, args=ast.arguments(args=[])) if name.startswith("test"):
            yield f"{name}()"
        case ast.ClassDef(name=name, bases=[_, *_], body=body):
            for method in body:
                if isinstance(method, ast.FunctionDef) and method.name.startswith("test"):
                    yield f"{name}.setUpClass()\n{name}({method.name!r}).debug()"


def module_names(paths: Iterable[str]) -> list[str]:
    """Return the modules of these paths, each after its packages."""
    found = set[str]()
    for path in paths:
        if path.endswith(".py"):
            parts = path.removesuffix(".py").removesuffix("/__init__").split("/")
            found |= {".".join(parts[: n + 1]) for n in range(len(parts))}
    return sorted(found)
