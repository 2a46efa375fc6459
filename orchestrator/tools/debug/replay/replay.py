"""A recorded step trained again, as recorded and with changed settings."""

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from enum import Enum
from pathlib import Path
from typing import Any

from temper.orchestrator.config.text import overridden
from temper.orchestrator.pipeline.config import KINDS
from temper.orchestrator.run.checkpoint import place, steps, verify
from temper.orchestrator.run.folder import RunDir
from temper.orchestrator.run.metrics_log import read_metrics, step_rows
from temper.orchestrator.session.recording import (
    StepBatch,
    TrainedWith,
    packages_here,
    read_batch,
    trained_with_from_json,
)
from temper.orchestrator.tools.debug.replay.chain import Chain, choose_chain
from temper.orchestrator.tools.debug.replay.tokens import Record, TokensCompared, compare_records
from temper.orchestrator.tools.debug.replay.training import Ranks, Start, Trained
from temper.orchestrator.tools.debug.replay.weights import Effects, Stored, compare_stored, effects
from temper.orchestrator.tools.inspect.viewer.token_bytes import tokenizer_of

OF_TIME = ("step_seconds", "tokens_per_s")
OF_PUSHES = ("transport", "wire_dtype")
OF_THE_STAGE = ("optim", "loss", "steps", "updates_per_step", "epochs")
OF_THE_STATE = ("optim.kind", "learner.bf16", "learner.lora.", "learner.frozen", "learner.train_router")
"""Settings that the state of an optimiser fixes."""
Pairs = dict[str, tuple[float, float]]


class Match(Enum):
    """How a replay as recorded compares with its record."""

    SAME = "same"
    DIFFERS = "differs"
    NOTHING = "nothing to compare with"
    """The step has no recorded tokens, metrics or checkpoint."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayRequest:
    """The step to replay, and settings `key=value` to compare. `shown` is the number of tokens to describe."""

    step: str
    sets: tuple[str, ...] = ()
    shown: int = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class StepCompared:
    """A step against its record: its tokens (None if not recorded) and the metrics that differ, recorded value first.

    `metrics_compared` are the metrics that both have.
    """

    step: int
    tokens: TokensCompared | None
    metrics: Pairs
    metrics_compared: int

    @property
    def differs(self) -> bool:
        """Whether anything does."""
        return bool(self.metrics) or (self.tokens is not None and self.tokens.unequal > 0)

    @property
    def is_compared(self) -> bool:
        """Whether anything was recorded to compare with."""
        return self.metrics_compared > 0 or (self.tokens is not None and self.tokens.tokens > 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Changed:
    """The last step with changed settings, against the step as recorded: tokens, metrics, weights and gradients."""

    sets: tuple[str, ...]
    tokens: TokensCompared
    metrics: Pairs
    effects: Effects


@dataclass(frozen=True, slots=True, kw_only=True)
class Replay:
    """The findings of a replay.

    `weights` compares with the run's checkpoint of the step. It is None without one, and `next_checkpoint` is then the next
    one. `packages` are the packages with changed versions.
    """

    run: Path
    chain: Chain
    compared: list[StepCompared]
    weights: Stored | None
    next_checkpoint: int | None
    packages: dict[str, tuple[str, str]]
    changed: Changed | None

    @property
    def differs(self) -> bool:
        """Whether the replay as recorded differs from the record, or its weights from the run's."""
        return any(one.differs for one in self.compared) or (self.weights is not None and bool(self.weights.unequal))

    @property
    def match(self) -> Match:
        """The result for the last step. `NOTHING` if it was not recorded, even if the steps before it match."""
        if self.differs:
            return Match.DIFFERS
        return Match.SAME if self.weights is not None or self.compared[-1].is_compared else Match.NOTHING

    def as_json(self) -> dict[str, Any]:
        """Return it as plain JSON data."""
        return {
            "run": str(self.run),
            **self.chain.as_json(),
            "differs": self.differs,
            "match": self.match.value,
            "packages": self.packages,
            "steps": [asdict(one) for one in self.compared],
            "weights": None if self.weights is None else asdict(self.weights),
            "next_checkpoint": self.next_checkpoint,
            "changed": self.changed and asdict(self.changed) | {"effects": self.changed.effects.as_json()},
        }


