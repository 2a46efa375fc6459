"""The final answer in a text, and exact equality of plain numbers. Pure; bounded on any text.

Which text is the answer, in this order:

1. the content of the last `\\boxed{...}` or `\\fbox{...}`. Boxes that differ in value, unless the last one is asked for,
   and a last box that is not closed, are no answer; empty boxes are not counted.
2. the number that starts a line after `####`, with or without words behind it; different numbers are no answer. A last
   line after `####` that is no prose is the answer as it stands. Other lines after `####` are headings.
3. what the last line states: behind `A:`, `Answer:` or `the answer is`, on that line or the one above; the one number
   that it sets in bold; the number that it is. Nothing where it names several, or where the text said `Answer:`, or
   said `A:` as the last line does, of another number.
4. the last number of the text. None where the text breaks off behind an operator; where it is a worked solution in
   GSM8K's annotated style (`<<48/2=24>>24`), or one of several lines the last of which still calculates (`48/2 = 24`):
   these were cut off before they had answered, unless they had stated the same number before as their answer; and where
   `or` stands between it and another number.

Only the last 20,000 characters are searched.
"""

import re
from itertools import zip_longest
from typing import Literal

from temper.rewards.plain_numbers import MAX_CHARACTERS, bare, number, plain_number, readable

Boxes = Literal["agree", "last"]
"""What several boxes are: no answer where they differ, or an answer that is the last one."""
SEARCHED_TAIL = 20_000
MAX_VARIANTS = 64
BOX = re.compile(r"\\(?:boxed|fbox)\s*")
BRACE = re.compile(r"\\.|[{}]", re.DOTALL)
UNBRACED = re.compile(r"[^\s{}$\\]{1,40}")
MARK = re.compile(r"#{4,}")
ANNOTATION = re.compile(r"<<[^<>\n]{0,200}(?:>>)?")
END_TOKEN = re.compile(r"<(?:\||/s>)[^\n]*")
NUMBERED_HEADING = re.compile(r"\d{1,2}[.):]\s+\S")
GOES_ON = re.compile(r"\A(?:[A-Za-z_]|\s*[-+*/^=<>\\])|\d")
MACRO = re.compile(r"\\\w{1,20}\s?\{[^{}]*\}")
LONG_WORD = re.compile(r"[A-Za-z]{3,}|or")
PROSE = re.compile(r"[A-Za-z]{2,}[^A-Za-z]+[A-Za-z]{2,}")
STATED = re.compile(
    r"^[ \t>#*_`-]{0,8}(?:(?P<short>A)|(?i:(?:(?:so|thus|hence|therefore),? )?(?:the )?(?:final |correct )?ans(?:wer)?))"
    r"[*_` ]{0,4}:|(?i:\b(?:the|my|our) (?:final |correct )?answer(?: to [^\n.:]{1,80})? ?(?:is\b|=|:))",
    re.MULTILINE,
)
BOLD = re.compile(r"\*\*([^*\n]{1,80})\*\*|__([^_\n]{1,80})__")
HEDGE = re.compile(r"\b(?:or|either|maybe|perhaps|possibly|not)\b|n't\b", re.I)
JOINED = re.compile(r"[^.]{0,40}\bor\b.{0,40}|\s*(?:[,;/&]|,? ?and|to)\s*", re.I | re.DOTALL)
CALCULATES = re.compile(r"\s*[-+*/^=<>\\]")
MACRO_NAME = re.compile(r"\\[A-Za-z]+")
NUMBER = re.compile(
    r"(?<![\w.])-?(?:\\?\$ ?)?-?"
    r"(?:\d+ \d+/\d+|(?:\d{1,3}(?:,\d{3})+(?!\d)|\d+)(?:\.\d+|/\d+)?(?:[eE][-+]?\d{1,2}(?!\w))?|(?<!\d)\.\d+)"
    r"(?: ?(?:\\times|x|\*) ?10 ?\^ ?\{?-?\d{1,2}\}?)?(?: ?\\?%| percent)?"
)


