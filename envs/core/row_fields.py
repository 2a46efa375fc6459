"""Fields that other projects obey and Temper does not. A row that sets one is refused, so that nothing is dropped silently."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

MAX_SHOWN = 80
"""Characters of an offending value in a message."""
MEDIA = ("image", "images", "audio", "audios", "video", "videos")


@dataclass(frozen=True, slots=True, kw_only=True)
class ForeignField:
    """The remedy for a field that Temper does not obey."""

    remedy: str
    harmless: tuple[Any, ...] = ()
    """Values that ask for the usual behaviour."""


def _unread(why: str, *harmless: Any) -> ForeignField:
    return ForeignField(remedy=f"{why}, or drop the column with `columns: {{unread: NAME}}`", harmless=harmless)


def _use(remedy: str, *harmless: Any) -> ForeignField:
    return ForeignField(remedy=remedy, harmless=harmless)


_TEXT_ONLY = "only text is trained; remove such rows"
_ONLY_ANSWERS = "only the assistant's messages are trained; set `train: false` in a message to leave it out"
_OF_REASONING = "use `reasoning_content` for reasoning"
MESSAGE_FIELDS = {
    **dict.fromkeys(MEDIA, _use(_TEXT_ONLY)),
    **dict.fromkeys(("reasoning", "thinking"), _use(_OF_REASONING)),
    **dict.fromkeys(("mask", "train_detail"), _use(_ONLY_ANSWERS)),
    "function_call": _use("use `tool_calls` for calls"),
    "refusal": _use("write it as `content`"),
    **dict.fromkeys(("prefix", "prefill"), _use("write the whole answer as one message", False)),
}
"""Refused fields of a message. `envs/core/messages.py` reads the flags of trained messages."""
PROMPT_FIELDS = {
    **dict.fromkeys(MEDIA, _unread(_TEXT_ONLY)),
    "chat_template_kwargs": _unread("set `envs.NAME.thinking`"),
}
"""Refused columns of the rows of environments. A reward function may use all others."""
SUPERVISED_FIELDS = {
    **dict.fromkeys(MEDIA, _unread(_TEXT_ONLY)),
    **dict.fromkeys(("mask", "loss_mask", "assistant_masks", "completion_mask"), _unread(_ONLY_ANSWERS)),
    **dict.fromkeys(("train_on_input", "train_on_inputs", "train_on_prompt"), _unread(_ONLY_ANSWERS, False)),
    "functions": _use("use `tools`: `columns: {tools: functions}`"),
    "tool_choice": _unread("write the request into a message", "auto"),
    "documents": _unread("write them into a message"),
    **dict.fromkeys(
        ("weight", "loss_weight", "sample_weight"), _unread("repeat rows, or remove them with `filter`", 1)
    ),
    "enable_thinking": _use("use `chat_template_kwargs: {enable_thinking: ...}`"),
}
"""Refused columns of rows of chats and of pairs."""


def refuse_fields(given: Mapping[str, Any], fields: Mapping[str, ForeignField], what: str) -> None:
    """Raise `ValueError` with the remedy if a row or message sets one of the fields to a value that matters."""
    for name, value in given.items():
        known = fields.get(name) if is_given(value) else None
        if known is not None and value not in known.harmless:
            remedy = known.remedy.replace("NAME}", f"{name}}}")
            raise ValueError(f"`{name}` of {what} is {quote_value(value)}, which would be ignored: {remedy}")


def is_given(value: Any) -> bool:
    """Return whether a value is more than the null or empty one that tables write for a missing field."""
    if isinstance(value, dict):
        return any(is_given(inner) for inner in value.values())
    if isinstance(value, list):
        return any(is_given(inner) for inner in value)
    return value is not None and value != ""


class NotedRow(dict[str, Any]):
    """A row that adds the names of the fields that are read to a set. A copy reads all."""

    def __init__(self, row: Mapping[str, Any], read: set[str]) -> None:
        super().__init__(row)
        self._read = read

    def __getitem__(self, name: str) -> Any:
        self._read.add(name)
        return super().__getitem__(name)

    def get(self, name: str, default: Any = None) -> Any:
        self._read.add(name)
        return super().get(name, default)

    def __iter__(self) -> Iterator[str]:  # without it, dict() would copy values unseen
        return super().__iter__()

    def items(self) -> Any:
        self._read.update(self.keys())
        return super().items()


def unread_counts(fields: Mapping[str, int]) -> dict[str, int]:
    """Return the counts of rows by the fields that are not read, those of equal counts together."""
    names: dict[int, list[str]] = {}
    for name in sorted(fields, key=lambda name: (-fields[name], name)):
        names.setdefault(fields[name], []).append(name)
    return {f"have fields that are not read ({', '.join(listed)})": count for count, listed in names.items()}


def quote_value(value: Any) -> str:
    """Return the beginning of an offending value as JSON: `null`, `NaN`, `""`."""
    text = json.dumps(value, default=repr, ensure_ascii=False).encode(errors="backslashreplace").decode()
    return text if len(text) <= MAX_SHOWN else f"{text[:MAX_SHOWN]}..."
