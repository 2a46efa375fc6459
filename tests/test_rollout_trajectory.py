"""What a rollout leaves is plain data: light to import, and written and read back without loss."""

import json
import subprocess
import sys

from rollout.trajectory import Closed, Thought, Times, Turn
from rollout.trajectory_json import turn_from_json, turn_to_json

HEAVY = ("transformers", "torch", "vllm", "ray")


def test_whoever_reads_trajectories_loads_no_model_library() -> None:
    code = f"import sys, rollout.trajectory_json; print([name for name in {HEAVY} if name in sys.modules])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"


def test_a_turn_is_read_back_as_it_was_written_times_included() -> None:
    turn = Turn(
        context_ids=(1, 2),
        sampled_ids=(3,),
        logprobs_T=(-0.5,),
        versions_T=(4,),
        forced_T=(False,),
        text="a",
        thought=Thought(tokens=0, answer_tokens=1, closed=Closed.NONE),
        times=Times(queue_s=0.1, generate_s=0.25, step_s=1.5),
    )
    again = turn_from_json(json.loads(json.dumps(turn_to_json(turn))))
    assert (again, again.times) == (turn, turn.times)


def test_times_add_up() -> None:
    one = Times(queue_s=1.0, generate_s=2.0, step_s=3.0)
    assert one + Times(step_s=0.5) == Times(queue_s=1.0, generate_s=2.0, step_s=3.5)
