"""A weight push by size of model, against copying the same bytes in memory.

`python -m bench.push`. Each round measures the copy right before and right after the push,
so that a machine
with other work to do slows both. Only the load into an engine needs a model; the rest moves random tensors that are named
like one's.
"""

import argparse
import asyncio
import json
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import get_args

import torch
from bench.push.buckets import HERE, ROUNDS, bench_buckets, copy_seconds
from bench.push.segments import bench_segments, publisher
from rich.console import Console
from rich.table import Table
from safetensors.torch import load_file

from temper.learner.models.fresh import FreshModelConfig, make_model
from temper.rollout.engines.config import EngineConfig
from temper.rollout.engines.vllm_engine import VllmEngine
from temper.rollout.trajectory import WeightVersion
from temper.rollout.weights.manifest import WireDtype
from temper.rollout.weights.transports import BROADCAST, CUDA_IPC, TRANSPORTS

SHAPES = {"1M": (128, 4), "100M": (768, 14), "1B": (2048, 20)}
"""Width and number of layers of the named tensors."""
DISTINCT = 4
"""Layers with memory of their own; the others share it, which is still more than the caches hold."""
MODELS = {
    "1M": FreshModelConfig(hidden_size=160, intermediate_size=640, attention_heads=5, key_value_heads=5, mamba_heads=5),
    "100M": FreshModelConfig(
        pattern="M-M-M*-M-M-M*-",
        hidden_size=1024,
        intermediate_size=4096,
        attention_heads=16,
        key_value_heads=8,
        mamba_heads=64,
        state_size=64,
        initializer_range=0.02,
    ),
}
"""Models that are loaded into an engine."""

Weights = dict[str, torch.Tensor]


def named_tensors(width: int, layers: int) -> Weights:
    """Return float32 tensors named and shaped like a transformer's."""
    draw = torch.Generator().manual_seed(0)
    parts = {
        "self_attn.qkv_proj": (3 * width, width),
        "self_attn.o_proj": (width, width),
        "mlp.up_proj": (4 * width, width),
        "mlp.down_proj": (width, 4 * width),
    }
    made = [{name: torch.randn(shape, generator=draw) for name, shape in parts.items()} for _ in range(DISTINCT)]
    found = {"model.embed_tokens.weight": torch.randn((32 * width, width), generator=draw)} if layers > DISTINCT else {}
    for number in range(layers):
        found |= {f"model.layers.{number}.{name}.weight": made[number % DISTINCT][name] for name in parts}
    return found


async def bench_engine(config: FreshModelConfig) -> dict[str, float]:
    """Measure the seconds that a running engine takes to load a push of a model in float32, verifying included."""
    with tempfile.TemporaryDirectory(prefix="temper-bench-") as folder:
        parameters = make_model(Path(folder), config, seed=0)
        weights = load_file(Path(folder) / "model.safetensors")
        engine = VllmEngine(Path(folder), EngineConfig(max_model_len=256), version=WeightVersion(step=0), ends=())
    await engine.start()
    loading, rounds = [], []
    try:
        with publisher(weights, transport="shared_memory", wire_dtype="float32") as sender:
            for version in range(1, 1 + ROUNDS):
                before = copy_seconds(sender.nbytes)
                began = time.perf_counter()
                manifest = sender.push(version, gathered=[weights])
                published = time.perf_counter()
                offer = sender.offer(version, whole=True, audience=HERE)
                await engine.load_weights(manifest, offer, number=0)
                loaded = time.perf_counter()
                loading.append(loaded - published)
                rounds.append((loaded - began) / ((before + copy_seconds(sender.nbytes)) / 2))
    finally:
        await engine.close()
    return {
        "parameters": float(parameters),
        "bytes": float(manifest.nbytes),
        "load_s": min(loading),
        "publish_and_load_times_memory_copy": median(rounds[1:]),
    }


def bench_push(sizes: list[str], *, wire_dtype: str, engines: list[str]) -> Iterator[tuple[str, dict[str, float]]]:
    """Yield figures as they come, under `<size>/<transport>` and `<size>/engine`."""
    for size in sizes:
        weights = named_tensors(*SHAPES[size])
        for transport in usable_transports():
            if transport == BROADCAST:
                yield f"{size}/{transport}", bench_buckets(weights, wire_dtype=wire_dtype)
            else:
                yield f"{size}/{transport}", bench_segments(weights, transport=transport, wire_dtype=wire_dtype)
    for size in engines:
        yield f"{size}/engine", asyncio.run(bench_engine(MODELS[size]))


def usable_transports() -> list[str]:
    """Return the transports that this machine can use."""
    return [name for name in TRANSPORTS if name != CUDA_IPC or torch.cuda.is_available()]


def main() -> None:
    """Measure, and print a table on standard error and one JSON object on standard output."""
    parser = argparse.ArgumentParser(prog="python -m bench.push", description=__doc__)
    parser.add_argument("--sizes", nargs="*", choices=list(SHAPES), default=["1M", "100M"], help="1B takes 7 GB")
    parser.add_argument("--engines", nargs="*", choices=list(MODELS), default=["1M"], help="models loaded into vLLM")
    parser.add_argument("--wire-dtype", default="float32", choices=get_args(WireDtype))
    parser.add_argument("--threads", type=int, default=1)
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    found = bench_push(given.sizes, wire_dtype=given.wire_dtype, engines=given.engines)
    figures = {f"{group}/{name}": value for group, part in found for name, value in part.items()}
    table = Table("figure", "value", title=f"weight push, {given.wire_dtype}, {given.threads} threads")
    for name, value in figures.items():
        table.add_row(name, f"{value:,.4g}")
    Console(stderr=True).print(table)
    print(json.dumps(figures))
