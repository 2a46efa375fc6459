"""The models of the check: fresh hybrids of the shape of Nemotron-H, and of 1 B parameters where there is a GPU."""

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from temper.learner.models.fresh import FreshModelConfig, fresh_qwen3, make_model

SMALL = FreshModelConfig()
MIDDLE = FreshModelConfig(
    pattern="M-M-M*-M-M-M*-",
    hidden_size=1024,
    intermediate_size=4096,
    attention_heads=16,
    key_value_heads=8,
    mamba_heads=64,
    state_size=128,
    initializer_range=0.02,
    max_positions=8192,
    chunk_size=256,
)
LARGE = FreshModelConfig(
    pattern="M-M-M-M*-M-M-M-M*-M-M-M-M*-M-M-M-M*-",
    hidden_size=2048,
    intermediate_size=8192,
    attention_heads=16,
    key_value_heads=8,
    mamba_heads=128,
    state_size=128,
    initializer_range=0.02,
    max_positions=8192,
    chunk_size=256,
)
"""1 B parameters: 16 Mamba-2 layers, 4 of attention, 20 MLPs."""


@contextmanager
def fresh(config: FreshModelConfig) -> Iterator[tuple[Path, int]]:
    """Give a folder with a fresh model, and its parameters; it is removed again."""
    with tempfile.TemporaryDirectory(prefix="temper-gpu-") as folder:
        yield Path(folder), make_model(Path(folder), config, seed=0)


@contextmanager
def attention_only(*, small: bool) -> Iterator[tuple[Path, int]]:
    """Give a folder with a fresh Qwen 3 of 4 M or 120 M parameters, and how many it has; it is removed again."""
    width, layers = (256, 4) if small else (1024, 8)
    with tempfile.TemporaryDirectory(prefix="temper-gpu-") as folder:
        yield Path(folder), fresh_qwen3(Path(folder), width=width, layers=layers)
