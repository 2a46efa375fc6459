"""Short answers in words: extraction, comparison and lists. Pure; bounded on any text.

`rewards.answers.find_answers` finds the answers of a text, which must agree.

Two texts match if SQuAD's evaluation equates them (Rajpurkar et al., 2016: lower case, no punctuation, no articles, single
spaces). They also match if TriviaQA's does (Joshi et al., 2017: punctuation becomes a space), or if both are plain numbers
of one value. Powers, roots and fractions are first written in one notation, with or without LaTeX. Some characters that
these rules drop are kept, since different answers would match without them:

- every sign between digits (`3.5`, `1+2`, `10^6`), also an operator with spaces on both sides; a minus, a point, `<` or `>`
  before a number; a minus before a single letter
- a plus after a word (`C++`, `Na+`) or between two (`x+1`), a minus after a number or a word of up to two letters (`AB-`),
  `#` after a letter, `^`, `<` and `>` between letters or digits, music and card signs after a letter
- an article at the end of the text (`vitamin A`), and a text of punctuation only

Percent, currency and degree signs are dropped, as in SQuAD's evaluation: `$5` matches `5`. Different signs do not match:
`$5` is neither `5 %` nor `5` in another currency.
"""

import json
import re
import unicodedata
from collections import Counter
from collections.abc import Iterator, Sequence

from temper.rewards.answers import EMPHASIS, NUMBER, find_answers
from temper.rewards.plain_numbers import (
    DEGREES,
    FRACTION,
    LAYOUT,
    SCALES,
    SPACING,
    TEXT_MACRO,
    number,
    quotient,
    to_readable,
    ungroup_digits,
)
from temper.rewards.tool_calls import most_pairs

MAX_CHARACTERS = 4000
MAX_ITEMS = 256
PLAINER = {ord("\u00b7"): "\u2027", ord("\u2014"): "-", ord("\u2015"): "-"}
"""A middle dot, which is part of names here, not a product, and dashes that are never a minus elsewhere."""
SPACED = re.compile(r"(?<=\d) ([-*/:=]) (?=\d)|(?<=[^\W_]) ([+^<>]) (?=[^\W_])|\A([-+]) (?=\d)")
SEPARATED = re.compile(r"(?<=\d)[,;](?=\d)")
ESCAPED = re.compile(r"\\(?=[#&%$_])|\^(?=\d*[-+](?![^\W_]))")
"""LaTeX's backslash before a sign, and the power of a charge: `Na^+`, `Ca^{2+}`."""
KEPT = re.compile(
    r"(?<=\d)[^\w\s]+(?=\d)|(?<![^\W_])(?:\.(?=\d)|[<>]=?(?= ?-?\.?\d)|[\u00b1\u2213\u2260](?=\d))"
    r"|(?<![^\W_])-(?=[\\$\u20ac\u00a3\u00a5]*\.?\d|\\?(?:pi|inf|sqrt)|[a-z](?![^\W_]))"
    r"|(?<=[^\W_])(?:\++|[\^<>]-?(?=[^\W_])|[\u2640-\u266f])|(?<=[a-z])#"
    r"|(?:(?<=\d)|(?<=\b[a-z])|(?<=\b[a-z][a-z]))-(?![^\W_])"
)
UNIT_SIGNS = "%$\u20ac\u00a3\u00a5\u20b9"
WHOLE_NUMBER = re.compile(rf"(?:{NUMBER.pattern})(?: (?i:{'|'.join(SCALES)}))?")
ARTICLE = re.compile(r"\b(?:an?|the)\b(?=\s+\S)")
BULLET = re.compile(r"\s*(?:[-*\u2022]|\(?\d{1,3}[.)])\s+")
LAST_AND = re.compile(r",?\s+(?:and|&)\s+", re.IGNORECASE)


def short_answer(text: str) -> str | None:
    """Return the answer of a text by the rules above, or None if it has none or several that differ."""
    given = (TEXT_MACRO.sub(r"\1", one).strip(EMPHASIS) for one in find_answers(text))
    said = list(dict.fromkeys(one.removesuffix(".").strip(EMPHASIS) for one in given))
    if len(said) > MAX_ITEMS or any(not one or len(one) > MAX_CHARACTERS for one in said):
        return None
    return said[-1] if all(matches_any(one, [said[-1]]) for one in said) else None


