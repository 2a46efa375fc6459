"""Compare numbers with units exactly: `1.5 km` is `1500 m` and `3/2 kilometres`. Pure; bounded on any text.

The input is a plain number and a unit: a product, quotient or powers of the units in the table below (`kg m^2/s^2`, `km/h`,
`metres per second`, `J/(kg K)`), with SI prefixes. `$5`, `20 %` and sums of units of one kind, the larger first (`1 h 30
min`), are read too. Symbols are case-sensitive, names are not. Values are exact fractions, as defined by BIPM's SI brochure
(9th edition, 2019) and for the international yard and pound (NIST SP 811). A temperature alone has its zero, otherwise it
is a difference. `KB` is not a unit, since it means 1000 or 1024 bytes. A year is 12 months, not a number of days. Gallons,
cups and smaller measures are US units. A pound is a mass.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from fractions import Fraction as F
from functools import cache

from temper.rewards.answers import NUMBER
from temper.rewards.plain_numbers import (
    ASSIGNED,
    FRACTION,
    LAYOUT,
    MAX_CHARACTERS,
    SCALES,
    SPACING,
    TEXT_MACRO,
    number,
    quotient,
    to_readable,
    ungroup_digits,
)

Dimension = tuple[tuple[str, int], ...]
"""Base units and their nonzero powers, sorted."""
MAX_FACTORS, MAX_POWER, MAX_PARTS = 8, 6, 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Quantity:
    """A value in base units. `zero` is the kelvin value of 0 in a temperature unit."""

    value: F
    dimension: Dimension
    zero: F = F(0)

    def is_equal(self, other: "Quantity") -> bool:
        """Return whether both are the same, in whatever unit: 0 degrees Celsius are 273.15 K."""
        return (self.value, self.dimension) == (other.value, other.dimension)


def _unit(factor: F | int | str, bases: str = "", zero: F | int = 0) -> Quantity:
    """Return a unit. `bases` has the form `kg m2 s-2`."""
    powers = (re.fullmatch(r"([A-Za-z$]+)(-?\d)?", base) for base in bases.split())
    dimension = tuple(sorted((match[1], int(match[2] or 1)) for match in powers if match))
    return Quantity(value=F(factor), dimension=dimension, zero=F(zero))


# fmt: off
PREFIXES = {
    "Q": ("quetta", 30), "R": ("ronna", 27), "Y": ("yotta", 24), "Z": ("zetta", 21), "E": ("exa", 18), "P": ("peta", 15),
    "T": ("tera", 12), "G": ("giga", 9), "M": ("mega", 6), "k": ("kilo", 3), "h": ("hecto", 2), "da": ("deca", 1),
    "d": ("deci", -1), "c": ("centi", -2), "m": ("milli", -3), "u": ("micro", -6), "n": ("nano", -9), "p": ("pico", -12),
    "f": ("femto", -15), "a": ("atto", -18), "z": ("zepto", -21), "y": ("yocto", -24),
    "r": ("ronto", -27), "q": ("quecto", -30),
}
PREFIXED: dict[str, Quantity] = {
    "m metre meter": _unit(1, "m"), "g gram gramme": _unit("1/1000", "kg"), "s second": _unit(1, "s"),
    "A ampere amp": _unit(1, "A"), "K kelvin": _unit(1, "K"), "mol mole": _unit(1, "mol"), "cd candela": _unit(1, "cd"),
    "Hz hertz": _unit(1, "s-1"), "N newton": _unit(1, "kg m s-2"), "Pa pascal": _unit(1, "kg m-1 s-2"),
    "J joule": _unit(1, "kg m2 s-2"), "W watt": _unit(1, "kg m2 s-3"), "C coulomb": _unit(1, "A s"),
    "V volt": _unit(1, "kg m2 s-3 A-1"), "F farad": _unit(1, "kg-1 m-2 s4 A2"), "ohm": _unit(1, "kg m2 s-3 A-2"),
    "S siemens": _unit(1, "kg-1 m-2 s3 A2"), "Wb weber": _unit(1, "kg m2 s-2 A-1"), "T tesla": _unit(1, "kg s-2 A-1"),
    "H henry": _unit(1, "kg m2 s-2 A-2"), "lm lumen": _unit(1, "cd"), "lx lux": _unit(1, "cd m-2"),
    "Bq becquerel": _unit(1, "s-1"), "Gy gray": _unit(1, "m2 s-2"), "Sv sievert": _unit(1, "m2 s-2"),
    "kat katal": _unit(1, "mol s-1"), "L l litre liter": _unit("1/1000", "m3"), "bar": _unit(100_000, "kg m-1 s-2"),
    "Wh": _unit(3600, "kg m2 s-2"), "eV electronvolt": _unit(F(1602176634, 10**28), "kg m2 s-2"),
    "cal calorie": _unit("4.184", "kg m2 s-2"), "B byte": _unit(8, "bit"), "bit": _unit(1, "bit"), "bps": _unit(1, "bit s-1"),
}
NAMES_ONLY = {name for names in PREFIXED for name in names.split()[1:]} - {"l"}
"""Names, which take the names of prefixes. All others are symbols and take prefix signs."""
INCH, POUND, GALLON = F(254, 10_000), F(45_359_237, 10**8), F(3_785_411_784, 10**12)
PLAIN: dict[str, Quantity] = {
    "kms Km KM": _unit(1000, "m"), "cms": _unit(F(1, 100), "m"), "kgs Kg KG Kgs": _unit(1, "kg"),
    "gm gms": _unit(F(1, 1000), "kg"), "mcg": _unit(F(1, 10**9), "kg"),
    "t tonne": _unit(1000, "kg"), "sec": _unit(1, "s"), "min minute": _unit(60, "s"), "h hr hrs hour": _unit(3600, "s"),
    "d day": _unit(86_400, "s"), "wk wks week": _unit(604_800, "s"),
    "month": _unit(1, "month"), "yr yrs year": _unit(12, "month"), "decade": _unit(120, "month"),
    "century centuries": _unit(1200, "month"), "in inch inches": _unit(INCH, "m"), "ft foot feet": _unit(12 * INCH, "m"),
    "yd yds yard": _unit(36 * INCH, "m"), "mi mile": _unit(63_360 * INCH, "m"), "nmi": _unit(1852, "m"),
    "angstrom": _unit(F(1, 10**10), "m"), "acre": _unit(43_560 * 144 * INCH**2, "m2"), "ha hectare": _unit(10_000, "m2"),
    "lb lbs pound": _unit(POUND, "kg"), "oz ounce": _unit(POUND / 16, "kg"), "stone": _unit(14 * POUND, "kg"),
    "gal gallon": _unit(GALLON, "m3"), "qt qts quart": _unit(GALLON / 4, "m3"), "pt pts pint": _unit(GALLON / 8, "m3"),
    "cup": _unit(GALLON / 16, "m3"), "tbsp tablespoon": _unit(GALLON / 256, "m3"), "tsp teaspoon": _unit(GALLON / 768, "m3"),
    "floz": _unit(GALLON / 128, "m3"), "cc": _unit(F(1, 10**6), "m3"), "mph": _unit(63_360 * INCH / 3600, "m s-1"),
    "kph kmh kmph": _unit(F(5, 18), "m s-1"),
    "kn kt kts knot": _unit(F(1852, 3600), "m s-1"), "rpm": _unit(F(1, 60), "turn s-1"), "rad radian": _unit(1, "rad"),
    "deg degree": _unit(F(1, 360), "turn"), "turn revolution": _unit(1, "turn"), "arcmin": _unit(F(1, 21_600), "turn"),
    "arcsec": _unit(F(1, 1_296_000), "turn"), "atm": _unit(101_325, "kg m-1 s-2"),
    "psi": _unit(POUND * F("9.80665") / INCH**2, "kg m-1 s-2"), "mmHg": _unit(F("133.322387415"), "kg m-1 s-2"),
    "torr": _unit(F(101_325, 760), "kg m-1 s-2"), "lbf": _unit(POUND * F("9.80665"), "kg m s-2"),
    "hp horsepower": _unit(550 * 12 * INCH * POUND * F("9.80665"), "kg m2 s-3"),
    "degC celsius": _unit(1, "K", F("273.15")), "degF fahrenheit": _unit(F(5, 9), "K", F("459.67") * F(5, 9)),
    "KiB": _unit(8 * 2**10, "bit"), "MiB": _unit(8 * 2**20, "bit"), "GiB": _unit(8 * 2**30, "bit"),
    "TiB": _unit(8 * 2**40, "bit"),
    "% percent": _unit(F(1, 100)), "$ usd dollar": _unit(1, "USD"), "cent": _unit(F(1, 100), "USD"),
    "eur euro": _unit(1, "EUR"),
    "gbp": _unit(1, "GBP"), "jpy yen": _unit(1, "JPY"),
}
# fmt: on
CURRENCIES = {"\u20ac": "eur", "\u00a3": "gbp", "\u00a5": "jpy"}
SIGNS = {
    "\u03bc": "u",
    "\u03a9": "ohm",
    "\u00b0": " deg ",
    "\\mu": "u",
    "\\Omega": "ohm",
    "\\cdot": "*",
    "\\times": "*",
}
SIGNS |= {"\u22c5": "*", "\\%": "%", "\\$": "$"} | CURRENCIES
MATHS = re.compile(r"(?<!\\)\$([^$]*)(?<!\\)\$")
RAISED_TO = r"[\s.$)\]]*(?:\^\s*\{?\s*-?\d\s*\}?)?[\s.$)\]]*"
BEHIND_UNIT = re.compile(rf"{RAISED_TO}(?:(?:/|\\cdot(?![A-Za-z]))\s*{TEXT_MACRO.pattern}{RAISED_TO})*")
"""The text after a unit that is set as text, up to the end."""
ALSO_READ = tuple(
    (re.compile(name), other)
    for name, other in (
        (r"(?i)\bpounds?\b", "gbp"),
        (r"(?i)\b(?:ounces?|oz)\b", "floz"),
        (r"(?i)\bcalories?\b", "kcal"),
        (r"(?<![A-Za-z])m(?![A-Za-z])", "min"),
        (r"(?<![A-Za-z])C(?![A-Za-z])", "degC"),
        (r"(?<![A-Za-z])C(?![A-Za-z])", "deg"),
        (r"(?<![A-Za-z])C(?![A-Za-z])", "cup"),
        (r"(?<![A-Za-z])F(?![A-Za-z])", "degF"),
        (r"(?<![A-Za-z])F(?![A-Za-z])", "deg"),
        (r"(?i)(?<![A-Za-z])deg(?:rees?)?(?![A-Za-z])", "degC"),
        (r"(?i)(?<![A-Za-z])deg(?:rees?)?(?![A-Za-z])", "degF"),
        (r"(?i)(?<![A-Za-z])deg(?:rees?)?(?![A-Za-z])", "K"),
        (r"(?i)^(-?\$ ?-?[\d.,]+) ?(?:/|per ) ?[a-z].*", r"\1"),
        (r"(?i)((?:dollar|cent|euro|usd|eur|gbp|pound|\$)s?) ?(?:/|per ).*", r"\1"),
    )
)
"""Units and their other usual meanings. A price is often given without the unit that it is for, which the question names."""
TENS = re.compile(r" ?(?:\\times|\\cdot|x|\*) ?10 ?\^ ?\{? ?(-?\d+) ?\}?")
ROUND = re.compile(r"\^? ?\{? ?\\circ ?\}?|\\degree")
DEGREES = re.compile(r"\bdeg(?:rees?)?\.? ?(c(?:elsius)?|f(?:ahrenheit)?)\b", re.IGNORECASE)
FLUID_OUNCE = re.compile(r"\b(?:fl\.? ?oz|fluid ounces?)\b\.?", re.IGNORECASE)
SQUARED = re.compile(r"\b(square|sq|cubic|cu)\b\.? ?([A-Za-z]+)", re.IGNORECASE)
RAISED = re.compile(r"([A-Za-z]+) (squared|cubed)\b", re.IGNORECASE)
POWERS = {"sq": 2, "cu": 3}
TOKEN = re.compile(r"\s*(?:(?P<name>[A-Za-z]+|[%$])(?P<power>\s?\^?\s?\{?\s?-?\d\s?\}?)?|(?P<sign>[*/().]|\bper\b))")
NUMERAL = re.compile(NUMBER.pattern.removesuffix(r"(?: ?\\?%| percent)?"))
"""A number without its percent sign, which is a unit here."""
NEXT_PART = re.compile(r"(?<=[A-Za-z])[.,]?(?: and)? (?=\d)")
PART_OF_UNITS = r"\{((?:[^{}]|\{[^{}]*\})*)\}"
FRACTION_OF_UNITS = re.compile(rf"\\[dt]?frac ?(?!\{{ ?-?\d){PART_OF_UNITS} ?{PART_OF_UNITS}")


@cache
def _table() -> Mapping[str, Quantity]:
    """Return every unit by its symbols and its names in lower case."""
    found: dict[str, Quantity] = {}
    for names, base in PREFIXED.items():
        for name in names.split():
            found[name] = base
            for short, (long, exponent) in PREFIXES.items():
                scaled = Quantity(value=base.value * F(10) ** exponent, dimension=base.dimension)
                if name not in NAMES_ONLY:
                    found[short + name] = scaled
                if len(name) > 2:
                    found[long + name] = scaled
    return found | {name: one for names, one in PLAIN.items() for name in names.split()}


def quantity(text: str) -> Quantity | None:
    """Return a number with its unit in base units, or None if it can't be read. A number without a unit is dimensionless."""
    if len(text) > MAX_CHARACTERS:
        return None
    text = _simplify(text)
    parts = [_part(part) for part in NEXT_PART.split(text)] if text else []
    known = [part for part in parts if part is not None]
    if not parts or len(known) != len(parts) or len(parts) > MAX_PARTS:
        return None
    (first, size), *others = known
    descending = all(one[1] > other[1] for one, other in zip(known, others, strict=False))
    if others and (not descending or any(part.dimension != first.dimension or part.value < 0 for part, _ in others)):
        return None
    sign = -1 if first.value < 0 else 1
    total = first.value + sign * sum((part.value for part, _ in others), F(0))
    return Quantity(value=total, dimension=first.dimension, zero=first.zero) if size else None


