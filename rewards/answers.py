r"""Find the answer in a text, and compare plain numbers exactly. Pure, and bounded on any text.

The environments that look for an answer in a text use one list of forms (`find_answers`). The first form that occurs
decides, and all its occurrences count:

1. Tags: the text between `<answer>` and `</answer>`. A form inside them decides further.
2. Boxes: `\boxed{...}` and `\fbox{...}`. If the last box is unclosed, there is no answer. Empty boxes do not count.
3. Statements (`STATED`): the rest of the line after `Answer:` or `the answer is`. If it is empty, or after a heading
   `Final Answer`, the next line. A correction after a statement (`No, 12.`) is another statement.
4. Sentences (`CONFIRMED`): `12` in `12 is correct` or `I choose 12`, if the text is this sentence alone.

`final_answer` adds rules for mathematics. The first one that applies decides:

1. Tags and boxes. Those with different values give no answer, unless the caller asks for the last.
2. The number at the start of a line after `####`, with or without words after it. If there are different numbers, there is
   no answer. If the last line after `####` is not prose, it is the whole answer. Other lines after `####` are headings.
3. The statement of the last line: the text after `A:` or a statement on that line or the one above, the only number in
   bold, or the number that is the line. Several numbers give no answer. So does an earlier `Answer:`, or an earlier `A:` if
   the last line uses it too, with another number.
4. The only sentence, as above.
5. The last number of the text. A truncated text gives no answer unless it stated the same number as its answer before. A
   text is truncated if it ends after an operator, if it is a solution in GSM8K's annotated style (`<<48/2=24>>24`), or if
   it has several lines and the last still calculates (`48/2 = 24`). A number joined to another by `or` gives no answer
   either, and neither does a text that only lists different numbers.

Only the last 20,000 characters are searched.
"""

import re
from collections.abc import Sequence
from itertools import dropwhile, zip_longest
from typing import Literal

from temper.rewards.plain_numbers import MAX_CHARACTERS, number, plain_number, to_bare, to_readable

Boxes = Literal["agree", "last"]
"""How to treat several boxes: `agree` requires equal boxes, `last` takes the last one."""
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
EMPHASIS = " \t\n*_`"
LINE_START = r"^[ \t>#*_`-]{0,8}"
TAGGED = re.compile(r"<answer>((?:(?!<answer>).)*?)</answer>", re.DOTALL | re.IGNORECASE)
STATED = re.compile(
    rf"{LINE_START}(?:(?P<short>A)|(?i:(?:(?:so|thus|hence|therefore),? )?(?:the )?(?:final |correct )?ans(?:wers?)?))"
    r"[*_` ]{0,4}:"
    rf"|{LINE_START}(?i:(?:the )?final answer)[*_` \t]{{0,6}}$"
    r"|(?i:\b(?:the|my|our) (?:final |correct )?answers?(?: to [^\n.:]{1,80})? ?(?:(?:is|are)\b:?|=|:))"
    r"|(?P<letter>(?i:\b(?:answer|choice|option)[*_` ]{0,4}(?::|(?: is| would be| should be| must be)\b:?)))"
    r"|(?P<again>(?:^|(?<=[.!?;] ))(?!(?i:no)\.\s\d)(?i:no|wait|actually|sorry|correction)[,.:;!]{1,3}\s"
    r"(?i:(?:no[,.:;!]{1,3}|it is|it's)\s)?"
    r"(?=(?:[^\s.,:;]{1,30} ){0,2}[^\s.,:;]{1,30}(?:[.!](?:\s|\Z)|[*_` ]{0,4}$)))",
    re.MULTILINE,
)
"""Statements. `short` is for numbers only, `letter` for letters only, since their words are common before other texts. `again`
corrects an earlier statement.
"""
CONFIRMED = re.compile(
    r"(?:^|(?<=[.!?:,] ))[ \t>#*_`-]{0,8}(?i:(?:so|thus|hence|therefore),? )?"
    r"(?:(?P<before>(?:[^\n.,!?]|[.,](?=\d)){1,80}?) (?i:is (?:correct|the (?:correct|right) (?:answer|choice|option|one)))"
    r"(?=[*_`]{0,4}(?:[.!;]|\s*$))|(?i:(?:i |we )?(?:choose|pick|select)) (?P<after>[^\n]{1,80}))",
    re.MULTILINE,
)
BOLD = re.compile(r"\*\*([^*\n]{1,80})\*\*|__([^_\n]{1,80})__")
HEDGE = re.compile(r"\b(?:or|either|maybe|perhaps|possibly|not)\b|n't\b", re.I)
JOINED = re.compile(r"[^.]{0,40}\bor\b.{0,40}|\s*(?:[,;/&]|,? ?and|to)\s*", re.I | re.DOTALL)
CALCULATES = re.compile(r"\s*[-+*/^=<>\\]")
LISTED = re.compile(r"[\s,;:/&.()\[\]#-]*")
"""The text between the numbers of a list."""
FIRST = re.compile(r"\A\s*1[.:)]\s")
"""The number of the only entry, or of the first one, of a list."""
DIFFERENCE = re.compile(r"\d ?- ?\d|\d / \d")
"""A calculation without other signs than those of a list."""
MACRO_NAME = re.compile(r"\\[A-Za-z]+")
NUMBER = re.compile(
    r"(?<![\w.])-?(?:\\?\$ ?)?-?"
    r"(?:\d+ \d+/\d+|(?:\d{1,3}(?:,\d{3})+(?!\d)|\d+)(?:\.\d+|/\d+)?(?:[eE][-+]?\d{1,2}(?!\w))?|(?<!\d)\.\d+)"
    r"(?: ?(?:\\times|x|\*) ?10 ?\^ ?\{?-?\d{1,2}\}?)?(?: ?\\?%| percent)?"
)


