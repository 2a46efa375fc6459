"""What a checkpoint costs the loop: the copy that it waits for, and what it would wait for without one.

`python -m temper.orchestrator.tools.bench.saving` measures one rank on a fresh model of 0.14 billion parameters, whose
state is 1.7 GB.
"""

import json
import random
import shutil
import sys
import tempfile
import threading
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median

from rich.console import Console
from rich.table import Table

from temper.learner.batches.micro_batches import BatchShare, make_batch
from temper.learner.batches.samples import TrainingSample
from temper.learner.config import LearnerConfig, OptimConfig
from temper.learner.losses.config import LossConfig
from temper.learner.models.fresh import FreshModelConfig, make_model
from temper.learner.worker import TrainerWorker
from temper.orchestrator.cluster.this_machine import LOOPBACK, free_port
from temper.orchestrator.run.checkpoint import begin, commit, place, size_of

SHAPE = FreshModelConfig(pattern="*-" * 12, hidden_size=1024, intermediate_size=4096, attention_heads=16)
REPEATS = 3
NLL = LossConfig(objective="nll")


@dataclass(frozen=True, slots=True, kw_only=True)
class SavingCost:
    """Medians over `REPEATS` checkpoints, in seconds but for the size."""

    megabytes: float
    waits_s: float
    """What the loop waits for: the copy."""
    writes_s: float
    """What is done beside it after that: writing, flushing, hashing, with training going on."""
    in_turn_s: float
    """What the loop would wait for, if it wrote and committed before it went on."""
    step_s: float
    """A step of training alone."""
    step_beside_s: float
    """One while a checkpoint is written."""


def bench_saving(folder: Path, shape: FreshModelConfig = SHAPE, *, repeats: int = REPEATS) -> SavingCost:
    """Measure on a fresh model of this shape, whose checkpoints are written into the folder."""
    make_model(folder / "model", shape, seed=0)
    learner = TrainerWorker(0, 1, LOOPBACK, free_port(), LearnerConfig())
    learner.load(str(folder / "model"), optim=OptimConfig(), total_steps=1000)
    share = _share()
    steps, beside, waits, writes, in_turn = ([_step(learner, share)], *([] for _ in range(4)))  # the first is slow
    for number in range(repeats):
        steps.append(_step(learner, share))
        directory = begin(folder / "saved", 2 * number, needed_bytes=learner.checkpoint_bytes())
        began = time.monotonic()
        learner.save(str(directory))
        commit(directory)
        in_turn.append(time.monotonic() - began)
        directory = begin(folder / "saved", 2 * number + 1, needed_bytes=learner.checkpoint_bytes())
        began = time.monotonic()
        assert learner.save(str(directory), beside=True), "main memory has no room for the copy"
        waits.append(time.monotonic() - began)
        writing = threading.Thread(target=_write, args=(learner, directory))
        began = time.monotonic()
        writing.start()
        while writing.is_alive():
            beside.append(_step(learner, share))
        writing.join()
        writes.append(time.monotonic() - began)
    learner.close()
    return SavingCost(
        megabytes=size_of(place(folder / "saved", 2 * repeats - 1)) / 1e6,
        waits_s=median(waits),
        writes_s=median(writes),
        in_turn_s=median(in_turn),
        step_s=median(steps[1:]),
        step_beside_s=median(beside),
    )


def _write(learner: TrainerWorker, directory: Path) -> None:
    learner.write()
    commit(directory)


def _share() -> BatchShare:
    draw = random.Random(0)
    rows = [TrainingSample.supervised(ids=[draw.randrange(256) for _ in range(32)], trained_T=[False] + [True] * 31)]
    return make_batch(rows, ranks=1, micro_batch_tokens=64, pad_id=0).share(0)


def _step(learner: TrainerWorker, share: BatchShare) -> float:
    began = time.monotonic()
    learner.train_step(share, loss=NLL)
    return time.monotonic() - began


def main() -> None:
    """Measure in a folder beside the given one, or in that of temporary files; print JSON, and a table for people."""
    folder = Path(tempfile.mkdtemp(prefix="temper-bench-", dir=sys.argv[1] if len(sys.argv) > 1 else None))
    try:
        figures = {name: round(value, 3) for name, value in asdict(bench_saving(folder)).items()}
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    table = Table("checkpoint", "")
    for name, value in figures.items():
        table.add_row(name, f"{value:,.2f}")
    Console(stderr=True).print(table)
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