def boxes(text: str) -> list[str] | None:
    """Return the contents of every box that is not empty, braces balanced, in order; None where the last is not closed."""
    found, start = [], BOX.search(text)
    while start:
        inside = start.end()
        if text[inside : inside + 1] == "{":
            end = _closing_brace(text, inside + 1)
            if end is None:
                return None
            content = text[inside + 1 : end].strip()
        else:
            token = UNBRACED.match(text, inside)
            content, end = (token[0], token.end()) if token else ("", inside)
        if len(content) <= MAX_CHARACTERS and (inner := BOX.search(content)):
            content = (boxes(content[inner.start() :]) or [""])[-1]
        found += [content] * bool(content)
        start = BOX.search(text, end)
    return found


def _closing_brace(text: str, start: int) -> int | None:
    depth = 1
    for brace in BRACE.finditer(text, start):
        depth += {"{": 1, "}": -1}.get(brace[0], 0)
        if depth == 0:
            return brace.start()
    return None


def final_answer(text: str, boxes_are: Boxes = "agree") -> str | None:
    """Return the final answer of a text by the rule above; None where there is none, or where answers contradict each other."""
    tail = END_TOKEN.sub("", readable(text[-SEARCHED_TAIL:])).rstrip()
    if BOX.search(tail):
        boxed = boxes(tail)
        if not boxed or len(boxed[-1]) > MAX_CHARACTERS:
            return None
        if boxes_are == "last":
            return boxed[-1]
        different = set(boxed)
        return boxed[-1] if len(different) <= MAX_VARIANTS and len(set(map(_meaning, different))) == 1 else None
    if MARK.search(tail):
        marked = _marked(tail)
        if marked:
            return marked[0] or None if len(marked) == 1 else None
    if tail.rstrip(" *_`").endswith(("=", "+", "-", "/", "(", "<")):
        return None
    stated = list(STATED.finditer(tail))
    answer = _stated(tail, stated)
    if answer is None:
        answer = _last_number(tail, stated)
    return answer if answer and not _denied(tail, stated, plain_number(answer)) else None


def _meaning(answer: str) -> object:
    """Return what makes two boxes the same: the value of a number, else the text without layout."""
    value = plain_number(answer)
    return bare(answer[: MAX_CHARACTERS + 1]).replace(" ", "") if value is None else value


def _marked(tail: str) -> list[str]:
    """Return the different answers after `####`; [""] where the text ends behind the mark, or where there are too many."""
    lines = list(dict.fromkeys(part.strip().split("\n")[0].strip() for part in reversed(MARK.split(tail)[1:])))[::-1]
    if len(lines) > MAX_VARIANTS:
        return [""]
    numbers = {plain_number(leading): leading for line in lines if (leading := _leading_number(line))}
    if numbers:
        return list(numbers.values())
    last = lines[-1]
    heading = NUMBERED_HEADING.match(last) or (PROSE.search(MACRO.sub("", last)) and not NUMBER.match(last))
    return [] if heading or not tail.endswith(last) else [last[:MAX_CHARACTERS]]


def _stated(text: str, stated: list[re.Match[str]]) -> str | None:
    """Return the answer that the last line states; None where it states none, empty where it is missing or hedged."""
    said = _lines(text[stated[-1].end() :]) if stated else []
    if stated and len(said) < 2:
        return _said(said[0]) if said else ""
    last = (_lines(text) or [""])[-1]
    alone = bare(last[:MAX_CHARACTERS])
    return _bold(last) or (alone if NUMBER.fullmatch(alone) else None)


