"""The model's own right answers as training data, a share of their thoughts cut at a budget."""

import json
import random
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from envs.core.bounds import fraction
from envs.core.setting import identity, running, scheduled
from envs.core.thinking_mode import Mode, ThinkingMix, up_to
from learner.batches.batch import TrainingSample
from learner.config import OptimConfig
from orchestrator.data.epochs import Epochs
from orchestrator.data.row_intake import fits, own_counts, require_positive, too_long
from orchestrator.mixture import Draw, Mixture
from rollout.budget.config import ThoughtConfig
from rollout.budget.rule import ThoughtLimit, ThoughtTags
from rollout.episodes.renderer import Renderer
from rollout.trajectory import Closed, Trajectory, Turn
from rollout.trajectory_json import turn_from_json, turn_to_json


@dataclass(frozen=True, kw_only=True)
class SelfSftConfig:
    """Supervised fine-tuning on the model's own right answers."""

    tasks: int = identity(512)
    """Training tasks that are answered."""
    samples: int = identity(4)
    """Answers to each task; the right, well-formed ones are kept."""
    shares: dict[str, float] = identity({})
    """Shares of environments among these tasks, where they differ from `envs.ID.share`."""
    thinking: ThinkingMix = field(default_factory=lambda: ThinkingMix(budget=0.12))
    """Share of the answers whose thoughts are cut; without `budgets` or `budget_range` anywhere."""
    max_tokens: int | None = identity(None)
    """Longest answer with its prompt, in tokens; longer ones are left out and counted. Null: the model's positions."""
    steps: int = scheduled(100)
    """Optimiser steps."""
    batch_size: int = identity(32)
    """Answers in a step."""
    checkpoint_every: int = running(200)
    """Steps between checkpoints; the last step always has one."""
    timeout_s: float = running(600.0)
    """Deadline for sampling, in seconds."""
    max_failures: float = running(0.5)
    """Highest share of failed episodes of one environment over its last 64, or over all; above it the stage ends."""
    optim: OptimConfig = field(default_factory=OptimConfig)

    def __post_init__(self) -> None:
        fraction("self_sft.max_failures", self.max_failures)
        require_positive("self_sft.max_tokens", self.max_tokens)
        for name in ("tasks", "samples", "steps", "batch_size", "checkpoint_every"):
            if getattr(self, name) < 1:
                raise ValueError(f"self_sft.{name}={getattr(self, name)} must be at least 1")
        if self.thinking.no_thought or self.thinking.low_effort:
            raise ValueError("self_sft.thinking cuts thoughts at budgets; its no_thought and low_effort must be 0")


def usable(trajectory: Trajectory) -> bool:
    """Whether an answer is worth imitating: right, whole, and with well-formed thoughts."""
    return trajectory.correct and not trajectory.truncated and trajectory.well_formed


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnAnswer:
    """An answer of the model: the draw of its task, and its turns."""

    draw: Draw
    turns: tuple[Turn, ...]

    @property
    def thinks(self) -> bool:
        """Whether its prompt left room for a thought."""
        return any(turn.thought.closed is not Closed.NONE for turn in self.turns)


def answer_line(draw: Draw, trajectory: Trajectory) -> str:
    """One line of the file of own answers."""
    return json.dumps({"draw": asdict(draw), "turns": [turn_to_json(turn) for turn in trajectory.turns]})


def read_answers(path: Path, *, max_tokens: int | None) -> tuple[list[OwnAnswer], dict[str, int]]:
    """The answers of a file that `answer_line` wrote, and how many were used or are too long.

    Raises `ValueError` where none is left.
    """
    answers = [OwnAnswer(draw=Draw(**row["draw"]), turns=turns_of(row["turns"])) for row in own_rows(path)]
    kept = [answer for answer in answers if fits(whole_ids(answer.turns)[0], max_tokens)]
    return kept, own_counts(path, len(kept), {too_long(max_tokens): len(answers) - len(kept)})


def own_rows(path: Path) -> list[dict[str, Any]]:
    """The rows of a file that the run itself wrote."""
    return [json.loads(line) for line in path.read_text(encoding="utf-8").split("\n") if line]


def turns_of(data: list[dict[str, Any]]) -> tuple[Turn, ...]:
    """Turns that were written as JSON data."""
    return tuple(turn_from_json(turn) for turn in data)


