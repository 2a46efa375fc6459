"""Which part of an answer is the program.

The last closed fenced block whose text defines the entry point; else the last fenced block; else the bare answer.
A program that does not define the entry point is taken as the continuation of the prompt, where there is one.
"""

import re

FENCE = re.compile(r"```[ \t]*[\w+-]*[ \t]*\n(.*?)(?:\n```|\Z)", re.DOTALL)
MAX_CHARACTERS = 20_000


def program_of(answer: str, *, entry_point: str, prompt: str = "") -> str | None:
    """The program of an answer, whole; None where it is empty or longer than 20,000 characters."""
    body = answer.rstrip()
    blocks = FENCE.findall(body) if len(body) <= MAX_CHARACTERS else []
    defining = [block for block in blocks if defines(block, entry_point)]
    source = defining[-1] if defining else blocks[-1] if blocks else body
    if not source.strip() or len(source) > MAX_CHARACTERS:
        return None
    if not prompt:
        return source
    if defines(source, entry_point):
        return f"{preamble(prompt, entry_point)}\n{source}"
    return prompt + source if prompt.endswith("\n") else f"{prompt}\n{source}"


def defines(source: str, name: str) -> bool:
    """Whether a line of the source defines or assigns `name` at the top level."""
    return (
        re.search(rf"^(?:async\s+)?(?:def\s+{re.escape(name)}\s*\(|{re.escape(name)}\s*[=:])", source, re.MULTILINE)
        is not None
    )


def preamble(prompt: str, entry_point: str) -> str:
    """What a prompt holds before the entry point: imports and helpers."""
    match = re.search(rf"^(?:async\s+)?def\s+{re.escape(entry_point)}\s*\(", prompt, re.MULTILINE)
    return prompt[: match.start()] if match else ""
