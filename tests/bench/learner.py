"""Two ways to compute less, as ratios of the seconds of forward and backward passes.

Shared prompts against full sequences, for one group, with and without recomputed layers. Packed rows of unlike lengths against
padded ones.
`python -m bench.learner` measures the demo's fresh model on one thread, and packed rows a Qwen 3 of 4 M parameters and two
threads too. It measures CPU seconds, not wall-clock seconds, and alternates both ways, so that other work on the machine
matters little. Set OMP_WAIT_POLICY=PASSIVE, or waiting threads count.
"""

import json
import random
import tempfile
import time
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from itertools import product
from pathlib import Path
from statistics import median

import torch
from rich.console import Console
from rich.table import Table
from support.fresh_qwen3 import fresh_qwen3
from transformers import PreTrainedModel
from transformers import logging as transformers_logging

from temper.learner.batches.micro_batches import MicroBatch, TrainBatch, build_batch
from temper.learner.batches.samples import TrainingSample
from temper.learner.models import mamba_scan, packed_rows
from temper.learner.models.config import FreshModelConfig
from temper.learner.models.fresh import make_model
from temper.learner.models.loading import read_model, recompute
from temper.learner.models.logprobs import token_logprobs
from temper.learner.models.scorer import Scorer
from temper.learner.models.shared_prompt import causal_logits
from temper.rollout.token_arrays import as_floats, as_ids, as_marks

SHAPES = tuple(product((1, 4, 8, 16), (16, 64, 128, 512), (16, 64, 256)))
"""Answers of a group, tokens of the prompt, tokens of an answer."""
MICRO_BATCH_TOKENS = 16384
REPEATS, PACKING_REPEATS = 3, 7
LENGTHS = tuple(round(32 * 16 ** (row / 15)) for row in range(16))
"""Tokens of the rows of a micro-batch: 16 lengths from 32 to 512, each the same factor above the one before."""
VOCABULARY = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class SharingFigure:
    """One shape. Seconds are None if the learner runs full sequences anyway."""

    answers: int
    prompt: int
    answer: int
    plain_s: float | None
    shared_s: float | None

    @property
    def times_faster(self) -> float:
        """Seconds of full sequences over seconds with shared prompts, or 1 without them."""
        return 1.0 if self.plain_s is None or self.shared_s is None else self.plain_s / self.shared_s


def bench_sharing(model: PreTrainedModel, shapes: Iterable[tuple[int, int, int]]) -> list[SharingFigure]:
    """Measure each shape, the best of `REPEATS`, on a model in training mode. Every shape makes the model's gradient anew."""
    figures = []
    for answers, prompt, answer in shapes:
        packs = not packed_rows.install(model, model)
        group = group_of_answers(answers=answers, prompt=prompt, answer=answer)
        plain, shared = (
            build_batch(group, ranks=1, micro_batch_tokens=MICRO_BATCH_TOKENS, pad_id=0, shared_prompts=sharing)
            for sharing in (False, True)
        )
        best: tuple[float, float] | None = None
        if any(micro_batch.prompts is not None for micro_batch in shared.micro_batches[0]):
            _seconds(model, shared, packs=packs)
            runs = [(_seconds(model, plain, packs=packs), _seconds(model, shared, packs=packs)) for _ in range(REPEATS)]
            best = (min(run[0] for run in runs), min(run[1] for run in runs))
        figures.append(
            SharingFigure(
                answers=answers,
                prompt=prompt,
                answer=answer,
                plain_s=best[0] if best else None,
                shared_s=best[1] if best else None,
            )
        )
    return figures


@dataclass(frozen=True, slots=True, kw_only=True)
class PackingFigure:
    """Median CPU seconds of a micro-batch of rows of `LENGTHS`, and the median ratio of a padded pass to a packed one."""

    model: str
    threads: int
    padded_s: float
    packed_s: float
    times_faster: float


def bench_packing(name: str, model: PreTrainedModel, *, threads: int) -> PackingFigure:
    """Measure a model in training mode, padded and packed in turn."""
    torch.set_num_threads(threads)
    scorer = Scorer(model, model, tokens=MICRO_BATCH_TOKENS)
    draw = torch.Generator().manual_seed(0)
    ids_BT = torch.randint(0, VOCABULARY, (len(LENGTHS), max(LENGTHS)), generator=draw)
    wanted_BT = torch.arange(max(LENGTHS)) < torch.tensor(LENGTHS)[:, None]
    wanted_BT[:, 0] = False

    def seconds(packs: bool) -> float:
        scorer.packs = packs
        model.zero_grad()
        began = time.process_time()
        scorer(ids_BT, wanted_BT).logprobs_BT.sum().backward()
        return time.process_time() - began

    assert scorer.packs
    seconds(packs=True)
    runs = [(seconds(packs=False), seconds(packs=True)) for _ in range(PACKING_REPEATS)]
    return PackingFigure(
        model=name,
        threads=threads,
        padded_s=median(run[0] for run in runs),
        packed_s=median(run[1] for run in runs),
        times_faster=median(run[0] / run[1] for run in runs),
    )


