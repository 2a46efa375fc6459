"""Exact values of plain numbers as people and models write them. Pure; bounded on any text.

Supported are integers, decimals, thousands separators, quotients, mixed numbers, LaTeX fractions, repeating decimals,
percentages, scientific notation, brackets, an assignment to one name (`x=4`), currency signs, units and a final full stop.
Unfinished calculations and alternatives (`2+2`, `4!`, `2^2`, `1=2=3`, `18 or 19`) are not plain numbers.
"""

import re
import unicodedata
from dataclasses import dataclass
from fractions import Fraction

MAX_CHARACTERS = 512
MAX_DIGITS = 64
MAX_EXPONENT = 64

MINUS = dict.fromkeys((0x2010, 0x2011, 0x2012, 0x2013, 0x2212), "-")
INVISIBLE = dict.fromkeys((0xAD, 0x200B, 0x200C, 0x200D, 0x200E, 0x200F, 0x2060, 0xFEFF))
MACROS = {0xB0: "^\\circ", 0xB7: "\\cdot ", 0xD7: "\\times ", 0xF7: "/", 0x3C0: "\\pi ", 0x2044: "/", 0x2215: "/"}
MACROS |= {0x221A: "\\sqrt", 0x221E: "\\infty ", 0x222A: "\\cup ", 0x2208: "\\in ", 0x2264: "\\le ", 0x2265: "\\ge "}
VULGAR = {
    code: " " + unicodedata.normalize("NFKC", chr(code)).replace("\u2044", "/")
    for code in (0xBC, 0xBD, 0xBE, *range(0x2150, 0x215F))
}
PLAINER = MINUS | INVISIBLE | MACROS | VULGAR
RAISED = re.compile("[\u2070\u00b9\u00b2\u00b3\u2074-\u2079\u207a\u207b]+")

