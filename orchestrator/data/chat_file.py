"""Rows of chats as dialogues. Each is checked for messages and tools that a chat template would omit or misformat."""

from collections.abc import Sequence
from typing import Any

from temper.envs.core.messages import (
    ASSISTANT,
    FLAGS,
    SYSTEM_COLUMNS,
    TRAIN,
    USER,
    check_messages,
    check_tools,
    from_json,
    is_messages,
    with_system,
)
from temper.envs.core.row_fields import MESSAGE_FIELDS, SUPERVISED_FIELDS, is_given, quote_value, refuse_fields
from temper.envs.core.row_format import columns_line
from temper.envs.core.task import CHAT, Message, Task
from temper.envs.core.thinking_mode import LOW_EFFORT, OFF, UNLIMITED, Thinking
from temper.envs.core.turn_text import CLOSE_THINKING, OPEN_THINKING, answer_text
from temper.envs.data.config import DataConfig, OnError
from temper.orchestrator.data.chat_data import Dialogue, has_reasoning, without_reasoning
from temper.orchestrator.data.row_intake import RowIntake, ShuffledRows

EFFORTS = (None, "low", "medium", "high")
MESSAGES, CONVERSATIONS, PROMPT, COMPLETION = "messages", "conversations", "prompt", "completion"
PAIR = (PROMPT, COMPLETION)
ENABLE = "enable_thinking"
SIDES = ("chosen", "rejected")
READ = {"id", "tools", "chat_template_kwargs", "reasoning_effort", *SYSTEM_COLUMNS, *SUPERVISED_FIELDS}
"""Fields of a row that are read or refused, beside its messages."""
MESSAGE_READ = {
    *("role", "from", "content", "value", "reasoning_content", "tool_calls", "tool_call_id", "name", "id"),
    *(*FLAGS, *MESSAGE_FIELDS),
}


def parse_assistant_message(
    message: Message, *, reads_reasoning: bool, name: str = "an assistant's message"
) -> Message:
    """Return an assistant's message. Its content before the closing tag becomes its reasoning.

    Without `reads_reasoning` the tags are plain text. Raise `ValueError` for reasoning that is not opened and closed once or
    that the template would omit, and for an empty message.
    """
    text, given = message["content"], message.get("reasoning_content") or ""
    if given and not reads_reasoning:
        raise ValueError(f"the model's chat template would omit the reasoning {quote_value(given)}")
    if reads_reasoning and (_is_tagged(given) or _is_tagged(text)):
        reasoning, closed, answer = text.partition(CLOSE_THINKING)
        reasoning = reasoning.strip().removeprefix(OPEN_THINKING).strip()
        if given or not closed or _is_tagged(reasoning) or _is_tagged(answer):
            raise ValueError(
                f"the reasoning of {name} must be opened and closed once, not {quote_value(given or text)}"
            )
        message = {**message, "reasoning_content": reasoning, "content": answer_text(answer)}
    if not message["content"].strip() and not message.get("tool_calls"):
        raise ValueError(f"{name} is empty: {quote_value(message)}")
    return message


def _is_tagged(text: str) -> bool:
    return OPEN_THINKING in text or CLOSE_THINKING in text


def chat_rows(data: DataConfig, intake: RowIntake, *, on_error: OnError, seed: int) -> ShuffledRows[Dialogue]:
    """Read rows of data with `messages`. `intake` tokenises each row once.

    If `on_error` is "raise", raise `ValueError` with the place of the first unusable row.
    """

    def parse(row: dict[str, Any], number: int) -> Dialogue:
        dialogue = parse_chat(row, number, reads_reasoning=intake.reads_reasoning)
        intake.remark_unread(unread_fields(row, form_of(row)))
        intake.require_fits(dialogue)
        return dialogue

    return intake.shuffled(data, parse, on_error=on_error, seed=f"{seed}/epoch")


def parse_chat(row: dict[str, Any], number: int, *, reads_reasoning: bool = True) -> Dialogue:
    """Read one row: `messages` or ShareGPT's `conversations`, or `prompt` and `completion`, with optional `tools`.

    The prompt is the field `prompt`, or the messages before the first answer, but a first message of the assistant belongs
    to it too. Without `reads_reasoning` the tags are plain text. Raise `ValueError` for a malformed row.
    """
    refuse_fields(row, SUPERVISED_FIELDS, "the row")
    messages, start = read_dialogue(row)
    messages = [
        parse_assistant_message(message, reads_reasoning=reads_reasoning) if message["role"] == ASSISTANT else message
        for message in messages
    ]
    roles = [message["role"] for message in messages]
    if ASSISTANT not in roles[start:]:
        raise ValueError(f"the row needs an assistant's message after the prompt; its roles are {roles}")
    first = roles.index(ASSISTANT, start)
    prompt, reply = messages[:first], messages[first:]
    if not any(message["role"] == ASSISTANT and message.get(TRAIN, True) for message in reply):
        raise ValueError(
            "no answer of the row is trained, because `train`, `loss` or `weight` excludes each; remove it"
        )
    thinks = thinks_of(row, reply)
    task = Task(
        env=CHAT,
        key=str(number),
        messages=tuple(prompt),
        spec={},
        tools=check_tools(row),
        thinking=_thinking_of(row, thinks=thinks),
    )
    return Dialogue(task=task, reply=tuple(reply) if thinks else without_reasoning(reply))


