"""Engines, learner, weight push and loop, as ratios measured in one process and minute.

`python -m bench CONFIG [key=value ...]`, the first part of `make bench`.
"""

import asyncio
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch
from bench.loop import bench_loop
from bench.processes import first_model, started
from bench.rollout import bench_rollout, with_same_length
from bench.training import bench_training
from rich.console import Console
from rich.table import Table

from temper.learner.batches.samples import samples_from_groups
from temper.learner.losses.config import LossConfig
from temper.learner.trainer_group import TrainerGroup
from temper.orchestrator.config.loop import RlConfig
from temper.orchestrator.loop.mixture import Mixture, open_mixture
from temper.orchestrator.pipeline.config import Config
from temper.orchestrator.pipeline.profiles.resolve import load_resolved_config
from temper.rollout.pool.pool import RolloutPool
from temper.rollout.tokenizer import load_tokenizer, pad_id
from temper.rollout.trajectory import WeightVersion
from temper.rollout.weights.manifest import wire_dtype

REPEATS = 3


async def bench(config: Config, mixture: Mixture) -> dict[str, float]:
    """Measure the configuration's model. Return the figures that `print_bench` shows."""
    rl = config.section(RlConfig)
    with tempfile.TemporaryDirectory(prefix="temper-bench-") as folder:
        model = first_model(config, Path(folder))
        tokenizer = load_tokenizer(model)
        alike, thinks = with_same_length(config, model)
        began, stolen = time.monotonic(), _stolen_s()
        async with started(alike, model) as made:
            pool, learner = made.pool, made.learner
            figures = {"engine/start_s": made.start_s}
            await learner.load(model, optim=rl.optim, loss=LossConfig(objective="nll"), total_steps=100)
            sampling, groups = await bench_rollout(pool, mixture, config, thinks=thinks)
            pad = pad_id(tokenizer)
            sequences = samples_from_groups(groups, advantage=rl.loss.advantage)
            figures |= sampling | bench_training(model, sequences, config.learner, pad_id=pad)
            figures |= await _pushing(pool, learner)
            await learner.load(model, optim=rl.optim, loss=rl.loss, total_steps=100)
            await learner.use_threads(config.learner.threads_during_generation)
            figures |= await bench_loop(pool, learner, mixture, config, pad_id=pad, version=REPEATS)
        cores = (time.monotonic() - began) * (os.cpu_count() or 1)
        return figures | {"machine/stolen_share": (_stolen_s() - stolen) / cores}


async def _pushing(pool: RolloutPool, learner: TrainerGroup) -> dict[str, float]:
    """Measure the seconds of a weight push, and their ratio to copying the same bytes in memory."""
    publish, load, copy, nbytes = [], [], [], 0
    for version in range(1, REPEATS + 1):
        began = time.monotonic()
        push = await learner.publish(WeightVersion(step=version))
        published = time.monotonic()
        await pool.load_weights(push)
        publish.append(published - began)
        load.append(time.monotonic() - published)
        manifest = push.manifest
        kinds = zip(manifest.shapes, manifest.dtypes, strict=True)
        tensors = [torch.ones(shape, dtype=wire_dtype(dtype)) for shape, dtype in kinds]
        copy.append(_seconds(lambda tensors=tensors: [tensor.clone() for tensor in tensors]))  # type: ignore[misc]
        nbytes = manifest.nbytes
    return {
        "push/bytes": float(nbytes),
        "push/publish_s": min(publish),
        "push/load_s": min(load),
        "push/times_memory_copy": (min(publish) + min(load)) / min(copy),
    }


def _stolen_s() -> float:
    """Return the steal time of this machine in CPU seconds, or 0 if the host does not count it."""
    fields = Path("/proc/stat").read_text(encoding="ascii").split()
    return int(fields[8]) / os.sysconf("SC_CLK_TCK")


def _seconds(action: Callable[[], object]) -> float:
    began = time.perf_counter()
    action()
    return time.perf_counter() - began


def print_bench(figures: dict[str, float]) -> None:
    """Print one JSON object on standard output and a table on standard error."""
    table = Table("figure", "value", title=f"bench, {torch.get_num_threads()} threads")
    for name, value in figures.items():
        table.add_row(name, f"{value:,.4g}")
    Console(stderr=True).print(table)
    print(json.dumps(figures))


if __name__ == "__main__":
    path, *overrides = sys.argv[1:]
    settled = load_resolved_config(Path(path), overrides)
    drawn = open_mixture(settled.environments, {}, split="train", seed=settled.seed)
    print_bench(asyncio.run(bench(settled, drawn)))
