"""Supervised data: demonstrations or chat files, as training sequences.

Batch `step` depends on the seed and the step only, so that a continued run sees the same data as an undisturbed one.
"""

import random
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from envs.catalog import environment
from envs.rows import read_rows
from envs.task import Message, Task
from learner.batch import Sequence
from orchestrator.mixture import Draw, Mixture
from rollout.renderer import Renderer


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
            if environment(mixture.task(Draw(env=name, index=0)).kind).demonstrate is None:
                raise ValueError(f"environment {name!r} has no demonstrations; set sft.data to a chat file")

    def dialogue(self, index: int) -> Dialogue:
        """The dialogue at a position of the mixture's order."""
        while len(self._draws) <= index:
            self._draws.append(self._mixture.draw())
        task = self._mixture.task(self._draws[index])
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
        self._seed = seed
        if not self._rows:
            raise ValueError(f"{path} holds no usable row; each needs `messages` with an assistant's message")

    def dialogue(self, index: int) -> Dialogue:
        """The dialogue at a position, epoch after epoch."""
        epoch, place = divmod(index, len(self._rows))
        order = list(range(len(self._rows)))
        random.Random(f"{self._seed}/epoch/{epoch}").shuffle(order)
        return self._rows[order[place]]


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
        reasoning=any(message.get("reasoning_content") for message in messages[first:]),
    )
    return Dialogue(task=task, reply=tuple(messages[first:]))


class SftData:
    """Batches of training sequences, with a share of thoughts stripped and a share cut short."""

    def __init__(
        self,
        dialogue: Callable[[int], Dialogue],
        renderer: Renderer,
        *,
        batch_size: int,
        strip_share: float,
        truncate_share: float,
        max_tokens: int,
        seed: int,
    ) -> None:
        self._dialogue = dialogue
        self._renderer = renderer
        self._batch_size = batch_size
        self._strip_share = strip_share
        self._truncate_share = truncate_share
        self._max_tokens = max_tokens
        self._seed = seed

    def batch(self, step: int) -> list[Sequence]:
        """The sequences of a step (1 or more). Those over `max_tokens` are cut there."""
        first = (step - 1) * self._batch_size
        return [self._sequence(first + offset) for offset in range(self._batch_size)]

    def _sequence(self, index: int) -> Sequence:
        rng = random.Random(f"{self._seed}/sft/{index}")
        dialogue, lot = self._dialogue(index), rng.random()
        if lot < self._strip_share:
            dialogue = replace(dialogue, task=replace(dialogue.task, reasoning=False))
        elif lot < self._strip_share + self._truncate_share:
            dialogue = replace(dialogue, reply=cut_thought(dialogue.reply, rng))
        ids, trained = dialogue_ids(dialogue, self._renderer)
        return Sequence.supervised(ids=ids[: self._max_tokens], trained_T=trained[: self._max_tokens])


def cut_thought(reply: tuple[Message, ...], rng: random.Random) -> tuple[Message, ...]:
    """The reply to a budget that runs out inside one of its thoughts: cut there, and the last answer follows at once."""
    answers = [number for number, message in enumerate(reply) if message["role"] == "assistant"]
    thoughts = [number for number in answers if reply[number].get("reasoning_content")]
    if not thoughts:
        return reply
    place = rng.choice(thoughts)
    thought = reply[place]["reasoning_content"]
    answer = {**reply[answers[-1]], "reasoning_content": thought[: rng.randint(1, len(thought))]}
    return (*reply[:place], answer)


def dialogue_ids(dialogue: Dialogue, renderer: Renderer) -> tuple[list[int], list[bool]]:
    """Ids of a dialogue and which are trained: the assistant's own tokens, never the opening of its turn."""
    reasoning = dialogue.task.reasoning
    ids = list(renderer.prompt_ids(dialogue.task))
    trained = [False] * len(ids)
    between: list[Message] = []
    for number, message in enumerate(dialogue.reply):
        if message["role"] != "assistant":
            between.append(message)
            continue
        if number:
            opening = renderer.observation_ids(between, reasoning=reasoning)
            ids += opening
            trained += [False] * len(opening)
            between = []
        answer = renderer.answer_ids(message, reasoning=reasoning)
        ids += answer
        trained += [True] * len(answer)
    return ids, trained
