"""What can be known at the start is checked at the start: before an engine is started or a file is written."""

import shutil
from pathlib import Path

from temper.envs.catalog import env_class
from temper.learner.config import LearnerConfig
from temper.learner.models.fresh import byte_tokenizer, parameter_count
from temper.learner.models.shape import longest_sequence
from temper.learner.training_state import model_bytes, state_bytes
from temper.orchestrator.config.model_checks import check_thoughts
from temper.orchestrator.pipeline.config import Config
from temper.orchestrator.pipeline.format_checks import format_notes
from temper.orchestrator.pipeline.limit_checks import hang_notes, limit_notes
from temper.orchestrator.stages.stage import Role, StageInstance, StartCheck
from temper.orchestrator.tracking.sinks.config import require_usable
from temper.rollout.tokenizer import load_tokenizer
from temper.rollout.weights.weight_files import require_whole


def check_before(
    config: Config, ahead: list[StageInstance], root: Path, reached: str | None = None, *, settled: bool = True
) -> list[str]:
    """Find what would fail later, and return what is worth knowing as lines for people.

    `reached` is the newest model of the run in the folder `root`, where it has one that holds. Limits and deadlines, which the
    profile chooses, are looked at where it has `settled` them.

    Raise `FileNotFoundError`, `ValueError`, and `OSError` where the disk is too small.
    """
    check_stages(config, ahead)
    require_usable(config.tracking.also, config.tracking.wandb)
    if all(one.stage.role is Role.REPORT for one in ahead):
        return []
    model = _model(config, ahead, root, reached)
    parameters = parameter_count(config.model.fresh) if model is None else require_whole(model)
    if model is not None:
        check_model(model, config)
    tokenizer = byte_tokenizer() if model is None else load_tokenizer(model, config.model.declared())
    longest = config.model.fresh.max_positions if model is None else longest_sequence(model)
    notes = [
        *format_notes(config, ahead, tokenizer),
        *(limit_notes(config, ahead, tokenizer) if settled else []),
        *(hang_notes(config, ahead) if settled else []),
    ]
    for one in ahead:
        start = StartCheck(config=config, name=one.name, tokenizer=tokenizer, longest=longest)
        one.stage.check(config.settings(one), start)
    if any(one.stage.trains for one in ahead):
        require_disk(root, checkpoint_size(config.learner, parameters), parameters)
    return notes


def check_stages(config: Config, ahead: list[StageInstance]) -> None:
    """Raise `ValueError` where a stage could not run or an environment can't be imported, whatever model and data hold."""
    for one in ahead:
        config.require_stage(one)
    if any(one.stage.role is not Role.REPORT for one in ahead):
        check_entry_points(config)


def check_model(model: Path, config: Config) -> None:
    """Raise `FileNotFoundError` or `ValueError` where the model can't think as configured."""
    told = [(one.stage, config.settings(one)) for one in config.instances]
    check_thoughts(
        model,
        config.rollout.thought,
        limited=any(stage.limits_thoughts(settings) for stage, settings in told),
        left_out=any(not env.thinking for env in config.envs.values())
        or any(stage.leaves_thoughts_out(settings) for stage, settings in told),
        declared=config.model.declared(),
    )


def _model(config: Config, ahead: list[StageInstance], root: Path, reached: str | None) -> Path | None:
    """Return the model that the first stage begins with; None where it makes one."""
    if ahead[0].stage.role is Role.BEGIN or reached is None:
        return None if config.model.source is None else config.model.source.folder
    return root / reached


def check_entry_points(config: Config) -> None:
    """Raise `ValueError` where the class of an environment can't be imported."""
    for name, env in config.environments.items():
        try:
            env_class(env.ref)
        except Exception as error:  # whatever a module of a user's own raises
            raise ValueError(
                f"envs.{name}: {env.ref.entry_point} can't be imported ({type(error).__name__}: {error})"
            ) from error


def checkpoint_size(learner: LearnerConfig, parameters: int) -> int:
    """Return the bytes that a checkpoint of a model with so many parameters has.

    Where a part of it or adapters are trained, only the model counts: how many these are the model's class alone can tell.
    """
    trained = 0 if learner.lora.rank or learner.frozen else parameters
    return model_bytes(parameters, bf16=learner.bf16) + state_bytes(trained, bf16=learner.bf16)


def require_disk(folder: Path, needed: int, parameters: int) -> None:
    """Raise `OSError` where the disk of a folder could not hold a checkpoint of `needed` bytes."""
    place = next(parent for parent in (folder, *folder.parents) if parent.exists())
    free = shutil.disk_usage(place).free
    if free < needed:
        raise OSError(
            f"{place} has {free:,} bytes free and a checkpoint of {parameters:,} parameters needs {needed:,} or more; "
            f"free some, or give runs_dir= on a larger disk"
        )
