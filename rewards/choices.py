"""Which of the lettered choices a text chooses. Pure; bounded on any text.

The first of these that the text has decides, and a text in which that names two different letters chooses nothing:

1. boxes, `\\boxed{B}`: a letter, or a letter with its text behind it (`\\boxed{B. Paris}`, `\\boxed{\\text{(B)}}`). The last
   box must be closed.
2. statements: a letter behind `Answer:` or `the answer is`, or so behind `choice` or `option`. A small letter or an `I` is one
   only where the line or the sentence ends behind it, since `a` is an article and `I` a word.
3. the whole text: a letter alone, or a letter with `.`, `,`, `)`, `:`, ` - ` or ` (` in front of the rest of the only line
   (`B) Paris`).

Another letter is named where the line goes on to it as a list does (`A. B. C.`, `A, B`) or in doubt (`A or B`, `A but could be
B`); in an explanation (`B. A is too small`, `B, not A`) and in the text of a choice (`B. Vitamin C`) it is not.

A letter may stand in brackets, in bold and behind `option` or `choice`. The text of a choice without its letter chooses
nothing: letters are what was asked for. Nor does a letter beyond the last choice. Only the last 20,000 characters are read.
"""

import re
from enum import IntEnum

from temper.rewards.answers import BOX, SEARCHED_TAIL, boxes
from temper.rewards.plain_numbers import TEXT_MACRO, readable

LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
CAPITALS = frozenset(LETTERS) - {"I"}
"""Letters that are no words."""
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
    """How a letter and what stands behind it are joined, and what must follow another letter for it to be named."""

    BESIDE = 0
    """By nothing, or by what may end a sentence: the line must end behind the other letter, or go on to one more."""
    LISTED = 1
    """As in a list: no small word may follow, with which an explanation would begin."""
    DOUBTED = 2
    """As what is chosen between: anything may follow."""


WORDS = {
    Joined.BESIDE: ". : ) ( ] [ * _ ` $ \" ' - \u2014 it be is either both even rather option choice",
    Joined.LISTED: "and also but , ;",
    Joined.DOUBTED: "or / & | maybe perhaps possibly could might may alternatively",
}
JOINS = {word: joined for joined, words in WORDS.items() for word in words.split()}
FOLLOWS = {
    Joined.BESIDE: re.compile(rf"[.):]?{TAIL}(?:\s*\Z|\s+{LEAD}[A-Z](?![\w'+#]))"),
    Joined.LISTED: re.compile(r"(?![+#]|\s+[a-z])"),
    Joined.DOUBTED: re.compile(r""),
}


def chosen(text: str, *, count: int) -> str | None:
    """Return the letter that a text chooses among the first `count`; None where it chooses none, or several."""
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
    joined = Joined.BESIDE
    for word in WORD.finditer(rest):
        said = word[0]
        if len(said) == 1 and said in letters:
            standing = FOLLOWS[joined].match(rest, word.end()) and (said != "I" or ENDS.match(rest, word.end()))
            if said != letter and standing:
                return True
            if joined is Joined.BESIDE:
                return False
        elif said.lower() in JOINS:
            joined = max(joined, JOINS[said.lower()])
        else:
            return False
    return False
