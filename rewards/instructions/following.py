"""Strict and loose instruction following (Zhou et al., Instruction-Following Evaluation for Large Language Models, 2023,
arXiv 2311.07911, section 2.3).

The strict check uses the response unchanged. The loose check accepts any of eight forms: without the first line, the last
line or both (an introduction, a closing), each with and without asterisks (Markdown emphasis).
"""

from collections.abc import Sequence
from dataclasses import dataclass

from temper.rewards.instructions.rules import Instruction

MAX_CHARACTERS = 100_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Following:
    """Whether the response follows each instruction, in the order of the prompt."""

    strict: tuple[bool, ...]
    loose: tuple[bool, ...]


def check_following(text: str, instructions: Sequence[Instruction]) -> Following:
    if len(text) > MAX_CHARACTERS:
        return Following(strict=(False,) * len(instructions), loose=(False,) * len(instructions))
    forms = loose_forms(text)
    return Following(
        strict=tuple(one.is_followed_by(text) for one in instructions),
        loose=tuple(any(one.is_followed_by(form) for form in forms) for one in instructions),
    )


def loose_forms(text: str) -> tuple[str, ...]:
    """Return the distinct forms of a response, itself first."""
    lines = text.split("\n")
    cut = (lines[1:], lines[:-1], lines[1:-1])
    forms = (text, *("\n".join(part).strip() for part in cut))
    return tuple(dict.fromkeys((*forms, *(form.replace("*", "") for form in forms))))