def _denied(text: str, stated: list[re.Match[str]], value: object) -> bool:
    """Tell whether a text stated another number as its answer. `A:` may stand for a name, unless it states the last one."""
    if len(stated) > MAX_VARIANTS:
        return True
    for one, after in zip_longest(stated, stated[1:]):
        end = min(one.end() + MAX_CHARACTERS, after.start() if after else len(text))
        leading = _leading_number(text[one.end() : end].split("\n")[0])
        if leading and plain_number(leading) != value and (not one["short"] or stated[-1]["short"]):
            return True
    return False


def _lines(text: str) -> list[str]:
    return [line.strip() for line in text.split("\n") if any(map(str.isalnum, line))]


def _said(line: str) -> str:
    """Return the answer in what stands behind `Answer:`; empty where it hedges, or begins with a number and goes on to another.

    The one number in bold, else the number in front, else that behind the last equals sign, else the last one of prose;
    anything else as it stands.
    """
    line = ANNOTATION.sub(" ", line[:MAX_CHARACTERS])
    said = line.strip(" *_`:")
    *sides, result = (side.strip() for side in said.split("="))
    found = _bold(line) or _leading_number(said) or (result if sides and number(result) is not None else None)
    if found is None and LONG_WORD.search(MACRO_NAME.sub(" ", said)):
        found = _last_of(said)
    first = NUMBER.match(said)
    front = [first[0]] if first and not CALCULATES.match(said, first.end()) else []
    others = {plain_number(other) for other in (*front, *sides)} - {None, plain_number(found or "")}
    return "" if HEDGE.search(said) or (found and others) else found or said


def _bold(line: str) -> str | None:
    """Return the number that a line sets in bold; None where there is none or are several, or where the line hedges."""
    if HEDGE.search(line):
        return None
    inner = [one or other for one, other in BOLD.findall(line)]
    values = {plain_number(text): text for text in inner}
    return next(iter(values.values())) if len(values) == 1 and None not in values else None


def _last_number(text: str, stated: list[re.Match[str]]) -> str | None:
    """Return the last number of a text; None where there is none, or where the text was cut off before its answer."""
    plain = ANNOTATION.sub(" ", text)
    annotated, lines, last = plain != text and not MARK.search(text), _lines(plain), _last_of(plain)
    if last and (annotated or (len(lines) > 1 and "=" in lines[-1])):
        said = (text[one.end() : one.end() + MAX_CHARACTERS].split("\n")[0] for one in stated[:MAX_VARIANTS])
        values = [plain_number(number) for line in said if (number := _bold(line) or _leading_number(line))]
        return last if plain_number(last) in values else None
    return last


def _last_of(text: str) -> str | None:
    """Return the last number; None where there is none, or where it is one of several (`18 or 19`, `17, 18 and 19`)."""
    *_, before, last = (None, None, *NUMBER.finditer(text))
    if before and last and plain_number(before[0]) != plain_number(last[0]):
        return None if JOINED.fullmatch(text, before.end(), last.start()) else last[0]
    return last[0] if last else None


def _leading_number(line: str) -> str | None:
    """Return the number that starts a line, with the words behind it; None where there is none, or calculation goes on."""
    line = line[:MAX_CHARACTERS].strip(" *_`")
    if NUMBERED_HEADING.match(line):
        return None
    if number(line) is not None:
        return line
    start = NUMBER.match(line)
    if start is None or GOES_ON.search(line[start.end() :]):
        return None
    simpler = " ".join((start[0], *LONG_WORD.findall(line, start.end())))
    return simpler if number(simpler) is not None else None


def equal_numbers(answer: str, reference: str, *, percent: bool = False) -> bool | None:
    """Tell whether two plain numbers are exactly equal; None where one of them is not a plain number.

    A division that was not carried out equals nothing. With `percent`, for a question that asks for a percentage,
    `40%` and `40` are the same.
    """
    left, right = number(answer), number(reference)
    if left is None or right is None:
        return None
    values = [read.value * 100 if percent and read.percent else read.value for read in (left, right)]
    return values[0] == values[1] and not left.undone
