"""What a rollout leaves is plain data: light to import, and written and read back without loss."""

import json
import subprocess
import sys

from envs.core.env_ref import EnvRef
from envs.core.failure import Failure, FailureKind
from envs.core.task import Task
from rewards.verdict import Outcome, Verdict
from rollout.token_arrays import as_floats, as_ids, as_marks
from rollout.trajectory import Closed, Group, Stop, Thought, Ticket, Times, Trajectory, Turn, WeightVersion
from rollout.trajectory_json import group_from_json, group_to_json, turn_from_json, turn_to_json

HEAVY = ("transformers", "torch", "vllm", "ray")


def test_whoever_reads_trajectories_loads_no_model_library() -> None:
    code = f"import sys, rollout.trajectory_json; print([name for name in {HEAVY} if name in sys.modules])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"


def test_a_turn_is_read_back_as_it_was_written_times_included() -> None:
    turn = Turn(
        context_ids=as_ids((1, 2)),
        sampled_ids=as_ids((3,)),
        logprobs_T=as_floats((-0.5,)),
        versions_T=as_ids((4,)),
        forced_T=as_marks((False,)),
        text="a",
        thought=Thought(tokens=0, answer_tokens=1, closed=Closed.NONE),
        times=Times(queue_s=0.1, generate_s=0.25, step_s=1.5),
    )
    again = turn_from_json(json.loads(json.dumps(turn_to_json(turn))))
    assert (again, again.times) == (turn, turn.times)


def test_times_add_up() -> None:
    one = Times(queue_s=1.0, generate_s=2.0, step_s=3.0)
    assert one + Times(step_s=0.5) == Times(queue_s=1.0, generate_s=2.0, step_s=3.5)


def test_a_group_is_read_back_as_it_was_written_with_its_task_made_again() -> None:
    task = Task(env=EnvRef(name="math"), key="7", messages=({"role": "user", "content": "1+1"},), spec={"answer": "2"})
    turn = Turn(
        context_ids=as_ids((1,)),
        sampled_ids=as_ids((2, 3)),
        logprobs_T=as_floats((-0.1, -1 / 3)),
        versions_T=as_ids((4, 5)),
        forced_T=as_marks((False,) * 2),
        text="2",
    )
    verdict = Verdict(outcome=Outcome.OK, parts={"correct": 1.0, "length": 0.1}, detail="d", evidence={"by": "sympy"})
    failure = Failure(kind=FailureKind.TIMEOUT, message="too slow")
    group = Group(
        ticket=Ticket(number=9, task=task, admitted=WeightVersion(step=4)),
        trajectories=(
            Trajectory(task=task, turns=(turn, turn), stop=Stop.LENGTH, reward=1 / 3, verdict=verdict, seconds=1.5),
        ),
        failed=(Trajectory(task=task, turns=(), stop=Stop.FAILURE, failure=failure),),
        retried=(failure, failure),
    )
    assert group_from_json(json.loads(json.dumps(group_to_json(group))), task) == group
