"""The comparison: one engine answers and scores, and the trainer scores the same tokens, also with changed settings.

engine  --> answers with log-probabilities (decoding), the same tokens in one pass (prefill), hidden states
trainer --> a row of gaps as configured, and one for each setting that needs no other engine
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from temper.learner.config import LearnerConfig
from temper.orchestrator.run.progress import Progress
from temper.orchestrator.tools.debug.parity.answers import Answered, ask
from temper.orchestrator.tools.debug.parity.gap import Gap, between
from temper.orchestrator.tools.debug.parity.layers import LayerFindings, compare_layers
from temper.orchestrator.tools.debug.parity.pushed import as_pushed
from temper.orchestrator.tools.debug.parity.setup import Setup
from temper.orchestrator.tools.debug.parity.trainer import Trainer

EXACT = 1e-5
"""Largest difference of a token, in nats, that float32 explains on a CPU."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GapRow:
    """The gaps of the trainer with a setting: to decoding at the sampling of the setup, to prefill of plain samples."""

    setting: str
    """Empty as configured."""
    decoding: Gap
    prefill: Gap


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """The rows of gaps, as configured first; the engine's prefill against its own decoding; and the layers."""

    rows: tuple[GapRow, ...]
    engine: Gap
    layers: LayerFindings | None
    why_no_layers: str
    seconds: float

    @property
    def configured(self) -> GapRow:
        """The gaps as configured."""
        return self.rows[0]

    @property
    def largest(self) -> float:
        """The largest difference of a token as configured, to decoding or to prefill."""
        return max(self.configured.decoding.largest, self.configured.prefill.largest)

    @property
    def is_exact(self) -> bool:
        """Whether engine and trainer agree as float32 does."""
        return self.largest <= EXACT


def compare(
    model: Path,
    setup: Setup,
    prompts: Sequence[tuple[int, ...]],
    *,
    tokens: int,
    end: int,
    tell: Callable[[str], None] = lambda text: None,
    progress: Progress | None = None,
) -> Comparison:
    """Compare engine and trainer of a model. `tokens` is the most of an answer, which the id `end` ends.

    `tell` gets notes, `progress` shows the sampling. Raise whatever the engine raises, and `ValueError` for log-probabilities
    that are not finite.
    """
    began = time.monotonic()
    tell("the engine samples and scores")
    with as_pushed(model, setup) as pushed:
        answered = ask(pushed, setup, prompts, tokens=tokens, end=end, progress=progress)
    tell("the trainer scores")
    trainer = Trainer(model)
    rows = [_row(trainer, answered, setup.learner)]
    layers, why_not = _layers(trainer, answered, setup.learner)
    for setting, learner in variants(setup):
        tell(f"the trainer scores with {setting}")
        try:
            rows.append(_row(trainer, answered, learner, setting=setting))
        except (ValueError, RuntimeError) as error:  # too little memory, or a precision that overflows
            tell(f"{setting}: {error}")
    return Comparison(
        rows=tuple(rows),
        engine=between([one.prefill_T for one in answered.plain], [one.decoded_T for one in answered.plain]),
        layers=layers,
        why_no_layers=why_not,
        seconds=time.monotonic() - began,
    )


def variants(setup: Setup) -> list[tuple[str, LearnerConfig]]:
    """Return settings of the learner to compare with, each with the learner that has it."""
    learner = setup.learner
    found = []
    if learner.bf16:
        found.append(("learner.bf16=false", replace(learner, bf16=False)))
    elif setup.engine.dtype != "float32":
        stage = learner.zero_stage or 1  # bfloat16 takes a ZeRO stage above 0
        found.append((f"learner.bf16=true learner.zero_stage={stage}", replace(learner, bf16=True, zero_stage=stage)))
    if learner.shared_prompts:
        found.append(("learner.shared_prompts=false", replace(learner, shared_prompts=False)))
    return found


def _row(trainer: Trainer, answered: Answered, learner: LearnerConfig, *, setting: str = "") -> GapRow:
    decoding = between(trainer.scores(answered.answers, learner), [one.decoded_T for one in answered.answers])
    prefill = between(trainer.scores(answered.plain, learner), [one.prefill_T for one in answered.plain])
    return GapRow(setting=setting, decoding=decoding, prefill=prefill)


def _layers(trainer: Trainer, answered: Answered, learner: LearnerConfig) -> tuple[LayerFindings | None, str]:
    if answered.watched is None:
        return None, answered.why_not
    try:
        return compare_layers(trainer, answered.watched, bf16=learner.bf16), ""
    except ValueError as error:
        return None, str(error)
