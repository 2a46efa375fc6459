"""Words, sentences and comparisons as the instructions count them. Pure; linear in the text.

A word is a run of letters, digits and underscores (`don't` is two). A bare word is the text between white space in lower
case without ASCII punctuation (`don't` is `dont`), if any is left.

A sentence ends with `.`, `!`, `?` or an ellipsis and any closing quotes and brackets, before white space or the end of the
text. A full stop does not end a sentence after a title or an abbreviation (`Dr.`, `e.g.`), or after a number that begins a
line (`1. First`). After an initial (`J. Smith`) or an abbreviation that may come last (`U.S.`) it does only before a word
such as `The`. An ellipsis before a small letter and a line break end no sentence. Text after the last end is a sentence
too. Published scores use NLTK's trained splitter, which knows other abbreviations and counts a list number as a sentence.
"""

import re
import string
from typing import Literal

Relation = Literal["less than", "at least"]
WORD = re.compile(r"\w+")
NO_PUNCTUATION = str.maketrans("", "", string.punctuation)
SENTENCE_END = re.compile(r"(?<![.!?\u2026])[.!?\u2026]++[\"'\u2019\u201d)\]*_]{0,6}(?=\s|\Z)")
LIST_NUMBER = re.compile(r"(?:\A|\n)[ \t>*#-]{0,12}\d{1,3}\Z")
BEFORE_A_WORD = re.compile(r"[\s(\"'*_-]")
OPENS = " \t\r\n\"'([*_\u2018\u201c"
LOOKED_BACK = LOOKED_AHEAD = 24
# fmt: off
ABBREVIATIONS = frozenset((
    "dr", "mr", "mrs", "ms", "prof", "st", "gen", "col", "sgt", "capt", "lt", "rev", "hon", "gov", "sen", "rep", "vs", "eg",
    "e.g", "ie", "i.e", "cf", "approx", "fig", "vol", "pp", "ed", "eds", "dept", "est",
))
FINAL_ABBREVIATIONS = frozenset((
    "etc", "al", "inc", "ltd", "corp", "co", "a.m", "p.m", "u.s", "u.k", "u.n", "ph.d", "b.c", "a.d", "jr", "sr",
))
STARTERS = frozenset((
    "A", "After", "All", "Also", "An", "And", "As", "At", "But", "By", "For", "From", "He", "Her", "His", "How", "However", "I",
    "If", "In", "It", "Its", "My", "No", "On", "Our", "She", "So", "That", "The", "Their", "Then", "There", "These", "They",
    "This", "Those", "To", "We", "What", "When", "Where", "While", "Who", "Why", "With", "Yes", "You", "Your",
))
"""Words that begin a sentence if they are capitalised."""
# fmt: on


def words(text: str) -> list[str]:
    return WORD.findall(text)


def bare_words(text: str) -> list[str]:
    return text.lower().translate(NO_PUNCTUATION).split()


def is_in_relation(count: int, number: int, relation: Relation) -> bool:
    return count < number if relation == "less than" else count >= number


def sentences(text: str) -> list[str]:
    """Return the sentences of a text, without surrounding white space."""
    found, start = [], 0
    for end in SENTENCE_END.finditer(text):
        if end[0][0] in "!?" or _ends(text, start, end):
            found.append(text[start : end.end()].strip())
            start = end.end()
    return [sentence for sentence in (*found, text[start:].strip()) if sentence]


def _ends(text: str, start: int, end: re.Match[str]) -> bool:
    """Return whether a full stop or an ellipsis ends a sentence."""
    after = text[end.end() : end.end() + LOOKED_AHEAD].lstrip(OPENS)
    if not after:
        return True
    if end[0][0] != "." or end[0][1:2] == ".":
        return not after[0].islower()
    before = text[max(start, end.start() - LOOKED_BACK) : end.start()]
    last = BEFORE_A_WORD.split(before)[-1]
    if last.lower() in ABBREVIATIONS or LIST_NUMBER.search(before):
        return False
    initial = len(last) == 1 and last.isupper()
    begins = WORD.match(after)
    return not (initial or last.lower() in FINAL_ABBREVIATIONS) or (begins is not None and begins[0] in STARTERS)
