"""Short answers in words: which text is the answer, when two say the same, and lists of them. Pure; bounded on any text.

Which text is the answer: the content of boxes, which must all say the same; else what stands behind `Answer:` or `the answer
is` on its line, where all such lines must say the same; else the whole text.

Two texts say the same where they are equal as SQuAD's evaluation compares them (Rajpurkar et al., 2016: lower case, without
punctuation, without the articles a, an and the, white space counted once), or as TriviaQA's does (Joshi et al., 2017: signs of
punctuation are spaces), or where both are plain numbers of one value. Powers, roots, fractions and the like are first written
in one way, of LaTeX or not. Some things are kept that these rules drop, since without them answers that differ would be equal:

- every sign between digits (`3.5`, `1+2`, `10^6`), with a space on both sides too where it is an operator; the minus, the
  point, `<` and `>` in front of a number; a minus in front of a single letter
- a plus behind a word (`C++`, `Na+`) and between two (`x+1`), a minus behind a number or a word of up to two letters (`AB-`),
  `#` behind a letter, `^`, `<` and `>` between letters or digits, signs of music and cards behind a letter
- an article that ends the text (`vitamin A`), and a text that is all punctuation

A percent sign, one of a currency and one of degrees are dropped, as SQuAD's evaluation does: `$5` and `5` say the same. Two of
them that differ do not: `$5` is neither `5 %` nor `5` in another currency.
"""

import json
import re
import unicodedata
from collections import Counter
from collections.abc import Iterator, Sequence

from temper.rewards.answers import BOX, NUMBER, SEARCHED_TAIL, boxes
from temper.rewards.plain_numbers import (
    DEGREES,
    FRACTION,
    LAYOUT,
    SCALES,
    SPACING,
    TEXT_MACRO,
    number,
    quotient,
    readable,
    ungrouped,
)
from temper.rewards.tool_calls import most_pairs

MAX_CHARACTERS = 4000
MAX_ITEMS = 256
EMPHASIS = " \t\n*_`"
STATED = re.compile(
    r"^[ \t>#*_`-]{0,8}(?i:(?:(?:so|thus|hence|therefore),? )?(?:the )?(?:final |correct )?answers?)[*_` ]{0,4}:(?P<one>[^\n]*)"
    r"|\b(?i:the (?:final |correct )?answers? (?:is|are)\b):?(?P<two>[^\n]*)",
    re.MULTILINE,
)
PLAINER = {ord("\u00b7"): "\u2027", ord("\u2014"): "-", ord("\u2015"): "-"}
"""A dot in the middle, which is no product here but stands in names, and dashes that are no minus elsewhere."""
SPACED = re.compile(r"(?<=\d) ([-*/:=]) (?=\d)|(?<=[^\W_]) ([+^<>]) (?=[^\W_])|\A([-+]) (?=\d)")
SEPARATED = re.compile(r"(?<=\d)[,;](?=\d)")
ESCAPED = re.compile(r"\\(?=[#&%$_])|\^(?=\d*[-+](?![^\W_]))")
"""LaTeX's backslash in front of a sign, and the power that a charge is: `Na^+`, `Ca^{2+}`."""
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
    """Return the answer of a text by the rule above; None where it has none, or several that differ."""
    tail = text[-SEARCHED_TAIL:]
    if BOX.search(tail):
        said = [TEXT_MACRO.sub(r"\1", box) for box in boxes(tail) or []]
    else:
        said = [match["one"] or match["two"] or "" for match in STATED.finditer(tail)] or [text]
    said = list(dict.fromkeys(one.strip(EMPHASIS).removesuffix(".").strip(EMPHASIS) for one in said))
    if not said or len(said) > MAX_ITEMS or any(not one or len(one) > MAX_CHARACTERS for one in said):
        return None
    return said[-1] if all(says(one, [said[-1]]) for one in said) else None


def simpler(text: str) -> str:
    """Return a text with what numbers consist of written in one way (`-5`, `1/2`, `10^6`, `1234`), without LaTeX's layout."""
    text = LAYOUT.sub("", TEXT_MACRO.sub(r"\1", readable(text[:MAX_CHARACTERS].translate(PLAINER))))
    text = SPACING.sub(" ", FRACTION.sub(quotient, DEGREES.sub("", text)).translate({ord("{"): None, ord("}"): None}))
    text = SPACED.sub(lambda sign: sign[0].strip(), text.strip())
    text = ungrouped(ESCAPED.sub("", text))
    return SEPARATED.sub(" ", text)


def plain(text: str, gap: str = "") -> str:
    """Return a text as it is compared: `gap` stands where punctuation stood, nothing as in SQuAD or a space as in TriviaQA."""
    return _without_punctuation(simpler(text), gap)


def _without_punctuation(text: str, gap: str) -> str:
    text = text.lower()
    kept = {at for sign in KEPT.finditer(text) for at in range(*sign.span())}
    signs = (gap if unicodedata.category(sign)[0] in "PS" and at not in kept else sign for at, sign in enumerate(text))
    return " ".join(ARTICLE.sub(" ", " ".join("".join(signs).split())).split())


def forms(text: str) -> frozenset[tuple[str, object]]:
    """Return the forms of a text, of which texts that say the same have one in common; none for an empty text."""
    text = text.strip()
    written = simpler(text)
    signs = next(((sign,) for sign in UNIT_SIGNS if sign in written), UNIT_SIGNS)  # one without goes with each of them
    found: list[tuple[str, object]] = [
        ("squad", _without_punctuation(written, "")),
        ("trivia", _without_punctuation(written, " ")),
    ]
    read = number(written) if WHOLE_NUMBER.fullmatch(written.strip(" .")) else None
    if read is not None and not read.undone:
        found.append(("number", read.value))
    filled = frozenset((rule + sign, form) for rule, form in found for sign in signs if form != "")
    return filled or frozenset([("signs", text)] if text else [])


def says(text: str, accepted: Sequence[str]) -> bool:
    """Tell whether a text says the same as one of the accepted ones."""
    said = forms(text)
    return any(not said.isdisjoint(forms(one)) for one in accepted)


def word_f1(text: str, accepted: Sequence[str]) -> float:
    """Return the highest F1 of the words that a text shares with an accepted one, as SQuAD defines it; 0 for none."""
    said = Counter(plain(text).split())
    return max(
        (_f1((said & words).total(), said.total(), words.total()) for words in map(_words, accepted)), default=0.0
    )


def _words(text: str) -> Counter[str]:
    return Counter(plain(text).split())


def _f1(shared: int, given: int, wanted: int) -> float:
    return 2 * shared / (given + wanted) if shared else 0.0


def readings(text: str) -> Iterator[list[str]]:
    """Yield the lists as which a text can be read: JSON; lines; parts between semicolons or commas, the last behind `and`."""
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
    """Return the highest F1 of the items of a list, each wanted one with its accepted texts; 1 where the list is right."""
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
