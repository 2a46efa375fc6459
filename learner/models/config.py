"""Settings of the model that `init` creates."""

from dataclasses import dataclass

from temper.envs.core.bounds import require_positive
from temper.envs.core.setting import immutable

MAMBA_HEAD_DIM, KERNEL = 32, 4
"""Channels of a head of a Mamba-2 layer, and positions that its convolution sees."""
VOCABULARY = 280
"""Rows of the embedding and of the output layer: the tokens of `byte_tokenizer`, rounded up to a multiple of 8."""
LAYER_TYPES = {"M": "linear_attention", "*": "full_attention", "-": "mlp", "E": "moe"}


@dataclass(frozen=True, kw_only=True)
class FreshModelConfig:
    """The shape of the model that `init` creates. The default has about 0.7 M parameters."""

    pattern: str = immutable("M-M*-*-")
    """One letter per layer: M Mamba-2, * attention, - MLP, E experts (the notation of the Nemotron papers)."""
    hidden_size: int = immutable(128)
    """Width of the residual stream."""
    intermediate_size: int = immutable(512)
    """Width of an MLP layer."""
    experts: int = immutable(8)
    """Routed experts of an expert layer. One shared expert gets every token."""
    experts_per_token: int = immutable(2)
    """Routed experts per token."""
    expert_size: int = immutable(128)
    """Width of an expert."""
    attention_heads: int = immutable(4)
    """Query heads of an attention layer. `hidden_size` must be a multiple."""
    key_value_heads: int = immutable(2)
    """Key and value heads. Must divide `attention_heads`."""
    mamba_heads: int = immutable(4)
    """Heads of a Mamba-2 layer, 32 channels each."""
    state_size: int = immutable(32)
    """State size of a Mamba-2 layer."""
    initializer_range: float = immutable(0.08)
    """Standard deviation of the initial matrices."""
    max_positions: int = immutable(2048, unit="tokens")
    """Longest sequence, in tokens."""
    chunk_size: int = immutable(32, unit="tokens")
    """Chunk of the Mamba-2 scan, in tokens."""

    def __post_init__(self) -> None:
        unknown = set(self.pattern) - set(LAYER_TYPES)
        if unknown or not self.pattern:
            raise ValueError(
                f"model.fresh.pattern={self.pattern!r}: use the letters M (Mamba-2), * (attention), - (MLP), E (experts)"
            )
        for name, value in vars(self).items():
            if not isinstance(value, str):
                require_positive(f"model.fresh.{name}", value)
        if not 1 <= self.experts_per_token <= self.experts:
            raise ValueError(
                f"model.fresh.experts_per_token={self.experts_per_token}: must be between 1 and model.fresh.experts="
                f"{self.experts}"
            )
        if self.hidden_size % self.attention_heads or self.attention_heads % self.key_value_heads:
            raise ValueError(
                f"model.fresh.hidden_size={self.hidden_size} must be a multiple of model.fresh.attention_heads="
                f"{self.attention_heads}, and these a multiple of model.fresh.key_value_heads={self.key_value_heads}"
            )

    @property
    def parameters(self) -> int:
        """Number of parameters, as transformers builds the model: every layer with its norm, then both ends of the stack."""
        hidden, inner = self.hidden_size, self.mamba_heads * MAMBA_HEAD_DIM
        mixed = inner + 2 * self.state_size
        expert = 2 * hidden * self.expert_size
        sizes = {
            "M": (hidden + 1 + KERNEL) * mixed + (2 * hidden + 1) * inner + (hidden + 3) * self.mamba_heads,
            "*": 2 * hidden * hidden * (self.attention_heads + self.key_value_heads) // self.attention_heads,
            "-": 2 * hidden * self.intermediate_size,
            "E": (hidden + expert) * self.experts + expert,
        }
        return 2 * VOCABULARY * hidden + hidden + sum(hidden + sizes[letter] for letter in self.pattern)
