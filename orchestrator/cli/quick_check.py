"""The checks of a configuration that need no heavy library. They come before a command imports torch, transformers and Ray."""

from pathlib import Path

from temper.orchestrator.run.folder import RunDir


def check_quickly(path: Path, overrides: list[str], *, data: bool = True, starts: bool = False) -> None:
    """Check all settings, and whether models and, with `data`, data of a new run exist. A run that `starts` must be free.

    Raise `ValueError` or `FileNotFoundError` as the command would later.
    """
    from temper.orchestrator.pipeline.config import load_unresolved_config
    from temper.orchestrator.pipeline.data_files import require_inputs

    config = load_unresolved_config(path, overrides)
    folder = RunDir(Path(config.runs_dir).resolve() / config.name)
    if starts:
        folder.require_free()
    if not folder.config.is_file():  # an old run may need them no more
        require_inputs(config, data=data)