def form_of(row: dict[str, Any]) -> tuple[str, ...]:
    """Return the fields with the messages of a row of chats. Raise `ValueError` with the remedy for an unknown form."""
    given = [name for name, value in row.items() if value is not None]
    for name in (MESSAGES, CONVERSATIONS):
        if name in given:
            if COMPLETION in given:
                raise ValueError(
                    f"the row has `{name}` and `{COMPLETION}`; drop one with `columns: {{unread: {name}}}`"
                )
            return (name,)
    if set(PAIR) <= set(given):
        return PAIR
    raise ValueError(
        f"the row has the fields {sorted(row)}, but needs `{MESSAGES}`, `{CONVERSATIONS}`, or `{PROMPT}` and "
        f"`{COMPLETION}`; {_remedy(row)}"
    )


def _remedy(row: dict[str, Any]) -> str:
    if all(name in row for name in SIDES):
        return "rows with `chosen` and `rejected` belong to `dpo.data`"
    if held := [name for name, value in row.items() if is_messages(value)]:
        return f"set `columns: {{{MESSAGES}: {held[0]}}}`"
    return f"set {columns_line([PAIR], row)}" + (
        ", after joining `input` to it" if is_given(row.get("input")) and "instruction" in row else ""
    )


def read_dialogue(row: dict[str, Any]) -> tuple[list[Message], int]:
    """Return the messages of a row of chats in any form, and the place from which answers are trained."""
    form = form_of(row)
    if form != PAIR:
        messages = with_system(check_messages(row, name=form[0]), row)
        return messages, 1
    if str(row.get("label")).lower() == "false":  # a text in CSV
        raise ValueError("`label` is false, so the completion is a bad one (KTO); set `filter: {label: true}`")
    if is_given(row.get("input")):
        raise ValueError("`input` of the row would be ignored; join it to `prompt`, or set `columns: {unread: input}`")
    prompt = with_system(prompt_messages(row, PROMPT), row)
    if prompt[-1]["role"] == ASSISTANT:
        raise ValueError(f"`{PROMPT}` must not end with the assistant's {quote_value(prompt[-1])}")
    return [*prompt, *_completion(row)], len(prompt)


def all_messages(row: dict[str, Any]) -> list[Message]:
    """Return the messages of a row of chats, or the prompt of a row of pairs."""
    if all(name in row for name in SIDES):
        name = next((name for name in (MESSAGES, CONVERSATIONS, PROMPT) if row.get(name) is not None), SIDES[0])
        return prompt_messages(row, name)
    return read_dialogue(row)[0]


def prompt_messages(row: dict[str, Any], name: str) -> list[Message]:
    """Return the messages of a prompt. A text is the user's message."""
    asked = row.get(name)
    if name == PROMPT and isinstance(asked, str) and asked.strip() and not is_messages(asked):
        return [{"role": USER, "content": asked}]
    return check_messages(row, name=name)


def _completion(row: dict[str, Any]) -> list[Message]:
    said = row[COMPLETION]
    if isinstance(said, str) and not is_messages(said):
        return [{"role": ASSISTANT, "content": said}]
    return check_messages({**row, COMPLETION: [said]} if isinstance(said, dict) else row, name=COMPLETION)


def thinks_of(row: dict[str, Any], reply: Sequence[Message]) -> bool:
    """Return whether a row's answers think: by its `chat_template_kwargs`, otherwise if one has reasoning.

    Raise `ValueError` for other variables of the template, and if reasoning is asked for but missing.
    """
    given = row.get("chat_template_kwargs")
    kwargs = from_json(given) if is_given(given) else {}
    if not isinstance(kwargs, dict):
        raise ValueError(f"`chat_template_kwargs` must be an object, not {quote_value(given)}")
    others = [name for name, value in kwargs.items() if name != ENABLE and is_given(value)]
    if others:
        raise ValueError(
            f"`chat_template_kwargs.{others[0]}` of the row would be ignored; only `{ENABLE}` is read, so write other "
            f"text into a message"
        )
    asked, has = kwargs.get(ENABLE), any(map(has_reasoning, reply))
    if not isinstance(asked, bool | None):
        raise ValueError(f"`chat_template_kwargs.{ENABLE}` must be true or false, not {quote_value(asked)}")
    if asked and not has:
        raise ValueError(f"`chat_template_kwargs.{ENABLE}` is true, but no answer has reasoning; add it or set false")
    return has if asked is None else asked


def unread_fields(row: dict[str, Any], form: Sequence[str]) -> set[str]:
    """Return the fields of a row and of its messages that nothing reads."""
    extra = {name for name, value in row.items() if is_given(value) and name not in READ and name not in form}
    messages = (message for name in form if isinstance(row.get(name), list) for message in row[name])
    inner = {f"{form[0]}.{name}" for one in messages if isinstance(one, dict) for name in one if is_given(one[name])}
    return extra | {name for name in inner if name.partition(".")[2] not in MESSAGE_READ}


def _thinking_of(row: dict[str, Any], *, thinks: bool) -> Thinking:
    effort = row.get("reasoning_effort")
    if effort not in EFFORTS:
        raise ValueError(f"`reasoning_effort` is {quote_value(effort)}; it must be one of {', '.join(EFFORTS[1:])}")
    if not thinks:
        return OFF
    return LOW_EFFORT if effort == "low" else UNLIMITED
