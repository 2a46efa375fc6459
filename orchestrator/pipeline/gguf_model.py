"""A run from a GGUF file, which is converted once into the run's folder."""

import fcntl
import os
import shutil
from hashlib import sha256
from pathlib import Path
from typing import Any

from temper.orchestrator.config.model_source import ModelSource
from temper.orchestrator.config.text import merge


def with_converted_model(given: dict[str, Any], *, convert: bool = True) -> dict[str, Any]:
    """Return settings with a model directory as `model.path`, and for a judge that the run serves.

    A GGUF file is converted once, into `RUN/model-...`. Without `convert` a file that is not converted yet stays.
    Raise `ValueError` for an unreadable file.
    """
    if (file := _gguf((given.get("model") or {}).get("path"))) is not None:
        given = merge(given, {"model": {"path": _converted(file, given, convert)}})
    for name, env in (given.get("envs") or {}).items():
        judge = (env or {}).get("judge") or {}
        if not judge.get("url") and (file := _gguf(judge.get("model"))) is not None:
            given = merge(given, {"envs": {name: {"judge": {"model": _converted(file, given, convert)}}}})
    return given


def _gguf(path: object) -> Path | None:
    return ModelSource(path=path).gguf if isinstance(path, str) and path else None


def _converted(file: Path, given: dict[str, Any], convert: bool) -> str:
    """Return the model directory of a GGUF file, or without one and without `convert` the file."""
    root = Path(given.get("runs_dir", "runs")).expanduser().resolve() / str(given["name"])
    stat = file.stat()
    content = sha256(f"{file.name} {stat.st_size} {stat.st_mtime_ns}".encode()).hexdigest()[:8]
    target = root / f"model-{content}"
    if not convert:
        return str(target if target.is_dir() else file)
    root.mkdir(parents=True, exist_ok=True)
    folder = os.open(root, os.O_RDONLY)
    try:
        fcntl.flock(folder, fcntl.LOCK_EX)  # two starts of a run at once would mix their files
        if not target.is_dir():
            _convert(file, target)
    finally:
        os.close(folder)
    return str(target)


def _convert(file: Path, target: Path) -> None:
    from temper.learner.models.gguf import convert_gguf

    part = target.with_name(f"{target.name}.tmp")
    shutil.rmtree(part, ignore_errors=True)
    part.mkdir(parents=True)
    print(f"{file}: converting into {target}", flush=True)
    try:
        convert_gguf(file, part)
    except BaseException:
        shutil.rmtree(part, ignore_errors=True)
        raise
    part.rename(target)
