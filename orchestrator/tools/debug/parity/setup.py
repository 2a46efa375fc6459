"""The settings that a comparison is made with: an engine, a trainer and a way of sampling."""

from dataclasses import dataclass

from temper.learner.config import LearnerConfig
from temper.rollout.engines.config import EngineConfig
from temper.rollout.sampling import PLAIN, Sampling


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """The settings that a gap can come from."""

    engine: EngineConfig
    learner: LearnerConfig
    sampling: Sampling = PLAIN

    @property
    def wire_rounds(self) -> bool:
        """Whether a push rounds the weights to less than both the trainer's and the engine's type."""
        wire = self.learner.wire_dtype
        is_lower = wire != "float32" and not (self.learner.bf16 and wire == "bfloat16")
        return is_lower and self.engine.dtype != wire
