"""Pairs of answers in the rows of a file: a prompt with a chosen and a rejected answer."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from temper.envs.core.messages import TRAIN, check_messages, check_tools, is_messages, read_messages, with_system
from temper.envs.core.row_fields import SUPERVISED_FIELDS, quote_value, refuse_fields
from temper.envs.core.row_format import columns_line
from temper.envs.core.task import CHAT, Message, Task
from temper.envs.core.thinking_mode import OFF, UNLIMITED
from temper.envs.data.config import DataConfig, OnError
from temper.learner.batches.pairs import Pair
from temper.orchestrator.data.chat_data import Dialogue, DialogueTokenizer, has_reasoning, without_reasoning
from temper.orchestrator.data.chat_file import (
    CONVERSATIONS,
    MESSAGES,
    PROMPT,
    SIDES,
    parse_assistant_message,
    prompt_messages,
    thinks_of,
    unread_fields,
)
from temper.orchestrator.data.row_intake import RowIntake, ShuffledRows

CONTINUED = {("system", "user"), ("user", "assistant"), ("tool", "assistant"), ("assistant", "tool")}
"""Last role of a prompt and first role of a dialogue that continues it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Preference:
    """A prompt with its chosen and its rejected answer."""

    chosen: Dialogue
    rejected: Dialogue

    def pair(self, tokenizer: DialogueTokenizer) -> Pair:
        """Return both as training samples."""
        return Pair(chosen=tokenizer.sample(self.chosen), rejected=tokenizer.sample(self.rejected))


def preference_rows(data: DataConfig, intake: RowIntake, *, on_error: OnError, seed: str) -> ShuffledRows[Preference]:
    """Read rows of data with two answers. `intake` tokenises each row once.

    If `on_error` is "raise", raise `ValueError` with place and offending value of an unusable row. Raise it if no row is
    usable.
    """

    def parse(row: dict[str, Any], number: int) -> Preference:
        preference = parse_preference(row, number, reads_reasoning=intake.reads_reasoning)
        if intake.require_fits(preference.chosen) == intake.require_fits(preference.rejected):
            raise ValueError(f"`chosen` and `rejected` are the same tokens, {quote_value(row['chosen'])}")
        intake.remark_unread(unread_fields(row, (*SIDES, MESSAGES, CONVERSATIONS, PROMPT)))
        return preference

    return intake.shuffled(data, parse, on_error=on_error, seed=seed)


def parse_preference(row: dict[str, Any], number: int, *, reads_reasoning: bool = True) -> Preference:
    """Read one row: `{"messages": [...], "chosen": "text", "rejected": "text"}`, optionally with `tools`. The prompt may be
    `prompt`, a text or messages. The answers may be dialogues with the same beginning, which is then the prompt. A separate
    prompt must be part of them, or precede them.

    Without `reads_reasoning` the tags are plain text.
    """
    refuse_fields(row, SUPERVISED_FIELDS, "the row")
    row = _parted(_named_alike(row))
    messages = tuple(with_system(_prompt(row), row))
    chosen, rejected = (_answer(row, name, reads_reasoning=reads_reasoning) for name in SIDES)
    if chosen == rejected:
        raise ValueError(f"`chosen` and `rejected` are the same answer, {quote_value(row['chosen'])}")
    reasons = {name: has_reasoning(said) for name, said in zip(SIDES, (chosen, rejected), strict=True)}
    if len(set(reasons.values())) > 1:
        have, lacks = sorted(reasons, key=lambda name: not reasons[name])
        raise ValueError(
            f"`{have}` has reasoning and `{lacks}` has none, {quote_value(row[lacks])}; both follow the same prompt, so "
            f"both or neither must have it"
        )
    thinks = thinks_of(row, (chosen,))
    task = Task(
        env=CHAT,
        key=str(number),
        messages=messages,
        spec={},
        tools=check_tools(row),
        thinking=UNLIMITED if thinks else OFF,
    )
    replies = ((said,) if thinks else without_reasoning((said,)) for said in (chosen, rejected))
    return Preference(**{name: Dialogue(task=task, reply=reply) for name, reply in zip(SIDES, replies, strict=True)})


