"""TRL's invariants on our learner: all ways to compute one batch are one class, with one trajectory of training.

TRL's `tests/invariant` has the idea and needs a GPU. Here a tiny model makes a few updates on a CPU in each way.
"""

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import Qwen3Config, Qwen3ForCausalLM
from unit.learner.test_worker import in_processes, policy_sequences, tiny_transformer, weights_of

from temper.learner.batches.micro_batches import TrainBatch, build_batch
from temper.learner.batches.samples import TrainingSample
from temper.learner.config import LearnerConfig, OptimConfig, ZeroStage
from temper.learner.losses.config import LossConfig
from temper.learner.worker import TrainerWorker
from temper.rollout.token_arrays import as_floats, as_ids, as_marks

STEPS = 3
OPTIM = OptimConfig(learning_rate=1e-3, grad_clip=0.5, warmup_steps=0)
WHOLE = 10**6
PROMPT = 80
Way = tuple[int, bool]
"""The tokens of a micro-batch, and whether answers share the pass over their prompt."""
WAYS: tuple[Way, ...] = ((WHOLE, False), (300, False), (20, False), (WHOLE, True), (300, True))
TOLERANCE = 2e-5
IDEA = "the idea of TRL's tests, our code"


def samples(seed: int) -> list[TrainingSample]:
    """Random answers, all to one prompt."""
    prompt = torch.randint(0, 264, (PROMPT,), generator=torch.Generator().manual_seed(seed)).tolist()
    return [
        TrainingSample(
            ids=as_ids((*prompt, *sample.ids.tolist())),
            trained_T=as_marks((*[False] * PROMPT, *sample.trained_T.tolist())),
            advantages_T=as_floats((*[0.0] * PROMPT, *sample.advantages_T.tolist())),
            behaviour_T=as_floats((*[math.nan] * PROMPT, *sample.behaviour_T.tolist())),
            group=0,
        )
        for sample in policy_sequences(seed=seed)
    ]


def batch(seed: int, *, ranks: int, way: Way) -> TrainBatch:
    tokens, shares = way
    return build_batch(samples(seed), ranks=ranks, micro_batch_tokens=tokens, pad_id=0, shared_prompts=shares)


def trajectories(rank: int, port: int, folder: str, ranks: int, stage: ZeroStage, ways: tuple[Way, ...]) -> list[Any]:
    """Losses and gradient norms of the steps, and the weights after them, for each way."""
    learner = TrainerWorker(rank, ranks, "127.0.0.1", port, LearnerConfig(ranks=ranks, zero_stage=stage))
    found: list[Any] = []
    for way in ways:
        learner.load(folder, optim=OPTIM, total_steps=STEPS)
        metrics = [
            learner.train_step(batch(seed, ranks=ranks, way=way).share(rank), loss=LossConfig())
            for seed in range(STEPS)
        ]
        found.append(([(one["loss"], one["grad_norm"]) for one in metrics], weights_of(learner)))
    learner.close()
    return found


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, list[Any]]:
    """One rank without partitions, in each way. The first is the class's reference."""
    folder = tmp_path_factory.mktemp("invariant") / "model"
    tiny_transformer(Qwen3Config, Qwen3ForCausalLM).save_pretrained(folder)
    (Path(folder) / "tokenizer.json").write_text("{}", encoding="ascii")
    found = in_processes(trajectories, ranks=1, arguments=(str(folder), 1, 0, WAYS))[0]
    return str(folder), found


def require_same(found: list[Any], expected: Any) -> None:
    for metrics, weights in found:
        assert torch.allclose(torch.tensor(metrics), torch.tensor(expected[0]), rtol=TOLERANCE, atol=TOLERANCE)
        for name, tensor in (weights or {}).items():
            assert torch.allclose(tensor, expected[1][name], rtol=0.0, atol=TOLERANCE), name


CLASS = pytest.mark.judges(suite="TRL invariants", run="one rank: micro-batches of 3 sizes, shared prompts")


@CLASS
def test_micro_batches_and_shared_prompts_are_one_class(reference: Any, record_property: Any) -> None:
    record_property("why", f"{IDEA}: equal to one micro-batch within {TOLERANCE}, after {STEPS} updates")
    plain, short = batch(0, ranks=1, way=WAYS[0]), batch(0, ranks=1, way=WAYS[3])
    assert any(micro.prompts is not None for micro in short.micro_batches[0])
    assert not any(micro.prompts is not None for micro in plain.micro_batches[0])
    require_same(reference[1], reference[1][0])
    record_property("passed", len(WAYS))


@pytest.mark.parametrize(
    ("ranks", "stage"),
    [
        pytest.param(
            ranks,
            stage,
            marks=pytest.mark.judges(suite="TRL invariants", run=f"ranks: {ranks}, ZeRO stage {stage}"),
        )
        for ranks in (1, 2)
        for stage in (0, 1, 2, 3)
        if (ranks, stage) != (1, 0)
    ],
)
def test_ranks_and_zero_stages_are_one_class(
    reference: Any, record_property: Any, ranks: int, stage: ZeroStage
) -> None:
    record_property(
        "why",
        f"{IDEA}: equal to one rank at stage 0 within {TOLERANCE}, after {STEPS} updates",
    )
    ways = (WAYS[1], WAYS[4])
    for found in in_processes(trajectories, ranks=ranks, arguments=(reference[0], ranks, stage, ways)):
        require_same(found, reference[1][0])
    record_property("passed", len(ways))
