"""Converts tau-bench's published files (github.com/sierra-research/tau-bench) to the folder of the shop.

    python -m temper.envs.retail.published tau-bench/tau_bench/envs/retail FOLDER

It reads the tables, `wiki.md`, the schemas in `tools/*.py` and the tasks in `tasks_*.py`, and writes `users.json` and the
other tables, `policy.md`, `tools.json`, and files such as `tasks_test.jsonl`. Python files are read as text, never run.
"""

import argparse
import ast
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from temper.envs.retail.database import POLICY, TOOLS


def convert(source: Path, folder: Path) -> list[str]:
    """Convert a domain of tau-bench and return the written files. Raise `ValueError` for another folder."""
    tables = sorted((source / "data").glob("*.json"))
    if not tables or not (source / "wiki.md").is_file():
        raise ValueError(f"{source} is not a tau-bench domain; use a folder such as tau-bench/tau_bench/envs/retail")
    made = {table.name: table.read_text(encoding="utf-8") for table in tables}
    made[POLICY] = (source / "wiki.md").read_text(encoding="utf-8")
    made[TOOLS] = json.dumps([_schema(source / "tools" / f"{name}.py") for name in _tool_files(source)], indent=1)
    for file in sorted(source.glob("tasks_*.py")):
        made[f"{file.stem}.jsonl"] = "".join(json.dumps(row) + "\n" for row in _tasks(file))
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in made.items():
        (folder / name).write_text(text, encoding="utf-8")
    return list(made)


def _tool_files(source: Path) -> list[str]:
    tree = _parsed(source / "tools" / "__init__.py")
    return [node.module for node in tree.body if isinstance(node, ast.ImportFrom) and node.module]


def _schema(file: Path) -> Any:
    for node in ast.walk(_parsed(file)):
        if isinstance(node, ast.FunctionDef) and node.name == "get_info" and isinstance(node.body[-1], ast.Return):
            return _literal(node.body[-1].value, file)
    raise ValueError(f"{file} has no function get_info that returns a schema")


def _tasks(file: Path) -> Iterator[dict[str, Any]]:
    """Yield the tasks of a file: `Task(user_id=..., instruction=..., actions=[Action(...)], outputs=[...])`."""
    for node in _parsed(file).body:
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.List):
            for task in node.value.elts:
                yield _keywords(task, file)


def _keywords(node: ast.expr, file: Path) -> dict[str, Any]:
    if not isinstance(node, ast.Call):
        raise ValueError(f"{file}:{node.lineno}: {ast.unparse(node):.80} is neither a task nor an action")
    return {word.arg: _value(word.value, file) for word in node.keywords if word.arg not in (None, "annotator")}


def _value(node: ast.expr, file: Path) -> Any:
    if isinstance(node, ast.List) and any(isinstance(item, ast.Call) for item in node.elts):
        return [_keywords(item, file) for item in node.elts]
    return _literal(node, file)


def _literal(node: ast.expr | None, file: Path) -> Any:
    try:
        return ast.literal_eval(node) if node is not None else None
    except ValueError as error:
        raise ValueError(f"{file}: a value is not a literal: {error}") from error


def _parsed(file: Path) -> ast.Module:
    try:
        return ast.parse(file.read_text(encoding="utf-8"))
    except (OSError, SyntaxError) as error:
        raise ValueError(f"{file} can't be read: {error}") from error


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source", type=Path, help="a domain of tau-bench: tau-bench/tau_bench/envs/retail")
    parser.add_argument("folder", type=Path, help="where to write")
    given = parser.parse_args()
    print(f"{given.folder}: {', '.join(convert(given.source, given.folder))}")