def unit(text: str) -> Quantity | None:
    return _product(_simplify(text))


def is_same_quantity(answer: str, reference: str, *, tolerance: float = 0.0) -> bool:
    """Return whether two numbers with units are equal, or differ by at most `tolerance`, a share of the reference.

    The share refers to the reference's own unit: 5 % of 20 degrees Celsius is one degree.
    """
    given, wanted = quantity(answer), quantity(reference)
    if given is None or wanted is None or given.dimension != wanted.dimension:
        return False
    return abs(given.value - wanted.value) <= F(tolerance) * abs(wanted.value - wanted.zero)


def equal_quantities(answer: str, reference: str) -> bool | None:
    """Return whether two numbers with units are equal, or None if their units do not decide it.

    Units decide if both are in the table and mean one thing. A percentage has no unit here.
    """
    given, wanted = quantity(answer), quantity(reference)
    if given is None or wanted is None or not (given.dimension and wanted.dimension):
        return None
    if given.is_equal(wanted):
        return True
    others = (*((one, wanted) for one in _readings(answer)), *((one, given) for one in _readings(reference)))
    return None if any(one is not None and one.is_equal(other) for one, other in others) else False


def _readings(text: str) -> Iterator[Quantity | None]:
    """Yield the quantities that a text may also mean."""
    plain = _simplify(text)
    for name, other in ALSO_READ:
        if (reading := name.sub(other, plain)) != plain:
            yield quantity(reading)