def boxes(text: str) -> list[str] | None:
    """Return the contents of all boxes that are not empty, with balanced braces, in order. Return None if the last box is
    unclosed.
    """
    found, start = [], BOX.search(text)
    while start:
        inside = start.end()
        if text[inside : inside + 1] == "{":
            end = find_closing_brace(text, inside + 1)
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


def find_closing_brace(text: str, start: int) -> int | None:
    """Return the place of the brace that closes the one before `start`, or None if it stays open."""
    depth = 1
    for brace in BRACE.finditer(text, start):
        depth += {"{": 1, "}": -1}.get(brace[0], 0)
        if depth == 0:
            return brace.start()
    return None


def find_answers(text: str) -> list[str]:
    """Return the answers that a text gives by the forms above, or the whole text if it uses none. A broken form gives ""."""
    text = text[-SEARCHED_TAIL:]
    if tagged := TAGGED.findall(text):
        return [given for one in dict.fromkeys(tagged) for given in find_answers(one)]
    if BOX.search(text):
        return boxes(text) or [""]
    if stated := find_statements(text):
        return [one.strip(EMPHASIS) for one in stated]
    return [_confirmed(text) or text]


def find_statements(text: str, *, letters: bool = False) -> list[str]:
    """Return the rest of the line after each statement, or the next line if it is empty. `letters`: see `_statements`."""
    stated, texts = _statements(text, letters=letters), list[str]()
    for one, after in zip_longest(stated, stated[1:]):
        lines = text[one.end() : after.start() if after else len(text)].split("\n")
        found = next((line for line in lines if line.strip(EMPHASIS)), "")
        if found or after is None:  # else the next statement follows, as in `Answer: the answer is 12`
            texts.append(found)
    return texts


def _statements(text: str, *, letters: bool = False, numbers: bool = False) -> list[re.Match[str]]:
    """Return the statements. `letters` and `numbers` add the statements for these only. Corrections follow another one."""
    found = (one for one in STATED.finditer(text) if (letters or not one["letter"]) and (numbers or not one["short"]))
    return list(dropwhile(lambda one: one["again"] is not None, found))


