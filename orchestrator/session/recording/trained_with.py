"""The settings that a step of a sampling stage is trained by: no others change what becomes of its batch."""

from dataclasses import asdict, dataclass, field
from typing import Any

from temper.learner.batches.builder import BatchBuilder
from temper.learner.config import LearnerConfig, OptimConfig
from temper.learner.losses.config import LossConfig
from temper.orchestrator.config.loop import LoopConfig
from temper.orchestrator.config.text import typed


@dataclass(frozen=True, kw_only=True)
class TrainedWith:
    """`steps` are those of the whole stage, which the learning rate's schedule goes by, and `pad_id` the tokenizer's.

    `beside_engines` says whether engines generate while the learner works, which decides on its threads.
    """

    learner: LearnerConfig = field(default_factory=LearnerConfig)
    optim: OptimConfig = field(default_factory=OptimConfig)
    loss: LossConfig = field(default_factory=LossConfig)
    steps: int = 1
    updates_per_step: int = 1
    epochs: int = 1
    beside_engines: bool = False
    pad_id: int = 0

    @classmethod
    def of(cls, stage: LoopConfig, builder: BatchBuilder) -> "TrainedWith":
        """Take the settings of a stage, and of the learner whose batches the builder makes."""
        return cls(
            learner=builder.config,
            optim=stage.optim,
            loss=stage.loss,
            steps=stage.steps,
            updates_per_step=stage.updates_per_step,
            epochs=stage.epochs,
            beside_engines=stage.max_lag > 0,
            pad_id=builder.pad_id,
        )

    @property
    def builder(self) -> BatchBuilder:
        """What makes the batches."""
        return BatchBuilder(config=self.learner, pad_id=self.pad_id)

    @property
    def threads(self) -> int:
        """CPU threads of a rank."""
        return self.learner.threads_beside if self.beside_engines else self.learner.threads

    @property
    def total_updates(self) -> int:
        """Updates of the whole stage."""
        return self.steps * self.updates_per_step * self.epochs

    def as_json(self) -> dict[str, Any]:
        """Return the settings as plain JSON data."""
        return asdict(self)


def trained_with_from_json(data: dict[str, Any]) -> TrainedWith:
    """Return what `as_json` gave. Raise `ValueError` for a setting that there is none, or a value that is wrong."""
    found = typed(TrainedWith, data)
    assert isinstance(found, TrainedWith)
    return found
