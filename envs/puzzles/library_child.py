"""reasoning-gym in a separate, killable process, which makes entries and scores answers.

It reads lines `{"dataset", "config", "seed"}` and answers `{"question", "answer"}` (null if the data set has no answer) or
`{"error"}`. With a `text` it answers `{"score"}`, null if the scorer raised. The first output line lists the data sets with
their configuration keys, and reports the seal (`seal_probe`). The process reads only its libraries, and can't open sockets,
fork or execute (`temper.envs.sandbox.seal`).

Some scorers evaluate the answer as Python. They get a replacement that accepts only literals or formulas, so no answer is
ever executed.
"""

import ast
import functools
import importlib
import json
import math
import os
import random
import re
import signal
import sys
import types
from collections.abc import Callable
from dataclasses import fields
from fractions import Fraction
from typing import Any

import numpy
import reasoning_gym
from reasoning_gym.factory import DATASETS
from sympy.parsing.sympy_parser import parse_expr

temper = sys.modules["temper"] = types.ModuleType(
    "temper"
)  # this file runs by its path in a process without an import path
temper.__path__ = [os.path.abspath(os.path.join(os.path.dirname(__file__), "..", ".."))]
from temper.envs.sandbox import namespaces, seal, seal_probe  # noqa: E402

ALARM_S = 300
SCORE_CPU_S = 4.0
"""Processor time for one score, in seconds. A longer one ends the process."""
MEMORY_BYTES = 4 * 2**30
Entry = dict[str, Any]

LEFT_OUT = ("composite",)
LAID_OUT_WHEN_MADE = ("acre", "gsm_symbolic", "list_functions", "word_ladder")
"""Data sets whose entries depend on the size. All other entries are a function of seed plus index."""

FORMULA = re.compile(
    r"(?:\d++(?:\.\d*+)?|\.\d++|[-+*/^(),\s]|"
    r"(?:a?sinh?|a?cosh?|a?tanh?|sec|csc|cot|exp|log|ln|sqrt|pi|Abs|[A-Za-z])(?![A-Za-z_\d]))*+"
)


def parse_formula(text: str, local_dict: dict[str, Any] | None = None) -> Any:
    """Parse numbers, operators, single letters and elementary functions by sympy. Raise `ValueError` for anything else."""
    if not FORMULA.fullmatch(text):
        raise ValueError("not a plain formula")
    return parse_expr(text, local_dict=local_dict)


EVALUATES: dict[str, tuple[str, Callable[..., Any]]] = {
    "reasoning_gym.algorithmic.binary_matrix": ("eval", ast.literal_eval),
    "reasoning_gym.algorithmic.spiral_matrix": ("eval", ast.literal_eval),
    "reasoning_gym.algorithmic.string_insertion": ("eval", ast.literal_eval),
    "reasoning_gym.games.n_queens": ("eval", ast.literal_eval),
    "reasoning_gym.games.countdown": ("parse_expr", parse_formula),
    "reasoning_gym.games.puzzle24": ("parse_expr", parse_formula),
    "sympy": ("parse_expr", parse_formula),
}
"""Modules whose scorers would evaluate an answer: the name that they call, and its replacement."""

NUMBER = re.compile(r"-?\d+(?:\.\d+)?")


def parse_fraction(text: str) -> Fraction:
    """Parse a number or a fraction without spaces. Raise `ValueError` for anything else."""
    return Fraction(text.strip().replace(",", ""))


def numbers(text: str) -> list[float]:
    return [float(number) for number in NUMBER.findall(text)]


def roles(text: str) -> int:
    """Return the number of words that assign roles, without conjunctions."""
    return sum(word not in ("is", "a", "an", "and") for word in re.findall(r"\w+", text.lower()))


def as_many(separator: str | None) -> Callable[[str, Entry], bool]:
    """Return the condition that an answer has as many parts as the right one."""
    return lambda text, entry: len(text.split(separator)) == len(entry["answer"].split(separator))


