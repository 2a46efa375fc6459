"""Pairs of answers to learn a preference from: the rows of a file, or the model's own right and wrong answers."""

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from envs.dialogue import CLOSE_THOUGHT, OPEN_THOUGHT
from envs.rows import read_rows
from envs.setting import identity, running, scheduled
from envs.task import Message, Task
from envs.thinking import OFF, UNLIMITED
from learner.batch import Sequence
from learner.bounds import fraction
from learner.config import OptimConfig
from learner.loss_config import LossConfig
from learner.pairs import Pair
from orchestrator.dialogue_writer import DialogueWriter
from orchestrator.dialogues import Dialogue
from orchestrator.epochs import Epochs
from orchestrator.mixture import Draw
from orchestrator.own_answers import usable, whole_ids
from rollout.record import turn_to_json
from rollout.trajectory import Group, Trajectory

SHOWN = 60
"""Characters of an offending value that a message shows."""


@dataclass(frozen=True, kw_only=True)
class DpoConfig:
    """Direct preference optimisation: the preferred answer of a pair against the other one."""

    data: str | None = identity(None)
    """A JSONL file of rows with `messages`, `chosen` and `rejected`; null pairs the model's own right and wrong answers."""
    on_error: str = identity("raise")
    """What a malformed row does: raise, or skip (counted and reported)."""
    tasks: int = identity(512)
    """Training tasks that are answered, without `data`."""
    samples: int = identity(8)
    """Answers to each of them; a right and a wrong answer to the same task are a pair, each answer in one pair at most."""
    shares: dict[str, float] = scheduled({})
    """Shares of environments in this stage, where they differ from `envs.ID.share`."""
    timeout_s: float = running(600.0)
    """Deadline for sampling, in seconds."""
    max_failures: float = running(0.5)
    """Highest share of failed episodes of one environment over its last 64, or over all; above it the stage ends."""
    beta: float = identity(0.1)
    """How dearly an answer pays for leaving the model that the stage began with; the smaller, the further it may go."""
    steps: int = scheduled(100)
    """Optimiser steps."""
    batch_size: int = identity(32)
    """Pairs in a step."""
    checkpoint_every: int = running(200)
    """Steps between checkpoints; the last step always has one."""
    optim: OptimConfig = field(default_factory=lambda: OptimConfig(learning_rate=1e-6))

    def __post_init__(self) -> None:
        fraction("dpo.max_failures", self.max_failures)
        for name, value in (
            ("tasks", self.tasks),
            ("steps", self.steps),
            ("batch_size", self.batch_size),
            ("checkpoint_every", self.checkpoint_every),
        ):
            if value < 1:
                raise ValueError(f"dpo.{name}={value} must be at least 1")
        if self.samples < 2:
            raise ValueError(f"dpo.samples={self.samples} must be at least 2: a pair needs a right and a wrong answer")
        if not self.beta > 0:
            raise ValueError(f"dpo.beta={self.beta} must be above 0")
        if self.on_error not in ("raise", "skip"):
            raise ValueError(f"dpo.on_error={self.on_error!r} must be raise or skip")

    @property
    def loss(self) -> LossConfig:
        """What the learner minimises."""
        return LossConfig(objective="dpo", beta=self.beta)


