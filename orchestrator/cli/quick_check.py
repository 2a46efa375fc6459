"""The checks of a configuration that need no heavy library. They come before a command imports torch, transformers and Ray."""

from pathlib import Path

from temper.orchestrator.config.text import RawConfig
from temper.orchestrator.pipeline.config import make_unresolved_config, read_run_settings
from temper.orchestrator.pipeline.data_files import require_inputs
from temper.orchestrator.run.folder import RunDir


def check_quickly(path: Path, overrides: list[str], *, data: bool = True, starts: bool = False) -> RawConfig:
    """Return the settings of a run after all checks of them, and of its environments.

    The models and, with `data`, the data of a new run must exist, and a run that `starts` must be free. Raise `ValueError` or
    `FileNotFoundError`.
    """
    given = read_run_settings(path, overrides)
    config = make_unresolved_config(given, bind=False)  # a missing file is found before environments are imported
    folder = RunDir(Path(config.runs_dir).resolve() / config.name)
    if starts:
        folder.require_free()
    if not folder.config.is_file():  # an old run may need them no more
        require_inputs(config, data=data)
    _ = config.environments, config.judges
    return given