def simplify(text: str) -> str:
    """Return a text with numbers in one notation (`-5`, `1/2`, `10^6`, `1234`) and without LaTeX layout."""
    text = LAYOUT.sub("", TEXT_MACRO.sub(r"\1", to_readable(text[:MAX_CHARACTERS].translate(PLAINER))))
    text = SPACING.sub(" ", FRACTION.sub(quotient, DEGREES.sub("", text)).translate({ord("{"): None, ord("}"): None}))
    text = SPACED.sub(lambda sign: sign[0].strip(), text.strip())
    text = ungroup_digits(ESCAPED.sub("", text))
    return SEPARATED.sub(" ", text)


def plain(text: str) -> str:
    """Return a text as SQuAD compares it."""
    return _without_punctuation(simplify(text), "")


def _without_punctuation(text: str, gap: str) -> str:
    """Return lower-case words without articles. `gap` replaces punctuation: empty as in SQuAD, a space as in TriviaQA."""
    text = text.lower()
    kept = {at for sign in KEPT.finditer(text) for at in range(*sign.span())}
    signs = (gap if unicodedata.category(sign)[0] in "PS" and at not in kept else sign for at, sign in enumerate(text))
    return " ".join(ARTICLE.sub(" ", " ".join("".join(signs).split())).split())


def forms(text: str) -> frozenset[tuple[str, object]]:
    """Return the forms of a text, empty for an empty text. Matching texts share a form."""
    text = text.strip()
    written = simplify(text)
    signs = next(
        ((sign,) for sign in UNIT_SIGNS if sign in written), UNIT_SIGNS
    )  # a text without a sign matches each of them
    found: list[tuple[str, object]] = [
        ("squad", _without_punctuation(written, "")),
        ("trivia", _without_punctuation(written, " ")),
    ]
    read = number(written) if WHOLE_NUMBER.fullmatch(written.strip(" .")) else None
    if read is not None and not read.is_undivided:
        found.append(("number", read.value))
    filled = frozenset((rule + sign, form) for rule, form in found for sign in signs if form != "")
    return filled or frozenset([("signs", text)] if text else [])


def matches_any(text: str, accepted: Sequence[str]) -> bool:
    """Return whether a text matches one of the accepted ones."""
    said = forms(text)
    return any(not said.isdisjoint(forms(one)) for one in accepted)


def word_f1(text: str, accepted: Sequence[str]) -> float:
    """Return the highest F1 of the words that a text shares with an accepted one, as SQuAD defines it; 0 without shared
    words.
    """
    said = _words(text)
    return max(
        (_f1((said & words).total(), said.total(), words.total()) for words in map(_words, accepted)), default=0.0
    )


def _words(text: str) -> Counter[str]:
    return Counter(plain(text).split())


def _f1(shared: int, given: int, wanted: int) -> float:
    return 2 * shared / (given + wanted) if shared else 0.0


def readings(text: str) -> Iterator[list[str]]:
    """Yield the lists as which a text can be read: JSON, lines, or parts between semicolons or commas with `and` before the
    last.
    """
    text = text.strip()
    listed = _json_list(text)
    if listed is not None:
        yield listed
        return
    if text[:1] + text[-1:] in ("[]", "()", "{}"):
        text = text[1:-1]
    lines = [BULLET.sub("", line, count=1) for line in text.split("\n") if line.strip()]
    if len(lines) > 1:
        yield lines
    for separator in (";", ","):
        parts = [part for part in text.split(separator) if part.strip()]
        yield parts
        if parts:
            parts[-1] = re.sub(r"^\s*(?:and|&)\s+", "", parts[-1], flags=re.IGNORECASE)
            yield [*parts[:-1], *LAST_AND.split(parts[-1])]


def _json_list(text: str) -> list[str] | None:
    try:
        listed = json.loads(text) if text.startswith("[") else None
    except (ValueError, RecursionError):
        return None
    flat = isinstance(listed, list) and all(isinstance(item, str | int | float) for item in listed)
    return [str(item) for item in listed] if flat and listed is not None else None


def list_f1(text: str, wanted: Sequence[Sequence[str]], *, ordered: bool) -> float:
    """Return the highest F1 of the items of a list, 1 if it is right. Each wanted item has its accepted texts."""
    needed = [frozenset[tuple[str, object]]().union(*map(forms, accepted)) for accepted in wanted]
    best = 0.0
    for items in readings(text):
        if not 0 < len(items) <= MAX_ITEMS:
            continue
        given = [forms(item) for item in items]
        if ordered:
            shared = sum(not one.isdisjoint(other) for one, other in zip(given, needed, strict=False))
        else:
            shared = most_pairs([[not one.isdisjoint(other) for other in needed] for one in given])
        best = max(best, _f1(shared, len(given), len(needed)))
    return best
