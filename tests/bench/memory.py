"""Main memory of a rank: the plan against this machine, for load, step, checkpoint and push.

`python -m bench.memory` trains fresh Qwen 3 models in separate processes. Load and step are measured above a
rank without a model, the copies of a checkpoint and of a push above the trained model. glibc returns freed tensors at once.
With its defaults the peaks of steps were up to 1.3 times as high.
"""

import json
import os
import re
import tempfile
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from bench.learner import group_of_answers
from rich.console import Console
from rich.table import Table
from support.fresh_qwen3 import fresh_qwen3
from unit.learner.test_worker import in_processes

from temper.learner.batches.micro_batches import TrainBatch, build_batch
from temper.learner.config import GATHER_BYTES, LearnerConfig, LoraConfig, OptimConfig
from temper.learner.losses.config import LossConfig
from temper.learner.worker import TrainerWorker
from temper.orchestrator.pipeline.estimate.memory import copied_bytes, pushed_bytes, rank_memory
from temper.orchestrator.pipeline.estimate.model import count_model, read_config
from temper.rollout.weights.config import COPIES
from temper.rollout.weights.host_memory import release_free_memory

PROMPT, ANSWER = 32, 96
PASSES, STEPS = 2, 3
MODELS = {
    "51 M": {"width": 768, "layers": 6},
    "101 M": {"width": 768, "layers": 12},
    "4 M": {"width": 256, "layers": 4},
    "17 M, 65,536 tokens": {"width": 128, "layers": 1, "vocabulary": 2**16},
    "15 M, one layer": {"width": 1024, "layers": 1},
}
"""Fresh models by name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A learner with the model that it trains."""

    learner: LearnerConfig
    model: str = "51 M"
    answers: int = 2
    """Answers in a pass."""
    optim: OptimConfig = field(default_factory=OptimConfig)

    @property
    def name(self) -> str:
        learner = self.learner
        name = (
            f"ZeRO {learner.zero_stage} on {learner.ranks}, {'bfloat16' if learner.bf16 else 'float32'}, {self.model}"
        )
        name += ", recomputed" * (learner.recompute == "full") + ", offloaded" * (learner.offload == "cpu")
        return name + ", adapters" * (learner.lora.rank > 0) + ", Muon" * (self.optim.kind == "muon")


HALF: dict[str, Any] = {"bf16": True, "wire_dtype": "bfloat16"}
CASES = (
    Case(learner=LearnerConfig()),
    Case(learner=LearnerConfig(recompute="full"), model="4 M", answers=8),
    Case(learner=LearnerConfig(), model="17 M, 65,536 tokens"),
    Case(learner=LearnerConfig(zero_stage=1)),
    Case(learner=LearnerConfig(zero_stage=1, **HALF)),
    Case(learner=LearnerConfig(ranks=2, zero_stage=2)),
    Case(learner=LearnerConfig(ranks=2, zero_stage=2, **HALF)),
    Case(learner=LearnerConfig(zero_stage=2, offload="cpu")),
    Case(learner=LearnerConfig(zero_stage=2, offload="cpu", **HALF)),
    Case(learner=LearnerConfig(ranks=2, zero_stage=3)),
    Case(learner=LearnerConfig(ranks=2, zero_stage=3, **HALF)),
    Case(learner=LearnerConfig(zero_stage=3, offload="cpu", **HALF)),
    Case(learner=LearnerConfig(zero_stage=2, lora=LoraConfig(rank=16)), model="101 M"),
    Case(learner=LearnerConfig(ranks=2, zero_stage=2), model="15 M, one layer", optim=OptimConfig(kind="muon")),
)
ONE_MAPPING_EACH = ("MALLOC_MMAP_THRESHOLD_", "131072")
"""Lets glibc return each freed tensor to the system at once: mallopt(3). By default it keeps some for later."""
MB, PATIENCE_S = 1e6, 900.0


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryFigure:
    """Bytes of rank 0: planned and measured."""

    learner: str
    what: str
    planned: float
    measured: float


