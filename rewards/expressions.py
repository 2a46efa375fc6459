"""Checks of an answer before computer algebra: same text, words, echo of the question, size. Pure; bounded."""

import re
from collections import Counter

from temper.rewards.answers import find_closing_brace
from temper.rewards.plain_numbers import (
    MAX_CHARACTERS,
    MAX_DIGITS,
    MAX_EXPONENT,
    TEXT_MACRO,
    is_unit,
    number,
    to_bare,
    to_readable,
)
from temper.rewards.units import BEHIND_UNIT, unit_behind

MAX_NESTING, MAX_POWER = 20, 100_000
SHORTEST_QUESTION, MAX_QUESTION = 8, 20_000
TOKEN = re.compile(r"\\?[A-Za-z]+|\d+|[^\sA-Za-z\d]")
SINGLE = re.compile(r"\{(\w)\}")
WORDS = re.compile(r"[A-Za-z .,'&()/-]+")
BASED = re.compile(r"\d\s*_")
UNEVALUATED = re.compile(
    r"\\(?:sum|prod|int|iint|oint|lim|binom|dbinom|tbinom|choose|sup|inf|max|min|gcd|lcm|ldots)(?![a-z])|\\?mod\b|factorial|!"
)
RELATION = re.compile(
    r"\\(?:approx|thickapprox|equiv|simeq|sim|cong|doteq|propto)(?![A-Za-z])|[\u2245\u2248\u2261\u2243\u223c]"
)
JOINS = ("", "and", "or")
VERB = re.compile(r"\b(?:is|isn|are|aren|was|it|we|he|maybe|perhaps|wrong|false)\b", re.I)
SPACE, POWER_WORD = re.compile(r"\\[,;: ]|~"), re.compile(r"\b(?:sq|cu|squared|cubed)\b")
FOR_WHICH = re.compile(r"\s*[A-Za-z]\s*\\in\s*\\mathbb\s*\{?\s*[A-Z]\s*\}?[\s.$]*")
SEPARATOR = re.compile(r"(?:\\[,;: ]|~|\s)*[,;]")
NAME = re.compile(r"\\?[A-Za-z]\w{0,20}(?:_\{\w{1,20}\})?(?:\([A-Za-z]\))?")
TUPLES = re.compile(r"[(\[][^()\[\]]*[)\]]\s*,")
FACTORIAL = re.compile(r"(\d+|[)}\]!])\s?!")
EXPONENT = re.compile(r"(?:\^|\*\*)\s*(?:(\{)|([-+( ]*\d+)?)")
WHOLE_NUMBER = re.compile(r"(?<![\d.])\d+")
RAISE = r"([\s{}()]*)(?:\^|\*\*)[-\s{}()]*"
TOWER = re.compile(rf"\d{RAISE}(\d+){RAISE}(\d+)")
ASKS = r"\b(?:what|which)"
IS = r"(?:['\u2019]s| is| was| are| were| will be| would be)"
WHOSE = r" (?:the|his|her|their|its)"
PERCENTAGE_ASKED = re.compile(
    rf"{ASKS}{IS}?(?:{WHOSE})?(?: [a-z]+)? percentage\b|{ASKS}{IS}{WHOSE}(?: [a-z]+)? percent\b|{ASKS} percent\b|"
    r"\bhow many percent\b|"
    r"\b(?:find|calculate|determine|compute) the(?: [a-z]+)? percent(?:age)?\b|\b(?:as|in) (?:an? )?percent",
    re.I,
)
COUNTED = re.compile(
    r"\b(?:how many(?: more)?|in) (dozen|gross|score|pair|fewer|hundred|thousand|million|billion)s?\b", re.I
)
SYNONYMS = {
    "\\dfrac": "\\frac",
    "\\tfrac": "\\frac",
    "\\times": "*",
    "\\cdot": "*",
    "\\div": "/",
    "\\le": "\\leq",
    "\\ge": "\\geq",
}


def tokens(text: str) -> str:
    """Return words, numbers and signs separated by single spaces, without layout, so that `in` finds whole tokens only."""
    plain = SINGLE.sub(r"\1", to_bare(text))
    return " " + " ".join(SYNONYMS.get(token, token) for token in TOKEN.findall(plain)) + " "


def is_echo(answer: str, question: str) -> bool:
    """Return whether an answer only repeats text of the question. A plain number in lowest terms never does."""
    if not answer.strip() or len(answer) > min(len(question) + MAX_CHARACTERS, MAX_QUESTION):
        return False
    read = number(answer)
    if read is not None and read.is_reduced:
        return False
    said = tokens(answer).casefold()
    return bool(said.strip()) and said.rstrip(" .?") + " " in tokens(question[-MAX_QUESTION:]).casefold()


def remove_question(question: str, text: str) -> str:
    return text.replace(question, " ") if len(question) >= SHORTEST_QUESTION else text


def to_formula(answer: str) -> str:
    """Return an answer as input for the computer algebra, in ASCII if possible, without dollar signs."""
    return re.sub(r"\\?\$|^\s*\\[(\[]|\\[)\]]\s*$", "", _with_plain_e(answer)).strip().rstrip(".")


def _with_plain_e(answer: str) -> str:
    return to_readable(answer).replace("\\mathrm{e}", "e")


def asks_percentage(question: str) -> bool:
    """Return whether a question asks for a percentage, so that `40%` equals `40`."""
    return bool(PERCENTAGE_ASKED.search(question[-MAX_QUESTION:]))