def group_of_answers(*, answers: int, prompt: int, answer: int) -> list[TrainingSample]:
    """Return a group of random answers to one random prompt, of these lengths in tokens."""
    draw = random.Random(0)
    begin = [draw.randrange(VOCABULARY) for _ in range(prompt)]
    trained_T = (False,) * prompt + (True,) * answer
    return [
        TrainingSample(
            ids=as_ids((*begin, *(draw.randrange(VOCABULARY) for _ in range(answer)))),
            trained_T=as_marks(trained_T),
            advantages_T=as_floats((1.0,) * len(trained_T)),
            behaviour_T=as_floats((-5.0,) * len(trained_T)),
            group=0,
        )
        for _ in range(answers)
    ]


def _seconds(model: PreTrainedModel, batch: TrainBatch, *, packs: bool) -> float:
    """Measure the CPU seconds of forward and backward passes over a batch of one rank."""
    model.zero_grad()
    began = time.process_time()
    for micro_batch in batch.micro_batches[0]:
        _loss(model, micro_batch, packs=packs).backward()
    return time.process_time() - began


def _loss(model: PreTrainedModel, micro_batch: MicroBatch, *, packs: bool) -> torch.Tensor:
    ids_BT = torch.from_numpy(micro_batch.ids_BT)
    logits_BTV = causal_logits(model, model.config, ids_BT, micro_batch.prompts, packs=packs)
    return -(token_logprobs(logits_BTV, ids_BT) * torch.from_numpy(micro_batch.weights_BT)).sum()


def fresh_model(config: FreshModelConfig) -> PreTrainedModel:
    """Make a fresh model in training mode, as the learner would load it."""
    mamba_scan.install()
    with tempfile.TemporaryDirectory(prefix="temper-bench-") as folder:
        make_model(Path(folder), config, seed=0)
        return read_model(Path(folder)).train()


def fresh_qwen() -> PreTrainedModel:
    """Make a fresh Qwen 3 of 4 M parameters in training mode."""
    with tempfile.TemporaryDirectory(prefix="temper-bench-") as folder:
        fresh_qwen3(Path(folder), width=256, layers=4)
        return read_model(Path(folder)).train()


def print_packing(figures: list[PackingFigure]) -> None:
    """Print one JSON list on standard output and a table on standard error."""
    table = Table("model", "threads", "padded, ms", "packed, ms", "times faster")
    for figure in figures:
        times = [f"{1000 * s:,.1f}" for s in (figure.padded_s, figure.packed_s)]
        table.add_row(figure.model, str(figure.threads), *times, f"{figure.times_faster:.2f}")
    Console(stderr=True).print(table)
    print(json.dumps([asdict(figure) for figure in figures]))


def print_sharing(figures: list[SharingFigure]) -> None:
    """Print one JSON list on standard output and a table on standard error."""
    table = Table("answers", "prompt", "answer", "in full, ms", "shared, ms", "times faster")
    for figure in figures:
        times = [f"{1000 * s:,.1f}" if s is not None else "-" for s in (figure.plain_s, figure.shared_s)]
        table.add_row(str(figure.answers), str(figure.prompt), str(figure.answer), *times, f"{figure.times_faster:.2f}")
    Console(stderr=True).print(table)
    print(json.dumps([asdict(figure) | {"times_faster": figure.times_faster} for figure in figures]))


if __name__ == "__main__":
    transformers_logging.set_verbosity_error()
    transformers_logging.disable_progress_bar()
    torch.set_num_threads(1)
    hybrid = fresh_model(FreshModelConfig())
    print_sharing(bench_sharing(hybrid, SHAPES))
    recomputed = fresh_model(FreshModelConfig())
    recompute(recomputed, "full")
    print_sharing(bench_sharing(recomputed, [(16, 512, 64)]))
    packed = product((("hybrid", hybrid), ("Qwen 3", fresh_qwen())), (1, 2))
    print_packing([bench_packing(name, model, threads=threads) for (name, model), threads in packed])