def _named_alike(row: dict[str, Any]) -> dict[str, Any]:
    """Return a row without its null fields. ShareGPT's `conversations` are its `messages`."""
    given = {name: value for name, value in row.items() if value is not None}
    if CONVERSATIONS in given and MESSAGES not in given:
        given[MESSAGES] = given.pop(CONVERSATIONS)
    return given


def _parted(row: dict[str, Any]) -> dict[str, Any]:
    """Split dialogues into prompt and answers. Return any other row unchanged."""
    if not all(isinstance(row.get(name), list) or is_messages(row.get(name)) for name in SIDES):
        return row
    chosen, rejected = (check_messages(row, name=name) for name in SIDES)
    if chosen[:-1] != rejected[:-1]:
        raise ValueError(f"`chosen` and `rejected` are dialogues that begin differently, {quote_value(chosen[:-1])}")
    answers = {"chosen": chosen[-1], "rejected": rejected[-1]}
    head = chosen[:-1]
    if not head:
        return row | answers
    for name, given in _given(row):
        if any(_is_part(given, [*head, answer]) for answer in answers.values()):
            continue
        if (given[-1]["role"], head[0]["role"]) not in CONTINUED:
            raise ValueError(
                f"`{name}` is not the beginning of `chosen` and `rejected`, {quote_value(given)}; remove one of them"
            )
        head = [*given, *head]
    return {name: value for name, value in row.items() if name != "prompt"} | answers | {"messages": head}


def _given(row: dict[str, Any]) -> Iterator[tuple[str, list[Message]]]:
    """Yield the separate prompts of a row by name."""
    for name in ("prompt", "messages"):
        if row.get(name) and (name == MESSAGES or not isinstance(row[name], str) or row[name].strip()):
            yield name, prompt_messages(row, name)


def _is_part(some: list[Message], whole: list[Message]) -> bool:
    """Return whether messages are a contiguous part of a dialogue."""
    return any(whole[at : at + len(some)] == some for at in range(len(whole) - len(some) + 1))


def _prompt(row: dict[str, Any]) -> tuple[Message, ...]:
    """Return the prompt of a row: its `messages`, or its `prompt`. A text is the user's message."""
    asked = row.get(PROMPT)
    has_prompt = MESSAGES not in row and (isinstance(asked, list) or (isinstance(asked, str) and asked.strip()))
    if not has_prompt and MESSAGES not in row and PROMPT not in row:
        raise ValueError(
            f"the row has the fields {sorted(row)}, but needs `{PROMPT}` or `{MESSAGES}`; set "
            f"{columns_line([(PROMPT,)], row)}"
        )
    messages = prompt_messages(row, PROMPT if has_prompt else MESSAGES)
    if messages[-1]["role"] == "assistant":
        raise ValueError(f"`messages` is the prompt and must not end with the assistant's {quote_value(messages[-1])}")
    for name, given in _given(row):
        if not _is_part(given, messages):
            raise ValueError(f"`{name}` is not in `messages`, {quote_value(given)}; remove one of them")
    return tuple(messages)


def _answer(row: dict[str, Any], name: str, *, reads_reasoning: bool) -> Message:
    """Return an answer as a message. The text before the closing tag is its reasoning."""
    said = row.get(name)
    if isinstance(said, dict):
        (said,) = read_messages([said], name=name, tools=check_tools(row))
        if said.get(TRAIN) is False:
            raise ValueError(f"`{name}` is marked as untrained, but both answers of a pair are trained; unmark it")
    if isinstance(said, dict) and said["role"] == "assistant":
        return parse_assistant_message(said, reads_reasoning=reads_reasoning, name=f"`{name}`")
    if not isinstance(said, str) or not said.strip():
        raise ValueError(f"`{name}` must be an answer's text, not {quote_value(said)}")
    return parse_assistant_message(
        {"role": "assistant", "content": said}, reads_reasoning=reads_reasoning, name=f"`{name}`"
    )