class Preferences:
    """Batches of pairs, in an order shuffled anew in each epoch; batch `step` depends on the seed and the step only."""

    def __init__(self, count: int, pair: Callable[[int], Pair], *, batch_size: int, seed: int) -> None:
        """`pair` gives the pair of a number below `count`."""
        self._pair = pair
        self._batch_size = batch_size
        self._epochs = Epochs(count, seed=f"{seed}/dpo")

    def batch(self, step: int) -> list[Pair]:
        """The pairs of a step (1 or more)."""
        first = (step - 1) * self._batch_size
        return [self._pair(self._epochs.at(first + offset)[2]) for offset in range(self._batch_size)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Preference:
    """A row of a file: the same prompt with the answer that is preferred, and with the other one."""

    chosen: Dialogue
    rejected: Dialogue

    def pair(self, writer: DialogueWriter, *, max_tokens: int) -> Pair:
        """As training sequences, cut at `max_tokens`."""
        chosen, rejected = (
            _sequence(writer.ids(dialogue), max_tokens=max_tokens) for dialogue in (self.chosen, self.rejected)
        )
        return Pair(chosen=chosen, rejected=rejected)


def read_preferences(path: Path, *, on_error: str, thoughts: bool) -> tuple[list[Preference], int]:
    """The rows of a JSONL file, and how many malformed ones were skipped.

    `thoughts` says whether the model knows the tags of a thought; else they are plain text. Raises `ValueError` with
    file, line and offending value for a malformed row where `on_error` is "raise", and where no row is usable.
    """
    return read_rows(path, parse=partial(parse_preference, thoughts=thoughts), on_error=on_error)


def parse_preference(row: dict[str, Any], number: int, *, thoughts: bool = True) -> Preference:
    """One row: `{"messages": [...], "chosen": "text", "rejected": "text"}`, perhaps with `tools`."""
    messages = _prompt(row)
    chosen, rejected = (_answer(row, name, thoughts=thoughts) for name in ("chosen", "rejected"))
    if chosen == rejected:
        raise ValueError(f"`chosen` and `rejected` are the same answer, {_shown(row['chosen'])}")
    thinks = {name: bool(said.get("reasoning_content")) for name, said in (("chosen", chosen), ("rejected", rejected))}
    if len(set(thinks.values())) > 1:
        have, lacks = sorted(thinks, key=lambda name: not thinks[name])
        raise ValueError(
            f"`{have}` has a thought and `{lacks}` has none, {_shown(row[lacks])}; the two follow the same prompt, which "
            f"opens a thought or does not"
        )
    task = Task(
        env="chat",
        key=str(number),
        messages=messages,
        spec={},
        tools=tuple(row.get("tools") or ()),
        thinking=UNLIMITED if thinks["chosen"] else OFF,
    )
    return Preference(chosen=Dialogue(task=task, reply=(chosen,)), rejected=Dialogue(task=task, reply=(rejected,)))


def pair_lines(draw: Draw, group: Group) -> list[str]:
    """The lines of a file of own pairs: right answers that are whole and well-formed, each with another wrong one."""
    right = [trajectory for trajectory in group.trajectories if usable(trajectory)]
    wrong = [trajectory for trajectory in group.trajectories if not trajectory.correct and trajectory.sampled_tokens]
    count = min(len(right), len(wrong))
    return [
        json.dumps({"draw": asdict(draw), "chosen": _turns(chosen), "rejected": _turns(rejected)})
        for chosen, rejected in zip(right[:count], wrong[:count], strict=True)
    ]


def read_pairs(path: Path, *, max_tokens: int) -> list[Pair]:
    """The pairs of a file that `pair_lines` wrote: ids as the engine saw and sampled them, cut at `max_tokens`."""
    rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    return [
        Pair(
            chosen=_sequence(whole_ids(row["chosen"]), max_tokens=max_tokens),
            rejected=_sequence(whole_ids(row["rejected"]), max_tokens=max_tokens),
        )
        for row in rows
    ]


def _turns(trajectory: Trajectory) -> list[dict[str, Any]]:
    return [turn_to_json(turn) for turn in trajectory.turns]


def _sequence(written: tuple[list[int], list[bool]], *, max_tokens: int) -> Sequence:
    ids, trained = written
    return Sequence.supervised(ids=ids[:max_tokens], trained_T=trained[:max_tokens])


def _prompt(row: dict[str, Any]) -> tuple[Message, ...]:
    messages = row.get("messages")
    if not isinstance(messages, list) or not messages:
        raise ValueError(f"`messages` must be a list of objects with `role` and `content`, not {_shown(messages)}")
    for message in messages:
        if not isinstance(message, dict) or not isinstance(message.get("role"), str) or "content" not in message:
            raise ValueError(f"`messages` must hold objects with `role` and `content`, not {_shown(message)}")
    if messages[-1]["role"] == "assistant":
        raise ValueError(f"`messages` is the prompt and must not end with the assistant's {_shown(messages[-1])}")
    return tuple(messages)


def _answer(row: dict[str, Any], name: str, *, thoughts: bool) -> Message:
    """An answer as a message; what stands before the closing tag is its thought."""
    text = row.get(name)
    if not isinstance(text, str) or not text.strip():
        raise ValueError(f"`{name}` must be an answer's text, not {_shown(text)}")
    thought, closed, answer = text.partition(CLOSE_THOUGHT)
    if not thoughts or not (closed or OPEN_THOUGHT in text):
        return {"role": "assistant", "content": text}
    thought = thought.strip().removeprefix(OPEN_THOUGHT).strip()
    if not closed or OPEN_THOUGHT in thought or OPEN_THOUGHT in answer or CLOSE_THOUGHT in answer:
        raise ValueError(f"the thought of `{name}` must be opened and closed once, unlike in {_shown(text)}")
    return {"role": "assistant", "reasoning_content": thought, "content": answer.strip()}


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= SHOWN else f"{text[:SHOWN]}..."
