"""What the text under the fields of a dataclass says: it is read from the source, where it stands beside what it describes."""

import ast
import inspect
import sys
from collections.abc import Iterator
from dataclasses import is_dataclass
from functools import cache
from itertools import pairwise


@cache
def field_texts(config: type) -> dict[str, str]:
    """Return the text under each field of a dataclass on one line, by the field's name; a field may have none.

    A class that inherits fields has their texts too, and its own for those that it declares again with one.
    """
    texts: dict[str, str] = {}
    for base in reversed(config.__mro__):
        if is_dataclass(base):
            texts |= dict(_texts(_class_in(base)))
    return texts


def class_text(config: type) -> str:
    """Return the first paragraph under the head of a dataclass on one line; "" where nothing was written there."""
    written = _class_in(config)
    text = ast.get_docstring(written) if written is not None else None
    return _on_one_line((text or "").split("\n\n")[0])


def _class_in(config: type) -> ast.ClassDef | None:
    """Return the source of a class; None for one that no source declares, such as those of `make_dataclass`."""
    module = sys.modules[config.__module__]
    tree = _tree(config.__module__) if "__file__" in vars(module) else ast.Module(body=[], type_ignores=[])
    return next((one for one in tree.body if isinstance(one, ast.ClassDef) and one.name == config.__name__), None)


@cache
def _tree(module: str) -> ast.Module:
    return ast.parse(inspect.getsource(sys.modules[module]))


def _texts(written: ast.ClassDef | None) -> Iterator[tuple[str, str]]:
    body = [] if written is None else written.body
    for field, below in pairwise(body):
        match field, below:
            case (
                ast.AnnAssign(target=ast.Name(id=name)),
                ast.Expr(value=ast.Constant(value=str() as text)),
            ):
                yield name, _on_one_line(text)


def _on_one_line(text: str) -> str:
    return " ".join(text.split())
