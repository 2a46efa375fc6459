"""Expert choices from the engine to the trainer: turns, records, recordings, training sequences."""

from dataclasses import replace
from pathlib import Path

import numpy as np
from support.refusals import refuses
from support.replay_engine import Recording, read_recording
from unit.rollout.episodes.test_episode import demonstration, play

from temper.learner.batches.micro_batches import build_batch
from temper.learner.batches.samples import samples_from_groups
from temper.rollout.codec import from_data, to_data
from temper.rollout.engines.protocol import Completion
from temper.rollout.expert_choices import Choices, join_recorded, pad_choices
from temper.rollout.token_arrays import as_floats, as_ids, as_marks
from temper.rollout.trajectory import Group, Ticket, Trajectory, WeightVersion
from temper.rollout.trajectory_json import group_lines

LAYERS, CHOSEN = 3, 2


def choices(ids: int, *, turn: int) -> Choices:
    """Artificial choices: turn and position of an id. The last id was not processed."""
    made = np.empty((ids, LAYERS, CHOSEN), dtype=np.int16)
    made[:, :, 0] = turn
    made[:, :, 1] = np.arange(ids)[:, None]
    made[-1] = -1
    return made


def recording() -> tuple[Trajectory, Recording]:
    """An episode of three turns with recorded experts, and the recording."""
    task, plain = demonstration()
    made = {
        prompt: [replace(said, experts=choices(len(prompt) + len(said.token_ids), turn=turn))]
        for turn, (prompt, (said,)) in enumerate(sorted(plain.items(), key=lambda entry: len(entry[0])))
    }
    return play(task, made), made


def group(trajectory: Trajectory) -> Group:
    ticket = Ticket(number=0, task=trajectory.task, admitted=WeightVersion(step=0))
    return Group(ticket=ticket, trajectories=(trajectory,))


def test_the_next_turn_completes_a_turns_choices():
    trajectory, _ = recording()
    (sequence,) = samples_from_groups([group(trajectory)], advantage="dr_grpo")
    assert sequence.experts is not None
    first, second, third = (len(turn.context_ids) + len(turn.sampled_ids) for turn in trajectory.turns)
    # the next turn processes a turn's last id, and its choice has that turn's number
    marks = [0] * (first - 1) + [1] * second + [2] * third + [-1]
    assert sequence.experts[:, 0, 0].tolist() == marks
    assert sequence.experts[:-1, 0, 1].tolist() == list(range(first + second + third - 1))
    assert sequence.experts.shape == (len(sequence.ids), LAYERS, CHOSEN)


def test_a_trajectory_file_keeps_choices(tmp_path: Path):
    trajectory, _ = recording()
    (tmp_path / "0.jsonl").write_text("\n".join(group_lines(group(trajectory))), encoding="utf-8")
    again = play(trajectory.task, read_recording(tmp_path / "0.jsonl"))
    assert len(again.turns) == 3
    for turn, expected in zip(again.turns, trajectory.turns, strict=True):
        assert turn.experts is not None
        assert expected.experts is not None
        assert turn.experts.dtype == np.int16
        assert np.array_equal(turn.experts, expected.experts)


def test_a_recomputed_position_keeps_its_first_choices():
    before, after = np.full((3, 1, 1), 1, dtype=np.int16), np.full((5, 1, 1), 2, dtype=np.int16)
    assert join_recorded([(0, before), (0, after)])[:, 0, 0].tolist() == [1, 1, 1, 2, 2]
    assert join_recorded([(2, before)])[:, 0, 0].tolist() == [-1, -1, 1, 1, 1]


def test_episodes_without_choices_stay_without():
    trajectory = play(*demonstration())
    assert [turn.experts for turn in trajectory.turns] == [None] * 3
    (sequence,) = samples_from_groups([group(trajectory)], advantage="dr_grpo")
    assert sequence.experts is None
    assert all("experts" in line for line in group_lines(group(trajectory)))


def test_choices_reach_the_micro_batch_of_their_sequence():
    trajectory, _ = recording()
    (sequence,) = samples_from_groups([group(trajectory)], advantage="dr_grpo")
    longer = replace(
        sequence,
        ids=as_ids((*sequence.ids, 1)),
        trained_T=as_marks((*sequence.trained_T, True)),
        advantages_T=as_floats((*sequence.advantages_T, 0.0)),
        behaviour_T=as_floats((*sequence.behaviour_T, -1.0)),
        experts=None,
    )
    (only,) = build_batch([sequence, longer], ranks=1, micro_batch_tokens=10**6, pad_id=0).micro_batches[0]
    (experts,) = only.experts
    assert sequence.experts is not None
    count = len(sequence.ids)
    assert experts.samples_BT.tolist() == [[1] * (count + 1), [1] * count + [0]]
    assert experts.experts_BTLK is not None
    assert (experts.experts_BTLK[0] == -1).all()
    assert np.array_equal(experts.experts_BTLK[1, :count], sequence.experts)


def test_a_cut_completion_keeps_the_choices_for_what_is_left():
    said = Completion(
        token_ids=(5, 6, 7), logprobs_T=(-1.0,) * 3, versions_T=(0,) * 3, finished=True, experts=choices(7, turn=0)
    )
    cut = said.first(1).experts
    assert cut is not None
    assert cut[:, 0, 1].tolist() == [0, 1, 2, 3, 4]


def test_choices_are_padded_and_cut_to_the_ids():
    assert pad_choices(choices(4, turn=0)[:3], ids=4)[:, 0, 0].tolist() == [0, 0, 0, -1]
    assert len(pad_choices(choices(6, turn=0), ids=4)) == 4


def test_choices_survive_json_and_must_fit_their_turn():
    made = choices(5, turn=1)
    again = from_data(np.ndarray, to_data(made))
    assert again.dtype == np.int16
    assert np.array_equal(again, made)
    assert to_data(made).keys() == {"shape", "int16"}
    trajectory, _ = recording()
    turn = trajectory.turns[0]
    with refuses("experts", 5):
        replace(turn, experts=made)
