"""How the rows of an environment are put to the model: the texts that `options.prompt` and `options.system` give."""

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from temper.envs.core.task import Message

QUESTION = "question"
NAMES = ("prompt", "system")


@dataclass(frozen=True, slots=True, kw_only=True)
class Prompts:
    """Texts by what is asked for, with `{field}` for what a row gives, and a system message before each; empty is none."""

    texts: Mapping[str, str] = field(default_factory=dict)
    system: str = ""

    def messages(self, kind: str, usual: str, fields: Mapping[str, str]) -> tuple[Message, ...]:
        """Return the prompt of a task: the text for this kind, filled in; if there is none, the `usual` one as it stands."""
        text = self.texts.get(kind)
        system = ({"role": "system", "content": self.system},) if self.system else ()
        return (*system, {"role": "user", "content": usual if text is None else filled(text, fields)})


USUAL = Prompts()


def filled(text: str, fields: Mapping[str, str]) -> str:
    """Return a text with each `{field}` replaced, once; other braces, as of LaTeX, stay."""
    names = "|".join(map(re.escape, fields))
    return re.sub(rf"\{{({names})\}}", lambda found: fields[found[1]], text)


def read_prompts(options: Mapping[str, Any], kinds: Mapping[str, tuple[str, ...]]) -> Prompts:
    """Return the prompts that options give; `kinds` has the fields that rows have for each kind, `question` first.

    `prompt` is a text for all kinds whose rows have its fields, or a mapping with one for each. Raise `ValueError` if a
    text leaves out the question or names what its rows do not have.
    """
    given, system = options.get("prompt") or {}, options.get("system") or ""
    if isinstance(given, str):
        used = _fields(given, kinds)
        given = {kind: given for kind, names in kinds.items() if used <= {*names}}
    if not (isinstance(given, Mapping) and all(isinstance(text, str) for text in given.values())):
        raise ValueError(
            f"options.prompt is {given!r:.80}; it must be a text, or a text for each of {', '.join(kinds)}"
        )
    if not isinstance(system, str):
        raise ValueError(f"options.system is {system!r:.80}; it must be a text")
    for kind, text in given.items():
        if kind not in kinds:
            raise ValueError(f"options.prompt has {kind!r}; there are {', '.join(kinds)}")
        used = _fields(text, kinds)
        if QUESTION not in used or used - {*kinds[kind]}:
            listed = ", ".join(f"{{{name}}}" for name in kinds[kind])
            raise ValueError(
                f"options.prompt, {kind}: {text!r:.80} must have {{{QUESTION}}}, where the row's question stands, and of the "
                f"others those of its rows: {listed}"
            )
    return Prompts(texts=given, system=system)


def _fields(text: str, kinds: Mapping[str, Collection[str]]) -> set[str]:
    return {name for names in kinds.values() for name in names if f"{{{name}}}" in text}
