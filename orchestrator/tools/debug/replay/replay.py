"""A recorded step trained again: as it was recorded, and with other settings beside that."""

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from enum import Enum
from pathlib import Path
from typing import Any

from temper.learner.token_records import TokenRecord
from temper.orchestrator.run.checkpoint import place, steps, verify
from temper.orchestrator.run.folder import RunDir
from temper.orchestrator.run.metrics_log import read_metrics, step_rows
from temper.orchestrator.session.recording import StepBatch, TrainedWith, packages_here, read_batch
from temper.orchestrator.tools.debug.replay.chain import Chain, chosen
from temper.orchestrator.tools.debug.replay.changed_settings import changed
from temper.orchestrator.tools.debug.replay.tokens import TokensCompared, compared
from temper.orchestrator.tools.debug.replay.training import Ranks, Start, Trained
from temper.orchestrator.tools.debug.replay.weights import Effects, Stored, effects, stored_compared
from temper.orchestrator.tools.inspect.viewer.token_bytes import TokenBytes, tokenizer_of

OF_TIME = ("step_seconds", "tokens_per_s")
Pairs = dict[str, tuple[float, float]]


class Verdict(Enum):
    """How a replay as recorded stands to its record."""

    SAME = "same"
    DIFFERS = "differs"
    NOTHING = "nothing to compare with"
    """Nothing was recorded of the step: none of its tokens or metrics, and no checkpoint of it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayRequest:
    """What a replay is to do. `shown` is how many tokens are described."""

    step: str
    sets: tuple[str, ...] = ()
    shown: int = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class StepCompared:
    """A step beside its record: its tokens, None where the run recorded none, and the metrics that differ, recorded first.

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
    """The last step with other settings beside the same as recorded: tokens, metrics that differ, weights and gradients."""

    sets: tuple[str, ...]
    tokens: TokensCompared
    metrics: Pairs
    effects: Effects


@dataclass(frozen=True, slots=True, kw_only=True)
class Replay:
    """What was found. `weights` compares with the run's checkpoint of the step, None where it has none; `next_checkpoint` is
    then the next one that it has. `packages` are those whose version is another than when the step was recorded."""

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
    def verdict(self) -> Verdict:
        """What it comes to. A step of which nothing was recorded is not as recorded, whatever the steps before it are."""
        if self.differs:
            return Verdict.DIFFERS
        return Verdict.SAME if self.weights is not None or self.compared[-1].is_compared else Verdict.NOTHING

    def as_json(self) -> dict[str, Any]:
        """Return it as plain JSON data."""
        changed = None if self.changed is None else asdict(self.changed) | {"effects": self.changed.effects.as_json()}
        return {
            "run": str(self.run),
            **self.chain.as_json(),
            "differs": self.differs,
            "verdict": self.verdict.value,
            "packages": self.packages,
            "steps": [asdict(one) for one in self.compared],
            "weights": None if self.weights is None else asdict(self.weights),
            "next_checkpoint": self.next_checkpoint,
            "changed": changed,
        }


async def replay(run: RunDir, asked: ReplayRequest, ranks: Ranks, *, note: Callable[[str], None]) -> Replay:
    """Train a recorded step again from the checkpoint before it, and compare. The run's folder is only read.

    Raise `ValueError` where the step can't be trained again as it was, and for settings that no replay is about.
    """
    chain = chosen(run, asked.step)
    batches = [read_batch(run.batch_file(chain.stage, step)) for step in chain.steps]
    last, start = batches[-1], Start(model=chain.model, has_state=chain.base > 0)
    told = [batch.trained_with for batch in batches]
    other = _other(run, asked, chain, last)
    _require_teacher(batches)
    note(f"{chain.label}: from {chain.model}, steps {chain.steps[0]} to {chain.step} of {len(chain.steps)}")
    compare = _Comparer(run, last, model=chain.model, shown=asked.shown)
    if other is None:
        trained, model = await ranks.train(start, batches, told)
        beside = None
    else:
        trained, before = [], start
        if batches[:-1]:
            trained, model = await ranks.train(start, batches[:-1], told[:-1])
            before = Start(model=model, has_state=True)
        as_recorded, model = await ranks.train(before, [last], told[-1:])
        trained += as_recorded
        note(f"training step {chain.step} with {', '.join(asked.sets)}")
        with_others, there = await ranks.train(before, [last], [other])
        tokens = compare.replays(trained[-1], told[-1], with_others[0], other)
        beside = Changed(
            sets=asked.sets,
            tokens=tokens,
            metrics=_unequal(trained[-1].metrics, with_others[0].metrics),
            effects=effects(before, model, there, decays=_decays(trained[-1], told[-1], with_others[0], other)),
        )
    mine = place(run.checkpoints(chain.stage), chain.step)
    if has_checkpoint := mine.is_dir():
        verify(mine)
    here = packages_here()
    return Replay(
        run=run.root,
        chain=chain,
        compared=[compare.step(batch, one) for batch, one in zip(batches, trained, strict=True)],
        weights=stored_compared(mine, model) if has_checkpoint else None,
        next_checkpoint=min((s for s in steps(mine.parent) if s > chain.step), default=None),
        packages={
            name: (there, here.get(name, "none")) for name, there in last.packages.items() if there != here.get(name)
        },
        changed=beside,
    )


