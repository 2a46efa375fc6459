"""The outputs of a row, which the agent must state, in the agent's text."""

import re

from temper.envs.core.task import Task

MANY_NUMBERS = 20
"""Distinct numbers that an agent may write besides the outputs. More count as guesses."""
LIST_MARK = re.compile(r"^[ \t]*(?:[-*][ \t]+)?\d{1,3}[.)][ \t]+(?=\S)", re.MULTILINE)
THOUSANDS = re.compile(r"(?<=\d),(?=\d{3}(?!\d))")
NUMBER = re.compile(r"(?<![\w#.])\d{1,6}(?:\.\d+)?(?!\w|\.\d)")
"""Amounts and counts, but no ids of orders and items, which are longer or have a mark."""


def contains_output(text: str, output: str, *, part: bool = False) -> bool:
    """Return whether a text contains an output as whole words and numbers, ignoring commas, white space and case.

    With `part` any substring counts, as in tau-bench.
    """
    if part:
        return output.replace(",", "").lower() in text.replace(",", "").lower()
    return re.search(rf"(?<![\w.]){re.escape(_plain(output))}(?!\w|\.\d)", _plain(text)) is not None


def takes_parts(task: Task) -> bool:
    return task.env.options.get("outputs") == "part"


def outputs_in(text: str, outputs: list[str], *, part: bool = False) -> list[str]:
    """Return the outputs that a text contains. None with a digit counts if it has `MANY_NUMBERS` more numbers than
    outputs.
    """
    text = text if part else LIST_MARK.sub("", text)
    guessed = not part and len({*NUMBER.findall(_plain(text))}) > MANY_NUMBERS + len(outputs)
    return [
        output
        for output in outputs
        if contains_output(text, output, part=part) and not (guessed and re.search(r"\d", output))
    ]


def _plain(text: str) -> str:
    return " ".join(THOUSANDS.sub("", text).replace(",", " ").lower().split())
