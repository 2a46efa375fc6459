"""Pushes into a running engine: log-probabilities of engine and trainer differ before a push, and agree after it.

On a GPU both compute in bfloat16, the engine by CUDA graphs, and the first model is a hybrid with expert layers. vLLM's CPU
build has experts of Qwen 3 alone.
"""

import asyncio
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from gpu.machine import EXPERTS, MIDDLE, SMALL, fresh, on_gpu
from gpu.measure import Report
from gpu.runners import BOUNDS
from support import tiny_models
from support.plain_rank import rank_logprobs
from support.pushes import loaded

from temper.learner.batches.micro_batches import build_batch
from temper.learner.batches.samples import TrainingSample
from temper.learner.config import LearnerConfig, LoraConfig, OptimConfig
from temper.learner.losses.config import LossConfig
from temper.learner.worker import TrainerWorker
from temper.orchestrator.cluster.this_machine import LOOPBACK, free_port
from temper.rollout.engines.config import Dtype, EngineConfig
from temper.rollout.engines.protocol import TurnRequest
from temper.rollout.engines.vllm_engine import VllmEngine
from temper.rollout.trajectory import WeightVersion

PUSHES = 2
"""With adapters the first push is whole, and the second has adapters alone."""
ANSWERS, PROMPT, LENGTH = 16, 48, 48
UPDATES = 4
"""Updates before a push. More would make a model whose logits are too large for bfloat16."""
CHANGE = 2.0
"""Least difference before a push, over the largest permitted one after it."""


def run(report: Report, *, small: bool) -> None:
    """Push all weights of a model with expert layers, then the adapters of a hybrid."""
    with _with_experts(small=small) as folder:
        asyncio.run(_push(report, folder, "weights, with experts", LoraConfig()))
    with fresh(SMALL if small else MIDDLE) as (folder, _):
        asyncio.run(_push(report, folder, "adapters", LoraConfig(rank=8)))


@contextmanager
def _with_experts(*, small: bool) -> Iterator[Path]:
    if not small:
        with fresh(EXPERTS) as (folder, _):
            yield folder
        return
    with tempfile.TemporaryDirectory(prefix="temper-gpu-") as made:
        yield tiny_models.qwen3_moe(Path(made) / "model")


async def _push(report: Report, folder: Path, what: str, lora: LoraConfig) -> None:
    dtype: Dtype = "bfloat16" if on_gpu() else "float32"
    half = on_gpu()
    engine = VllmEngine(
        folder,
        EngineConfig(dtype=dtype, max_model_len=512, gpu_memory_utilization=0.4),
        version=WeightVersion(step=0),
        ends=(),
    )
    learner = LearnerConfig(
        bf16=half, zero_stage=1 if half else 0, wire_dtype="bfloat16" if half else "float32", lora=lora
    )
    rank = TrainerWorker(0, 1, LOOPBACK, free_port(), learner)
    ids_BT = torch.randint(0, 256, (ANSWERS, PROMPT), generator=torch.Generator().manual_seed(0)).tolist()
    prompts = [tuple(ids) for ids in ids_BT]
    rank.load(str(folder), optim=OptimConfig(learning_rate=2e-3, warmup_steps=0), total_steps=PUSHES * UPDATES)
    await engine.start()
    try:
        for version in range(1, 1 + PUSHES):
            _train(rank, prompts)
            before = await _gap(engine, rank, prompts)
            report.figure(
                f"{what}, {dtype}, push {version}: mean difference before it",
                before,
                "nats",
                at_least=CHANGE * BOUNDS[dtype],
            )
            began = time.perf_counter()
            manifest = rank.publish(version)
            assert manifest is not None
            await loaded(engine, rank, manifest)
            seconds = time.perf_counter() - began
            after = await _gap(engine, rank, prompts)
            report.figure(
                f"{what}, {dtype}, push {version}: mean difference after it", after, "nats", at_most=BOUNDS[dtype]
            )
            report.figure(f"{what}, push {version} of {manifest.sent_bytes / 1e6:,.1f} MB", seconds, "s")
    finally:
        rank.close()
        await engine.close()


def _train(rank: TrainerWorker, prompts: list[tuple[int, ...]]) -> None:
    rows = [TrainingSample.supervised(ids=ids, trained_T=[False, *[True] * (len(ids) - 1)]) for ids in prompts]
    batch = build_batch(rows, ranks=1, micro_batch_tokens=1024, pad_id=0)
    for _ in range(UPDATES):
        rank.train_step(batch.share(0), loss=LossConfig(objective="nll"))


async def _gap(engine: VllmEngine, rank: TrainerWorker, prompts: list[tuple[int, ...]]) -> float:
    """Return the mean absolute difference of the log-probabilities of new samples."""
    asked = (
        engine.generate(TurnRequest(prompt_ids=ids, max_tokens=LENGTH, seed=seed)) for seed, ids in enumerate(prompts)
    )
    said = await asyncio.gather(*asked)
    whole = [(*prompt, *one.token_ids) for prompt, one in zip(prompts, said, strict=True)]
    expected = rank_logprobs(rank, [TrainingSample.supervised(ids=ids, trained_T=[False] * len(ids)) for ids in whole])
    gaps = [
        abs(ours - theirs)
        for one, row in zip(said, expected, strict=True)
        for ours, theirs in zip(one.logprobs_T, row[-len(one.token_ids) :], strict=True)
    ]
    return sum(gaps) / len(gaps)
