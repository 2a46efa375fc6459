"""`bench`, the learner: an update against a plain training loop of transformers on the same sequences, in one process.

`python -m bench.training MODEL [bf16]` measures a model directory on random sequences of 48 tokens and prints JSON.
"""

import json
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import torch
from bench.learner import group_of_answers
from transformers import AutoModelForCausalLM, PreTrainedModel
from transformers.models.nemotron_h import modeling_nemotron_h

from temper.learner.batches.micro_batches import build_batch
from temper.learner.batches.samples import TrainingSample
from temper.learner.config import LearnerConfig, OptimConfig
from temper.learner.losses.config import LossConfig
from temper.learner.models import mamba_scan
from temper.learner.worker import TrainerWorker
from temper.orchestrator.cluster.this_machine import LOOPBACK, free_port

REPEATS = 4
PRODUCTS = 20
SEQUENCES = 64
"""Most sequences of an update: transformers' scan is slow on a CPU."""
UNTRAINED = -100
"""The label that transformers' loss ignores."""


def bench_training(
    model_dir: Path, sequences: Sequence[TrainingSample], learner: LearnerConfig, *, pad_id: int
) -> dict[str, float]:
    """Measure the tokens a second of updates by the learner, without and with shared prompts, and by the plain loop.

    Each sequence counts with all its tokens. The ways take turns, and the best of each counts. `matmul_share` is the rate of
    the multiplications with weights, 6 a weight and token (Kaplan et al. 2020, table 1), over the rate of one large product.
    """
    torch.set_num_threads(learner.threads)
    sequences = sequences[:SEQUENCES]
    config = replace(learner, ranks=1)
    rank = TrainerWorker(0, 1, LOOPBACK, free_port(), config)
    rank.load(str(model_dir), optim=OptimConfig(), total_steps=100)
    plain = PlainLoop(model_dir, micro_batch_tokens=config.micro_batch_tokens, pad_id=pad_id)
    ways: dict[str, Callable[[], object]] = {"plain_loop": lambda: plain.step(sequences)}
    for name, shared in (("in_full", False), ("shared", True)):
        built = build_batch(
            sequences,
            ranks=1,
            micro_batch_tokens=config.micro_batch_tokens,
            pad_id=pad_id,
            shared_prompts=shared and config.shared_prompts,
        ).share(0)
        ways[name] = lambda built=built: rank.train_step(built, loss=LossConfig(objective="nll"))  # type: ignore[misc]
    best = dict.fromkeys(ways, float("inf"))
    for _ in range(1 + REPEATS):  # the first one allocates memory, and is no one's best
        for name, step in ways.items():
            began = time.perf_counter()
            step()
            best[name] = min(best[name], time.perf_counter() - began)
    head = plain.model.get_output_embeddings().weight.numel()
    embedding = 0 if plain.model.config.tie_word_embeddings else plain.model.get_input_embeddings().weight.numel()
    layers = sum(parameter.numel() for parameter in plain.model.parameters()) - head - embedding
    trained = sum(sequence.trained_tokens for sequence in sequences)  # only these reach the output layer
    peak = matmul_rate(plain.model, tokens=config.micro_batch_tokens, bf16=config.bf16)
    rank.close()
    tokens = sum(len(sequence.ids) for sequence in sequences)
    products = 6 * (layers * tokens + head * trained)
    return {
        "learner/tokens_per_s": tokens / best["in_full"],
        "learner/matmul_share": products / best["in_full"] / peak,
        "learner/shared_tokens_per_s": tokens / best["shared"],
        "learner/times_plain_loop": best["plain_loop"] / best["in_full"],
        "learner/shared_times_plain_loop": best["plain_loop"] / best["shared"],
    }


def matmul_rate(model: PreTrainedModel, *, tokens: int, bf16: bool) -> float:
    """Return the floating-point operations a second of an MLP's product for this many tokens, the best of `PRODUCTS`."""
    dtype = torch.bfloat16 if bf16 else torch.float32
    hidden, inner = model.config.hidden_size, model.config.intermediate_size
    left, right = torch.randn(tokens, hidden, dtype=dtype), torch.randn(inner, hidden, dtype=dtype)
    best = float("inf")
    for _ in range(PRODUCTS):
        began = time.perf_counter()
        torch.nn.functional.linear(left, right)
        best = min(best, time.perf_counter() - began)
    return 2 * tokens * hidden * inner / best


class PlainLoop:
    """The usual code with transformers alone: padded micro-batches in the order of the data, AdamW, nothing else."""

    def __init__(self, model_dir: Path, *, micro_batch_tokens: int, pad_id: int) -> None:
        self.model = AutoModelForCausalLM.from_pretrained(model_dir, dtype=torch.float32).train()
        self._optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-4)
        self._tokens = micro_batch_tokens
        self._pad_id = pad_id

    def step(self, sequences: Sequence[TrainingSample]) -> float:
        """Make one update. Return the loss, a mean over the trained tokens."""
        trained, total = sum(sequence.trained_tokens for sequence in sequences), 0.0
        rows = max(1, self._tokens // max(len(sequence.ids) for sequence in sequences))
        with _reference_scan():
            for start in range(0, len(sequences), rows):
                part = sequences[start : start + rows]
                longest = max(len(sequence.ids) for sequence in part)
                ids_BT = torch.full((len(part), longest), self._pad_id)
                labels_BT = torch.full_like(ids_BT, UNTRAINED)
                mask_BT = torch.zeros_like(ids_BT)
                for row, sequence in enumerate(part):
                    ids_T = torch.tensor(sequence.ids)
                    ids_BT[row, : len(ids_T)] = ids_T
                    mask_BT[row, : len(ids_T)] = 1
                    labels_BT[row, : len(ids_T)] = ids_T.where(torch.tensor(sequence.trained_T), UNTRAINED)
                output = self.model(
                    input_ids=ids_BT,
                    attention_mask=mask_BT,
                    labels=labels_BT,
                    num_items_in_batch=trained,
                    use_cache=False,
                )
                output.loss.backward()
                total += float(output.loss.detach())
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self._optimizer.step()
        self._optimizer.zero_grad()
        return total


@contextmanager
def _reference_scan() -> Iterator[None]:
    """Use transformers' scan, which the learner has replaced in this process."""
    ours = modeling_nemotron_h.mamba2_chunk_scan
    modeling_nemotron_h.mamba2_chunk_scan = mamba_scan.REFERENCE
    try:
        yield
    finally:
        modeling_nemotron_h.mamba2_chunk_scan = ours


def main() -> None:
    bf16 = "bf16" in sys.argv[2:]
    learner = LearnerConfig(bf16=bf16, zero_stage=1 if bf16 else 0, threads=2, micro_batch_tokens=2048)
    print(
        json.dumps(
            bench_training(
                Path(sys.argv[1]), group_of_answers(answers=SEQUENCES, prompt=40, answer=8), learner, pad_id=0
            )
        )
    )


if __name__ == "__main__":
    main()
