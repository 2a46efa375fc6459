"""What can be known at the start is checked at the start: before an engine is started or a file is written."""

import shutil
from pathlib import Path

from gymnasium.envs.registration import load_env_creator
from transformers import PreTrainedTokenizerBase

from envs.catalog import environment
from envs.source import open_source
from learner.models.fresh import byte_tokenizer, parameter_count
from learner.models.loading import longest_sequence
from learner.models.weight_files import require_whole
from orchestrator.data.chat_data import Demonstrations
from orchestrator.mixture import open_mixture
from orchestrator.pipeline.config import Config, EvalConfig
from orchestrator.pipeline.limit_checks import limit_notes
from orchestrator.settings.model_checks import check_model, check_teachers
from orchestrator.pipeline.stage_list import Stage
from orchestrator.settings.supervised import DpoConfig, SftConfig
from orchestrator.stages.dpo import read_pairs_of_data
from orchestrator.stages.sft import read_chats
from rollout.tokenizer import load_tokenizer

TRAINED_BYTES, FROZEN_BYTES = 12, 4
"""What a checkpoint has of a parameter: the weight in float32, and AdamW's two moments where it is trained."""


def check_before(config: Config, stages: list[Stage], root: Path, reached: str | None = None) -> list[str]:
    """What would fail later, or is worth knowing, which is returned as lines for people.

    `reached` is the newest model of the run in the folder `root`, where it has one that holds.

    Raises `FileNotFoundError`, `ValueError`, and `OSError` where the disk is too small.
    """
    for stage in stages:
        config.require_stage(stage)
    if all(stage.stage == "report" for stage in stages):
        return []
    model = _model(config, stages, root, reached)
    parameters = parameter_count(config.model.fresh) if model is None else require_whole(model)
    if model is not None:
        check_model(model, config)
    check_teachers(config, stages)
    _check_entry_points(config)
    tokenizer = byte_tokenizer() if model is None else load_tokenizer(model)
    longest = config.model.fresh.max_positions if model is None else longest_sequence(model)
    notes = limit_notes(config, stages, tokenizer)
    for stage in stages:
        _check_data(config, stage, tokenizer, longest)
    if any(stage.trains for stage in stages):
        _check_disk(config, root, parameters)
    return notes


def _model(config: Config, stages: list[Stage], root: Path, reached: str | None) -> Path | None:
    """The model that the first stage begins with; None where `init` makes one."""
    if stages[0].stage == "init" or reached is None:
        return None if config.model.path is None else Path(config.model.path).resolve()
    return root / reached


def _check_entry_points(config: Config) -> None:
    for name, settings in config.envs.items():
        entry_point = environment(settings.kind or name).entry_point
        try:
            load_env_creator(entry_point)
        except Exception as error:  # whatever a module of a user's own raises
            raise ValueError(
                f"envs.{name}: {entry_point} can't be imported ({type(error).__name__}: {error})"
            ) from error


def _check_data(config: Config, stage: Stage, tokenizer: PreTrainedTokenizerBase, longest: int | None) -> None:
    """Read what a stage reads, so that a missing file and a malformed row are known."""
    settings, thought = config.settings(stage), config.rollout.thought
    if isinstance(settings, EvalConfig):
        for name, env in config.envs.items():
            open_source(name, env, split="heldout", seed=config.seed)
    elif isinstance(settings, SftConfig) and settings.data is not None:
        limit = settings.max_tokens or longest
        read_chats(settings, stage.name, tokenizer, thought, max_tokens=limit, seed=config.seed)
    elif isinstance(settings, DpoConfig) and settings.data is not None:
        read_pairs_of_data(settings, stage.name, tokenizer, thought, max_tokens=settings.max_tokens or longest)
    elif stage.trains:
        mixture = open_mixture(config.envs, settings.shares, split="train", seed=config.seed)
        if isinstance(settings, SftConfig):
            Demonstrations(mixture)


def _check_disk(config: Config, folder: Path, parameters: int) -> None:
    """Raises `OSError` where the disk could not hold a checkpoint."""
    partly = config.learner.lora.rank > 0 or bool(config.learner.frozen)
    needed = parameters * (FROZEN_BYTES if partly else TRAINED_BYTES)
    place = next(parent for parent in (folder, *folder.parents) if parent.exists())
    free = shutil.disk_usage(place).free
    if free < needed:
        raise OSError(
            f"{place} has {free:,} bytes free and a checkpoint of {parameters:,} parameters needs {needed:,} or more; "
            f"free some, or give runs_dir= on a larger disk"
        )