def _other(run: RunDir, asked: ReplayRequest, chain: Chain, last: StepBatch) -> TrainedWith | None:
    """Return the settings of the last step with those that are set over them; None where none are."""
    if not asked.sets:
        return None
    kind = run.state().stages[chain.stage]
    has_state = chain.step > 1
    return changed(last.trained_with, asked.sets, stage=chain.stage, kind=kind, has_state=has_state)


def _require_teacher(batches: Sequence[StepBatch]) -> None:
    """Raise `ValueError` where a step was compared with a teacher that is no longer there."""
    for teacher in {batch.teacher for batch in batches} - {None}:
        if teacher is not None and not (Path(teacher) / "config.json").is_file():
            raise ValueError(
                f"the step learnt from the teacher {teacher}, which is not there any more; without it the step can't be "
                f"trained as it was; put it back"
            )


def _decays(one: Trained, told: TrainedWith, other: Trained, changed: TrainedWith) -> tuple[float, float] | None:
    """Return the decay of the gradient's running mean in each replay.

    None where a step makes several updates, and where one was skipped, which leaves that mean as it was.
    """
    several = any(each.updates_per_step * each.epochs > 1 for each in (told, changed))
    skipped = any(each.metrics["skipped"] > 0 for each in (one, other))
    if several or skipped or told.optim.kind == "muon":
        return None
    return told.optim.beta1, changed.optim.beta1


class _Comparer:
    """Compares steps with their records, and replays with each other."""

    def __init__(self, run: RunDir, last: StepBatch, *, model: Path, shown: int) -> None:
        self._run = run
        self._last = last
        self._shown = shown
        self._tokenizer: TokenBytes | None = tokenizer_of(model)
        self._metrics = {row.step: row.values for row in step_rows(read_metrics(run.metrics), last.stage)}

    def step(self, batch: StepBatch, trained: Trained) -> StepCompared:
        """Compare a step with what the run recorded of it."""
        recorded = self._metrics.get(batch.step, {})
        # the file has no infinity, and all that is not finite is NaN in its rows
        ours = {
            f"train/{name}": value if math.isfinite(value) else math.nan
            for name, value in trained.metrics.items()
            if name not in OF_TIME
        }
        both = {name: value for name, value in recorded.items() if name in ours}
        tokens = None
        if batch.records:
            tokens = self._tokens(batch, batch.records, batch.trained_with, trained.records, batch.trained_with)
        return StepCompared(step=batch.step, tokens=tokens, metrics=_unequal(both, ours), metrics_compared=len(both))

    def replays(self, one: Trained, told: TrainedWith, other: Trained, changed: TrainedWith) -> TokensCompared:
        """Compare the last step's two replays."""
        return self._tokens(self._last, one.records, told, other.records, changed)

    def _tokens(
        self,
        batch: StepBatch,
        one: Sequence[TokenRecord],
        told: TrainedWith,
        other: Sequence[TokenRecord],
        changed: TrainedWith,
    ) -> TokensCompared:
        answers = self._run.trajectory_file(batch.stage, batch.step)
        return compared(
            batch,
            (one, told.loss),
            (other, changed.loss),
            tokenizer=self._tokenizer,
            shown=self._shown,
            file=answers.stem if answers.is_file() else None,
        )


def _unequal(one: dict[str, float], other: dict[str, float]) -> Pairs:
    """Return the metrics of both that differ, NaN being equal to itself."""
    pairs = {name: (value, other[name]) for name, value in one.items() if name in other and name not in OF_TIME}
    return {name: (a, b) for name, (a, b) in pairs.items() if a != b and not (a != a and b != b)}
