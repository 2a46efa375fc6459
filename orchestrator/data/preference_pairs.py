"""Pairs of answers to learn a preference from: the rows of a file, or the model's own right and wrong answers."""

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from envs.core.bounds import fraction
from envs.core.setting import identity, running, scheduled
from envs.core.task import Message, Task
from envs.core.thinking_mode import OFF, UNLIMITED
from learner.batches.batch import TrainingSample
from learner.batches.pairs import Pair
from learner.config import OptimConfig
from learner.losses.config import LossConfig
from orchestrator.data.chat_messages import checked_messages, checked_tools, shown, spoken
from orchestrator.data.dialogue_tokens import DialogueWriter
from orchestrator.data.dialogues import Dialogue
from orchestrator.data.epochs import Epochs
from orchestrator.data.row_intake import RowIntake, fits, own_counts, require_positive, too_long
from orchestrator.data.self_answers import own_rows, turns_of, usable, whole_ids
from orchestrator.mixture import Draw
from rollout.trajectory import Group, Trajectory
from rollout.trajectory_json import turn_to_json


@dataclass(frozen=True, kw_only=True)
class DpoConfig:
    """Direct preference optimisation: the preferred answer of a pair against the other one."""

    data: str | None = identity(None)
    """A JSONL file of rows with `messages`, `chosen` and `rejected`; null pairs the model's own right and wrong answers."""
    on_error: str = identity("raise")
    """What a malformed or too long row does: raise, or skip (counted and reported)."""
    max_tokens: int | None = identity(None)
    """Longest answer with its prompt, in tokens; nothing is cut, and own answers over it are left out and counted. Null: the
    positions that the model's configuration names."""
    tasks: int = identity(512)
    """Training tasks that are answered, without `data`."""
    samples: int = identity(8)
    """Answers to each of them; a right and a wrong answer to the same task are a pair, each answer in one pair at most."""
    shares: dict[str, float] = identity({})
    """Shares of environments among these tasks, where they differ from `envs.ID.share`."""
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
        require_positive("dpo.max_tokens", self.max_tokens)
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

    def pair(self, writer: DialogueWriter) -> Pair:
        """As training sequences."""
        chosen, rejected = (_sequence(writer.ids(dialogue)) for dialogue in (self.chosen, self.rejected))
        return Pair(chosen=chosen, rejected=rejected)


def read_preferences(path: Path, intake: RowIntake, *, on_error: str) -> tuple[list[Preference], dict[str, int]]:
    """The rows of a JSONL file, and what became of them.

    Every row is written once by `intake`. Raises `ValueError` with file, line and offending value for a row that can't be
    trained on where `on_error` is "raise", and where no row can.
    """

    def parse(row: dict[str, Any], number: int) -> Preference:
        preference = parse_preference(row, number, thoughts=intake.knows_thoughts)
        if intake.require_fits(preference.chosen) == intake.require_fits(preference.rejected):
            raise ValueError(f"`chosen` and `rejected` are the same tokens, {shown(row['chosen'])}")
        return preference

    return intake.read(path, parse, on_error=on_error)


def parse_preference(row: dict[str, Any], number: int, *, thoughts: bool = True) -> Preference:
    """One row: `{"messages": [...], "chosen": "text", "rejected": "text"}`, perhaps with `tools`.

    `thoughts` says whether the model knows the tags of a thought; else they are plain text.
    """
    messages = _prompt(row)
    chosen, rejected = (_answer(row, name, thoughts=thoughts) for name in ("chosen", "rejected"))
    if chosen == rejected:
        raise ValueError(f"`chosen` and `rejected` are the same answer, {shown(row['chosen'])}")
    thinks = {name: bool(said.get("reasoning_content")) for name, said in (("chosen", chosen), ("rejected", rejected))}
    if len(set(thinks.values())) > 1:
        have, lacks = sorted(thinks, key=lambda name: not thinks[name])
        raise ValueError(
            f"`{have}` has a thought and `{lacks}` has none, {shown(row[lacks])}; the two follow the same prompt, which "
            f"opens a thought or does not"
        )
    task = Task(
        env="chat",
        key=str(number),
        messages=messages,
        spec={},
        tools=checked_tools(row),
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


def read_pairs(path: Path, *, max_tokens: int | None) -> tuple[list[Pair], dict[str, int]]:
    """The pairs of a file that `pair_lines` wrote, ids as the engine saw and sampled them, and how many were left out.

    Raises `ValueError` where none can be trained on.
    """
    pairs = [
        Pair(chosen=_own_sequence(row["chosen"]), rejected=_own_sequence(row["rejected"])) for row in own_rows(path)
    ]
    short = [pair for pair in pairs if fits(pair.chosen.ids, max_tokens) and fits(pair.rejected.ids, max_tokens)]
    kept = [pair for pair in short if pair.chosen.ids != pair.rejected.ids]
    left_out = {too_long(max_tokens): len(pairs) - len(short), "of one and the same answer": len(short) - len(kept)}
    return kept, own_counts(path, len(kept), left_out)


def _turns(trajectory: Trajectory) -> list[dict[str, Any]]:
    return [turn_to_json(turn) for turn in trajectory.turns]


def _own_sequence(turns: list[dict[str, Any]]) -> TrainingSample:
    return _sequence(whole_ids(turns_of(turns)))


def _sequence(written: tuple[list[int], list[bool]]) -> TrainingSample:
    ids, trained = written
    return TrainingSample.supervised(ids=ids, trained_T=trained)


def _prompt(row: dict[str, Any]) -> tuple[Message, ...]:
    messages = checked_messages(row)
    if messages[-1]["role"] == "assistant":
        raise ValueError(f"`messages` is the prompt and must not end with the assistant's {shown(messages[-1])}")
    return tuple(messages)


def _answer(row: dict[str, Any], name: str, *, thoughts: bool) -> Message:
    """An answer as a message; what stands before the closing tag is its thought."""
    text = row.get(name)
    if not isinstance(text, str) or not text.strip():
        raise ValueError(f"`{name}` must be an answer's text, not {shown(text)}")
    return spoken({"role": "assistant", "content": text}, thoughts=thoughts, name=f"`{name}`")
