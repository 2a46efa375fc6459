"""What can be known at the start is checked at the start: before an engine is started or a file is written."""

from orchestrator.config import Config
from orchestrator.limit_checks import limit_notes
from orchestrator.model_checks import check_teachers
from orchestrator.run_dir import RunDir
from orchestrator.stage_list import Stage


def check_before(config: Config, stages: list[Stage], folder: RunDir) -> list[str]:
    """What would fail later; returns what should be said of these stages at the start.

    Raises `FileNotFoundError` or `ValueError` where a stage of these could not run.
    """
    for stage in stages:
        config.require_stage(stage)
    check_teachers(config, stages)
    return limit_notes(config, stages)
