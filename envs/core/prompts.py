"""How the rows of an environment are put to the model: the texts that `options.prompt` and `options.system` give."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from envs.core.task import Message

QUESTION = "question"
NAMES = ("prompt", "system")
"""The options that are read here."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Prompts:
    """Texts by what is asked for, with `{field}` for what a row gives, and a system message before each; empty is none."""

    texts: Mapping[str, str] = field(default_factory=dict)
    system: str = ""

    def messages(self, kind: str, usual: str, fields: Mapping[str, str]) -> tuple[Message, ...]:
        """Return the prompt of a task: the text for this kind, filled in; where there is none, the `usual` one as it stands."""
        text = self.texts.get(kind)
        system = ({"role": "system", "content": self.system},) if self.system else ()
        return (*system, {"role": "user", "content": usual if text is None else filled(text, fields)})


USUAL = Prompts()
"""The environment's own prompts."""


def filled(text: str, fields: Mapping[str, str]) -> str:
    """Return a text with each `{field}` replaced, once; other braces, as of LaTeX, stay."""
    names = "|".join(map(re.escape, fields))
    return re.sub(rf"\{{({names})\}}", lambda found: fields[found[1]], text)


def read_prompts(options: Mapping[str, Any], kinds: Mapping[str, tuple[str, ...]]) -> Prompts:
    """Return the prompts that options give; `kinds` has the fields that rows have for each kind, `question` first.

    `prompt` is a text for all kinds, or a mapping with one for each. Raise `ValueError` where a text leaves out the question
    or asks for what its rows do not have.
    """
    given, system = options.get("prompt") or {}, options.get("system") or ""
    if isinstance(given, str):
        given = dict.fromkeys(kinds, given)
    if not (isinstance(given, Mapping) and all(isinstance(text, str) for text in given.values())):
        raise ValueError(
            f"options.prompt is {given!r:.80}; it must be a text, or a text for each of {', '.join(kinds)}"
        )
    if not isinstance(system, str):
        raise ValueError(f"options.system is {system!r:.80}; it must be a text")
    for kind, text in given.items():
        if kind not in kinds:
            raise ValueError(f"options.prompt has {kind!r}; there are {', '.join(kinds)}")
        if f"{{{QUESTION}}}" not in text:
            raise ValueError(
                f"options.prompt, {kind}: {text!r:.80} has no {{{QUESTION}}}, where the row's question stands"
            )
    return Prompts(texts=given, system=system)
