"""Numbers with units: equal and different ones in many notations."""

from itertools import permutations

import pytest

from temper.rewards.units import PREFIXES, is_same_quantity, quantity


@pytest.mark.parametrize(
    "texts",
    [
        ("1.5 km", "1500 m", "3/2 kilometres", "1,500 m"),
        ("1 h 30 min", "90 min", "1.5 h"),
        ("5 ft 3 in", "63 in", "5 ft. 3 in."),
        ("36 km/h", "10 m/s", "10 metres per second", "10 m s^{-1}", "10 m s-1"),
        ("25 \u00b0C", "77 degF", "25^\\circ C", "298.15 K", "77 degrees Fahrenheit", "25 celsius"),
        ("$5", "5 dollars", "\\$5", "500 cents"),
        ("20%", "0.2", "20 percent", "20\\%"),
        ("3\\times10^8 m/s", "3e8 m/s", "3 x 10^8 m/s", "300000 km/s"),
        ("4.2 J/(g K)", "4200 J/(kg*K)"),
        ("9.8 m/s^2", "9.8 m/s\u00b2"),
        ("5 \\text{ km}", "5000 m", "5\\,\\mathrm{km}", "5 km", "5 kms", "5 KM", "5 000 m"),
        ("5 million km", "5e9 m"),
        ("12 sq ft", "12 ft^2", "12 square feet"),
        ("2 kWh", "7.2 MJ"),
        ("5 \u03bcm", "5000 nm", "5 \u00b5m"),
        ("10 k\u03a9", "10000 ohm"),
        ("1 lb", "16 oz"),
        ("1 gallon", "128 fl oz"),
        ("1 kB", "8000 bits"),
        ("1 GiB", "1073741824 bytes"),
        ("\u20ac5", "5 euros"),
        ("x = 5 m", "500 cm", "5 m.", "5 m"),
        ("-5 \u00b0C", "268.15 K"),
        ("2 years", "24 months"),
        ("5 m/s/s", "5 m/s^2", "5\\,\\frac{m}{s^{2}}"),
        ("5 km and 20 m", "5020 m"),
        ("3 hours", "180 minutes"),
        ("60 mph", "26.8224 m/s"),
        ("1 atm", "101.325 kPa"),
        ("180 deg", "0.5 turn", "180\u00b0", "180 degrees"),
        ("5 m2", "5 m^2"),
        ("5 hrs", "5 h"),
        ("5 yrs", "5 years"),
        ("5 kgs", "5 kg", "5 Kg"),
        ("\\frac{1}{2} kg", "500 g"),
        ("-\\dfrac{3}{2}\\,\\text{m}", "-150 cm"),
        ("5 mcg", "5 ug"),
        ("5 kmph", "5 km/h"),
        ("5 \\frac{\\text{m}}{\\text{s}}", "5 m/s"),
        ("\\frac{1}{2} \\frac{J}{g K}", "500 J/(kg K)"),
        ("2 hrs 30 mins", "2.5 h"),
    ],
)
def test_quantities_that_are_equal(texts: tuple[str, ...]) -> None:
    for answer, reference in permutations(texts, 2):
        assert is_same_quantity(answer, reference), (answer, reference)


DIFFERENT = {
    "another unit": [("1 KB", "8000 bit"), ("1 year", "365 days"), ("5 Mm", "5 mm"), ("5 m", "5 s"), ("5 C", "5 degC")],
    "no unit, or no number": [("5", "5 m"), ("5 m", "5"), ("m", "5 m"), ("", "5 m"), ("5 m", "5 apples")],
    "no known unit": [("5 apples", "5 apples"), ("5 kcelsius", "5 celsius"), ("5 kft", "5000 ft"), ("5 m^99", "5 m")],
    "no single quantity": [
        ("5 km or 5 m", "5 km"),
        ("about 5 m", "5 m"),
        ("5 m/", "5 m"),
        ("5 (m", "5 m"),
        ("48/2 m", "24 m"),
    ],
    "parts that do not add up": [
        ("30 min 1 h", "90 min"),
        ("5 m 5 m", "10 m"),
        ("1 m -20 cm", "80 cm"),
        ("1 h 1 h", "2 h"),
    ],
    "another value": [("1.49 km", "1.5 km")],
}


@pytest.mark.parametrize("pairs", DIFFERENT.values(), ids=DIFFERENT)
def test_quantities_that_are_not(pairs: list[tuple[str, str]]) -> None:
    assert [pair for pair in pairs if is_same_quantity(*pair)] == []


def test_a_tolerance_is_a_share_of_the_right_value() -> None:
    assert is_same_quantity("9.8 m/s^2", "9.81 m/s^2", tolerance=0.01)
    assert not is_same_quantity("9.7 m/s^2", "9.81 m/s^2", tolerance=0.01)
    assert not is_same_quantity("9.8 m", "9.81 m/s^2", tolerance=0.5)


@pytest.mark.parametrize(
    ("answer", "reference", "right"),
    [
        ("21 degC", "20 degC", True),
        ("69.8 degF", "20 degC", True),
        ("22 degC", "20 degC", False),
        ("30 degC", "20 degC", False),
        ("280 K", "20 degC", False),
        ("-21 degC", "-20 degC", True),
        ("0 degC", "0 degC", True),
        ("1 degC", "0 degC", False),
        ("300 K", "290 K", True),
    ],
)
def test_of_degrees_it_is_a_share_of_the_degrees(answer: str, reference: str, right: bool) -> None:
    assert is_same_quantity(answer, reference, tolerance=0.05) is right


def test_prefixes_precede_symbols_and_their_names_names() -> None:
    for sign, (name, exponent) in PREFIXES.items():
        assert is_same_quantity(f"1 {sign}W", f"1e{exponent} W")
        assert is_same_quantity(f"2 {name}watts", f"2e{exponent} W")


def test_no_text_is_too_much() -> None:
    for text in ("1 " + "m " * 400, "1 m" + "/(" * 200, "9" * 500 + " m", "1 m^9", "1e64 Qm^6", "$" * 500, "1 " * 250):
        quantity(text)
