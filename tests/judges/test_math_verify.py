"""The mathematics grader on the rows of Math-Verify's own tests.

A row is a reference answer, an answer and whether they are equal. The reference loses its dollar signs. An answer without a
box is boxed if it is a formula alone. Rows of prose, and rows that pass options to Math-Verify, are left out.
"""

import ast
import re
import tarfile
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
from judges.packages import source_of

from temper.envs.core.errors import GraderError
from temper.envs.mathematics.env import grade
from temper.rewards.answers import boxes

FORMULA = re.compile(r"\$\$?([^$]*)\$\$?|\\\[(.*?)\\\]|\\\((.*?)\\\)", re.DOTALL)
OPTIONS = {"precision", "strict", "allow_set_relation_comp"}


def at(test: str, *places: int) -> list[str]:
    return [f"{test}:{place}" for place in places]


EXPLAINED = {
    "A comma groups digits": {*at("all:number_extraction", 5, 6, 17)},
    "An answer is evaluated, and no chain of equations": {
        *at("all:latex_notation", 11),
        *at("all:relations_math", 10, 12, 13, 15, 16),
        *at("open_thoughts:open_thoughts", 9),
    },
    "28 equals 28% only if the question asks for a percentage, `pct` is no unit": {
        *at("all:percent_notation", 5, 6, 8, 9)
    },
    "Boxes that differ are no answer": {
        *at("all:math_extraction_additional_cases", 17),
        *at("numina_cases:numina_cases", 12),
        *at("open_thoughts:open_thoughts", 12, 13, 14, 16, 18, 19, 23, 24, 25, 26),
    },
    "Math-Verify can't read an upright e, so that 1 - 1/e equals 1 + 1/e": {*at("yujianll:string_extraction", 9)},
}
"""Disagreements by the rule of Temper that causes them."""


def rows(folder: Path) -> dict[str, tuple[str, str, bool]]:
    """The literal cases of each test, by the test's name and their place in it."""
    found = {}
    for file in sorted(folder.rglob("test_*.py")):
        functions = [node for node in ast.walk(ast.parse(file.read_bytes())) if isinstance(node, ast.FunctionDef)]
        for test, mark in ((one, mark) for one in functions for mark in one.decorator_list):
            try:
                names, cases = map(ast.literal_eval, mark.args if isinstance(mark, ast.Call) else ())
            except ValueError:
                continue  # a fixture, or computed cases
            keys = [name.strip() for name in names.split(",")]
            for place, case in enumerate([] if OPTIONS & {*keys} else cases):
                gold, answer, equal = case[:3]
                found[f"{file.stem[5:]}:{test.name[5:]}:{place}"] = (gold, answer, bool(equal))
    return found


def inside(text: str) -> str | None:
    """The formula that a text is, without its signs."""
    if match := FORMULA.fullmatch(text.strip()):
        return next(part for part in match.groups() if part is not None).strip()
    return text if not re.search(r"[$\s]", text) else None


@pytest.mark.judges(suite="Math-Verify", run="rows of its tests through the grader of `math`")
def test_rows_are_judged_alike(record_property: Any, tmp_path: Path) -> None:
    record_property("version", version("math-verify"))
    (archive,) = source_of("math-verify").glob("*.tar.gz")
    with tarfile.open(archive) as source:
        source.extractall(tmp_path, filter="data")
    agreed, differing, skipped = 0, {}, 0
    for name, (gold, answer, equal) in rows(tmp_path).items():
        reference, boxed = inside(gold), answer
        if not boxes(answer):
            boxed = "" if inside(answer) is None else f"\\boxed{{{inside(answer)}}}"
        if reference is None or boxes(reference) or not boxed:
            skipped += 1
            continue
        try:
            score = grade(boxed, reference=reference)
            judged, detail = score.parts["correct"] == 1.0, f"{score.evidence} {score.detail}"
        except GraderError as error:
            judged, detail = not equal, str(error)
        agreed += judged == equal
        if judged != equal:
            differing[name] = f"{gold} | {answer} | {equal} | {detail}"
    explained = set().union(*EXPLAINED.values())
    record_property("passed", agreed)
    record_property("differs", f"{len(differing)}, not formulas: {skipped}")
    record_property("why", ". ".join(f"{rule} ({len(names)})" for rule, names in EXPLAINED.items()))
    assert {name: detail for name, detail in differing.items() if name not in explained} == {}
    assert explained <= differing.keys(), "no longer different"
