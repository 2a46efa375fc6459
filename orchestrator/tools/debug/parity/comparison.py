"""The comparison: one engine answers and scores, and the trainer scores the same tokens, also with changed settings.

engine  --> answers with log-probabilities (decoding), the same tokens in one pass (prefill), hidden states
trainer --> a row of gaps as configured, and one for each setting that needs no other engine
"""

import asyncio
import io
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from temper.learner.config import LearnerConfig
from temper.orchestrator.run.progress import Progress
from temper.orchestrator.tools.debug.parity.answers import Prompt, SampledAnswers, Setup, as_pushed, sample_answers
from temper.orchestrator.tools.debug.parity.layers import LayerFindings, compare_layers
from temper.orchestrator.tools.debug.parity.trainer import Trainer

EXACT = 1e-5
"""Largest difference of a token, in nats, that float32 explains on a CPU."""
RATIO = 2.0
"""A token counts as outside if exp(difference) is above it, or below 1 over it."""
Logprobs = Sequence[float] | NDArray[np.float32]


@dataclass(frozen=True, slots=True, kw_only=True)
class LogprobDiff:
    """The trainer's log-probabilities less the engine's, over some tokens: `mean`, `p99` and `largest` without sign, in nats.

    `outside` is the share of tokens whose ratio exp(difference) leaves [1 / 2, 2]. `k3` estimates the divergence of the
    trainer from the engine that sampled, in nats a token: the mean of r - 1 - log r (Schulman, "Approximating KL
    Divergence", 2020).
    """

    tokens: int
    mean: float
    p99: float
    largest: float
    outside: float
    k3: float


@dataclass(frozen=True, slots=True, kw_only=True)
class DiffRow:
    """The logprob diffs of the trainer with one setting: to decoding as sampled, and to prefill at temperature 1."""

    setting: str
    """Empty as configured."""
    decoding: LogprobDiff
    prefill: LogprobDiff


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """The rows, as configured first, the engine's prefill against its decoding, and the layers."""

    rows: tuple[DiffRow, ...]
    engine: LogprobDiff
    layers: LayerFindings | None
    untraced_reason: str
    seconds: float

    @property
    def configured(self) -> DiffRow:
        """The logprob diffs as configured."""
        return self.rows[0]

    @property
    def is_exact(self) -> bool:
        """Whether engine and trainer agree as float32 does."""
        return max(self.configured.decoding.largest, self.configured.prefill.largest) <= EXACT


def compare(
    model: Path,
    setup: Setup,
    prompts: Sequence[Prompt],
    *,
    tokens: int,
    end: int,
    notify: Callable[[str], None] = lambda text: None,
    progress: Progress | None = None,
) -> Comparison:
    """Compare engine and trainer of a model.

    `tokens` is the maximum length of an answer, which `end` ends. `notify` receives notes, `progress` shows the sampling.
    Raise the engine's errors, and `ValueError` for logprobs that are not finite.
    """
    began = time.monotonic()
    notify("the engine samples and scores")
    shown = progress or Progress(stream=io.StringIO())
    with as_pushed(model, setup) as pushed:
        answered = asyncio.run(sample_answers(pushed, setup, prompts, tokens=tokens, end=end, progress=shown))
    notify("the trainer scores")
    trainer, layers, untraced_reason = Trainer(model), None, answered.untraced_reason
    rows = [_row(trainer, answered, setup.learner)]
    if answered.traced is not None:
        try:
            layers = compare_layers(trainer, answered.traced, bf16=setup.learner.bf16)
        except ValueError as error:
            untraced_reason = str(error)
    for setting, learner in variants(setup):
        notify(f"the trainer scores with {setting}")
        try:
            rows.append(_row(trainer, answered, learner, setting=setting))
        except (ValueError, RuntimeError) as error:  # too little memory, or a precision that overflows
            notify(f"{setting}: {error}")
    return Comparison(
        rows=tuple(rows),
        engine=compare_logprobs((one.prefill_T for one in answered.plain), (one.decoded_T for one in answered.plain)),
        layers=layers,
        untraced_reason=untraced_reason,
        seconds=time.monotonic() - began,
    )


def variants(setup: Setup) -> list[tuple[str, LearnerConfig]]:
    """Return the settings to try, each with its learner configuration."""
    learner = setup.learner
    found = []
    if learner.bf16:
        found.append(("learner.bf16=false", replace(learner, bf16=False)))
    elif setup.engine.dtype != "float32":
        stage = learner.zero_stage or 1  # bfloat16 requires a ZeRO stage above 0
        found.append((f"learner.bf16=true learner.zero_stage={stage}", replace(learner, bf16=True, zero_stage=stage)))
    if learner.shared_prompts:
        found.append(("learner.shared_prompts=false", replace(learner, shared_prompts=False)))
    return found


def _row(trainer: Trainer, answered: SampledAnswers, learner: LearnerConfig, *, setting: str = "") -> DiffRow:
    decoded_T = (one.decoded_T for one in answered.answers)
    prefill_T = (one.prefill_T for one in answered.plain)
    return DiffRow(
        setting=setting,
        decoding=compare_logprobs(trainer.scores(answered.answers, learner), decoded_T),
        prefill=compare_logprobs(trainer.scores(answered.plain, learner), prefill_T),
    )


def compare_logprobs(ours: Iterable[Logprobs], theirs: Iterable[Logprobs]) -> LogprobDiff:
    """Return the diff of two lists of logprobs, one sequence per answer.

    Raise `ValueError` if there are no tokens, or a value is not finite.
    """
    pairs = zip(ours, theirs, strict=True)
    parts = [np.asarray(own, dtype=np.float64) - np.asarray(other, dtype=np.float64) for own, other in pairs]
    gaps_N = np.concatenate([np.zeros(0), *parts])
    if not len(gaps_N):
        raise ValueError("no tokens to compare: every answer is empty. Allow longer answers with --tokens")
    if not np.isfinite(gaps_N).all():
        places = np.flatnonzero(~np.isfinite(gaps_N))
        raise ValueError(
            f"{len(places)} of {len(gaps_N)} logprobs are not finite, the first one at token "
            f"{places[0]}: a precision overflows, or a model's weights are damaged"
        )
    sizes_N = np.abs(gaps_N)
    return LogprobDiff(
        tokens=len(sizes_N),
        mean=float(sizes_N.mean()),
        p99=float(np.quantile(sizes_N, 0.99)),
        largest=float(sizes_N.max()),
        outside=float((sizes_N > np.log(RATIO)).mean()),
        k3=float((np.expm1(gaps_N) - gaps_N).mean()),
    )
