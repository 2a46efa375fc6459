"""What is refused before a run's first stage, because the model could not do it later."""

from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig

from learner.models.fresh import byte_tokenizer, padded_size
from orchestrator.pipeline.config import Config, EvalConfig
from orchestrator.settings.distillation import DistillConfig, check_teacher, known_ids
from orchestrator.settings.loop import LoopConfig
from orchestrator.pipeline.stage_list import Stage
from orchestrator.settings.supervised import SelfSftConfig, SftConfig
from rollout.budget.rule import ThoughtTags
from rollout.episodes.renderer import Renderer
from rollout.tokenizer import load_tokenizer


def check_model(model: Path, config: Config) -> None:
    """Raises `FileNotFoundError` or `ValueError` where the model can't be trained or can't think as configured."""
    tokenizer = load_tokenizer(model)
    check_pushable(model)
    if limits_thoughts(config):
        ThoughtTags(tokenizer, closing=config.rollout.thought.closing)
    if leaves_thoughts_out(config):
        Renderer(tokenizer, config.rollout.thought).check_modes()


def check_teachers(config: Config, stages: list[Stage]) -> None:
    """Raises `FileNotFoundError` or `ValueError` where a stage's teacher can't judge the run's model."""
    path = config.model.path
    student = None if path is None else Path(path).resolve()
    for settings in (config.settings(stage) for stage in stages):
        if not isinstance(settings, DistillConfig):
            continue
        tokenizer = byte_tokenizer() if student is None else load_tokenizer(student)
        check_teacher(
            settings.teacher_dir(),
            student="that the run makes" if student is None else str(student),
            tokenizer=tokenizer,
            ids=padded_size(tokenizer) if student is None else known_ids(student),
            shared_prompts=config.learner.shared_prompts,
        )


def limits_thoughts(config: Config) -> bool:
    """Whether a stage of the run closes thoughts at a budget."""
    return any(_limits(config.settings(stage)) for stage in config.instances)


def _limits(settings: Any) -> bool:
    if isinstance(settings, EvalConfig):
        return bool(settings.budgets or settings.budget_shares)
    return isinstance(settings, LoopConfig | SelfSftConfig) and settings.thinking.budget > 0


def leaves_thoughts_out(config: Config) -> bool:
    """Whether a stage of the run switches thinking off."""
    off = any(not env.thinking for env in config.envs.values())
    return off or any(_leaves_out(config.settings(stage)) for stage in config.instances)


def _leaves_out(settings: Any) -> bool:
    if isinstance(settings, EvalConfig):
        return settings.no_thought
    mix = settings.modes.thinking if isinstance(settings, SftConfig) else None
    mix = settings.thinking if isinstance(settings, LoopConfig) else mix
    return mix is not None and mix.no_thought > 0


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
