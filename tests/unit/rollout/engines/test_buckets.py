"""A push in buckets into real vLLM, an engine of two processes: with requests in flight, damaged midway, and repeated."""

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from support import tiny_models
from unit.rollout.engines.test_vllm import CONFIG, ENDS, TOLERANCE, Setup

from temper.learner.config import LearnerConfig, OptimConfig
from temper.learner.worker import TrainerWorker
from temper.orchestrator.cluster.this_machine import LOOPBACK, free_port
from temper.rollout.engines.vllm_engine import VllmEngine
from temper.rollout.trajectory import WeightVersion
from temper.rollout.weights.buckets import BucketGroup, Buffers, pack_buckets
from temper.rollout.weights.manifest import WeightManifest
from temper.rollout.weights.process_group import GroupMember, ProcessGroup, open_store

CPU = torch.device("cpu")
PROCESSES = 2
SMALL = 20_000
"""Bytes of a bucket: a tiny model has many, and layers span several."""


class Ends:
    """A rank's end of the push, by hand."""

    def __init__(self, rank: TrainerWorker) -> None:
        first = GroupMember(host=LOOPBACK, port=0, rank=0, size=1 + PROCESSES, timeout_s=60.0)
        rendezvous, self.store = open_store(first)
        self.bucket_group = BucketGroup(rendezvous=rendezvous, senders=1, bucket_bytes=SMALL)
        self.group: ProcessGroup | None = None
        assert rank.engine is not None
        self.rank = rank.engine

    async def push(
        self, engine: VllmEngine, version: int, *, damaged: bool = False, rows: int = 0, lacking: str | None = None
    ) -> WeightVersion:
        """Push the rank's weights, with a flipped bit, a larger embedding, or missing names."""
        shapes, gathered = self.rank.checkpoint_shapes(), [dict(one) for one in self.rank.checkpoint_parameters()]
        for one in gathered:
            for name in [name for name in one if lacking is not None and lacking in name]:
                del one[name], shapes[name]
            for name in [name for name in one if rows and "embeddings" in name]:
                one[name] = torch.nn.functional.pad(one[name], (0, 0, 0, rows))
                shapes[name] = tuple(one[name].shape)
        manifest = WeightManifest.of(shapes, dtype="float32", transport="broadcast", version=version)
        packing = pack_buckets(self.bucket_group.buckets(manifest), gathered, rank=0, buffers=Buffers(CPU))
        sent = [buffer[: bucket.manifest.nbytes] for bucket, buffer in packing]
        assert len(sent) > 5
        if damaged:
            sent[len(sent) // 2][7] ^= 1
        sending = asyncio.create_task(asyncio.to_thread(self._send, sent))
        try:
            return await engine.load_weights(manifest, self.bucket_group, number=0)
        finally:
            await sending

    def _send(self, segments: list[torch.Tensor]) -> None:
        self.group = self.group or self.bucket_group.join(self.store, sender=0, member=0, device=CPU)
        for segment in segments:
            self.group.begin(segment)()


async def story(model_dir: Path) -> None:
    engine = VllmEngine(model_dir, replace(CONFIG, tensor_parallel=PROCESSES), version=WeightVersion(step=0), ends=ENDS)
    await engine.start()
    rank = TrainerWorker(0, 1, LOOPBACK, free_port(), LearnerConfig())
    rank.load(str(model_dir), optim=OptimConfig(learning_rate=1e-2, warmup_steps=0), total_steps=10)
    setup = Setup(engine=engine, rank=rank, prompts=[tuple(range(5, 40)), (9, 8, 7)])
    try:
        ends = Ends(rank)
        setup.train()
        assert await ends.push(engine, 1) == WeightVersion(step=1)
        assert setup.gap(await setup.sample(4, tokens=16)) < TOLERANCE

        setup.train()
        running = await setup.sampling(8, tokens=150)
        with pytest.raises(ValueError, match=r"weight version 2 was not loaded whole.*push again"):
            await ends.push(engine, 2, damaged=True)
        assert await engine.version() == WeightVersion(step=1)
        assert await ends.push(engine, 2) == WeightVersion(step=2)
        assert len(await running) == 8  # they waited for the weights, and continued
        assert setup.gap(await setup.sample(4, tokens=16)) < TOLERANCE

        setup.train()
        with pytest.raises(ValueError, match=r"AssertionError.*push again"):  # both processes of the engine report it
            await ends.push(engine, 3, rows=4)
        assert await ends.push(engine, 3) == WeightVersion(step=3)
        assert setup.gap(await setup.sample(4, tokens=16)) < TOLERANCE

        for lacking in (".o_proj.", ".k_proj."):
            with pytest.raises(ValueError, match=r"lacks 1 weights of the model"):
                await ends.push(engine, 4, lacking=lacking)
        assert await engine.version() == WeightVersion(step=3)

        setup.train()
        with pytest.raises(ValueError, match="push again"):
            await ends.push(engine, 4, damaged=True)
        checkpoint = model_dir.parent / "checkpoint"
        rank.save(str(checkpoint))
        assert await engine.load_checkpoint(checkpoint, WeightVersion(step=5)) == WeightVersion(step=5)
        assert setup.gap(await setup.sample(4, tokens=16)) < TOLERANCE
    finally:
        rank.close()
        await engine.close()


@pytest.mark.slow  # two ranks of tests/integration/test_main_job.py push by them too
def test_a_damaged_push_in_buckets_is_repeated(tmp_path: Path) -> None:
    asyncio.run(story(tiny_models.nemotron_h(tmp_path / "model")))
