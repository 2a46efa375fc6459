"""What lies behind the settings that name files: the content is part of what a run is, the place is not."""

import hashlib
import os.path
from collections.abc import Iterator
from pathlib import Path

from orchestrator.pipeline.config import Config
from orchestrator.run.checkpoint import file_sha256
from orchestrator.stages.stage import all_stages

MISSING = "no such file"
WEIGHTS = (".safetensors", ".bin", ".pt")
"""Files of which the size must do."""


def content(config: Config) -> dict[str, str]:
    """Return size and SHA-256 of what the settings name as files, by their dotted names.

    Of a model directory it is the hash of what describes it, and the sizes of its weights: these may be hundreds of GB.
    """
    return {key: _described(path, beside) for key, path, beside in _named(config)}


def _named(config: Config) -> Iterator[tuple[str, Path, tuple[str, ...]]]:
    """Yield the settings that name a file or a folder, each with the names of files beside it, or in it, that belong to it.

    Of a folder that an option names only these belong to the run: else it may be one that the environment writes to, or
    the option a word that a folder has as its name.
    """
    if config.model.path is not None:
        yield "model.path", Path(config.model.path), ()
    for name, bound in config.environments.items():
        env, companions = bound.config, bound.definition.companions
        if env.data is not None:
            yield f"envs.{name}.data", Path(env.data), companions
        for option, value in env.options.items():
            if not isinstance(value, str) or not os.path.exists(value):  # also of a text that no path can be
                continue
            needed = companions if os.path.isdir(value) else ()
            if os.path.isfile(value) or any((Path(value) / file).is_file() for file in needed):
                yield f"envs.{name}.options.{option}", Path(value), needed
    parts = {name: (all_stages()[name], part) for name, part in config.sections.items()}
    parts |= {one.name: (one.stage, config.settings(one)) for one in config.instances if one.stage.trains}
    for name, (stage, part) in parts.items():
        for setting, path in stage.files(part).items():
            if path is not None:
                yield f"{name}.{setting}", Path(path), ()


def _described(path: Path, beside: tuple[str, ...]) -> str:
    folder = path if path.is_dir() else path.parent
    further = [folder / name for name in beside if (folder / name).is_file()]
    if path.is_file() and not further:
        return f"{path.stat().st_size} bytes, SHA-256 {file_sha256(path)}"
    if not path.exists():
        return MISSING
    held = further or [inner for inner in folder.iterdir() if inner.is_file()]
    files = [path, *further] if path.is_file() else sorted(held)
    whole = hashlib.sha256()
    for file in files:
        inside = str(file.stat().st_size) if file.suffix in WEIGHTS else file_sha256(file)
        whole.update(f"{'' if file == path else file.name} {inside}\n".encode())
    return f"{sum(file.stat().st_size for file in files)} bytes, SHA-256 of the list of files {whole.hexdigest()}"
