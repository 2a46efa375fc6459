"""A weight push by size of model, against copying the same bytes in memory.

`python -m bench.push`. Each round measures the copy right before and right after the push, so that a machine with other
work to do slows both. Only the load into an engine needs a model. The rest moves random tensors with a model's names.
"""

import argparse
import asyncio
import contextlib
import json
import multiprocessing
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from pathlib import Path
from statistics import median
from typing import get_args

import torch
from rich.console import Console
from rich.table import Table
from safetensors.torch import load_file
from support import tiny_models

from temper.learner.models.config import FreshModelConfig
from temper.learner.models.fresh import make_model
from temper.learner.weight_sender import BucketSender, SegmentSender
from temper.orchestrator.cluster.this_machine import LOOPBACK
from temper.rollout.engines.config import EngineConfig
from temper.rollout.engines.vllm_engine import VllmEngine
from temper.rollout.engines.vllm_settings import KEEP_FREED
from temper.rollout.trajectory import WeightVersion
from temper.rollout.weights.buckets import BucketReceiver
from temper.rollout.weights.config import BROADCAST, CUDA_IPC, TRANSPORTS, WireDtype
from temper.rollout.weights.expert_owners import EXPERT
from temper.rollout.weights.manifest import WeightManifest
from temper.rollout.weights.receiver import WeightReceiver
from temper.rollout.weights.transports import Receivers

ANSWER_S = 60.0
"""Time limit of a push, in seconds. The first push includes the start of the process."""
END_S = 10.0
"""Seconds that the process may take to exit by itself."""


class OtherEnd:
    """A process that receives pushes in turn."""

    def __init__(self, take: Callable[[Connection], None], *, answer_s: float = ANSWER_S) -> None:
        """`take` runs in the process. It answers each push with the seconds that the push took, until the pipe closes."""
        context = multiprocessing.get_context("spawn")
        self._answer_s = answer_s
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=take, args=(theirs,), daemon=True)
        self._process.start()
        theirs.close()  # open in that process alone, so that it closes with it

    def give(self, manifest: WeightManifest, offer: object) -> None:
        """Send a push for it to receive."""
        self._pipe.send((manifest, offer))

    def taken(self) -> float:
        """Wait for the push and return the seconds that the process reports.

        Raises `RuntimeError` if the process has ended, `TimeoutError` if it does not answer.
        """
        try:
            if not self._pipe.poll(self._answer_s):
                raise TimeoutError(f"the process that takes pushes has not answered for {self._answer_s:g} s")
            seconds: float = self._pipe.recv()
        except EOFError:
            self._process.join(END_S)
            status = self._process.exitcode
            raise RuntimeError(f"the process that takes pushes ended with status {status}") from None
        return seconds

    def close(self) -> None:
        """End the process, by force if it does not exit."""
        self._pipe.close()
        self._process.join(END_S)
        if self._process.is_alive():
            self._process.kill()
            self._process.join(END_S)


ROUNDS = 4
"""Measured pushes, after those that allocate the memory."""
COPY_BYTES = 2**28
"""Most bytes copied at once for comparison."""
HERE = Receivers(number=1, size=1, host=LOOPBACK)


def copy_seconds(nbytes: int) -> float:
    """Measure the seconds of copying so many bytes between two places in memory, both already in use."""
    source, target = (torch.ones(min(nbytes, COPY_BYTES), dtype=torch.uint8) for _ in range(2))
    left, began = nbytes, time.perf_counter()
    while left > 0:
        size = min(left, len(source))
        target[:size].copy_(source[:size])
        left -= size
    return time.perf_counter() - began


def bench_buckets(weights: dict[str, torch.Tensor], *, wire_dtype: str) -> dict[str, float]:
    """Measure the seconds to send weights in buckets to another process, which verifies them, and their ratio to a copy."""
    os.environ.setdefault("GLIBC_TUNABLES", KEEP_FREED)  # as in an engine's process
    shapes = {name: tuple(tensor.shape) for name, tensor in weights.items()}
    sender = BucketSender(
        shapes=shapes,
        dtype=wire_dtype,
        rank=0,
        ranks=1,
        device=torch.device("cpu"),
        timeout_s=ANSWER_S,
    )
    sending, rounds = [], []
    with contextlib.closing(sender), contextlib.closing(OtherEnd(_take_buckets)) as end:
        for version in range(ROUNDS + 1):
            manifest = sender.push(version)
            before, began = copy_seconds(manifest.nbytes), time.perf_counter()
            end.give(manifest, sender.offer(version, with_base=True, receivers=HERE))
            sender.send(version, [weights])
            end.taken()
            sending.append(time.perf_counter() - began)
            rounds.append(sending[-1] / ((before + copy_seconds(manifest.nbytes)) / 2))
    return {
        "bytes": float(manifest.nbytes),
        "send_s": min(sending),
        "gb_per_s": manifest.nbytes / 1e9 / min(sending),
        "times_memory_copy": median(rounds[1:]),
    }


def _take_buckets(pipe: Connection) -> None:
    """Receive pushes until the other end closes."""
    receiver = BucketReceiver()
    with contextlib.suppress(EOFError):
        while True:
            manifest, ways = pipe.recv()
            began = time.perf_counter()
            receiver.receive(manifest, ways, lambda named: None, member=1, device=torch.device("cpu"))
            pipe.send(time.perf_counter() - began)


