"""Which of the lettered choices a text chooses. Pure; bounded on any text.

The first of these that the text has decides, and a text in which that names two different letters (`A or B`) chooses nothing:

1. boxes, `\\boxed{B}`: a letter, or a letter with its text behind it (`\\boxed{B. Paris}`, `\\boxed{\\text{(B)}}`). The last
   box must be closed.
2. statements: a letter behind `Answer:` or `the answer is`, or so behind `choice` or `option`. A small letter is one only
   where the line or the sentence ends behind it, since `a` is an article.
3. the whole text: a letter alone, or a letter with `.`, `)` or `:` in front of the rest of the only line (`B) Paris`).

A letter may stand in brackets, in bold and behind `option` or `choice`. The text of a choice without its letter chooses
nothing: letters are what was asked for. Nor does a letter beyond the last choice. Only the last 20,000 characters are read.
"""

import re

from rewards.answers import BOX, SEARCHED_TAIL, boxes

LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
MACRO = re.compile(r"\\(?:text|textbf|mathrm|mathbf)\s?\{([^{}]*)\}")
LEAD = r"[\s*_`$(\[\"']{0,6}(?:(?i:option|choice)[\s*_`$(\[]{1,6})?"
TAIL = r"[*_`$)\]\"']{0,6}"
STATED = re.compile(
    r"(?i:\b(?:answer|choice|option)[*_` ]{0,4}(?::| (?:is|would be|must be):?))"
    rf"{LEAD}(?P<letter>[A-Za-z])(?![\w'])(?=(?P<rest>[^\n]{{0,24}}))"
)
WHOLE = re.compile(rf"{LEAD}(?P<letter>[A-Za-z])(?P<rest>{TAIL}(?:[.):]{TAIL}(?:\s[^\n]*)?)?)\s*")
ENDS = re.compile(rf"{TAIL}(?:[.),:;!](?:\s|\Z)|\s*\Z)")
HEDGED = re.compile(rf"{TAIL}[.)]?\s{{0,2}}(?i:or|and|/|&|,)\s{{0,2}}{LEAD}(?P<other>[A-Z])(?![\w'])")


def chosen(text: str, *, count: int) -> str | None:
    """Return the letter that a text chooses among the first `count`; None where it chooses none, or several."""
    tail = MACRO.sub(r"\1", text[-SEARCHED_TAIL:])
    letters = LETTERS[:count]
    if BOX.search(tail):
        found = {_whole(box, letters) for box in boxes(tail) or [""]}
    else:
        stated = (match for match in STATED.finditer(tail) if match["letter"].isupper() or ENDS.match(match["rest"]))
        found = {_letter(match, letters) for match in stated} or {_whole(tail, letters)}
    return found.pop() if len(found) == 1 else None


def _whole(text: str, letters: str) -> str | None:
    match = WHOLE.fullmatch(text.strip())
    return _letter(match, letters) if match else None


def _letter(match: re.Match[str], letters: str) -> str | None:
    """Return the letter of a match; None where it is that of no choice, or where another one is named beside it."""
    letter = match["letter"].upper()
    beside = HEDGED.match(match["rest"])
    return letter if letter in letters and not (beside and beside["other"] in letters) else None