def find_confirmations(text: str) -> list[str]:
    """Return the answers in sentences of the fourth form."""
    return [one["before"] or one["after"] for one in CONFIRMED.finditer(text)]


def _confirmed(text: str) -> str | None:
    """Return the answer of a text that is one sentence of the fourth form, without a hedge."""
    one = CONFIRMED.fullmatch(text.strip(EMPHASIS + ".!"))
    return None if one is None or HEDGE.search(one[0]) else one["before"] or one["after"]


def final_answer(text: str, boxes_are: Boxes = "agree") -> str | None:
    """Return the final answer by the rules above, or None if there is none or answers conflict."""
    tail = END_TOKEN.sub("", to_readable(text[-SEARCHED_TAIL:])).rstrip()
    if tagged := TAGGED.findall(tail):
        return _agreed([_tagged_answer(one.strip(), boxes_are) for one in tagged], boxes_are)
    if BOX.search(tail):
        return _agreed(boxes(tail) or [""], boxes_are)
    if MARK.search(tail):
        marked = _answers_after_mark(tail)
        if marked:
            return marked[0] or None if len(marked) == 1 else None
    if tail.rstrip(" *_`").endswith(("=", "+", "-", "/", "(", "<")):
        return None
    if _lists_numbers(tail):
        return None
    stated = _statements(tail, numbers=True)
    answer = _stated_answer(tail, stated)
    if answer is None:
        answer = _confirmed(tail) or _last_number(tail, stated)
    return answer if answer and not _contradicts(tail, stated, plain_number(answer)) else None


def _agreed(answers: Sequence[str], boxes_are: Boxes) -> str | None:
    """Return the last answer, or None if it is empty or too long, or if the answers differ but must agree."""
    last, different = answers[-1], set(answers)
    if not last or len(last) > MAX_CHARACTERS:
        return None
    if boxes_are == "last":
        return last
    return last if len(different) <= MAX_VARIANTS and len(set(map(_comparison_key, different))) == 1 else None


def _tagged_answer(inner: str, boxes_are: Boxes) -> str:
    """Return the answer between tags, empty if there is none: a formula as a whole, or the final answer of a text."""
    is_text = BOX.search(inner) or PROSE.search(MACRO.sub("", inner))
    return final_answer(inner, boxes_are) or "" if is_text else inner


def _comparison_key(answer: str) -> object:
    """Return the comparison key of a box: the value of a number, otherwise the text without layout."""
    value = plain_number(answer)
    return to_bare(answer[: MAX_CHARACTERS + 1]).replace(" ", "") if value is None else value


def _answers_after_mark(tail: str) -> list[str]:
    """Return the distinct answers after `####`, or [""] if the text ends after the mark or has too many answers."""
    lines = list(dict.fromkeys(part.strip().split("\n")[0].strip() for part in reversed(MARK.split(tail)[1:])))[::-1]
    if len(lines) > MAX_VARIANTS:
        return [""]
    numbers = {plain_number(leading): leading for line in lines if (leading := _leading_number(line))}
    if numbers:
        return list(numbers.values())
    last = lines[-1]
    heading = NUMBERED_HEADING.match(last) or (PROSE.search(MACRO.sub("", last)) and not NUMBER.match(last))
    return [] if heading or not tail.endswith(last) else [last[:MAX_CHARACTERS]]


def _stated_answer(text: str, stated: list[re.Match[str]]) -> str | None:
    """Return the answer that the last line states, empty if it is missing or hedged, or None if the line states none."""
    said = _lines(text[stated[-1].end() :]) if stated else []
    if stated and len(said) < 2:
        return _answer_after(said[0]) if said else ""
    last = (_lines(text) or [""])[-1]
    alone = to_bare(last[:MAX_CHARACTERS])
    return _bold_number(last) or (alone if NUMBER.fullmatch(alone) else None)


