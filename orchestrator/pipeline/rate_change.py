"""The learning rate of a stage that continues with other steps or another schedule."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from math import isclose
from pathlib import Path

from temper.learner.training_state import FACTS, CheckpointFacts
from temper.orchestrator.config.loop import LoopConfig
from temper.orchestrator.pipeline.config import Config
from temper.orchestrator.run.checkpoint import step_of
from temper.orchestrator.run.metrics_log import MetricsRow

RATE = "train/learning_rate"


@dataclass(frozen=True, slots=True, kw_only=True)
class RateChange:
    """The learning rate `before`, at the last trained `step` of a stage, and `after`, at the next one."""

    stage: str
    step: int
    before: float
    after: float

    @property
    def event(self) -> dict[str, list[str]]:
        return {
            "learning rate": [f"{self.before:.3g} at step {self.step}", f"{self.after:.3g} at step {self.step + 1}"]
        }

    @property
    def note(self) -> str:
        verb, (before, after) = "rises" if self.after > self.before else "falls", self.event["learning rate"]
        return (
            f"{self.stage}: the learning rate {verb} from {before} to {after}, because settings of its schedule changed"
        )


def rate_change(
    config: Config, changed: Mapping[str, tuple[str | None, str | None]], checkpoint: Path, rows: Iterable[MetricsRow]
) -> RateChange | None:
    """Return how the learning rate changes after a checkpoint, None if it continues as planned or its stage ends there.

    `changed` are settings with old and new value. `rows` are the run's metrics, which have the rate of the trained step.
    """
    from temper.learner.engine.optimizer import learning_rate  # imports slowly

    name, step = checkpoint.parent.name, step_of(checkpoint)
    one = next((one for one in config.instances if one.name == name and one.stage.trains), None)
    if one is None or config.steps(one) <= step or not (checkpoint / FACTS).is_file():
        return None
    settings, done = config.settings(one), CheckpointFacts.read(checkpoint).steps
    updates = settings.updates if isinstance(settings, LoopConfig) else 1
    old = {key.removeprefix(f"{name}."): value for key, (value, _) in changed.items() if value is not None}
    then = {key: type(now)(old[f"optim.{key}"]) for key, now in vars(settings.optim).items() if f"optim.{key}" in old}
    optim, total = replace(settings.optim, **then), int(old.get("steps", settings.steps)) * updates
    after = learning_rate(done, optim=settings.optim, total_steps=settings.steps * updates)
    if isclose(after, learning_rate(done, optim=optim, total_steps=total)):
        return None
    planned = learning_rate(max(done - 1, 0), optim=optim, total_steps=total)
    before = next((row.values[RATE] for row in rows if row.key == (name, step) and RATE in row.values), planned)
    return RateChange(stage=name, step=step, before=before, after=after)
