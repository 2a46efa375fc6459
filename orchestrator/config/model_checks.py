"""What a model must be able to do, which is checked before it is made to think."""

from pathlib import Path

from temper.rollout.budget.config import ThoughtConfig
from temper.rollout.budget.rule import ThoughtTags
from temper.rollout.episodes.renderer import Renderer
from temper.rollout.tokenizer import AS_IT_IS, DeclaredTurns, load_tokenizer


def check_thoughts(
    model: Path, thought: ThoughtConfig, *, limited: bool, left_out: bool, declared: DeclaredTurns = AS_IT_IS
) -> None:
    """Raise `ValueError` where the thoughts of a model can't be limited, or not be left out, as they shall be."""
    tokenizer = load_tokenizer(model, declared)
    if limited:
        ThoughtTags(tokenizer, closing=thought.closing)
    if left_out:
        Renderer(tokenizer, thought).check_modes()
