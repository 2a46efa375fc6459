"""What a model must be able to do, which is checked before it is trained or made to think."""

from pathlib import Path

import torch
from transformers import AutoConfig

from rollout.budget.config import ThoughtConfig
from rollout.budget.rule import ThoughtTags
from rollout.episodes.renderer import Renderer
from rollout.tokenizer import AS_IT_IS, DeclaredTurns, load_tokenizer


def check_thoughts(
    model: Path, thought: ThoughtConfig, *, limited: bool, left_out: bool, declared: DeclaredTurns = AS_IT_IS
) -> None:
    """Raise `ValueError` where the thoughts of a model can't be limited, or not be left out, as they shall be."""
    tokenizer = load_tokenizer(model, declared)
    if limited:
        ThoughtTags(tokenizer, closing=thought.closing)
    if left_out:
        Renderer(tokenizer, thought).check_modes()


def check_pushable(model: Path) -> None:
    """Refuse what would train but not reach the engines.

    vLLM repacks weights on a CPU, and a push leaves an output layer behind that shares the embedding's weights.
    """
    config = AutoConfig.from_pretrained(model, trust_remote_code=False)  # a key that is absent has the family's default
    if config.get_text_config().tie_word_embeddings and not torch.cuda.is_available():
        raise ValueError(
            f"{model} has tie_word_embeddings=true, whose output layer a weight push does not reach on a CPU; save it "
            f"with tie_word_embeddings=false and an lm_head.weight of its own, or run on a GPU"
        )
