"""Per-token results of a step: their rows in micro-batches, and their JSON."""

import json

import numpy as np
import pytest
import torch

from temper.envs.core.task import EnvRef, Task
from temper.learner.batches.micro_batches import build_batch
from temper.learner.batches.samples import samples_from_groups
from temper.learner.losses.corrections import Correction
from temper.learner.losses.policy import PolicyTerms, policy_loss
from temper.learner.losses.surrogates import Clip
from temper.learner.token_records import TokenRecord, build_records
from temper.orchestrator.stages.step_metrics import training_rows
from temper.rollout.token_arrays import as_floats, as_ids, as_marks
from temper.rollout.trajectory import Group, Stop, Ticket, Trajectory, Turn, WeightVersion

MU = -1.0
GUARDED = PolicyTerms(
    clip=Clip(low=0.2, high=0.28), correction=Correction(cap=2.0, error_guard=2.0, token_range=(0.5, 1.5))
)


def turn(context: list[int], sampled: list[int], forced: list[bool]) -> Turn:
    return Turn(
        context_ids=as_ids(context),
        sampled_ids=as_ids(sampled),
        logprobs_T=as_floats([float("nan") if is_forced else MU for is_forced in forced]),
        versions_T=as_ids([3] * len(sampled)),
        injected_T=as_marks(forced),
        text="",
    )


def group(number: int, answers: list[tuple[float, list[Turn], Stop]]) -> Group:
    task = Task(env=EnvRef(name="math"), key=str(number), messages=({"role": "user", "content": "1+1"},), spec={})
    ticket = Ticket(number=number, task=task, admitted=WeightVersion(step=2))
    done = [Trajectory(task=task, turns=tuple(turns), stop=stop, reward=reward) for reward, turns, stop in answers]
    return Group.of(ticket, done)


def answered() -> list[Group]:
    """Three answers, of which the second has two turns and a forced token, and one that was cut off."""
    plain = turn([9, 9], [100, 120], [False, False])
    long = [turn([9, 9], [95, 101, 102], [False, True, False]), turn([8], [110], [False])]
    return [
        group(0, [(1.0, [plain], Stop.ENV), (0.0, long, Stop.ENV)]),
        group(1, [(1.0, [turn([7], [103], [False])], Stop.LENGTH), (0.0, [turn([7], [400], [False])], Stop.ENV)]),
    ]


def records(*, shared_prompts: bool) -> list[TokenRecord]:
    """The records of a step in which log pi of a token is minus its id over 100."""
    samples = samples_from_groups(answered(), advantage="rloo", mask_truncated=True)
    batch = build_batch(samples, ranks=1, micro_batch_tokens=12, pad_id=0, shared_prompts=shared_prompts)
    found = []
    for micro_batch in batch.micro_batches[0]:
        loss = policy_loss(
            torch.tensor(micro_batch.ids_BT) / -100,
            torch.tensor(micro_batch.weights_BT),
            torch.tensor(micro_batch.advantages_BT),
            torch.tensor(micro_batch.behaviour_BT),
            terms=GUARDED,
        )
        assert loss.terms is not None
        found += build_records(micro_batch, loss.terms)
    return found


@pytest.mark.parametrize("shared_prompts", [False, True])
def test_each_sampled_token_is_written_with_its_terms(shared_prompts: bool) -> None:
    rows = training_rows(
        answered(), records(shared_prompts=shared_prompts), version=WeightVersion(step=4), mask_truncated=True
    )
    assert json.loads(json.dumps(rows)) == [
        {"version": 4, "logprobs": [-1.0, -1.2], "advantage": 1.0, "factor": [1.0, 0.819], "left_out": {}},
        {
            "version": 4,
            "logprobs": [-0.95, -1.02, -1.1],
            "advantage": -1.0,
            "factor": [1.051, 0.98, 0.905],
            "left_out": {},
        },
        {"version": 4, "untrained": "truncated"},
        {"version": 4, "logprobs": [-4.0], "advantage": -1.0, "factor": 0.0, "left_out": {"error_guard": [[0, 1]]}},
    ]


def test_a_token_outside_its_range_says_so() -> None:
    made = TokenRecord(
        place=0,
        logprobs_T=as_floats([-1.0, float("nan"), -0.25, -0.25]),
        advantages_T=as_floats([0.5, 0.5, 0.5, -2.0]),
        factors_T=as_floats([1.0, 0.0, 0.0, 1.0]),
        mask_reasons_T=np.array([0, 4, 4, 0], dtype=np.int8),
    ).as_json()
    assert made == {
        "logprobs": [-1.0, None, -0.25, -0.25],
        "advantage": [0.5, 0.5, 0.5, -2.0],
        "factor": [1.0, 0.0, 0.0, 1.0],
        "left_out": {"token_range": [[1, 2]]},
    }


def test_what_no_rank_tells_of_is_null() -> None:
    assert training_rows(answered(), [], version=WeightVersion(step=1), mask_truncated=False) == [None] * 4
