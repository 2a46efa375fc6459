"""What is refused before a run's first stage, because the model could not do it later."""

import json
from pathlib import Path

import torch

from learner.fresh_model import byte_tokenizer, padded_size
from orchestrator.config import Config
from orchestrator.distillation import check_teacher, known_ids
from rollout.renderer import Renderer, load_tokenizer
from rollout.thought import ThoughtTags


def check_model(model: Path, config: Config) -> None:
    """Raises `FileNotFoundError` or `ValueError` where the model can't be trained or can't think as configured."""
    tokenizer = load_tokenizer(model)
    check_pushable(model)
    if limits_thoughts(config):
        ThoughtTags(tokenizer, closing=config.rollout.thought.closing)
    if leaves_thoughts_out(config):
        Renderer(tokenizer, config.rollout.thought).check_modes()


def check_before(config: Config, stages: list[str]) -> None:
    """What would fail hours later. Raises `FileNotFoundError` or `ValueError` where a stage of these could not run."""
    for stage in stages:
        config.require_stage(stage)
    if "distill" not in stages:
        return
    path = config.model.path
    student = None if path is None else Path(path).resolve()
    tokenizer = byte_tokenizer() if student is None else load_tokenizer(student)
    check_teacher(
        config.distill.teacher_dir(),
        student="that the run makes" if student is None else str(student),
        tokenizer=tokenizer,
        ids=padded_size(tokenizer) if student is None else known_ids(student),
        shared_prompts=config.learner.shared_prompts,
    )


def limits_thoughts(config: Config) -> bool:
    """Whether a stage of the run closes thoughts at a budget."""
    by_stage = {
        "rl": config.rl.thinking.budget > 0,
        "distill": config.distill.thinking.budget > 0,
        "self_sft": config.self_sft.thinking.budget > 0,
        "eval": bool(config.eval.budgets or config.eval.budget_shares),
    }
    return any(used and stage in config.stages for stage, used in by_stage.items())


def leaves_thoughts_out(config: Config) -> bool:
    """Whether a stage of the run switches reasoning off."""
    supervised = config.sft.modes.thinking
    by_stage = {
        "sft": supervised is not None and supervised.no_thought > 0,
        "rl": config.rl.thinking.no_thought > 0,
        "distill": config.distill.thinking.no_thought > 0,
        "eval": config.eval.no_thought,
    }
    off = any(not env.reasoning for env in config.envs.values())
    return off or any(used and stage in config.stages for stage, used in by_stage.items())


def check_pushable(model: Path) -> None:
    """Refuse what would train but not reach the engines.

    vLLM repacks weights on a CPU, and a push leaves an output layer behind that shares the embedding's weights.
    """
    config = json.loads((model / "config.json").read_text(encoding="utf-8"))
    if config.get("tie_word_embeddings") and not torch.cuda.is_available():
        raise ValueError(
            f"{model} has tie_word_embeddings=true, whose output layer a weight push does not reach on a CPU; save it "
            f"with tie_word_embeddings=false and an lm_head.weight of its own, or run on a GPU"
        )