def unit_behind(formula: str) -> Quantity | None:
    """Return the unit at the end of a formula, set as text, or None if it has none of the table."""
    for macro in TEXT_MACRO.finditer(formula):
        if BEHIND_UNIT.fullmatch(formula, macro.end()):
            found = unit(formula[macro.start() :].rstrip(" .$)]"))
            return found if found and found.dimension else None
    return None


def _simplify(text: str) -> str:
    """Return a text with signs and LaTeX as plain words."""
    for currency, name in CURRENCIES.items():
        text = re.sub(rf"{currency}\s?(-?[\d.,]+)", rf"\1 {name}", text)
    text = ROUND.sub(
        " deg ",
        SPACING.sub(" ", LAYOUT.sub("", TEXT_MACRO.sub(r"\1", to_readable(MATHS.sub(r"\1", text)).strip(" \n*_`")))),
    )
    text = FRACTION.sub(lambda found: f"{quotient(found)} ", FRACTION_OF_UNITS.sub(r" \1/(\2)", text)).strip()
    text = ungroup_digits(text).replace("- ", "-")
    text = TENS.sub(r"*10^\1", text)
    for sign, word in SIGNS.items():
        text = text.replace(sign, word)
    text = FLUID_OUNCE.sub("floz", DEGREES.sub(lambda match: "deg" + match[1][0].upper(), text))
    text = RAISED.sub(lambda match: f"{match[1]}^{2 if match[2][0] in 'sS' else 3}", text)
    text = SQUARED.sub(lambda match: f"{match[2]}^{POWERS[match[1][:2].lower()]}", text)
    return " ".join(ASSIGNED.sub("", text, count=1).split()).removesuffix(".")


