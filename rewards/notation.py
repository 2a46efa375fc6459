r"""Rewrite synonyms of notation in the one form that the graders read. Pure, and bounded on answers.

A rewriting is exact, because both forms name the same object in every question. `x=2, y=3` is a tuple only if the question
writes `(x,y)`, and a column is a tuple only if the other side is one.
"""

import re
from decimal import Context, Decimal

from temper.rewards.plain_numbers import MAX_CHARACTERS, SPACING

SYNONYMS = tuple(
    (re.compile(pattern), form)
    for pattern, form in (
        (r"\\(?:left|right)\s*(?=[()\[\]]|\\[{}]|\\[lr](?:angle|brace))", ""),
        (r"\\[lr]brace(?![A-Za-z])", lambda found: "\\{" if found[0][1] == "l" else "\\}"),
        (r"\\varnothing(?![A-Za-z])", r"\\emptyset"),
        (r"\\div(?![A-Za-z])", "/"),
        (r"\\[lc]?dots(?![A-Za-z])", r"\\ldots"),
        (r"\\([lg])eqslant(?![A-Za-z])", r"\\\1eq"),
        (r"\\[dt]binom(?![A-Za-z])", r"\\binom"),
        (r"\{([^{}]*)\\choose(?![A-Za-z])([^{}]*)\}", r"\\binom{\1}{\2}"),
        (r"\{\{([^{}]*)\}\}", r"{\1}"),
        (r"(?<![\w^}\]])\{(\d+)\}\s*/\s*\{(\d+)\}", r"\1/\2"),
        (r"(\d*\.\d*?)(?:(\d)\2\2+|(\d{2,6}?)\3+)\s*(?:\\ldots|\.\.\.)", r"\1\\overline{\2\3}"),
        (r"\A\s*\\langle(?![A-Za-z])(.*)\\rangle\s*\Z", r"(\1)"),
        (r"\A\s*(?:1/i|\\frac\s*1\s*i|\\frac\{1\}\{i\})\s*\Z", "-i"),
    )
)
IN_DOLLARS = re.compile(r"\A\s*\$([^$]*[^$\\])\$[\s.]*\Z")
INTERVAL = re.compile(r"(\A|\\cup|\\cap|\\in|=)\s*([\[\]])([^\[\]()]*,[^\[\]()]*)([\[\]])")
RAY = r"([a-z])\s*(<|>|\\[lg]eq?(?![a-z]))\s*([^<>=,]+?)"
RAYS = re.compile(rf"{RAY}\s*(?:\\(?:text|mbox)\{{\s*or\s*\}}|\\lor|\\vee|\bor\b)\s*{RAY}")
COLUMN = re.compile(r"\\begin\{([pb]?)matrix\}([^&]*?)(?:\\\\)?\s*\\end\{\1matrix\}")
AND = re.compile(r"\\text\{\s*(?:,\s*)?and\s*\}|\\q?quad|;|\band\b")
SCIENTIFIC = re.compile(
    r"-?(\d+(?:\.\d+)?|\.\d+)\s*(?:\\times|\\cdot|\*|x)\s*10\s*\^\s*(?:\{\s*(-?\d+)\s*\}|(-?\d+))(?!\d).*"
)
EXACT = Context(prec=MAX_CHARACTERS)
NAMED_VALUE = re.compile(r"([A-Za-z])\s*=\s*([^=,]+)")
ATOM = r"(?:\d+(?:\.\d+)?(?![\d.])|[a-zA-Z]|\\(?:pi|theta|alpha|beta)(?![A-Za-z])|\(\))(?:\^(?:\d|[a-z]|\{\}))?"
SUM = rf"(?:\s*[-+])?\s*{ATOM}(?:\s*(?:[-+*/]|\\cdot(?![A-Za-z]))?\s*{ATOM})*\s*"
GROUP = re.compile(rf"\\[dt]?frac\{{{SUM}\}}\{{{SUM}\}}|\\sqrt(?:\[\d\])?\{{{SUM}\}}|\({SUM}\)")
POWER = re.compile(rf"\^\{{{SUM}\}}")
SIMPLE = re.compile(rf"(?:[a-zA-Z]\s*=)?{SUM}|{SUM}(?:,{SUM})+")
END = r"\s*[-+]?(?:\d+(?:\.\d+)?|\\[dt]?frac\{\d+\}\{\d+\}|\\infty)\s*"
ENDS = rf"{END}(?:,{END})+"  # other tuples may be intervals with ends that are not real
SIMPLE_TUPLE = re.compile(rf"[(\[]{ENDS}[)\]]|\\\{{{ENDS}\\\}}")
NAMED_TUPLE = re.compile(r"\(([A-Za-z](?:,\s*[A-Za-z])+)\)\s*=\s*(\(.*)")


