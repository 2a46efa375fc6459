"""The training state of a checkpoint: its folder, its facts, and the sizes of model and state."""

import json
from dataclasses import asdict, dataclass
from pathlib import Path

from temper.learner.batches.packing import ON_CPU, PassCosts

STATE_FOLDER = "learner"
"""Folder of a checkpoint for state that has no place in Hugging Face's format."""
FACTS = f"{STATE_FOLDER}/facts.json"
FLOAT32, BFLOAT16 = 4, 2


def model_bytes(weights: int, *, bf16: bool, buffers: int = 0) -> int:
    """Return the bytes of a model in a checkpoint: `weights` in the computing type, `buffers` in float32."""
    return weights * (BFLOAT16 if bf16 else FLOAT32) + buffers * FLOAT32


def state_bytes(trained: int, *, bf16: bool, adapters: int = 0, ema: bool = False) -> int:
    """Return an upper bound of the training state's bytes for `trained` parameters.

    AdamW's two moments, in bfloat16 also the float32 weights, with `ema` the averages of the weights, and the `adapters`,
    which the saved model has merged.
    """
    return trained * FLOAT32 * (2 + bf16 + ema) + model_bytes(adapters, bf16=bf16)


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointFacts:
    """The facts that a learner needs to resume from a checkpoint."""

    steps: int
    """Number of updates done."""
    bf16: bool
    """Whether the updates were computed in bfloat16."""
    start: str
    """The initial model of the stage, relative to the stage's folder, because a run's folder may move."""
    adapter_scale: float = 0.0
    """Factor of the adapters in the sum with their weights. 0 without adapters."""

    @classmethod
    def read(cls, checkpoint: Path) -> "CheckpointFacts":
        """Read the facts of a checkpoint. Raise `ValueError` with file and remedy for a damaged one."""
        file = checkpoint / FACTS
        try:
            return cls(**json.loads(file.read_text(encoding="ascii")))
        except (ValueError, TypeError, RecursionError) as error:
            raise ValueError(
                f"{file} is damaged ({error}); remove {checkpoint} to resume from the checkpoint before it"
            ) from error

    def write(self, checkpoint: Path) -> None:
        (checkpoint / FACTS).write_text(json.dumps(asdict(self)), encoding="ascii")


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedModel:
    """The costs of a loaded model's passes, and the reason if its rows are padded, else ""."""

    costs: PassCosts = ON_CPU
    padded_because: str = ""

    @property
    def note(self) -> str:
        rows = f"are padded: {self.padded_because}" if self.padded_because else "run end to end"
        tokens, margin = self.costs.pass_tokens, self.costs.margin
        measured = f"; a pass costs {tokens} tokens, and prompts are shared below {margin:g} of the cost"
        return f"learner: rows of a pass {rows}{'' if self.costs == ON_CPU else measured}"
