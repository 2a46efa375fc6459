"""What lies in a checkpoint beside the model: the folder of the training state, and the facts in it."""

import json
from dataclasses import asdict, dataclass
from pathlib import Path

STATE_FOLDER = "learner"
"""Folder of a checkpoint for what Hugging Face's format has no place for."""
FACTS = f"{STATE_FOLDER}/facts.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointFacts:
    """What a learner must know to continue from a checkpoint."""

    steps: int
    """Updates done."""
    bf16: bool
    """Whether they were computed in bfloat16."""
    start: str
    """The model that the stage began with, seen from the stage's folder: a run's folder may be moved."""

    @classmethod
    def read(cls, checkpoint: Path) -> "CheckpointFacts":
        """Return the facts of a checkpoint."""
        return cls(**json.loads((checkpoint / FACTS).read_text(encoding="ascii")))

    def write(self, checkpoint: Path) -> None:
        """Write the facts into a checkpoint, which has its folder for the state."""
        (checkpoint / FACTS).write_text(json.dumps(asdict(self)), encoding="ascii")
