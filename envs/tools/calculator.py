"""A calculator for models: bounded arithmetic on the syntax tree, without evaluation of code."""

import ast
import operator
from collections.abc import Callable

MAX_CHARACTERS = 200
MAX_MAGNITUDE = 10**30
Number = int | float
BINARY: dict[type[ast.operator], Callable[[Number, Number], Number]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
}


def calculate(expression: str) -> str:
    """Return the value of an expression of numbers, + - * / // % and parentheses.

    Raise `ValueError` with a short reason for anything else. A whole quotient has no decimal point.
    """
    if len(expression) > MAX_CHARACTERS:
        raise ValueError("expression too long")
    try:
        tree = ast.parse(expression.strip(), mode="eval")
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        raise ValueError("bad expression") from None
    value = _value(tree.body)
    return str(int(value)) if isinstance(value, float) and value.is_integer() else str(value)


def _value(node: ast.expr) -> Number:
    match node:
        case ast.Constant(value=int() | float() as number) if not isinstance(number, bool):
            return _bounded(number)
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return -_value(operand)
        case ast.UnaryOp(op=ast.UAdd(), operand=operand):
            return _value(operand)
        case ast.BinOp(left=left, op=op, right=right) if type(op) in BINARY:
            return _apply(BINARY[type(op)], _value(left), _value(right))
    raise ValueError("only numbers and + - * / // %")


def _apply(function: Callable[[Number, Number], Number], left: Number, right: Number) -> Number:
    try:
        return _bounded(function(left, right))
    except ZeroDivisionError:
        raise ValueError("division by zero") from None
    except OverflowError:
        raise ValueError("number too large") from None


def _bounded(value: Number) -> Number:
    if not abs(value) <= MAX_MAGNITUDE:
        raise ValueError("number too large")
    return value
