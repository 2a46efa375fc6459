"""IFEval's instructions on form: contents, format, beginning and end, letter case, commas (Zhou et al.,
Instruction-Following Evaluation for Large Language Models, 2023, arXiv 2311.07911, table 1). Edge cases follow its
published checker.

Whether a text in capitals or small letters is English is not checked. That would need a language detector.
"""

import json
import re

ANSWERS = ("My answer is yes.", "My answer is no.", "My answer is maybe.")
POSTSCRIPTS = {"P.P.S": re.compile(r"p\.\s?p\.\s?s"), "P.S.": re.compile(r"p\.\s?s\.")}
HIGHLIGHTED = re.compile(r"\*[^\n*]*\*")
BOLD = re.compile(r"\*\*([^\n*]*)\*\*")
RESPONSES = "******"
JSON_FENCES = ("```json", "```Json", "```JSON", "```")


def number_placeholders(text: str, *, num_placeholders: int) -> bool:
    """Return whether there are at least so many `[...]` within a line. An empty one counts, a nested one does not."""
    found = sum("[" in part for line in text.split("\n") for part in line.split("]")[:-1])
    return found >= num_placeholders


def postscript(text: str, *, postscript_marker: str) -> bool:
    """Return whether the postscript marker occurs anywhere, in any case. `P. S.` is `P.S.`."""
    marker = postscript_marker.strip()
    known = POSTSCRIPTS.get(marker)
    return known.search(text.lower()) is not None if known else marker.lower() in text.lower()


def number_bullet_lists(text: str, *, num_bullets: int) -> bool:
    """Return whether exactly so many lines begin with `-`, or with a single `*`. A rule `---` counts."""
    lines = [line.lstrip() for line in text.split("\n")]
    return (
        sum(line.startswith("-") or (line[:1] == "*" and line[1:2] not in ("", "*")) for line in lines) == num_bullets
    )


def constrained_response(text: str) -> bool:
    return any(answer in text for answer in ANSWERS)


def number_highlighted_sections(text: str, *, num_highlights: int) -> bool:
    """Return whether at least so many sections between `*` or `**` lie within a line and are not empty."""
    italic = sum(bool(part.strip("*").strip()) for part in HIGHLIGHTED.findall(text))
    return italic + sum(bool(part.strip()) for part in BOLD.findall(text)) >= num_highlights


def multiple_sections(text: str, *, section_spliter: str, num_sections: int) -> bool:
    """Return whether the section word, in this case, precedes a number at least so many times."""
    return len(re.findall(rf"{re.escape(section_spliter.strip())}\s?\d+", text)) >= num_sections


def json_format(text: str) -> bool:
    """Return whether the whole text, without a code fence, is JSON by Python's parser (`NaN` included)."""
    text = text.strip()
    for fence in JSON_FENCES:
        text = text.removeprefix(fence)
    try:
        json.loads(text.removesuffix("```").strip())
    except (ValueError, RecursionError):
        return False
    return True


def title(text: str) -> bool:
    """Return whether there is a nonempty title in double angular brackets within a line."""
    return any(_title(line) for line in text.split("\n"))


def _title(line: str) -> str:
    start, end = line.find("<<"), line.rfind(">>")
    return line[start : end + 2].lstrip("<").rstrip(">").strip() if 0 <= start < end - 2 else ""


def two_responses(text: str) -> bool:
    """Return whether `******` divides the text into two different responses. The first and the last part may be empty."""
    parts = [part.strip() for part in text.split(RESPONSES)]
    if not all(parts[1:-1]):
        return False
    responses = [part for part in parts if part]
    return len(responses) == 2 and responses[0] != responses[1]


def repeat_prompt(text: str, *, prompt_to_repeat: str) -> bool:
    return text.strip().lower().startswith(prompt_to_repeat.strip().lower())


def end_checker(text: str, *, end_phrase: str) -> bool:
    """Return whether the text ends with the phrase, in any case. Double quotes around the text are ignored."""
    return text.strip().strip('"').lower().endswith(end_phrase.strip().lower())


def quotation(text: str) -> bool:
    text = text.strip()
    return len(text) > 1 and text[0] == text[-1] == '"'


def english_capital(text: str) -> bool:
    return text.isupper()


def english_lowercase(text: str) -> bool:
    return text.islower()


def no_comma(text: str) -> bool:
    return "," not in text
