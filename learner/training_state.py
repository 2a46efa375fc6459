"""What lies in a checkpoint beside the model: the folder of the training state, and the facts in it; how large both are."""

import json
from dataclasses import asdict, dataclass
from pathlib import Path

STATE_FOLDER = "learner"
"""Folder of a checkpoint for what Hugging Face's format has no place for."""
FACTS = f"{STATE_FOLDER}/facts.json"
FLOAT32, BFLOAT16 = 4, 2


def model_bytes(weights: int, *, bf16: bool, buffers: int = 0) -> int:
    """Return the bytes of a model in a checkpoint: `weights` in the type that computes them, `buffers` in float32."""
    return weights * (BFLOAT16 if bf16 else FLOAT32) + buffers * FLOAT32


def state_bytes(trained: int, *, bf16: bool, adapters: int = 0) -> int:
    """Return the bytes of the training state of so many parameters, at the most.

    It is AdamW's two moments, in bfloat16 the float32 weights too, and the `adapters` among them, which the model has merged.
    """
    return trained * FLOAT32 * (3 if bf16 else 2) + model_bytes(adapters, bf16=bf16)


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
        return cls(**json.loads((checkpoint / FACTS).read_text(encoding="ascii")))

    def write(self, checkpoint: Path) -> None:
        (checkpoint / FACTS).write_text(json.dumps(asdict(self)), encoding="ascii")
