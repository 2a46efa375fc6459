"""Dialogues to learn from: the experts of the environments, or the rows of a chat file."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from envs.catalog import environment
from envs.rows import read_rows
from envs.task import Message, Task
from envs.thinking import LOW_EFFORT, OFF, UNLIMITED, Thinking
from orchestrator.epochs import Epochs
from orchestrator.mixture import Draw, Mixture


@dataclass(frozen=True, slots=True, kw_only=True)
class Dialogue:
    """A prompt and the messages that follow it, assistant's and others' in turn."""

    task: Task
    reply: tuple[Message, ...]


class Demonstrations:
    """Expert dialogues of the environments' generated tasks, in the mixture's shares."""

    def __init__(self, mixture: Mixture) -> None:
        self._mixture = mixture
        self._draws: list[Draw] = []
        for name in mixture.state():
            task = mixture.task(Draw(env=name, index=0))
            demonstrate, why = environment(task.kind).demonstrate, ""
            try:
                has = demonstrate is not None and bool(demonstrate(task))
            except ValueError as error:  # with these options it has none
                has, why = False, f" ({error})"
            if not has:
                raise ValueError(
                    f"environment {name!r} has no demonstrations{why}; set sft.data to a chat file, or sft.shares.{name}=0"
                )

    def dialogue(self, index: int) -> Dialogue:
        """The dialogue at a position of the mixture's order."""
        while len(self._draws) <= index:
            self._draws.append(self._mixture.draw())
        task = self._mixture.task(self._draws[index])
        if task.fault:
            raise ValueError(f"environment {task.env!r} has no demonstration here: {task.fault}")
        demonstrate = environment(task.kind).demonstrate
        assert demonstrate is not None
        return Dialogue(task=task, reply=tuple(demonstrate(task)))


class ChatFile:
    """The rows of a JSONL file with `messages`, shuffled anew in each epoch.

    `skipped` counts the malformed rows. Raises `ValueError` with file and line for the first one where `on_error` is
    "raise".
    """

    def __init__(self, path: Path, *, on_error: str, seed: int) -> None:
        self._rows, self.skipped = read_rows(path, parse=parse_chat, on_error=on_error)
        if not self._rows:
            raise ValueError(f"{path} holds no usable row; each needs `messages` with an assistant's message")
        self._epochs = Epochs(len(self._rows), seed=f"{seed}/epoch")

    def dialogue(self, index: int) -> Dialogue:
        """The dialogue at a position, epoch after epoch."""
        *_, row = self._epochs.at(index)
        return self._rows[row]


def parse_chat(row: dict[str, Any], number: int) -> Dialogue:
    """One row: `{"messages": [...], "tools": [...]}`; everything before the first assistant message is the prompt."""
    messages = row.get("messages")
    if not isinstance(messages, list) or not all(isinstance(m, dict) and "role" in m for m in messages):
        raise ValueError("`messages` must be a list of objects with `role` and `content`")
    roles = [message["role"] for message in messages]
    if "assistant" not in roles[1:]:
        raise ValueError(f"`messages` needs an assistant's message after the prompt; its roles are {roles}")
    first = roles.index("assistant", 1)
    task = Task(
        env="chat",
        key=str(number),
        messages=tuple(messages[:first]),
        spec={},
        tools=tuple(row.get("tools") or ()),
        thinking=_thinking_of(row, messages[first:]),
    )
    return Dialogue(task=task, reply=tuple(messages[first:]))


def _thinking_of(row: dict[str, Any], reply: list[Message]) -> Thinking:
    if not any(message.get("reasoning_content") for message in reply):
        return OFF
    return LOW_EFFORT if row.get("reasoning_effort") == "low" else UNLIMITED