TEXT_MACRO = re.compile(r"\\(?:text|textbf|textit|textrm|mathrm|mathbf|mbox|operatorname)\s*\{([^{}]*)\}")
LAYOUT = re.compile(r"\\(?:left|right|displaystyle|quad|qquad|big|Big)(?![A-Za-z])|\\!|\{,\}(?=\d)|\\[()\[\]]")
SPACING = re.compile(r"(?:\\[,;: ]|~|\s)+")
CURRENCY = re.compile("\\\\?\\$|[\u20ac\u00a3\u00a5]")
DEGREES = re.compile(r"\^\s*\{?\s*\\circ(?:\s*\})?|\\degree")
FRACTION = re.compile(r"\\[cdt]?frac\s*(?:\{\s*(-?)(\d+)\s*\}\s*\{\s*(-?)(\d+)\s*\}|(\d)\s*(\d))")
POWER_OF_TEN = re.compile(r" ?(?:\\times|\\cdot|\*|x) ?10 ?\^ ?(?:\{ ?([-+]?\d+) ?\}|([-+]?\d+))")
GROUPS = re.compile(r"(?<![\d.,])\d{1,3}(?:(?:,\d{3})+|(?: \d{3})+)(?![\d/,])")
ASSIGNED = re.compile(
    r"\\?[A-Za-z]\w{0,20}(?:_\{\w{1,20}\}|\([a-z]\))? ?= ?|(?:the )?(?:final )?answer(?: is)? ?:? ?", re.I
)
NUMERAL = re.compile(
    r"([-+]?) ?(?:(?:(?P<whole>\d+) )?(?P<top>\d+) ?/ ?(?P<bottom>\d+)"
    r"|(?P<lead>\d*)\.(?P<fixed>\d*)\\overline ?\{(?P<cycle>\d+)\}"
    r"|(?P<decimal>\d+(?:\.\d*)?|\.\d+)(?:[eE](?P<power>[-+]?\d+))?) ?(?P<percent>\\?%)?"
)
RAISED_UNIT = re.compile(r"(?<=[A-Za-z]) ?\^ ?\{? ?[23] ?\}?")
UNIT = re.compile(r"[A-Za-z/.'() -]*")
ONE = Fraction(1)
SCALES = {
    "percent": Fraction(1, 100),
    "dozen": Fraction(12),
    "hundred": Fraction(100),
    "thousand": Fraction(10**3),
    "million": Fraction(10**6),
    "billion": Fraction(10**9),
    "trillion": Fraction(10**12),
}
SHORT_WORD = re.compile(
    r"[agsmhl]|[LVWJNKCFvwjnkcf]|[mcdk]m|[mk]g|ml|mL|ft|in|yd|mi|oz|lb|hr|am|pm|cc|an|of|on|at|by|it|he|we|is|as|my"
)
NO_UNIT = re.compile(
    r"or|and|not?|nor|plus|minus|times|over|than|to|pi|tau|sqrt|root|squared|cubed|mod|choose|factorial|halves|half|"
    r"base|below|never|fewer|score|gross|pair|kilo|mega|giga|tera|milli|micro|nano|pico|"
    r"(?:third|quarter|fourth|fifth|tenth|hundredth|thousandth)s?",
    re.I,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Number:
    """A plain number: its exact value and its notation."""

    value: Fraction
    percent: bool = False
    bottom: int = 1
    """The denominator as written."""

    @property
    def is_undivided(self) -> bool:
        """Whether a whole number is written as an unfinished division, such as `48/2`."""
        return self.bottom > 1 and self.value.denominator == 1

    @property
    def is_reduced(self) -> bool:
        """Whether a fraction is in lowest terms. True for anything else."""
        return self.bottom in (1, self.value.denominator)


def to_readable(text: str) -> str:
    """Return the text in compatibility form (NFKC), with plain minus signs, raised digits as powers and no invisible signs.

    It is normalised piece by piece: the time of NFKC grows with the square of the number of consecutive combining marks.
    """
    if text.isascii():
        return text
    text = RAISED.sub(lambda run: "^{" + unicodedata.normalize("NFKC", run[0]).replace("\u2212", "-") + "}", text)
    text = text.translate(PLAINER)
    pieces = (text[at : at + MAX_CHARACTERS] for at in range(0, len(text), MAX_CHARACTERS))
    return "".join(unicodedata.normalize("NFKC", piece) for piece in pieces)


def to_bare(answer: str) -> str:
    """Return an answer without layout: text macros, spacing, dollar and degree signs, emphasis and a final full stop."""
    text = TEXT_MACRO.sub(r" \1 ", to_readable(answer))
    text = CURRENCY.sub("", DEGREES.sub("", LAYOUT.sub(lambda found: "," if "," in found[0] else "", text)))
    return SPACING.sub(" ", text).strip(" *_`").rstrip(".").strip(" *_`")


def ungroup_digits(text: str) -> str:
    """Return a text without the commas or spaces between groups of three digits."""
    return GROUPS.sub(lambda digits: digits[0].replace(",", "").replace(" ", ""), text)


def number(answer: str) -> Number | None:
    """Return the answer as a plain number, or None if it is not one."""
    if len(answer) > MAX_CHARACTERS:
        return None
    text = to_bare(answer)
    if sum(map(str.isdigit, text)) > MAX_DIGITS:
        return None
    text = ungroup_digits(text)
    text = POWER_OF_TEN.sub(r"e\1\2", FRACTION.sub(quotient, text)).replace("  ", " ").strip()
    ends, inner = text[:1] + text[-1:], text[1:-1]
    if ends == "{}" or (ends == "()" and "," not in answer and not set("()") & set(inner)):
        text = inner
    text = text[match.end() :] if (match := ASSIGNED.match(text)) else text
    numeral = NUMERAL.match(text)
    return _value(numeral, text[numeral.end() :]) if numeral else None


def quotient(fraction: re.Match[str]) -> str:
    over, top, under, bottom, one_digit, other_digit = fraction.groups()
    sign = "-" if over != under else ""
    return f" {sign}{top}/{bottom}" if top else f" {one_digit}/{other_digit}"


def is_unit(words: str) -> bool:
    return _scale(words, attached=False) is not None


def _value(numeral: re.Match[str], unit: str) -> Number | None:
    scale = _scale(unit, attached=unit[:1].isalpha() and not numeral[0].endswith((" ", "%")))
    parts = numeral.groupdict()
    bottom = int(parts["bottom"] or 1)
    if scale is None or bottom == 0 or abs(int(parts["power"] or 0)) > MAX_EXPONENT:
        return None
    if parts["top"]:
        value = int(parts["whole"] or 0) + Fraction(int(parts["top"]), bottom)
    elif parts["cycle"]:
        fixed, cycle = parts["fixed"], parts["cycle"]
        repeated = Fraction(int(cycle), (10 ** len(cycle) - 1) * 10 ** len(fixed))
        value = Fraction(f"{parts['lead'] or 0}.{fixed or 0}") + repeated
    else:
        value = Fraction(parts["decimal"]) * Fraction(10) ** int(parts["power"] or 0)
        if parts["power"] and not 1 <= Fraction(parts["decimal"]) < 10:
            return None
    percent = bool(parts["percent"]) or scale == SCALES["percent"]
    value *= scale * (Fraction(1, 100) if parts["percent"] else 1)
    return Number(value=-value if numeral[1] == "-" else value, percent=percent, bottom=bottom)


def _scale(unit: str, *, attached: bool) -> Fraction | None:
    """Return the factor of the words after a number: 1 for a unit, 1000 for `thousand`, or None for other words."""
    unit = RAISED_UNIT.sub("", unit)
    words = unit.replace("/", " ").replace(".", " ").replace("(", " ").replace(")", " ").replace("-", " ").split()
    if not UNIT.fullmatch(unit) or unit.lstrip().startswith("-"):
        return None
    if any(NO_UNIT.fullmatch(word) or (len(word) < 3 and not SHORT_WORD.fullmatch(word)) for word in words):
        return None
    if words[-1:] == ["a"] or (attached and len(words[0]) < 2 and len(words) == 1 and words[0] not in "mgsLl"):
        return None
    return SCALES.get(words[0].lower().removesuffix("s"), ONE) if words else ONE


def plain_number(answer: str) -> Fraction | None:
    """Return the exact value of a plain number, or None. A percentage is divided by 100: 40% is 2/5."""
    read = number(answer)
    return read.value if read else None
