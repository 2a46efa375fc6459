"""The stage `distill`, which `run_distill.py` runs."""

from temper.orchestrator.config.fitting import fit_loop
from temper.orchestrator.config.loop import DistillConfig
from temper.orchestrator.stages.stage import TICKETS, Role, Stage, defer_import


def _require_teacher(config: DistillConfig) -> None:
    """Raise `ValueError` or `FileNotFoundError` for a missing teacher. The start of a run checks one on the hub."""
    if config.teacher is None or not config.teacher.on_hub:
        config.teacher_dir()


STAGE = Stage(
    name="distill",
    role=Role.TRAIN,
    settings=DistillConfig,
    run=defer_import("temper.orchestrator.stages.run_distill", "run_distill"),
    first_ticket=3 * TICKETS,
    plays=lambda config: True,
    limits_thinking=lambda config: config.thinking.budget > 0,
    samples_without_thinking=lambda config: config.thinking.no_thinking > 0,
    models=lambda config: {"teacher": config.teacher},
    fits=fit_loop,
    requires=_require_teacher,
    check=defer_import("temper.orchestrator.stages.run_distill", "check_distill"),
)
