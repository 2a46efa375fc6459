"""Main memory of a rank: the plan against this machine, for load, step, checkpoint and push.

`python -m bench.memory` trains a fresh Qwen 3 of 51 M parameters in separate processes. Load and step are measured above a
rank without a model, the copies of a checkpoint and of a push above the trained model. glibc returns freed tensors at once.
With its defaults the peaks of steps were up to 1.3 times as high.
"""

import json
import os
import re
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from bench.learner import group_of_answers
from rich.console import Console
from rich.table import Table
from support.fresh_qwen3 import fresh_qwen3
from unit.learner.test_worker import in_processes

from temper.learner.batches.micro_batches import TrainBatch, build_batch
from temper.learner.config import LearnerConfig, LoraConfig, OptimConfig
from temper.learner.engine.deepspeed_engine import GATHER_BYTES
from temper.learner.losses.config import LossConfig
from temper.learner.worker import TrainerWorker
from temper.orchestrator.tools.preflight.plan.memory import rank_memory
from temper.orchestrator.tools.preflight.plan.model import counted, read_config
from temper.rollout.weights.host_memory import release_free_memory
from temper.rollout.weights.transports import COPIES

WIDTH, LAYERS = 768, 6
ROWS, PROMPT, ANSWER = 2, 32, 96
PASSES, STEPS = 2, 3
LEARNERS = (
    LearnerConfig(),
    LearnerConfig(recompute="full"),
    LearnerConfig(zero_stage=1),
    LearnerConfig(zero_stage=1, bf16=True, wire_dtype="bfloat16"),
    LearnerConfig(zero_stage=2, lora=LoraConfig(rank=16)),
    LearnerConfig(ranks=2, zero_stage=2),
    LearnerConfig(ranks=2, zero_stage=2, bf16=True, wire_dtype="bfloat16"),
    LearnerConfig(zero_stage=2, offload="cpu"),
    LearnerConfig(zero_stage=2, bf16=True, offload="cpu", wire_dtype="bfloat16"),
    LearnerConfig(ranks=2, zero_stage=3),
    LearnerConfig(ranks=2, zero_stage=3, bf16=True, wire_dtype="bfloat16"),
    LearnerConfig(zero_stage=3, bf16=True, offload="cpu", wire_dtype="bfloat16"),
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
    """Measure each learner."""
    os.environ[ONE_MAPPING_EACH[0]] = ONE_MAPPING_EACH[1]
    fresh_qwen3(folder / "model", width=WIDTH, layers=LAYERS)
    fresh_qwen3(folder / "small", width=128, layers=1)
    figures = []
    for learner in LEARNERS:
        name = f"ZeRO {learner.zero_stage} on {learner.ranks}, {'bfloat16' if learner.bf16 else 'float32'}"
        name += ", recomputed" * (learner.recompute == "full") + ", LoRA" * (learner.lora.rank > 0)
        name += ", offloaded" * (learner.offload == "cpu")
        planned = planned_bytes(folder, learner)
        (measured, *_) = in_processes(
            measured_bytes, ranks=learner.ranks, arguments=(str(folder), learner), seconds=PATIENCE_S
        )
        figures += [
            MemoryFigure(learner=name, what=what, planned=planned[what], measured=found)
            for what, found in measured.items()
        ]
    return figures


def planned_bytes(folder: Path, learner: LearnerConfig) -> dict[str, float]:
    model = counted(read_config(folder / "model"), learner, name="fresh")
    rank = rank_memory(model, learner, OptimConfig(), pass_tokens=ROWS * (PROMPT + ANSWER), gpu=False)
    gathered = min(4 * model.parameters, GATHER_BYTES) if learner.zero_stage == 3 else 0
    return {
        "load": rank.reading,
        "step": max(rank.peak + rank.offloaded, rank.reading),
        "checkpoint": model.checkpoint_bytes / (learner.ranks if learner.zero_stage else 1),
        "push": COPIES * model.push_bytes[learner.wire_dtype] + gathered,
    }


def measured_bytes(rank: int, port: int, folder: str, learner: LearnerConfig) -> dict[str, float]:
    """Return the peaks of a rank."""
    torch.set_num_threads(1)
    worker = TrainerWorker(rank, learner.ranks, "127.0.0.1", port, learner)
    train(worker, f"{folder}/small", steps=2)  # imports, and memory of threads
    worker.save(f"{folder}/first")
    worker.close()
    found: dict[str, float] = {}
    peak = PeakMemory()
    worker.load(f"{folder}/model", optim=OptimConfig(), total_steps=9)
    found["load"] = peak.bytes
    for _ in range(STEPS):
        worker.train_step(batch(learner.ranks).share(rank), loss=LossConfig())
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


def train(worker: TrainerWorker, model: str, *, steps: int) -> None:
    worker.load(model, optim=OptimConfig(), total_steps=9)
    for _ in range(steps):
        worker.train_step(batch(worker.config.ranks).share(worker.rank), loss=LossConfig())


def batch(ranks: int) -> TrainBatch:
    """Return `PASSES` micro-batches for each rank, without shared prompts."""
    passes = [group_of_answers(answers=ROWS, prompt=PROMPT, answer=ANSWER) for _ in range(PASSES * ranks)]
    group = [one for each in passes for one in each]
    return build_batch(group, ranks=ranks, micro_batch_tokens=ROWS * (PROMPT + ANSWER), pad_id=0)


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