def whole_ids(turns: Sequence[Turn]) -> tuple[list[int], list[bool]]:
    """The ids of an answer as the engine saw and sampled them, and which are trained: those that the model sampled."""
    ids: list[int] = []
    trained: list[bool] = []
    for turn in turns:
        ids += [*turn.context_ids, *turn.sampled_ids]
        trained += [False] * len(turn.context_ids) + [not forced for forced in turn.forced_T]
    return ids, trained


class OwnAnswers:
    """Batches of the model's own answers, in an order shuffled anew in each epoch.

    Batch `step` depends on the seed and the step only. Ids are those that the engine saw and sampled; a thought that is
    cut ends as a rollout under its budget would end it, and what was said after it follows. An answer without a thought,
    one whose prompt can't announce the budget, and one that would be over `max_tokens` stay whole.
    """

    def __init__(
        self,
        answers: list[OwnAnswer],
        mixture: Mixture,
        renderer: Renderer,
        tags: ThoughtTags | None,
        config: SelfSftConfig,
        *,
        thought: ThoughtConfig,
        max_tokens: int | None,
        seed: int,
    ) -> None:
        self._answers = answers
        self._epochs = Epochs(len(answers), seed=f"{seed}/own")
        self._mixture = mixture
        self._renderer = renderer
        self._tags = tags
        self._config = config
        self._thought = thought
        self._max_tokens = max_tokens
        self._seed = seed

    def batch(self, step: int) -> list[TrainingSample]:
        """The sequences of a step (1 or more)."""
        first = (step - 1) * self._config.batch_size
        return [self._sequence(first + offset) for offset in range(self._config.batch_size)]

    def _sequence(self, index: int) -> TrainingSample:
        epoch, place, number = self._epochs.at(index)
        answer, rng = self._answers[number], random.Random(f"{self._seed}/own/{epoch}/{place}")
        ids, trained = self.ids(answer, budget=self._draw_budget(answer, rng))
        if not fits(ids, self._max_tokens):  # with the budget in its prompt
            ids, trained = whole_ids(answer.turns)
        return TrainingSample.supervised(ids=ids, trained_T=trained)

    def _draw_budget(self, answer: OwnAnswer, rng: random.Random) -> int | None:
        mix = self._config.thinking
        if mix.draw_mode(rng) is not Mode.BUDGET or not answer.thinks or self._tags is None:
            return None
        if mix.names_budgets:
            return mix.draw_budget(rng)
        longest = max(turn.thought.tokens for turn in answer.turns)
        return rng.randrange(longest) if longest else None

    def ids(self, answer: OwnAnswer, *, budget: int | None) -> tuple[list[int], list[bool]]:
        """Ids of an answer under a budget, and which are trained: those that the model sampled."""
        prompt = None if budget is None else self._prompt(answer, budget)
        if budget is None or prompt is None:
            return whole_ids(answer.turns)
        ids: list[int] = []
        trained: list[bool] = []
        left = budget
        for number, turn in enumerate(answer.turns):
            context = turn.context_ids if number else prompt
            own = [not forced for forced in turn.forced_T]
            said, own, thought = self._cut(list(turn.sampled_ids), own, budget=left)
            left = max(0, left - thought) if self._thought.scope == "episode" else left
            ids += [*context, *said]
            trained += [False] * len(context) + own
        return ids, trained

    def _prompt(self, answer: OwnAnswer, budget: int) -> tuple[int, ...] | None:
        """The prompt under a budget: as the engine saw it, or where budgets are announced with the announcement.

        None where it can't be announced, since the environment added messages of its own to the task's.
        """
        seen = answer.turns[0].context_ids
        if not self._thought.announce:
            return seen
        task = self._mixture.task(answer.draw)
        told = replace(task, thinking=up_to(budget))
        return self._renderer.prompt_ids(told) if self._renderer.prompt_ids(task) == seen else None

    def _cut(self, said: list[int], own: list[bool], *, budget: int) -> tuple[list[int], list[bool], int]:
        """A turn cut at a budget: ids, which are trained, and the length of its thought."""
        assert self._tags is not None
        place = self._tags.close_of(said)
        if place is None:
            return said, own, len(said)
        thought, after = said[: place[0]], self._tags.answer_start(said)
        forcing = self._tags.forcing(thought, ThoughtLimit(tokens=budget, grace=self._thought.grace))
        if forcing is None:
            return said, own, len(thought)
        cut = [*thought[: forcing.start], *forcing.ids, *said[after:]]
        trained = [*own[: forcing.start], *[False] * len(forcing.ids), *own[after:]]
        return cut, trained, forcing.start
