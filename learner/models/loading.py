"""Model directories in Hugging Face format: the model that is trained from one, and its tokenizer's files."""

from pathlib import Path

import torch
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

from learner.models.mamba_scan import match_engine

TOKENIZER_FILES = (
    "tokenizer*",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.*",
    "merges.txt",
    "chat_template*",
)

HEADERS_BYTES = 2**20
"""Of a checkpoint's files, and its small ones, at the most."""


def read_model(directory: Path) -> PreTrainedModel:
    """A model in float32 that computes what the engines compute. Raises `ValueError` where the directory holds none."""
    if not (directory / "config.json").is_file() or not any(directory.glob("*.safetensors")):
        raise ValueError(f"{directory} is not a model directory: it needs config.json and *.safetensors")
    model: PreTrainedModel = AutoModelForCausalLM.from_pretrained(
        directory, dtype=torch.float32, trust_remote_code=False, use_safetensors=True
    )
    match_engine(model)
    return model


def longest_sequence(directory: Path) -> int | None:
    """How many tokens a model takes by its own configuration; None where that names no number of positions."""
    config = AutoConfig.from_pretrained(directory, trust_remote_code=False).get_text_config(decoder=True)
    positions: int | None = getattr(config, "max_position_embeddings", None)
    return positions


def read_tokenizer(directory: Path) -> dict[str, bytes]:
    """The tokenizer's files, kept here: the checkpoint that a run continues from may be gone when it saves the next."""
    return {path.name: path.read_bytes() for pattern in TOKENIZER_FILES for path in directory.glob(pattern)}


def checkpoint_bytes(model: PreTrainedModel, *, bf16: bool) -> int:
    """Bytes of a checkpoint of the model, at the most: its weights and, of what is trained, the optimiser's two moments, and
    in bfloat16 the float32 weights too. To be asked before the model is partitioned.
    """
    trained = sum(p.numel() for p in model.parameters() if p.requires_grad)
    held = sum(tensor.numel() for tensor in model.state_dict().values())
    return held * (2 if bf16 else 4) + trained * (8 + (4 if bf16 else 0)) + HEADERS_BYTES
