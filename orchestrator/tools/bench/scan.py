"""`python -m temper.orchestrator.tools.bench.scan`: the Mamba-2 scan on a CPU, transformers' reference against the
learner's, by chunk size.

CPU seconds of a forward and backward pass at the demo's shape, the best of some repeats; the ways take turns. `--compile`
adds the learner's scan through torch.compile, which takes a C++ compiler and half a minute for each chunk size.
"""

import argparse
import json
import time
from collections.abc import Callable, Sequence

import torch
from rich.console import Console
from rich.table import Table

from temper.learner.models.mamba_scan import REFERENCE, chunk_scan

CHUNKS = (8, 16, 32, 64, 128, 256)
BATCH, LENGTH, HEADS, CHANNELS, STATE = 8, 256, 8, 32, 32
REPEATS = 5

Inputs = dict[str, torch.Tensor]


def bench_scan(chunks: Sequence[int], *, compiled: bool = False) -> dict[str, dict[int, float]]:
    """Measure milliseconds by way and chunk size; for the compiled scan also the seconds that compiling takes."""
    ways: dict[str, Callable[[Inputs, int], torch.Tensor]] = {"reference": _reference, "learner": _learner}
    compiling: dict[int, float] = {}
    if compiled:
        ways["compiled"] = torch.compile(_learner, dynamic=False)
        for chunk in chunks:
            began = time.perf_counter()
            ways["compiled"](_inputs(), chunk).square().sum().backward()
            compiling[chunk] = time.perf_counter() - began
    best = {name: dict.fromkeys(chunks, float("inf")) for name in ways}
    for _ in range(REPEATS):
        for chunk in chunks:
            for name, way in ways.items():
                inputs = _inputs()
                began = time.process_time()
                way(inputs, chunk).square().sum().backward()
                best[name][chunk] = min(best[name][chunk], 1000 * (time.process_time() - began))
    return best | ({"compiling, s": compiling} if compiled else {})


def _inputs() -> Inputs:
    draw = torch.Generator().manual_seed(0)
    shapes = {"x": (HEADS, CHANNELS), "dt": (HEADS,), "b": (1, STATE), "c": (1, STATE)}
    made = {name: torch.randn(BATCH, LENGTH, *shape, generator=draw) for name, shape in shapes.items()}
    made["dt"] = made["dt"].sigmoid()
    made |= {"a": -torch.rand(HEADS, generator=draw), "d": torch.ones(HEADS)}
    return {name: tensor.requires_grad_() for name, tensor in made.items()}


def _reference(given: Inputs, chunk: int) -> torch.Tensor:
    returned = REFERENCE(given["x"], given["dt"], given["a"], given["b"], given["c"], chunk, D=given["d"])
    y: torch.Tensor = returned[0] if isinstance(returned, tuple) else returned
    return y


def _learner(given: Inputs, chunk: int) -> torch.Tensor:
    return chunk_scan(given["x"], given["dt"], given["a"], given["b"], given["c"], chunk_size=chunk, d_H=given["d"])


def main() -> None:
    """Measure on one thread, and print a table on standard error and one JSON object on standard output."""
    parser = argparse.ArgumentParser(prog="python -m temper.orchestrator.tools.bench.scan", description=__doc__)
    parser.add_argument("--chunks", type=int, nargs="+", default=list(CHUNKS), help="chunk sizes, in tokens")
    parser.add_argument("--compile", action="store_true", help="measure torch.compile too")
    given = parser.parse_args()
    torch.set_num_threads(1)
    found = bench_scan(given.chunks, compiled=given.compile)
    table = Table("chunk size", *(name if "," in name else f"{name}, ms" for name in found))
    for chunk in given.chunks:
        table.add_row(str(chunk), *(f"{by_chunk[chunk]:,.1f}" for by_chunk in found.values()))
    Console(stderr=True).print(table)
    print(json.dumps(found))


if __name__ == "__main__":
    main()
