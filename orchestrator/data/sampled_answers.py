"""The model's own answers: right ones for rejection-sampling fine-tuning, and pairs of a right and a wrong one."""

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

import numpy as np

from temper.envs.core.thinking_mode import Mode, ThinkingMix, up_to
from temper.learner.batches.pairs import Pair
from temper.learner.batches.samples import TrainingSample
from temper.orchestrator.data.row_intake import EpochBatches, Position, fits, require_rows, too_long
from temper.orchestrator.loop.mixture import Draw, Mixture
from temper.rollout.budget.config import ThinkingConfig
from temper.rollout.budget.rule import ThinkingLimit, ThinkingTags
from temper.rollout.codec import from_json, to_json
from temper.rollout.episodes.renderer import Renderer
from temper.rollout.token_arrays import join_arrays, tokens_of
from temper.rollout.trajectory import Closed, Group, Trajectory, Turn

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class SampledAnswer:
    """An answer of the model: its task's draw and its turns."""

    draw: Draw
    turns: tuple[Turn, ...]

    @property
    def has_reasoning(self) -> bool:
        """Whether its prompt allowed reasoning."""
        return any(turn.thinking.closed is not Closed.NONE for turn in self.turns)


@dataclass(frozen=True, slots=True, kw_only=True)
class SampledPair:
    """The turns of a right and of a wrong answer to one task."""

    draw: Draw
    chosen: tuple[Turn, ...]
    rejected: tuple[Turn, ...]


def worth_imitating(trajectory: Trajectory) -> bool:
    """Return whether an answer is right, complete, one sequence of turns, and has well-formed reasoning."""
    whole = not trajectory.truncated and len(trajectory.branches) == 1
    return trajectory.correct and whole and trajectory.well_formed


def answer_lines(draw: Draw, group: Group) -> list[str]:
    """Return the lines of a group's answers worth imitating."""
    right = (trajectory for trajectory in group.trajectories if worth_imitating(trajectory))
    return [to_json(SampledAnswer(draw=draw, turns=tuple(one.turns))) for one in right]


def read_answers(path: Path, *, max_tokens: int | None) -> tuple[list[SampledAnswer], dict[str, int]]:
    """Read the answers of a file of `answer_lines`. Count used and too long ones.

    Raise `ValueError` if none is used, or for a file of another version.
    """
    answers = _read(SampledAnswer, path)
    kept = [answer for answer in answers if fits(sample_of(answer.turns).ids, max_tokens)]
    return kept, require_rows(path, len(kept), {too_long(max_tokens): len(answers) - len(kept)})


def pair_lines(draw: Draw, group: Group) -> list[str]:
    """Return the lines of a group's pairs: each answer worth imitating with another wrong one."""
    right = [trajectory for trajectory in group.trajectories if worth_imitating(trajectory)]
    wrong = [one for one in group.trajectories if not one.correct and one.sampled_tokens and len(one.branches) == 1]
    count = min(len(right), len(wrong))
    return [
        to_json(SampledPair(draw=draw, chosen=tuple(chosen.turns), rejected=tuple(rejected.turns)))
        for chosen, rejected in zip(right[:count], wrong[:count], strict=True)
    ]


def read_pairs(path: Path, *, max_tokens: int | None) -> tuple[list[Pair], dict[str, int]]:
    """Read the pairs of a file of `pair_lines` as the engine saw and sampled them. Count used and filtered ones.

    Raise `ValueError` if none is used.
    """
    read = _read(SampledPair, path)
    pairs = [Pair(chosen=sample_of(one.chosen), rejected=sample_of(one.rejected)) for one in read]
    short = [pair for pair in pairs if fits(pair.chosen.ids, max_tokens) and fits(pair.rejected.ids, max_tokens)]
    kept = [pair for pair in short if not np.array_equal(pair.chosen.ids, pair.rejected.ids)]
    left_out = {too_long(max_tokens): len(pairs) - len(short), "with equal answers": len(short) - len(kept)}
    return kept, require_rows(path, len(kept), left_out)


def sample_of(turns: Sequence[Turn]) -> TrainingSample:
    """Return an answer as the engine saw and sampled it. Only tokens that the model sampled are trained."""
    ids = join_arrays((own for turn in turns for own in (turn.context_ids, turn.sampled_ids)), np.int32)
    trained = (own for turn in turns for own in (np.zeros(len(turn.context_ids), dtype=np.bool_), ~turn.injected_T))
    return TrainingSample.supervised(ids=ids, trained_T=join_arrays(trained, np.bool_))


def _read(kind: type[T], path: Path) -> list[T]:
    """Return the lines of a file. Raise `ValueError`, with the file and a remedy, for one of another version."""
    try:
        return [from_json(kind, line) for line in path.read_text(encoding="utf-8").splitlines()]
    except (ValueError, TypeError, RecursionError) as error:
        raise ValueError(
            f"{path} is damaged or of another version ({error}); resume with the version that wrote it, or remove the file to "
            f"sample these answers again"
        ) from error


