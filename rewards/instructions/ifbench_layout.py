"""IFBench's instructions on form, and its single tasks (Pyatkin et al., Generalizing Verifiable Instruction Following,
2025, arXiv 2507.02833, appendix).
"""

import csv
import io
import re
import string
from datetime import date
from itertools import pairwise

from temper.rewards.instructions.text_units import NO_PUNCTUATION, sentences

CLOSED_BY = {"(": ")", "[": "]", "{": "}"}
NESTED_BRACKETS, NESTED_QUOTES = 5, 3
LETTERS = re.compile(r"\W*[aA]\W*[bB]\W*[cC]\W*")
TEMPLATE = ("My Answer:", "My Conclusion:", "Future Outlook:")
CITIES = ["ID", "Country", "City", "Year", "Count"]
GRADES = ["StudentID", "Subject", "Grade", "Semester", "Score"]
NAPOLEON = range(1769, 1822)


def parentheses(text: str) -> bool:
    """Return whether round, square and curly brackets are nested five deep and the innermost is closed by its own kind."""
    opened: list[str] = []
    deepest = 0
    for char in text:
        if char in CLOSED_BY:
            opened.append(CLOSED_BY[char])
            deepest = max(deepest, len(opened))
        elif char in ")]}":
            if not opened or opened.pop() != char:
                opened, deepest = [], 0
            elif deepest >= NESTED_BRACKETS:
                return True
    return False


def quotes(text: str) -> bool:
    """Return whether straight double and single quotes are nested three deep, alternating, and closed again."""
    opened: list[str] = []
    deepest = 0
    for char in text:
        if opened and char == opened[-1]:
            opened.pop()
            if deepest - len(opened) >= NESTED_QUOTES:
                return True
        elif char in "\"'":
            opened.append(char)
            deepest = max(deepest, len(opened))
    return False


def options(text: str, *, options: str) -> bool:
    """Return whether the text is one of the options, separated by `/`, otherwise `or`, otherwise commas.

    Letters (`a), b), c)`) must match exactly. Other options match in any case and without surrounding punctuation.
    """
    divider = next((divider for divider in ("/", "or") if divider in options), ",")
    known = [option.strip() for option in options.split(divider)]
    if LETTERS.match(options):
        return text.strip() in known
    around = string.punctuation + string.whitespace
    return text.strip(around).lower() in {option.strip(around).lower() for option in known}


def newline(text: str) -> bool:
    """Return whether each line has one word. Empty lines and ASCII punctuation are ignored."""
    return all(len(line.split()) <= 1 for line in text.translate(NO_PUNCTUATION).split("\n"))


def line_indent(text: str) -> bool:
    """Return whether each line that is not empty is indented by more spaces than the previous one."""
    indents = [len(line) - len(line.lstrip(" ")) for line in text.split("\n") if line.strip()]
    return all(before < after for before, after in pairwise(indents))


def quote_unquote(text: str) -> bool:
    """Return whether no quoted phrase directly follows another or ends the text. Final digits and punctuation are ignored."""
    plain = "".join(text.replace("\u201c", '"').replace("\u201d", '"').replace("'\"'", "").split())
    return '""' not in plain and not plain.strip(string.digits + string.punctuation.replace('"', "")).endswith('"')


def list_marker(text: str, *, sep: str) -> bool:
    return text.count(sep) >= 2


def thesis(text: str) -> bool:
    """Return whether the text has HTML italics (`<i>` or `<em>`) with other text after them."""
    found = re.search(r"<(?:i|em)>", text)
    closed = re.compile(r"</(?:i|em)>").search(text, found.end()) if found else None
    return bool(found and closed and text[found.end() : closed.start()].strip() and text[closed.end() :].strip())


def sub_bullets(text: str) -> bool:
    return all("-" in part for part in text.split("*")[1:])


def no_bullets_bullets(text: str) -> bool:
    """Return whether at least two sentences come first, then at least two lines that all begin with `*`."""
    lines = [line.strip() for line in text.strip().split("\n")]
    bullets = [index for index, line in enumerate(lines) if line.startswith("*")]
    if len(bullets) < 2 or bullets != list(range(bullets[0], len(lines))):
        return False
    return sum(len(sentences(line)) for line in lines[: bullets[0]]) >= 2


def title_case(text: str) -> bool:
    """Return whether each word that begins with a letter is capitalised. Mixed words such as `iPhone` are exempt."""
    found = re.findall(r"\w+(?:['\u2019-]\w+)*", text)
    return not any(
        word[0].islower() and (len(word) == 1 or word[1:] in (word[1:].lower(), word[1:].upper())) for word in found
    )


def output_template(text: str) -> bool:
    return all(label in text for label in TEMPLATE)


def no_whitespace(text: str) -> bool:
    return not any(map(str.isspace, text))


def multiples(text: str) -> bool:
    """Return whether the numbers are exactly the multiples of 7 from 14 to 49, in order."""
    return re.findall(r"\d+", text) == [str(number) for number in range(14, 51, 7)]


def character_reverse(text: str) -> bool:
    return "elgae dlab" in text.lower()


def csv_city(text: str) -> bool:
    """Return whether the text is CSV with the required columns and seven rows."""
    rows = _csv(text, ",")
    return len(rows) == 8 and rows[0] == CITIES and all(len(row) == len(CITIES) for row in rows)


def csv_quotes(text: str) -> bool:
    """Return whether the text is tab-separated with the required columns and three rows, each field in double quotes."""
    rows = [line.split("\t") for line in text.strip().split("\n")]
    quoted = all(len(field) > 1 and field[0] == field[-1] == '"' for row in rows[1:] for field in map(str.strip, row))
    return len(rows) == 4 and [name.strip(' "\r') for name in rows[0]] == GRADES and quoted and {*map(len, rows)} == {5}


def _csv(text: str, delimiter: str) -> list[list[str]]:
    try:
        return list(csv.reader(io.StringIO(text.strip()), delimiter=delimiter))
    except csv.Error:
        return []


def date_format_list(text: str) -> bool:
    """Return whether the text is a comma-separated list of dates as YYYY-MM-DD, all within Napoleon's life."""
    return all(_is_date(part.strip()) for part in text.split(","))


def _is_date(text: str) -> bool:
    try:
        return bool(re.fullmatch(r"\d{4}-\d\d-\d\d", text, re.ASCII)) and date.fromisoformat(text).year in NAPOLEON
    except ValueError:
        return False