CONDITIONS: dict[str, Callable[[str, Entry], bool]] = {
    "advanced_geometry": as_many(","),
    "coin_flip": lambda text, entry: abs(parse_fraction(text) - parse_fraction(entry["answer"])) <= Fraction(1, 10_000),
    "complex_arithmetic": lambda text, entry: "nan" not in text.lower(),
    "fraction_simplification": lambda text, entry: len(numbers(text)) == 2,
    "game_of_life_halting": lambda text, entry: text == entry["answer"],
    "gsm_symbolic": lambda text, entry: numbers(text) == [float(entry["answer"])],
    "kakurasu": lambda text, entry: re.fullmatch(r"[01\s]+", text) is not None,
    "knights_knaves": lambda text, entry: roles(text) == roles(entry["answer"]),
    "letter_jumble": as_many(None),
    "polynomial_equations": lambda text, entry: all(math.isfinite(float(part)) for part in text.split(",")),
    "puzzle24": lambda text, entry: sorted(re.findall(r"\d+", text)) == sorted(map(str, entry["metadata"]["numbers"])),
    "quantum_lock": lambda text, entry: re.fullmatch(r"[A-C\s,>\u2192-]+", text.upper()) is not None,
    "sokoban": lambda text, entry: re.fullmatch(r"[UDLR]+", text) is not None,
    "spell_backward": lambda text, entry: len(text) == len(entry["answer"]),
    "survo": lambda text, entry: re.fullmatch(r"[\d\s]+", text) is not None,
    "word_sorting": as_many(","),
}
"""Further conditions on answers that the library's scorer would wrongly accept. It ignores extra text, reads the first of
several answers, compares only a part, or (puzzle24) accepts other numbers than the given ones.
"""

ANSWERS: dict[str, Callable[[Entry], str | None]] = {
    "graph_color": lambda entry: json.dumps(entry["metadata"]["possible_answer"]),
    "intermediate_integration": lambda entry: None if "Integral" in entry["answer"] else entry["answer"],
    "propositional_logic": lambda entry: str(entry["metadata"]["example_answer"]),
    "rubiks_cube": lambda entry: str(entry["metadata"]["example_correct_answer"]),
}
"""Right answers from the metadata, if there are many or if the library's answer repeats the question."""


@functools.lru_cache(maxsize=16)
def dataset(name: str, config: str, seed: int) -> Any:
    return reasoning_gym.create_dataset(name, size=1, seed=seed, **json.loads(config))


@functools.lru_cache(maxsize=64)
def make_entry(name: str, config: str, seed: int) -> Entry:
    """Return the entry of this seed. A few generators (codeio) draw from the global generators, hence their seeds."""
    random.seed(seed)
    numpy.random.seed(seed)
    alone = name in LAID_OUT_WHEN_MADE
    return dict(dataset(name, config, seed)[0] if alone else dataset(name, config, 0)[seed])


def make_answer(name: str, config: str, seed: int) -> dict[str, Any]:
    found = make_entry(name, config, seed)
    answer = ANSWERS[name](found) if name in ANSWERS else found["answer"]
    return {"question": found["question"], "answer": answer}


def meets_condition(condition: Callable[[str, Entry], bool], text: str, right: Entry) -> bool:
    """Return whether an answer meets a condition. An unreadable answer is wrong, not a fault."""
    try:
        return condition(text, right)
    except (ValueError, ArithmeticError):
        return False


def score_entry(name: str, config: str, seed: int, text: str) -> float | None:
    """Return the library's score of an answer, or None if its scorer raised or returned no number from 0 to 1."""
    right = make_entry(name, config, seed)
    try:
        if name in CONDITIONS and not meets_condition(CONDITIONS[name], text, right):
            return 0.0
        value = float(dataset(name, config, seed if name in LAID_OUT_WHEN_MADE else 0).score_answer(text, right))
    except Exception:
        return None
    return value if 0.0 <= value <= 1.0 else None


def answer_request(request: dict[str, Any]) -> dict[str, Any]:
    key = request["dataset"], json.dumps(request["config"]), request["seed"]
    if "text" in request:
        signal.setitimer(signal.ITIMER_PROF, SCORE_CPU_S)
        found = score_entry(*key, request["text"])
        signal.setitimer(signal.ITIMER_PROF, 0.0)
        return {"score": found}
    try:
        return make_answer(*key)
    except Exception as error:
        return {"error": f"{type(error).__name__}: {error}"}


def main() -> None:
    """Serve until standard input ends."""
    out, sys.stdout = sys.stdout, sys.stderr
    for module, (name, instead) in EVALUATES.items():
        vars(importlib.import_module(module))[name] = instead
    namespaces.leave_root(seal.library_folders())
    seal.seal_library_user(memory_bytes=MEMORY_BYTES)
    keys = {
        name: [field.name for field in fields(config) if field.name not in ("seed", "size")]
        for name, (_, config) in sorted(DATASETS.items())
        if name not in LEFT_OUT
    }
    print(
        json.dumps({"seal": seal_probe.probe_seal(memory_bytes=MEMORY_BYTES), "datasets": keys}), file=out, flush=True
    )
    for line in sys.stdin:
        signal.alarm(ALARM_S)
        print(json.dumps(answer_request(json.loads(line))), file=out, flush=True)
        signal.alarm(0)


if __name__ == "__main__":
    main()
