"""The final answer in a text, and exact equality of plain numbers.

Which text is the answer: the last `\\boxed{...}`; without a box what follows the last `####`; without that the last
number. Boxes that differ from each other are no answer. Bounds keep every function here fast on hostile text.
"""

import re
import unicodedata
from fractions import Fraction

MAX_CHARACTERS = 512
MAX_DIGITS = 64
SEARCHED_TAIL = 20_000
BOX = "\\boxed{"
NUMBER = re.compile(r"(?<![\w.])-?\$?\d[\d,]*(?:\.\d+)?(?:/\d+)?")
PLAIN = re.compile(r"([+-]?)(\d+(?:\.\d*)?|\.\d+)(?:/(\d+))?(%?)")
THOUSANDS = re.compile(r"(?<=\d),(?=\d{3}(?!\d))")
FRACTION = re.compile(r"([+-]?)(\d*)\s*\\[dt]?frac\{(\d+)\}\{(\d+)\}")
UNIT = re.compile(r"(?<=\d)\s+[A-Za-z][A-Za-z .]*$")
TEXT_MACRO = re.compile(r"\\(?:text|mathrm|textbf|mbox)\{([^{}]*)\}")
OPERATOR = re.compile(r"(?<=[\w)}\].])\s*[-+*/=<>]|\\(?:cdot|times|div|pm)\b|\d\s*!")
UNEVALUATED = re.compile(
    r"\\(?:sum|prod|int|iint|oint|lim|binom|dbinom|tbinom|choose|sup|inf|max|min|gcd|lcm)(?![a-z])|\\?mod\b"
)
EXPONENT = re.compile(r"(?:\^|\*\*)\s*(\{[^{}]*\}|\([^()]*\)|-?[\w.]+)?")
TOWER = re.compile(r"(?:\^|\*\*)\s*(?:-?[\w.]+|\{[^{}]*\}|\([^()]*\))\s*(?:\^|\*\*)")
MAX_NESTING, MAX_POWERS, MAX_EXPONENT = 20, 6, 64
DROPPED = ("\\!", "\\,", "\\;", "\\ ", "\\left", "\\right", "\\(", "\\)", "\\[", "\\]")


def boxes(text: str) -> list[str]:
    """The contents of every closed `\\boxed{...}`, braces balanced, in order."""
    found, start = [], text.find(BOX)
    while start >= 0:
        inside = start + len(BOX)
        end = _closing_brace(text, inside)
        if end is None:
            break
        found.append(text[inside:end].strip())
        start = text.find(BOX, end)
    return found


def _closing_brace(text: str, start: int) -> int | None:
    depth = 1
    for position in range(start, len(text)):
        depth += {"{": 1, "}": -1}.get(text[position], 0)
        if depth == 0:
            return position
    return None


def final_answer(text: str) -> str | None:
    """The final answer of a text by the rule above; None where there is none or boxes contradict each other."""
    tail = unicodedata.normalize("NFKC", text[-SEARCHED_TAIL:])
    boxed = boxes(tail)
    if boxed:
        distinct = {normal(box) for box in boxed}
        return boxed[-1] if len(distinct) == 1 and 0 < len(boxed[-1]) <= MAX_CHARACTERS else None
    if BOX in tail:
        return None
    if "####" in tail:
        line = tail.rpartition("####")[2].strip().split("\n")[0].strip()
        return line[:MAX_CHARACTERS] or None
    numbers = NUMBER.findall(tail)
    return numbers[-1] if numbers else None


def normal(answer: str) -> str:
    """An answer without layout: spacing macros, dollar signs, thousands separators, unit words, a final full stop."""
    text = unicodedata.normalize("NFKC", answer).strip().replace("\u2212", "-")
    text = TEXT_MACRO.sub(r" \1", text)
    for macro in DROPPED:
        text = text.replace(macro, "")
    text = text.replace("\\%", "%").replace("\\$", "").replace("$", "").strip().rstrip(".").strip()
    text = UNIT.sub("", text)
    return text if set(text) & set("([{") else THOUSANDS.sub("", text)


def plain_number(answer: str) -> Fraction | None:
    """The exact value of a plain number (integer, decimal, fraction, mixed number, percentage), else None."""
    if len(answer) > MAX_CHARACTERS:
        return None
    text = normal(answer)
    if sum(map(str.isdigit, text)) > MAX_DIGITS:
        return None
    if fraction := FRACTION.fullmatch(text):
        sign, whole, top, bottom = fraction.groups()
        value = Fraction(int(whole or 0)) + Fraction(int(top), int(bottom)) if int(bottom) else None
    elif plain := PLAIN.fullmatch(text.replace(" ", "")):
        sign, digits, bottom, percent = plain.groups()
        value = Fraction(digits) / int(bottom or 1) / (100 if percent else 1) if int(bottom or 1) else None
    else:
        return None
    return -value if value is not None and sign == "-" else value


def equal_numbers(answer: str, gold: str) -> bool | None:
    """Exact equality of two plain numbers; None where one of them is not a plain number."""
    left, right = plain_number(answer), plain_number(gold)
    return None if left is None or right is None else left == right


def refusal(answer: str, *, gold: str) -> str | None:
    """Why an answer that is no plain number must not reach the computer algebra; None where it may.

    Unevaluated forms are refused: they restate the question instead of answering it. For a plain number as gold that
    holds for any operator. Sizes are bounded so that no tower of powers or large factorial is ever computed.
    """
    text = normal(answer)
    if not text or len(answer) > MAX_CHARACTERS or sum(map(str.isdigit, text)) > MAX_DIGITS:
        return "empty or too long"
    if UNEVALUATED.search(text) or "factorial" in text or "!" in text.replace("!=", ""):
        return "unevaluated"
    if plain_number(gold) is not None and (OPERATOR.search(FRACTION.sub("", text)) or "^" in text or "%" in text):
        return "an expression where a number is due"
    if _nesting(text) > MAX_NESTING:
        return "nested too deeply"
    powers = EXPONENT.findall(text)
    if len(powers) > MAX_POWERS or TOWER.search(text) or any(_large(power) for power in powers):
        return "powers too large"
    return None


def _nesting(text: str) -> int:
    depth = deepest = 0
    for character in text:
        depth += (character in "([{") - (character in ")]}")
        deepest = max(deepest, depth)
    return deepest


def _large(exponent: str) -> bool:
    """Whether an exponent holds another power, or a number beyond the bound."""
    numbers = re.findall(r"\d+", exponent)
    return not exponent or "^" in exponent or "**" in exponent or any(int(n) > MAX_EXPONENT for n in numbers)
