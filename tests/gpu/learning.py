"""The learner on one rank at ZeRO stage 3 in bfloat16: tokens a second, model FLOPs used, memory.

FLOPs are 6 a parameter and token (Kaplan et al., "Scaling Laws for Neural Language Models", 2020, section 2.1), without
attention's scores and the scan.
"""

from inspect import signature

import torch
from gpu.machine import LARGE, SMALL, fresh, on_gpu, peak_flops, peak_gib, seconds
from gpu.measure import Report
from torch.nn.attention.varlen import varlen_attn

from temper.learner.batches.micro_batches import build_batch
from temper.learner.batches.samples import TrainingSample
from temper.learner.config import LearnerConfig, OptimConfig
from temper.learner.losses.config import LossConfig
from temper.learner.worker import TrainerWorker
from temper.orchestrator.cluster.this_machine import LOOPBACK, free_port
from temper.orchestrator.pipeline.estimate.memory import rank_memory
from temper.orchestrator.pipeline.estimate.model import count_model, read_config


def run(report: Report, *, small: bool) -> None:
    """Measure updates, which must reduce the loss on their batch."""
    rows, length = (4, 64) if small else (32, 2048)
    config = LearnerConfig(bf16=True, zero_stage=3, micro_batch_tokens=256 if small else 16384)
    rank = TrainerWorker(0, 1, LOOPBACK, free_port(), config)
    optim = OptimConfig(learning_rate=1e-3, warmup_steps=0)
    with fresh(SMALL if small else LARGE) as (folder, parameters):
        loaded = rank.load(str(folder), optim=optim, total_steps=100)
        model = count_model(read_config(folder), config, name="fresh")
    planned = rank_memory(model, config, [optim], pass_tokens=config.micro_batch_tokens, gpu=on_gpu())
    report.note(f"torch's kernel for packed rows takes {', '.join(signature(varlen_attn).parameters)}")
    report.note(loaded.note)
    report.figure("rows are packed", float(not loaded.padded_because), at_least=1.0)
    report.note(f"a hybrid of {parameters:,} parameters, {rows} sequences of {length} tokens an update")
    ids_BT = torch.randint(0, 256, (rows, length), generator=torch.Generator().manual_seed(0)).tolist()
    samples = [TrainingSample.supervised(ids=tuple(ids), trained_T=[False, *[True] * (length - 1)]) for ids in ids_BT]
    share = build_batch(samples, ranks=1, micro_batch_tokens=config.micro_batch_tokens, pad_id=0).share(0)
    loss = LossConfig(objective="nll")
    first = rank.train_step(share, loss=loss)
    taken = seconds(lambda: rank.train_step(share, loss=loss), repeats=3)
    peak = peak_gib(lambda: rank.train_step(share, loss=loss))
    last = rank.train_step(share, loss=loss)
    rank.close()
    tokens = rows * length
    report.figure(
        "loss after six updates on the same batch, over the first", last["loss"] / first["loss"], at_most=0.99
    )
    report.figure("tokens a second", tokens / taken)
    report.figure("memory at the most", peak, "GiB")
    report.figure("memory at the most, planned", planned.peak / 2**30, "GiB")
    flops = 6 * parameters * tokens / taken
    report.figure("model FLOPs", flops / 1e12, "T a second")
    if (most := peak_flops()) is not None:
        report.figure("model FLOPs used", 100 * flops / most, "% of the peak")
    elif on_gpu():
        report.note("the peak of this GPU is not in tests/gpu/machine.py")