def to_comparable(answer: str, reference: str, question: str = "") -> tuple[str, str]:
    """Return answer and reference in plain notation.

    A column is a tuple if the other is one. If both are in scientific notation, each gets a mantissa from 1 to 10.
    """
    given, wanted = to_plain_notation(answer, question), to_plain_notation(reference, question)
    if SCIENTIFIC.fullmatch(given) and SCIENTIFIC.fullmatch(wanted):
        return _normal(given), _normal(wanted)
    if wanted.startswith("("):
        return _column_as_tuple(given), wanted
    return (given, _column_as_tuple(wanted)) if given.startswith("(") else (given, wanted)


def to_plain_notation(answer: str, question: str = "") -> str:
    text = IN_DOLLARS.sub(r"\1", answer).strip()
    for pattern, form in SYNONYMS:
        text = pattern.sub(form, text)
    text = INTERVAL.sub(_interval, text)
    if (rays := RAYS.fullmatch(text)) and rays[1] == rays[4]:
        text = f"{_ray(rays[2], rays[3])}\\cup{_ray(rays[5], rays[6])}"
    return _tuple(text, re.sub(r"\\left|\\right|\\,|\s", "", question))


def is_simple(formula: str) -> bool:
    """Return whether a formula has only numbers, letters, sums, products, powers, fractions and roots, or is a tuple or
    set of numbers. The computer algebra reads each of these.
    """
    if SIMPLE_TUPLE.fullmatch(formula):
        return True
    before = ""
    while formula != before:
        before, formula = formula, POWER.sub("^{}", GROUP.sub("()", formula))
    return SIMPLE.fullmatch(formula) is not None


def _normal(text: str) -> str:
    found = SCIENTIFIC.fullmatch(text)
    assert found
    mantissa, power = Decimal(found[1]), 2 if found[2] else 3
    shift = mantissa.adjusted()
    between, behind = text[found.end(1) : found.start(power)], text[found.end(power) :]
    return f"{text[: found.start(1)]}{mantissa.scaleb(-shift, EXACT)}{between}{int(found[power]) + shift}{behind}"


def _interval(found: re.Match[str]) -> str:
    """Return an interval with its open ends, written as outward brackets in `]1,2[`, as round ones."""
    before, left, bounds, right = found.groups()
    return f"{before}{'(' if left == ']' else '['}{bounds}{')' if right == '[' else ']'}"


def _ray(sign: str, bound: str) -> str:
    if sign == "<" or sign.startswith("\\l"):
        return f"(-\\infty,{bound}{')' if sign == '<' else ']'}"
    return f"{'(' if sign == '>' else '['}{bound},\\infty)"


def _column_as_tuple(text: str) -> str:
    column = COLUMN.fullmatch(text)
    return "({})".format(column[2].replace("\\\\", ",")) if column else text


def _tuple(text: str, question: str) -> str:
    """Return `(x,y)=(2,3)` and `x=2, y=3` as the tuple if the question has the names in this order."""
    if named := NAMED_TUPLE.fullmatch(text):
        names, values = re.sub(r"\s", "", named[1]), named[2]
    else:
        parts = [part.strip() for part in SPACING.sub(" ", AND.sub(",", text)).split(",") if part.strip()]
        found = [value for part in parts if (value := NAMED_VALUE.fullmatch(part))]
        if len(found) < max(len(parts), 2):
            return text
        names, values = ",".join(value[1] for value in found), "({})".format(",".join(value[2] for value in found))
    return values if f"({names})" in question else text