async def replay(run: RunDir, asked: ReplayRequest, ranks: Ranks, *, note: Callable[[str], None]) -> Replay:
    """Train a recorded step again from the checkpoint before it, and compare. The run's folder is only read.

    Raise `ValueError` if the step can't be trained again as it was, and for settings that have no part in it.
    """
    chain = choose_chain(run, asked.step)
    batches = [read_batch(run.batch_file(chain.stage, step)) for step in chain.steps]
    last = batches[-1]
    kind = run.state().stages[chain.stage]
    settings = change_settings(last.trained_with, asked.sets, stage=chain.stage, kind=kind, has_state=chain.step > 1)
    _require_teacher(batches)
    note(f"{chain.label}: from {chain.model}, steps {chain.steps[0]} to {chain.step} of {last.trained_with.steps}")
    tokenizer = tokenizer_of(chain.model)
    metrics = {row.step: row.values for row in step_rows(read_metrics(run.metrics), chain.stage)}

    def tokens(batch: StepBatch, one: Record, other: Record) -> TokensCompared:
        answers = run.trajectory_file(batch.stage, batch.step)
        file = answers.stem if answers.is_file() else None
        return compare_records(batch, one, other, tokenizer=tokenizer, shown=asked.shown, file=file)

    def step(trained: Trained) -> StepCompared:
        batch, loss = trained.batch, trained.batch.trained_with.loss
        # the file has no infinity: all values that are not finite are NaN
        ours = {f"train/{name}": v if math.isfinite(v) else math.nan for name, v in _untimed(trained.metrics).items()}
        both = {name: value for name, value in metrics.get(batch.step, {}).items() if name in ours}
        return StepCompared(
            step=batch.step,
            tokens=tokens(batch, (batch.records, loss), (trained.records, loss)) if batch.records else None,
            metrics=_unequal(both, ours),
            metrics_compared=len(both),
        )

    trained, before, beside = list[Trained](), Start(model=chain.model, has_state=chain.base > 0), None
    if asked.sets and batches[:-1]:
        trained, model = await ranks.train(before, batches[:-1])
        before = Start(model=model, has_state=True)
    as_recorded, model = await ranks.train(before, batches[len(trained) :])
    trained += as_recorded
    if asked.sets:
        note(f"training step {chain.step} with {', '.join(asked.sets)}")
        one, ((other,), elsewhere) = trained[-1], await ranks.train(before, [replace(last, trained_with=settings)])
        beside = Changed(
            sets=asked.sets,
            tokens=tokens(last, (one.records, last.trained_with.loss), (other.records, settings.loss)),
            metrics=_unequal(_untimed(one.metrics), other.metrics),
            effects=effects(before, model, elsewhere, decays=_decays(one, other)),
        )
    mine = place(run.checkpoints(chain.stage), chain.step)
    if has_checkpoint := mine.is_dir():
        verify(mine)
    here = packages_here()
    return Replay(
        run=run.root,
        chain=chain,
        compared=[step(one) for one in trained],
        weights=compare_stored(mine, model) if has_checkpoint else None,
        next_checkpoint=min((s for s in steps(mine.parent) if s > chain.step), default=None),
        packages={name: (v, here.get(name, "none")) for name, v in last.packages.items() if v != here.get(name)},
        changed=beside,
    )


def _require_teacher(batches: Sequence[StepBatch]) -> None:
    """Raise `ValueError` if the teacher of a step no longer exists."""
    for batch in batches:
        if batch.teacher is not None and not (Path(batch.teacher) / "config.json").is_file():
            raise ValueError(f"step {batch.step} used the teacher {batch.teacher}, which no longer exists. Restore it")


def _decays(one: Trained, other: Trained) -> tuple[float, float] | None:
    """Return the decay of the gradient's running mean in each replay.

    None if a step makes several updates, or if one was skipped.
    """
    settings = [each.batch.trained_with for each in (one, other)]
    several = any(each.updates_per_step * each.epochs > 1 for each in settings)
    skipped = any(each.metrics["skipped"] > 0 for each in (one, other))
    if several or skipped or settings[0].optim.kind == "muon":
        return None
    return settings[0].optim.beta1, settings[1].optim.beta1


def _untimed(metrics: dict[str, float]) -> dict[str, float]:
    return {name: value for name, value in metrics.items() if name not in OF_TIME}


def _unequal(one: dict[str, float], other: dict[str, float]) -> Pairs:
    """Return the common metrics that differ. NaN equals NaN."""
    pairs = {name: (value, other[name]) for name, value in one.items() if name in other}
    return {name: (a, b) for name, (a, b) in pairs.items() if a != b and not (a != a and b != b)}


def change_settings(given: TrainedWith, sets: Sequence[str], *, stage: str, kind: str, has_state: bool) -> TrainedWith:
    """Return the settings with `key=value` overrides.

    `stage` is an instance and `kind` its stage. Keys may use either name. `has_state` tells whether the optimizer already has a
    state. Raise `ValueError` for an unknown setting, a wrong value, or a setting without effect on recorded batches.
    """
    own = [_own_key(one, stage=stage, kind=kind) for one in sets]
    for key, given_as in zip(own, sets, strict=True):
        if has_state and key.startswith(OF_THE_STATE):
            raise ValueError(
                f"--set {given_as}: the optimizer state in the checkpoint belongs to the recorded parameters and "
                f"optimizer. Start another run with this setting"
            )
    try:
        return trained_with_from_json(overridden(given.as_json(), own))
    except ValueError as error:
        raise ValueError(f"--set {' '.join(sets)}: {error}") from error


def _own_key(given: str, *, stage: str, kind: str) -> str:
    """Return a setting `key=value` with its key in `TrainedWith`. Raise `ValueError` for an unknown key."""
    key, equals, value = given.partition("=")
    if not equals:
        raise ValueError(f"--set {given} is not key=value, for example {stage}.optim.learning_rate=1e-5")
    section, _, rest = key.partition(".")
    field = rest.partition(".")[0]
    if section == "learner" and field not in OF_PUSHES:
        return given
    if section in (stage, kind) and field in OF_THE_STAGE:
        return f"{rest}={value}"
    if section == "learner":
        raise ValueError(f"--set {given}: {key} is about weight pushes to engines, and a replay has none")
    taken = ", ".join(("learner.*", *(f"{stage}.{one}{'.*' * (one in ('optim', 'loss'))}" for one in OF_THE_STAGE)))
    if section in (stage, kind) and f"{kind}.{rest}" in KINDS:
        raise ValueError(
            f"--set {given}: {key} changes sampling, saving or measuring. The answers of a recorded "
            f"step are fixed. A replay accepts {taken}"
        )
    known = "" if key in KINDS else ", and no setting has this name"
    raise ValueError(
        f"--set {given}: {key} has no effect on the training of a recorded batch of {stage}{known}. Use {taken}"
    )
