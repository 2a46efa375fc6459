r"""Extract the chosen letter of a multiple-choice answer. Pure; bounded on any text.

The first form that occurs decides, as `rewards.answers` lists them. If it names two different letters, the text chooses
none:

1. Tags and boxes: a letter, alone or followed by its text (`\boxed{B}`, `\boxed{B. Paris}`, `\boxed{\text{(B)}}`).
2. Statements: a letter after `Answer:`, `the answer is`, `choice` or `option`. A small letter or an `I` counts only at the
   end of a line or sentence, since `a` is an article and `I` a word.
3. Sentences: `B is correct`, `choose B`.
4. The whole text: a letter alone, or a letter with `.`, `,`, `)`, `:`, ` - ` or ` (` before the rest of the only line (`B)
   Paris`), but no copy of all choices on one line.

A line names another letter if it continues as a list (`A. B. C.`, `A, B`) or in doubt (`A or B`, `A but could be B`). An
explanation (`B. A is too small`, `B, not A`) or the text of a choice (`B. Vitamin C`) names no other letter.

A letter may be in brackets, in bold and after `option` or `choice`. The text of a choice without its letter chooses
nothing, and neither does a letter beyond the last choice. Only the last 20,000 characters are read.
"""

import re
from enum import IntEnum

from temper.rewards.answers import BOX, SEARCHED_TAIL, TAGGED, boxes, find_confirmations, find_statements
from temper.rewards.plain_numbers import TEXT_MACRO, to_readable

LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
CAPITALS = frozenset(LETTERS) - {"I"}
"""Letters that are not words."""
SPACING = re.compile(r"\\[,;: ]|~")
LEAD = r"[\s*_`$(\[\"']{0,6}(?:(?i:option|choice)[\s*_`$(\[]{1,6})?"
TAIL = r"[*_`$)\]\"']{0,6}"
STATED = re.compile(rf"{LEAD}(?P<letter>[A-Za-z])(?![\w'])(?P<rest>[^\n]*)")
WHOLE = re.compile(
    rf"{LEAD}(?P<letter>[A-Za-z])(?P<rest>{TAIL}(?:[.,):]{TAIL}(?:\s[^\n]*)?|\s+(?:[-\u2014]\s|\()[^\n]*)?)\s*"
)
ENDS = re.compile(rf"{TAIL}(?:[.),:;!](?:\s|\Z)|\s*\Z)")
LABEL = re.compile(r"(?<!\w)\(?([A-Z])[*_`]{0,3}[.):]")
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
    tail = SPACING.sub(" ", TEXT_MACRO.sub(r"\1", to_readable(text[-SEARCHED_TAIL:])))
    if tagged := TAGGED.findall(tail):
        found = {chosen_letter(one, count=count) for one in tagged}
    else:
        found = _letters(tail, LETTERS[:count])
    return found.pop() if len(found) == 1 else None


def _letters(text: str, letters: str) -> set[str | None]:
    """Return the letters of the first form that occurs. An occurrence that names several choices or none gives None."""
    if BOX.search(text):
        return {_whole(box, letters) for box in boxes(text) or [""]}
    stated = (match for rest in find_statements(text, letters=True) if (match := STATED.match(rest)))
    named = {_letter(match, letters) for match in stated if match["letter"] in CAPITALS or ENDS.match(match["rest"])}
    return named or {_whole(one, letters) for one in find_confirmations(text)} - {None} or {_whole(text, letters)}


def _whole(text: str, letters: str) -> str | None:
    match = WHOLE.fullmatch(text.strip(" \t\n{}"))
    return _letter(match, letters) if match else None


def _letter(match: re.Match[str], letters: str) -> str | None:
    letter = match["letter"].upper()
    is_copy = [letter, *LABEL.findall(match["rest"])] == [*letters]
    return None if is_copy or letter not in letters or _names_another(match["rest"], letter, letters) else letter


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
