"""The model's own answers as a run's file has them: right ones to imitate, and pairs of a right and a wrong one."""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from temper.learner.batches.pairs import Pair
from temper.learner.batches.samples import TrainingSample
from temper.orchestrator.data.row_intake import fits, require_rows, too_long
from temper.orchestrator.loop.mixture import Draw
from temper.rollout.token_arrays import joined
from temper.rollout.trajectory import Closed, Group, Trajectory, Turn
from temper.rollout.trajectory_json import turn_from_json, turn_to_json


@dataclass(frozen=True, slots=True, kw_only=True)
class SelfAnswer:
    """An answer of the model: the draw of its task, and its turns."""

    draw: Draw
    turns: tuple[Turn, ...]

    @property
    def has_thought(self) -> bool:
        """Whether its prompt left room for a thought."""
        return any(turn.thought.closed is not Closed.NONE for turn in self.turns)


def worth_imitating(trajectory: Trajectory) -> bool:
    """Return whether an answer is right, whole, and has well-formed thoughts."""
    return trajectory.correct and not trajectory.truncated and trajectory.well_formed


def answer_lines(draw: Draw, group: Group) -> list[str]:
    """Return the lines of the file of own answers: those of a group that are worth imitating."""
    right = (trajectory for trajectory in group.trajectories if worth_imitating(trajectory))
    return [json.dumps({"draw": asdict(draw), "turns": _written(trajectory)}) for trajectory in right]


def read_answers(path: Path, *, max_tokens: int | None) -> tuple[list[SelfAnswer], dict[str, int]]:
    """Read the answers of a file of `answer_lines`, and count those that are used and those that are too long.

    Raise `ValueError` where none is left.
    """
    answers = [SelfAnswer(draw=Draw(**row["draw"]), turns=_turns(row["turns"])) for row in _rows(path)]
    kept = [answer for answer in answers if fits(sample_of(answer.turns).ids, max_tokens)]
    return kept, require_rows(path, len(kept), {too_long(max_tokens): len(answers) - len(kept)})


def pair_lines(draw: Draw, group: Group) -> list[str]:
    """Return the lines of a file of own pairs: each answer worth imitating, with another wrong one of the same group."""
    right = [trajectory for trajectory in group.trajectories if worth_imitating(trajectory)]
    wrong = [trajectory for trajectory in group.trajectories if not trajectory.correct and trajectory.sampled_tokens]
    count = min(len(right), len(wrong))
    return [
        json.dumps({"draw": asdict(draw), "chosen": _written(chosen), "rejected": _written(rejected)})
        for chosen, rejected in zip(right[:count], wrong[:count], strict=True)
    ]


def read_pairs(path: Path, *, max_tokens: int | None) -> tuple[list[Pair], dict[str, int]]:
    """Read the pairs of a file of `pair_lines`, ids as the engine saw and sampled them, and count those left out.

    Raise `ValueError` where none can be trained on.
    """
    pairs = [
        Pair(chosen=sample_of(_turns(row["chosen"])), rejected=sample_of(_turns(row["rejected"])))
        for row in _rows(path)
    ]
    short = [pair for pair in pairs if fits(pair.chosen.ids, max_tokens) and fits(pair.rejected.ids, max_tokens)]
    kept = [pair for pair in short if not np.array_equal(pair.chosen.ids, pair.rejected.ids)]
    left_out = {too_long(max_tokens): len(pairs) - len(short), "of one and the same answer": len(short) - len(kept)}
    return kept, require_rows(path, len(kept), left_out)


def sample_of(turns: Sequence[Turn]) -> TrainingSample:
    """Return an answer as the engine saw and sampled it; trained are the tokens that the model sampled itself."""
    ids = joined((own for turn in turns for own in (turn.context_ids, turn.sampled_ids)), np.int32)
    trained = (own for turn in turns for own in (np.zeros(len(turn.context_ids), dtype=np.bool_), ~turn.forced_T))
    return TrainingSample.supervised(ids=ids, trained_T=joined(trained, np.bool_))


def _written(trajectory: Trajectory) -> list[dict[str, Any]]:
    return [turn_to_json(turn) for turn in trajectory.turns]


def _turns(data: list[dict[str, Any]]) -> tuple[Turn, ...]:
    return tuple(turn_from_json(turn) for turn in data)


def _rows(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").split("\n") if line]
