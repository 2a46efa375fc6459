"""Rows of chats as dialogues."""

from typing import Any

from temper.envs.core.env_ref import CHAT
from temper.envs.core.task import Message, Task
from temper.envs.core.thinking_mode import LOW_EFFORT, OFF, UNLIMITED, Thinking
from temper.envs.data.config import DataConfig, OnError
from temper.orchestrator.data.chat_data import Dialogue
from temper.orchestrator.data.chat_messages import checked_messages, checked_tools, shown, spoken
from temper.orchestrator.data.row_intake import RowIntake
from temper.orchestrator.data.sft import in_rounds

EFFORTS = (None, "low", "medium", "high")


class ChatFile:
    """Rows of data with `messages`, shuffled anew in each epoch; `counts` says what became of those that were read at once.

    Every row is tokenised by `intake` when it is read. Raises `ValueError` with its place for the first one that can't be
    trained on where `on_error` is "raise".
    """

    def __init__(self, data: DataConfig, intake: RowIntake, *, on_error: OnError, rounds: int = 1, seed: int) -> None:
        def parse(row: dict[str, Any], number: int) -> Dialogue:
            dialogue = parse_chat(row, number, thoughts=intake.knows_thoughts)
            intake.require_fits(in_rounds(dialogue, rounds))
            return dialogue

        self._row, self.counts = intake.shuffled(data, parse, on_error=on_error, seed=f"{seed}/epoch")

    def dialogue(self, index: int) -> Dialogue:
        """Return the dialogue at a position, epoch after epoch."""
        return self._row(index)


def parse_chat(row: dict[str, Any], number: int, *, thoughts: bool = True) -> Dialogue:
    """Read one row: `{"messages": [...], "tools": [...]}`; everything before the first answer is the prompt.

    An assistant's message at the very beginning is a part of the prompt. `thoughts` says whether the model knows the tags
    of a thought. Raise `ValueError` for a malformed row.
    """
    messages = [
        spoken(message, thoughts=thoughts) if message["role"] == "assistant" else message
        for message in checked_messages(row)
    ]
    roles = [message["role"] for message in messages]
    if "assistant" not in roles[1:]:
        raise ValueError(f"`messages` needs an assistant's message after the prompt; its roles are {roles}")
    first = roles.index("assistant", 1)
    task = Task(
        env=CHAT,
        key=str(number),
        messages=tuple(messages[:first]),
        spec={},
        tools=checked_tools(row),
        thinking=_thinking_of(row, messages[first:]),
    )
    return Dialogue(task=task, reply=tuple(messages[first:]))


def _thinking_of(row: dict[str, Any], reply: list[Message]) -> Thinking:
    effort = row.get("reasoning_effort")
    if effort not in EFFORTS:
        raise ValueError(f"`reasoning_effort` is {shown(effort)}; it must be one of {', '.join(EFFORTS[1:])}")
    if not any(message.get("reasoning_content") for message in reply):
        return OFF
    return LOW_EFFORT if effort == "low" else UNLIMITED