def _contradicts(text: str, stated: list[re.Match[str]], value: object) -> bool:
    """Return whether the text stated another number. `A:` may be a name, unless the last statement uses or corrects it."""
    if len(stated) > MAX_VARIANTS:
        return True
    for one, after in zip_longest(stated, stated[1:]):
        end = min(one.end() + MAX_CHARACTERS, after.start() if after else len(text))
        leading = _leading_number(text[one.end() : end].split("\n")[0])
        if (
            leading
            and plain_number(leading) != value
            and (not one["short"] or stated[-1]["short"] or stated[-1]["again"])
        ):
            return True
    return False


def _lists_numbers(text: str) -> bool:
    """Return whether the text is only a list of numbers that differ: guesses without a choice."""
    entries = FIRST.sub("", text)
    *before, last = _lines(entries) or [""]
    if NUMBER.fullmatch(to_bare(last)) and any(map(DIFFERENCE.search, before)):
        return False  # a calculation with its result
    return bool(LISTED.fullmatch(NUMBER.sub("", entries))) and len(set(map(plain_number, NUMBER.findall(entries)))) > 1


def _lines(text: str) -> list[str]:
    return [line.strip() for line in text.split("\n") if any(map(str.isalnum, line))]


def _answer_after(line: str) -> str:
    """Return the answer in the text after `Answer:`, or an empty text if it hedges or has a second number after the first.

    Prefer the only number in bold, then the leading number, then the number after the last equals sign, then the last
    number of prose. Return any other text unchanged.
    """
    line = ANNOTATION.sub(" ", line[:MAX_CHARACTERS])
    said = line.strip(" *_`:")
    *sides, result = (side.strip() for side in said.split("="))
    found = _bold_number(line) or _leading_number(said) or (result if sides and number(result) is not None else None)
    if found is None and LONG_WORD.search(MACRO_NAME.sub(" ", said)):
        found = _last_of(said)
    first = NUMBER.match(said)
    front = [first[0]] if first and not CALCULATES.match(said, first.end()) else []
    others = {plain_number(other) for other in (*front, *sides)} - {None, plain_number(found or "")}
    return "" if HEDGE.search(said) or (found and others) else found or said


def _bold_number(line: str) -> str | None:
    """Return the only number in bold, or None if there is none, there are several, or the line hedges."""
    if HEDGE.search(line):
        return None
    inner = [one or other for one, other in BOLD.findall(line)]
    values = {plain_number(text): text for text in inner}
    return next(iter(values.values())) if len(values) == 1 and None not in values else None


def _last_number(text: str, stated: list[re.Match[str]]) -> str | None:
    """Return the last number of a text, or None if there is none or the text was truncated before its answer."""
    plain = ANNOTATION.sub(" ", text)
    annotated, lines, last = plain != text and not MARK.search(text), _lines(plain), _last_of(plain)
    if last and (annotated or (len(lines) > 1 and "=" in lines[-1])):
        said = (text[one.end() : one.end() + MAX_CHARACTERS].split("\n")[0] for one in stated[:MAX_VARIANTS])
        values = [plain_number(number) for line in said if (number := _bold_number(line) or _leading_number(line))]
        return last if plain_number(last) in values else None
    return last


def _last_of(text: str) -> str | None:
    """Return the last number, or None if there is none or it is one of several (`18 or 19`, `17, 18 and 19`)."""
    *_, before, last = (None, None, *NUMBER.finditer(text))
    if before and last and plain_number(before[0]) != plain_number(last[0]):
        return None if JOINED.fullmatch(text, before.end(), last.start()) else last[0]
    return last[0] if last else None


def _leading_number(line: str) -> str | None:
    """Return the leading number of a line with the words after it, or None if there is none or the calculation continues."""
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
    """Return whether two plain numbers are exactly equal, or None if one of them is not a plain number.

    A division that is not carried out equals nothing. Set `percent` if the question asks for a percentage: `40%` then
    equals `40`.
    """
    left, right = number(answer), number(reference)
    if left is None or right is None:
        return None
    values = [read.value * 100 if percent and read.percent else read.value for read in (left, right)]
    return values[0] == values[1] and not left.is_undivided
