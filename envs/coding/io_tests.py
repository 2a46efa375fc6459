"""Inputs and expected outputs of data sets as tests of a program or a function.

LiveCodeBench (Jain et al., 2024, arXiv 2403.07974) packs its private tests as base64 of zlib-compressed, pickled JSON text.
Tests stay packed in a task, since they may be a hundred times as large unpacked. They are unpacked for grading. Nothing is
unpickled: the pickle is parsed by opcode, and is refused if it holds anything but one text.
"""

import ast
import base64
import binascii
import json
import math
import pickletools
import threading
import zlib
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

from temper.envs.core.row_fields import quote_value
from temper.envs.core.row_format import read_json

Pair = tuple[Any, Any]
MAX_UNPACKED = 512 * 2**20
UNPACKING = threading.Lock()
KEPT = 4
"""Number of cached unpacked texts, since answers to one task arrive together."""
FRAMING = {"PROTO", "FRAME", "MEMOIZE", "BINPUT", "LONG_BINPUT", "PUT", "STOP"}
"""Opcodes that only frame or number the content of a pickle."""
TEXTS = {"UNICODE", "BINUNICODE", "SHORT_BINUNICODE", "BINUNICODE8"}
INPUTS, OUTPUTS = ("input", "inputs", "stdin"), ("output", "outputs", "expected_output", "expected", "stdout")


def pairs_of(value: Any, name: str) -> list[Pair]:
    if isinstance(value, str):
        value = read_json(value, name) if value.strip() else None
    if not value:
        return []
    if isinstance(value, list) and all(isinstance(item, dict) for item in value):
        return [(_one(item, INPUTS, name), _one(item, OUTPUTS, name)) for item in value]
    if isinstance(value, dict):
        inputs, outputs = _one(value, INPUTS, name), _one(value, OUTPUTS, name)
        if isinstance(inputs, list) and isinstance(outputs, list) and len(inputs) == len(outputs):
            return list(zip(inputs, outputs, strict=True))
    raise ValueError(f"field {name!r} is {str(value)[:80]!r}; it must hold as many inputs as outputs")


def _one(pair: dict[str, Any], names: tuple[str, ...], field: str) -> Any:
    for name in names:
        if name in pair:
            return pair[name]
    raise ValueError(f"field {field!r} has a test with {sorted(pair)}; it needs {' or '.join(names)}")


def program_tests(pairs: Sequence[Pair]) -> list[dict[str, str]]:
    return [{"input": _text(given, "input"), "output": _text(wanted, "output")} for given, wanted in pairs]


def function_tests(pairs: Sequence[Pair]) -> list[dict[str, Any]]:
    return [{"args": _arguments(given), "expected": _expected(given, wanted)} for given, wanted in pairs]


def _text(value: Any, what: str) -> str:
    if isinstance(value, list) and all(isinstance(line, str | int | float) for line in value):
        return "\n".join(map(str, value))
    if isinstance(value, str | int) or (isinstance(value, float) and math.isfinite(value)):
        return str(value)
    raise ValueError(f"a test's {what} is {quote_value(value)}; it must be text")


def _arguments(given: Any) -> list[Any]:
    """Return the arguments of a call: a list, or the JSON values of a text's lines."""
    if isinstance(given, str):
        return [_literal(line) for line in given.splitlines() if line.strip()]
    return given if isinstance(given, list) else [given]


def _expected(given: Any, wanted: Any) -> Any:
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


def is_packed(value: Any) -> bool:
    """Return whether a field holds packed tests: text that begins like zlib data in base64."""
    return isinstance(value, str) and value.startswith(("eJ", "eA", "eN", "eF", "eH"))


def read_packed_tests(text: str, *, calls: bool) -> Sequence[Mapping[str, Any]]:
    """Return packed tests for a function or a program. Do not modify them. Raise `ValueError` like `unpack_tests`."""
    with UNPACKING:
        return _packed_tests(text, calls)


@lru_cache(maxsize=KEPT)
def _packed_tests(text: str, calls: bool) -> Sequence[Mapping[str, Any]]:
    pairs = unpack_tests(text)
    return function_tests(pairs) if calls else program_tests(pairs)


def unpack_tests(text: str) -> list[Pair]:
    """Return the pairs of packed tests."""
    try:
        inflate = zlib.decompressobj()
        pickled = inflate.decompress(base64.b64decode(text, validate=True), MAX_UNPACKED)
    except (binascii.Error, zlib.error) as error:
        raise ValueError(f"packed tests can't be unpacked: {error}") from error
    if inflate.unconsumed_tail or not inflate.eof:
        raise ValueError(f"packed tests are truncated, or larger than {MAX_UNPACKED} bytes")
    pairs = pairs_of(read_pickled_text(pickled), "private_test_cases")
    if not pairs:
        raise ValueError("packed tests are empty")
    return pairs


def read_pickled_text(pickled: bytes) -> str:
    """Return the only text of a pickle, without unpickling. Raise `ValueError` for any other pickle."""
    found: list[str] = []
    try:
        for opcode, value, _ in pickletools.genops(pickled):
            if opcode.name in TEXTS:
                found.append(str(value))
            elif opcode.name not in FRAMING:
                raise ValueError(f"it holds {opcode.name}")
    except (ValueError, IndexError, UnicodeDecodeError) as error:
        raise ValueError(f"packed tests must be one pickled text and nothing else: {error}") from error
    if len(found) != 1:
        raise ValueError(f"packed tests must be one pickled text and nothing else: it holds {len(found)}")
    return found[0]
