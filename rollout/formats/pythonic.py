"""Tool calls written as a list of Python calls, `[get(key='ann', n=1), calc(expression='1+1')]`; nothing of it is run."""

import ast
import json
from typing import Any

JSON_WORDS = {"true": True, "false": False, "null": None}
"""Names that some templates write for values, as JSON has them."""


def calls_as_json(text: str) -> str:
    """Return a list of calls as JSON: their names, and arguments by name. Raises `ValueError` for what is none."""
    try:
        tree = ast.parse(text.strip(), mode="eval").body
    except (SyntaxError, MemoryError) as error:
        raise ValueError("no list of calls") from error
    if not isinstance(tree, ast.List):
        raise ValueError("no list of calls")
    return json.dumps([_call(node) for node in tree.elts], ensure_ascii=False)


def _call(node: ast.expr) -> dict[str, Any]:
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Name | ast.Attribute) or node.args:
        raise ValueError("a call has a name, and arguments by name alone")
    arguments = {}
    for given in node.keywords:
        if given.arg is None or given.arg in arguments:
            raise ValueError("arguments are given once, by name")
        arguments[given.arg] = _value(given.value)
    return {"name": ast.unparse(node.func), "arguments": arguments}


def _value(node: ast.expr) -> Any:
    """Return a literal; `json` refuses what is none of JSON's."""
    if isinstance(node, ast.Name) and node.id in JSON_WORDS:
        return JSON_WORDS[node.id]
    if isinstance(node, ast.List):
        return [_value(one) for one in node.elts]
    if isinstance(node, ast.Dict) and all(isinstance(key, ast.Constant) for key in node.keys):
        return {str(ast.literal_eval(key)): _value(one) for key, one in zip(node.keys, node.values, strict=True) if key}
    value = ast.literal_eval(node) if isinstance(node, ast.Constant | ast.UnaryOp) else node
    if not isinstance(value, str | int | float | None):
        raise ValueError("a value is none of JSON's")
    return value
