"""The prompt texts of an environment's rows, as `options.prompt` and `options.system` set them."""

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from temper.envs.core.bounds import require_type
from temper.envs.core.task import Message

QUESTION = "question"
NAMES = ("prompt", "system")


@dataclass(frozen=True, slots=True, kw_only=True)
class Prompts:
    """Prompt texts by kind with `{field}` placeholders for row fields, and a system message, empty for none."""

    texts: Mapping[str, str] = field(default_factory=dict)
    system: str = ""

    def messages(self, kind: str, usual: str, fields: Mapping[str, str]) -> tuple[Message, ...]:
        """Return the prompt of a task: the text for this kind with its fields, or the `usual` text unchanged."""
        text = self.texts.get(kind)
        system = ({"role": "system", "content": self.system},) if self.system else ()
        return (*system, {"role": "user", "content": usual if text is None else fill_text(text, fields)})


USUAL = Prompts()


def fill_text(text: str, fields: Mapping[str, str]) -> str:
    """Return a text with each `{field}` replaced once. Other braces, such as LaTeX's, stay."""
    names = "|".join(map(re.escape, fields))
    return re.sub(rf"\{{({names})\}}", lambda found: fields[found[1]], text)


def read_prompts(options: Mapping[str, Any], kinds: Mapping[str, tuple[str, ...]]) -> Prompts:
    """Return the prompts of the options. `kinds` has the row fields of each kind, `question` first.

    `prompt` is one text for all kinds with its fields, or a mapping of kinds to texts. Raise `ValueError` if a text lacks
    the question or names an unknown field.
    """
    given, system = options.get("prompt") or {}, options.get("system") or ""
    if isinstance(given, str):
        used = _fields(given, kinds)
        given = {kind: given for kind, names in kinds.items() if used <= {*names}}
    if not (isinstance(given, Mapping) and all(isinstance(text, str) for text in given.values())):
        raise ValueError(f"options.prompt is {given!r:.80}; set a text, or a text for each of {', '.join(kinds)}")
    require_type("options.system", system, str)
    for kind, text in given.items():
        if kind not in kinds:
            raise ValueError(f"options.prompt has the unknown kind {kind!r}; use {', '.join(kinds)}")
        used = _fields(text, kinds)
        if QUESTION not in used or used - {*kinds[kind]}:
            listed = ", ".join(f"{{{name}}}" for name in kinds[kind])
            raise ValueError(
                f"options.prompt, {kind}: {text!r:.80} must contain {{{QUESTION}}}, and no other "
                f"fields than those of its rows: {listed}"
            )
    return Prompts(texts=given, system=system)


def _fields(text: str, kinds: Mapping[str, Collection[str]]) -> set[str]:
    return {name for names in kinds.values() for name in names if f"{{{name}}}" in text}
