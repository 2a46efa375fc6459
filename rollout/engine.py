"""What the rollout needs of an inference engine, whichever it is."""

from dataclasses import dataclass
from typing import Protocol

from rollout.manifest import WeightManifest
from rollout.trajectory import WeightVersion


@dataclass(frozen=True, kw_only=True)
class EngineConfig:
    """How a rollout engine runs."""

    dtype: str = "float32"
    """Precision of the weights; float32 makes trainer and engine agree to 1e-6."""
    max_model_len: int = 1024
    """Longest sequence, prompt included, in tokens."""
    max_sequences: int = 256
    """How many sequences are generated at once."""
    batched_tokens: int = 4096
    """Most tokens in one forward pass, prompts included."""
    threads: int = 1
    """CPU threads of the engine; ignored on a GPU."""
    memory_gib: int = 1
    """Size of the key-value cache on a CPU, in GiB; ignored on a GPU."""
    gpu_memory_utilization: float = 0.5
    """Share of a GPU's memory that the engine may take; ignored on a CPU."""
    push_timeout_s: float = 120.0
    """Deadline of one weight push, in seconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Completion:
    """What the engine sampled for one prompt. `_T`: one entry per sampled token.

    `finished` is true where the model ended its turn, false where the token limit cut it off.
    """

    token_ids: tuple[int, ...]
    logprobs_T: tuple[float, ...]
    versions_T: tuple[int, ...]
    finished: bool

    def __post_init__(self) -> None:
        count = len(self.token_ids)
        if len(self.logprobs_T) != count or len(self.versions_T) != count:
            raise ValueError(
                f"{count} sampled tokens, {len(self.logprobs_T)} log-probabilities, {len(self.versions_T)} versions"
            )


class Engine(Protocol):
    """Generates from token ids, and takes new weights while it does."""

    async def generate(self, prompt_ids: tuple[int, ...], *, max_tokens: int, seed: int) -> Completion:
        """Sample at temperature 1 until the end of the turn or `max_tokens`; log-probabilities in nats."""
        ...

    async def load_weights(self, manifest: WeightManifest) -> WeightVersion:
        """Swap the weights under the running requests; returns the version that the engine now confirms."""
        ...

    async def version(self) -> WeightVersion:
        """The version of the weights in use."""
        ...

    async def close(self) -> None:
        """Stop the engine and its processes."""
        ...