def bench_memory(folder: Path) -> list[MemoryFigure]:
    """Measure each case."""
    os.environ[ONE_MAPPING_EACH[0]] = ONE_MAPPING_EACH[1]
    for name, sizes in MODELS.items():
        fresh_qwen3(folder / name, **sizes)
    fresh_qwen3(folder / "small", width=128, layers=1)
    figures = []
    for case in CASES:
        planned = planned_bytes(folder, case)
        (measured, *_) = in_processes(
            measured_bytes, ranks=case.learner.ranks, arguments=(str(folder), case), seconds=PATIENCE_S
        )
        figures += [
            MemoryFigure(learner=case.name, what=what, planned=planned[what], measured=found)
            for what, found in measured.items()
        ]
    return figures


def planned_bytes(folder: Path, case: Case) -> dict[str, float]:
    learner = case.learner
    model = count_model(read_config(folder / case.model), learner, name="fresh")
    rank = rank_memory(model, learner, [case.optim], pass_tokens=case.answers * (PROMPT + ANSWER), gpu=False)
    once, each = pushed_bytes(model, learner)
    gathered = min(once or each, GATHER_BYTES) if rank.gathered else 0
    return {
        "load": rank.reading,
        "step": max(rank.peak + rank.offloaded, rank.reading),
        "checkpoint": copied_bytes(model, learner, [case.optim], ranks=1),
        "push": once + COPIES * each + gathered,
    }


def measured_bytes(rank: int, port: int, folder: str, case: Case) -> dict[str, float]:
    """Return the peaks of a rank."""
    torch.set_num_threads(1)
    learner = case.learner
    worker = TrainerWorker(rank, learner.ranks, "127.0.0.1", port, learner)
    train(worker, f"{folder}/small", optim=case.optim, steps=2)  # imports, and memory of threads
    worker.save(f"{folder}/first")
    worker.close()
    found: dict[str, float] = {}
    peak = PeakMemory()
    worker.load(f"{folder}/{case.model}", optim=case.optim, total_steps=9)
    found["load"] = peak.bytes
    for _ in range(STEPS):
        worker.train_step(batch(learner.ranks, answers=case.answers).share(rank), loss=LossConfig())
        release_free_memory(pause_s=0)
    found["step"] = peak.bytes
    peak = PeakMemory()
    worker.save(f"{folder}/second", beside=True)
    found["checkpoint"] = peak.bytes
    worker.write()
    peak = PeakMemory()
    worker.publish(1)
    worker.publish(2)
    found["push"] = peak.bytes
    return found


class PeakMemory:
    """The peak of this process's resident memory since now, above its present memory, as the kernel measures it."""

    def __init__(self) -> None:
        release_free_memory(pause_s=0)
        Path("/proc/self/clear_refs").write_text("5")  # the peak starts again: proc(5)
        self._start = self._peak()

    @property
    def bytes(self) -> int:
        return self._peak() - self._start

    def _peak(self) -> int:
        (kilobytes,) = re.findall(r"^VmHWM:\s+(\d+) kB$", Path("/proc/self/status").read_text(), re.MULTILINE)
        return int(kilobytes) * 1024


def train(worker: TrainerWorker, model: str, *, optim: OptimConfig, steps: int) -> None:
    worker.load(model, optim=optim, total_steps=9)
    for _ in range(steps):
        worker.train_step(batch(worker.config.ranks, answers=2).share(worker.rank), loss=LossConfig())


def batch(ranks: int, *, answers: int) -> TrainBatch:
    """Return `PASSES` micro-batches for each rank, without shared prompts."""
    passes = [group_of_answers(answers=answers, prompt=PROMPT, answer=ANSWER) for _ in range(PASSES * ranks)]
    group = [one for each in passes for one in each]
    return build_batch(group, ranks=ranks, micro_batch_tokens=answers * (PROMPT + ANSWER), pad_id=0)


def print_memory(figures: list[MemoryFigure]) -> None:
    """Print one JSON list on standard output and a table on standard error."""
    table = Table("learner", "", "planned, MB", "measured, MB", "measured / planned")
    for one in figures:
        sizes = [f"{size / MB:,.0f}" for size in (one.planned, one.measured)]
        table.add_row(one.learner, one.what, *sizes, f"{one.measured / one.planned:.2f}")
    Console(stderr=True).print(table)
    print(json.dumps([asdict(one) for one in figures]))


if __name__ == "__main__":
    with tempfile.TemporaryDirectory(prefix="temper-bench-") as made:
        print_memory(bench_memory(Path(made)))
