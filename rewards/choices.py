r"""Extract the chosen letter of a multiple-choice answer. Pure; bounded on any text.

The first form that occurs decides. If it names two different letters, the text chooses none:

1. Boxes: a letter, alone or followed by its text (`\boxed{B}`, `\boxed{B. Paris}`, `\boxed{\text{(B)}}`). The last box must
   be closed.
2. Statements: a letter after `Answer:`, `the answer is`, `choice` or `option`. A small letter or an `I` counts only at the
   end of a line or sentence, since `a` is an article and `I` a word.
3. The whole text: a letter alone, or a letter with `.`, `,`, `)`, `:`, ` - ` or ` (` before the rest of the only line (`B)
   Paris`).

A line names another letter if it continues as a list (`A. B. C.`, `A, B`) or in doubt (`A or B`, `A but could be B`). An
explanation (`B. A is too small`, `B, not A`) or the text of a choice (`B. Vitamin C`) names no other letter.

A letter may be in brackets, in bold and after `option` or `choice`. The text of a choice without its letter chooses
nothing, and neither does a letter beyond the last choice. Only the last 20,000 characters are read.
"""

import re
from enum import IntEnum

from temper.rewards.answers import BOX, SEARCHED_TAIL, boxes
from temper.rewards.plain_numbers import TEXT_MACRO, readable

LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
CAPITALS = frozenset(LETTERS) - {"I"}
"""Letters that are not words."""
SPACING = re.compile(r"\\[,;: ]|~")
LEAD = r"[\s*_`$(\[\"']{0,6}(?:(?i:option|choice)[\s*_`$(\[]{1,6})?"
TAIL = r"[*_`$)\]\"']{0,6}"
STATED = re.compile(
    r"(?i:\b(?:answer|choice|option)[*_` ]{0,4}(?::| (?:is|would be|should be|must be):?))"
    rf"{LEAD}(?P<letter>[A-Za-z])(?![\w'])(?=(?P<rest>[^\n]{{0,80}}))"
)
WHOLE = re.compile(
    rf"{LEAD}(?P<letter>[A-Za-z])(?P<rest>{TAIL}(?:[.,):]{TAIL}(?:\s[^\n]*)?|\s+(?:[-\u2014]\s|\()[^\n]*)?)\s*"
)
ENDS = re.compile(rf"{TAIL}(?:[.),:;!](?:\s|\Z)|\s*\Z)")
WORD = re.compile(r"[^\W_][\w']*|[^\w\s]|_")


class Joined(IntEnum):
    """The join between a letter and a later one, which decides what must follow the later letter for it to count."""

    ADJACENT = 0
    """Nothing, or the end of a sentence: the line must end after the other letter, or continue with one more letter."""
    LISTED = 1
    """A list: no small word may follow, since it would begin an explanation."""
    DOUBTED = 2
    """An alternative: anything may follow."""


WORDS = {
    Joined.ADJACENT: ". : ) ( ] [ * _ ` $ \" ' - \u2014 it be is either both even rather option choice",
    Joined.LISTED: "and also but , ;",
    Joined.DOUBTED: "or / & | maybe perhaps possibly could might may alternatively",
}
JOINS = {word: joined for joined, words in WORDS.items() for word in words.split()}
FOLLOWS = {
    Joined.ADJACENT: re.compile(rf"[.):]?{TAIL}(?:\s*\Z|\s+{LEAD}[A-Z](?![\w'+#]))"),
    Joined.LISTED: re.compile(r"(?![+#]|\s+[a-z])"),
    Joined.DOUBTED: re.compile(r""),
}


def chosen_letter(text: str, *, count: int) -> str | None:
    """Return the letter that a text chooses among the first `count`, or None if it chooses none or several."""
    tail = SPACING.sub(" ", TEXT_MACRO.sub(r"\1", readable(text[-SEARCHED_TAIL:])))
    letters = LETTERS[:count]
    if BOX.search(tail):
        found = {_whole(box, letters) for box in boxes(tail) or [""]}
    else:
        stated = (match for match in STATED.finditer(tail) if match["letter"] in CAPITALS or ENDS.match(match["rest"]))
        found = {_letter(match, letters) for match in stated} or {_whole(tail, letters)}
    return found.pop() if len(found) == 1 else None


def _whole(text: str, letters: str) -> str | None:
    match = WHOLE.fullmatch(text.strip(" \t\n{}"))
    return _letter(match, letters) if match else None


def _letter(match: re.Match[str], letters: str) -> str | None:
    letter = match["letter"].upper()
    return letter if letter in letters and not _names_another(match["rest"], letter, letters) else None


def _names_another(rest: str, letter: str, letters: str) -> bool:
    joined = Joined.ADJACENT
    for word in WORD.finditer(rest):
        token = word[0]
        if len(token) == 1 and token in letters:
            standing = FOLLOWS[joined].match(rest, word.end()) and (token != "I" or ENDS.match(rest, word.end()))
            if token != letter and standing:
                return True
            if joined is Joined.ADJACENT:
                return False
        elif token.lower() in JOINS:
            joined = max(joined, JOINS[token.lower()])
        else:
            return False
    return False