class RejectionSampledData:
    """Batches of the model's own answers, shuffled in each epoch.

    Rejection-sampling fine-tuning (RFT; Yuan et al., "Scaling Relationship on Learning Mathematical Reasoning with Large
    Language Models", 2023), one round of expert iteration.

    Batch `step` depends only on the seed and the step. Ids are as the engine saw and sampled them. Reasoning that is cut ends
    as in a rollout under its budget, and the answer follows. An answer stays whole without reasoning, if its prompt cannot
    announce the budget, or if it would exceed `max_tokens`.
    """

    def __init__(
        self,
        answers: Sequence[SampledAnswer],
        mixture: Mixture,
        renderer: Renderer,
        tags: ThinkingTags | None,
        *,
        thinking: ThinkingMix,
        thinking_config: ThinkingConfig,
        batch_size: int,
        max_tokens: int | None,
        seed: int,
    ) -> None:
        """Cut the share of answers of `thinking` at its budgets, or at any token without budgets."""
        self._answers = answers
        self._batches = EpochBatches(len(answers), self._sample, batch_size=batch_size, seed=f"{seed}/own")
        self._mixture = mixture
        self._renderer = renderer
        self._tags = tags
        self._thinking = thinking
        self._thinking_config = thinking_config
        self._max_tokens = max_tokens
        self._seed = seed

    def batch(self, step: int) -> list[TrainingSample]:
        """Return the samples of a step (1 or more)."""
        return self._batches.batch(step)

    def _sample(self, at: Position) -> TrainingSample:
        answer, rng = self._answers[at.item], random.Random(f"{self._seed}/own/{at.epoch}/{at.place}")
        sample = self.sample(answer, budget=self._draw_budget(answer, rng))
        if fits(sample.ids, self._max_tokens):
            return sample
        return sample_of(answer.turns)  # without the budget in its prompt

    def _draw_budget(self, answer: SampledAnswer, rng: random.Random) -> int | None:
        mode = self._thinking.draw_mode(rng)
        if mode is not Mode.BUDGET or not answer.has_reasoning or self._tags is None:
            return None
        if self._thinking.names_budgets:
            return self._thinking.draw_budget(rng)
        longest = max(turn.thinking.tokens for turn in answer.turns)
        return rng.randrange(longest) if longest else None

    def sample(self, answer: SampledAnswer, *, budget: int | None) -> TrainingSample:
        """Return an answer under a budget as a training sample. Only tokens that the model sampled are trained."""
        prompt = None if budget is None else self._prompt(answer, budget)
        if budget is None or prompt is None:
            return sample_of(answer.turns)
        ids: list[int] = []
        trained_T: list[bool] = []
        left = budget
        for number, turn in enumerate(answer.turns):
            context = tokens_of(turn.context_ids) if number else prompt
            own = (~turn.injected_T).tolist()
            kept, own, thinking_tokens = self._cut(turn.sampled_ids.tolist(), own, budget=left, context=context)
            left = max(0, left - thinking_tokens) if self._thinking_config.scope == "episode" else left
            ids += [*context, *kept]
            trained_T += [False] * len(context) + own
        return TrainingSample.supervised(ids=ids, trained_T=trained_T)

    def _prompt(self, answer: SampledAnswer, budget: int) -> tuple[int, ...] | None:
        """Return the prompt under a budget, with an announcement if budgets are announced.

        Return None if it cannot be announced, since the environment added messages to the task's.
        """
        seen = tokens_of(answer.turns[0].context_ids)
        if not self._thinking_config.announce:
            return seen
        task = self._mixture.task(answer.draw)
        announced = replace(task, thinking=up_to(budget))
        return self._renderer.prompt_ids(announced) if self._renderer.prompt_ids(task) == seen else None

    def _cut(
        self, sampled: list[int], own: list[bool], *, budget: int, context: Sequence[int]
    ) -> tuple[list[int], list[bool], int]:
        """Cut a turn at a budget. Return its ids, which of them are trained, and its reasoning length."""
        assert self._tags is not None
        opened = self._tags.is_opened_by(context)
        place, begin = self._tags.close_of(sampled), self._tags.thinking_start(sampled, opened=opened)
        if place is None or begin is None:
            return sampled, own, 0 if begin is None else len(sampled) - begin
        reasoning_ids, after = sampled[: place[0]], self._tags.answer_start(sampled)
        limit = ThinkingLimit(tokens=budget, grace=self._thinking_config.grace)
        close = self._tags.forced_end(reasoning_ids, limit, opened=opened)
        if close is None:
            return sampled, own, len(reasoning_ids) - begin
        cut = [*reasoning_ids[: close.start], *close.ids, *sampled[after:]]
        trained = [*own[: close.start], *[False] * len(close.ids), *own[after:]]
        return cut, trained, close.start - begin
