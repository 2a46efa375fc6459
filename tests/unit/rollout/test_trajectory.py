"""Trajectories are plain data: light to import, and written and read back without loss."""

import pickle
import subprocess
import sys

import numpy as np

from temper.envs.core.errors import Failure, FailureKind
from temper.envs.core.step_result import ToolSpan
from temper.envs.core.task import EnvRef, Task
from temper.rewards.score import Outcome, Score
from temper.rollout.codec import from_data, from_json, to_data, to_json
from temper.rollout.token_arrays import as_floats, as_ids, as_marks, fill_array
from temper.rollout.trajectory import Closed, Group, Stop, ThinkingStats, Ticket, Times, Trajectory, Turn, WeightVersion

HEAVY = ("transformers", "torch", "vllm", "ray")


def test_whoever_reads_trajectories_loads_no_model_library() -> None:
    code = f"import sys, temper.rollout.trajectory_json; print([name for name in {HEAVY} if name in sys.modules])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"


def test_a_turn_is_read_back_as_it_was_written_times_included() -> None:
    turn = Turn(
        context_ids=as_ids((1, 2)),
        sampled_ids=as_ids((3,)),
        logprobs_T=as_floats((-0.5,)),
        versions_T=as_ids((4,)),
        injected_T=as_marks((False,)),
        text="a",
        thinking=ThinkingStats(tokens=0, answer_tokens=1, closed=Closed.NONE),
        times=Times(queue_s=0.1, generate_s=0.25, step_s=1.5),
        tool_spans=(ToolSpan(name="get", arguments={"key": ["a", 1]}, began_s=0.25, seconds=0.000125),),
    )
    again = from_json(Turn, to_json(turn))
    assert (again, again.times, again.tool_spans) == (turn, turn.times, turn.tool_spans)
    written = to_data(turn)
    del written["tool_spans"]  # as in files of earlier versions
    assert from_data(Turn, written).tool_spans == ()


def test_times_add_up() -> None:
    one = Times(queue_s=1.0, generate_s=2.0, step_s=3.0)
    assert one + Times(step_s=0.5) == Times(queue_s=1.0, generate_s=2.0, step_s=3.5)


def test_a_group_is_read_back_as_written() -> None:
    task = Task(env=EnvRef(name="math"), key="7", messages=({"role": "user", "content": "1+1"},), spec={"answer": "2"})
    turn = Turn(
        context_ids=as_ids((1,)),
        sampled_ids=as_ids((2, 3)),
        logprobs_T=as_floats((-0.1, -1 / 3)),
        versions_T=as_ids((4, 5)),
        injected_T=as_marks((False,) * 2),
        text="2",
    )
    score = Score(outcome=Outcome.OK, parts={"correct": 1.0, "length": 0.1}, detail="d", evidence={"by": "sympy"})
    failure = Failure(kind=FailureKind.TIMEOUT, message="too slow")
    group = Group(
        ticket=Ticket(number=9, task=task, admitted=WeightVersion(step=4)),
        trajectories=(
            Trajectory(task=task, turns=(turn, turn), stop=Stop.LENGTH, reward=1 / 3, score=score, seconds=1.5),
        ),
        failed=(Trajectory(task=task, turns=(), stop=Stop.FAILURE, failure=failure),),
        retried=(failure, failure),
    )
    assert from_json(Group, to_json(group.without_data)).with_task(task) == group


def test_token_arrays_are_pickled_out_of_band() -> None:
    count = 10_000
    turn = Turn(
        context_ids=fill_array(count, np.int32(7)),
        sampled_ids=fill_array(count, np.int32(8)),
        logprobs_T=fill_array(count, np.float32(np.nan)),
        versions_T=fill_array(count, np.int32(3)),
        injected_T=fill_array(count, np.bool_(True)),
        text="",
    )
    task = Task(env=EnvRef(name="math"), key="7", messages=({"role": "user", "content": "?"},), spec={})
    group = Group.of(
        Ticket(number=1, task=task, admitted=WeightVersion(step=3)),
        [Trajectory(task=task, turns=(turn,), stop=Stop.ENV, reward=1.0)],
    )
    buffers: list[pickle.PickleBuffer] = []
    data = pickle.dumps(group, protocol=5, buffer_callback=buffers.append)
    assert (len(data) < 5000, len(buffers)) == (True, 5)
    again = pickle.loads(data, buffers=buffers)
    assert again == group
    assert np.shares_memory(again.trajectories[0].turns[0].sampled_ids, turn.sampled_ids)