def _part(text: str) -> tuple[Quantity, F] | None:
    dollars = re.fullmatch(r"(-?) ?\$ ?(-?.*)", text)
    text = f"{dollars[1]}{dollars[2]} $" if dollars else text
    numeral = NUMERAL.match(text)
    if numeral is None:
        return None
    read, rest = number(numeral[0]), text[numeral.end() :].strip().removeprefix("*").strip()
    first, _, others = rest.partition(" ")
    scale = SCALES.get(first.lower()) if first.lower() != "percent" else None
    measure = _product(others if scale is not None else rest)
    if read is None or read.is_undivided or measure is None:
        return None
    value = read.value * (scale or 1) * measure.value + measure.zero
    return Quantity(value=value, dimension=measure.dimension, zero=measure.zero), measure.value


def _product(text: str) -> Quantity | None:
    value, powers, factors = F(1), dict[str, int](), list[tuple[Quantity, int]]()
    at, inverse, inside = 0, False, False
    while at < len(text):
        token = TOKEN.match(text, at)
        if token is None or len(factors) > MAX_FACTORS:
            return None
        at = token.end()
        sign = token["sign"]
        if sign is None and token["name"].lower() != "per":
            power = int(re.sub(r"[^-\d]", "", token["power"] or "1"))
            known = _table().get(token["name"]) or _named(token["name"])
            if known is None or not 0 < abs(power) <= MAX_POWER:
                return None
            factors.append((known, -power if inverse else power))
            inverse = inverse and inside
        elif sign in ("/", "per", None):
            if inverse or not text[at:].strip():
                return None
            inverse = True
        elif sign in "()":
            if inside == (sign == "(") or (sign == "(" and not inverse):
                return None
            inside = sign == "("
            inverse = inside
    for measure, power in factors:
        value *= measure.value**power
        for base, exponent in measure.dimension:
            powers[base] = powers.get(base, 0) + exponent * power
    zero = factors[0][0].zero if len(factors) == 1 and factors[0][1] == 1 else F(0)
    dimension = tuple(sorted((base, power) for base, power in powers.items() if power))
    return None if inside or inverse else Quantity(value=value, dimension=dimension, zero=zero)


def _named(name: str) -> Quantity | None:
    lower = name.lower()
    for one in (lower, lower.removesuffix("s"), lower.removesuffix("es"), lower.removesuffix("ies") + "y"):
        if len(one) > 2 and one in _table():
            return _table()[one]
    return None