def bench_segments(weights: dict[str, torch.Tensor], *, transport: str, wire_dtype: str) -> dict[str, float]:
    """Measure the seconds to publish weights from main memory, and to receive and verify them, and their ratio to a copy."""
    publishing, receiving, rounds = [], [], []
    copying: list[float] = []
    with (
        publisher(weights, transport=transport, wire_dtype=wire_dtype) as sender,
        contextlib.closing(OtherEnd(_take_segments)) as end,
    ):
        for version in range(2 + ROUNDS):
            before, began = copy_seconds(sender.nbytes), time.perf_counter()
            manifest = sender.push(version, gathered=[weights])
            published = time.perf_counter() - began
            end.give(manifest, sender.offer(version, with_base=True, receivers=HERE))
            received = end.taken()
            if version < 2:  # the first two allocate the memory
                continue
            publishing.append(published)
            receiving.append(received)
            copying.append((before + copy_seconds(sender.nbytes)) / 2)
            rounds.append((published + received) / copying[-1])
    return {
        "bytes": float(manifest.nbytes),
        "publish_s": min(publishing),
        "receive_s": min(receiving),
        "copy_s": min(copying),
        "gb_per_s": manifest.nbytes / 1e9 / (min(publishing) + min(receiving)),
        "times_memory_copy": median(rounds),
    }


@contextlib.contextmanager
def publisher(weights: dict[str, torch.Tensor], *, transport: str, wire_dtype: str) -> Iterator[SegmentSender]:
    """Yield the sending end for weights like these."""
    shapes = {name: tuple(tensor.shape) for name, tensor in weights.items()}
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    with contextlib.closing(SegmentSender(transport, shapes=shapes, dtype=wire_dtype, device=device)) as sender:
        yield sender


def _take_segments(pipe: Connection) -> None:
    """Receive pushes until the other end closes."""
    with contextlib.closing(WeightReceiver()) as receiver, contextlib.suppress(EOFError):
        while True:
            pipe.send(_received(receiver, *pipe.recv()))


def _received(receiver: WeightReceiver, manifest: WeightManifest, offer: object) -> float:
    began = time.perf_counter()
    receiver.receive(manifest, offer)
    return time.perf_counter() - began


SHAPES = {"1M": (128, 4), "100M": (768, 14), "1B": (2048, 20)}
"""Width and number of layers of the named tensors."""
DISTINCT = 4
"""Layers with separate memory. The others share it, and it still exceeds the caches."""
EXPERTS, ONE_BY_ONE = "experts", "experts-one-by-one"
"""A model of 8 layers with 128 experts, and the same in the order of a file, in which experts load one by one."""
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
"""Models for the load into an engine."""

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


def _place(name: str) -> tuple[str, int]:
    found = EXPERT.search(name)
    return EXPERT.sub("", name), int(found[0]) if found else 0


async def bench_engine(model: str) -> dict[str, float]:
    """Measure the seconds in which a running engine loads and verifies a push of a model in float32."""
    with tempfile.TemporaryDirectory(prefix="temper-bench-") as folder:
        if model in MODELS:
            make_model(Path(folder), MODELS[model], seed=0)
        else:
            tiny_models.qwen3_moe(Path(folder), experts=128, layers=9)
        weights = load_file(Path(folder) / "model.safetensors")
        if model != ONE_BY_ONE:  # experts are neighbours, as in a learner's push
            weights = {name: weights[name] for name in sorted(weights, key=_place)}
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
                offer = sender.offer(version, with_base=True, receivers=HERE)
                await engine.load_weights(manifest, offer, number=0)
                loaded = time.perf_counter()
                loading.append(loaded - published)
                rounds.append((loaded - began) / ((before + copy_seconds(sender.nbytes)) / 2))
    finally:
        await engine.close()
    return {
        "parameters": float(sum(weight.numel() for weight in weights.values())),
        "bytes": float(manifest.nbytes),
        "load_s": min(loading),
        "load_ms_a_tensor": 1000 * min(loading) / len(weights),
        "publish_and_load_times_memory_copy": median(rounds[1:]),
    }


def bench_push(sizes: list[str], *, wire_dtype: str, engines: list[str]) -> Iterator[tuple[str, dict[str, float]]]:
    """Yield figures as they arrive, under `<size>/<transport>` and `<size>/engine`."""
    for size in sizes:
        weights = named_tensors(*SHAPES[size])
        for transport in usable_transports():
            if transport == BROADCAST:
                yield f"{size}/{transport}", bench_buckets(weights, wire_dtype=wire_dtype)
            else:
                yield f"{size}/{transport}", bench_segments(weights, transport=transport, wire_dtype=wire_dtype)
    for size in engines:
        yield f"{size}/engine", asyncio.run(bench_engine(size))


def usable_transports() -> list[str]:
    """Return the transports that this machine can use."""
    return [name for name in TRANSPORTS if name != CUDA_IPC or torch.cuda.is_available()]


def main() -> None:
    """Measure, and print a table on standard error and one JSON object on standard output."""
    parser = argparse.ArgumentParser(prog="python -m bench.push", description=__doc__)
    parser.add_argument("--sizes", nargs="*", choices=list(SHAPES), default=["1M", "100M"], help="1B takes 7 GB")
    parser.add_argument(
        "--engines", nargs="*", choices=[*MODELS, EXPERTS, ONE_BY_ONE], default=["1M"], help="models for vLLM"
    )
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


if __name__ == "__main__":
    main()