def remove_counted_word(answer: str, question: str) -> str:
    """Return an answer without the word for a number that the question counts in, as in "how many dozen eggs"."""
    asked = COUNTED.search(question[-MAX_QUESTION:])
    return re.sub(rf"\b{asked[1]}s?\b", "", answer, flags=re.I) if asked else answer


def is_same_text(answer: str, reference: str) -> bool | None:
    """Return whether two answers are the same text, or None if the text alone does not decide it.

    Words (`Monday`, `(A)`) and numbers in another base (`12_8`) are compared as text only. Case and brackets of words are
    ignored.
    """
    if len(answer) > MAX_CHARACTERS:
        return False
    if is_words(reference):
        return _letters(answer) == _letters(reference)
    if tokens(answer) == tokens(reference):
        return True
    return False if BASED.search(reference) else None


def is_words(reference: str) -> bool:
    """Return whether a reference answer is words, not a formula: three letters or more, or set as text."""
    text = to_bare(reference)
    long = len(re.sub(r"[^A-Za-z]", "", text)) >= 3
    return bool(WORDS.fullmatch(text)) and (long or bool(TEXT_MACRO.fullmatch(reference.strip(" $"))))


def _letters(text: str) -> str:
    return " ".join(re.findall(r"[^\s.,()]+", to_bare(text).casefold()))


def refusal(answer: str, *, reference: str) -> str | None:
    """Return why an answer that is not a plain number must not reach the computer algebra, or None if it may.

    A plain number as reference accepts plain numbers only. Unevaluated forms are refused if the reference has none of that
    kind: they restate the question.
    """
    if not answer.strip() or len(answer) > MAX_CHARACTERS or sum(map(str.isdigit, answer)) > MAX_DIGITS:
        return "empty or too long"
    if number(reference) is not None:
        return "an expression where a number is due"
    text = _with_plain_e(answer)
    if set(UNEVALUATED.findall(text)) - set(UNEVALUATED.findall(reference)):
        return "unevaluated"
    if _chained(text, reference):
        return "an equation where an expression is due"
    if _commented(text, reference):
        return "text that is no unit"
    units = unit_behind(text), unit_behind(reference)
    if None not in units and units[0] != units[1]:
        return "another unit"
    if {_brackets(text), _brackets(reference)} == {"set", "tuple"}:
        return "another kind of brackets"
    if _nesting(text) > MAX_NESTING:
        return "nested too deeply"
    if _has_large_power(text):
        return "powers too large"
    if any(not of.isdigit() or int(of) > MAX_EXPONENT for of in FACTORIAL.findall(text)):
        return "factorials too large"
    return None


def _brackets(text: str) -> str:
    """Return the brackets around an answer, empty if it has none or lists several tuples."""
    start = text.replace("\\left", "").lstrip("$ ")
    if TUPLES.match(start):
        return ""
    return "set" if start.startswith("\\{") else "tuple" if start.startswith(("(", "[")) else ""


def _chained(text: str, reference: str) -> bool:
    """Return whether the answer has more equals signs than the reference, apart from one after the name of the result.

    Signs for approximate equality are not allowed there: one side would be compared, and the other is a hedge.
    """
    if len(RELATION.findall(text)) > len(RELATION.findall(to_readable(reference))):
        return True
    sides = text.split("=")
    if len(sides) - 1 <= reference.count("="):
        return False
    return len(sides) > 2 or not NAME.fullmatch(sides[0].strip(" $"))


def _commented(text: str, reference: str) -> bool:
    """Return whether the answer has words that are not in the reference, not `and` or `or`, and not units at its end."""
    due = Counter(inner.strip(" ,.") for inner in TEXT_MACRO.findall(reference))
    for macro in TEXT_MACRO.finditer(text):
        words = SPACE.sub(" ", macro[1]).replace("$", "").strip(" ,.")
        is_text = macro[0].startswith(("\\text", "\\mbox"))
        if words in JOINS:
            continue
        if due[words] > 0:
            due[words] -= 1
        elif BEHIND_UNIT.fullmatch(text, macro.end()):
            unit = POWER_WORD.sub("", words).strip(" .")
            if VERB.search(words) or not unit or not is_unit(unit):
                return True
        elif words in ("for", "where", "with") and FOR_WHICH.fullmatch(text, macro.end()):
            continue
        elif is_text or " " in words or (len(words) > 1 and SEPARATOR.match(text, macro.end())):
            return True  # names of functions and vectors may be set in other letters
    return False


def _nesting(text: str) -> int:
    depth = deepest = 0
    for character in text:
        depth += (character in "([{") - (character in ")]}")
        deepest = max(deepest, depth)
    return deepest


def _has_large_power(text: str) -> bool:
    """Return whether an exponent has a large whole number, or a tower of numbers a large exponent.

    This only saves time, because the computer algebra has a deadline and a memory limit.
    """
    for power in EXPONENT.finditer(text):
        exponent = text[power.end() : find_closing_brace(text, power.end())] if power[1] else power[2] or ""
        if any(int(whole) > MAX_POWER for whole in WHOLE_NUMBER.findall(exponent)):
            return True
    for _, middle, between, top in TOWER.findall(text):
        inner, outer = int(middle), int(top)
        # two to the power of `bit_length` is above the bound
        if (inner * outer if ")" in between else inner ** min(outer, MAX_POWER.bit_length())) > MAX_POWER:
            return True
    return False
