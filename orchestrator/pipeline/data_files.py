"""The content of data and models that settings name. Their content identifies the run, their path does not."""

import hashlib
import os
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from temper.envs.classifier import classifier_folder
from temper.envs.data.config import DataConfig, is_hub_name
from temper.envs.data.hub import cache_alone, download_card
from temper.envs.data.rows import data_files, is_on_hub, require_data
from temper.orchestrator.config.model_source import ModelSource
from temper.orchestrator.pipeline.config import Config
from temper.orchestrator.run.checkpoint import file_sha256
from temper.orchestrator.stages.registry import all_stages
from temper.orchestrator.stages.stage import Stage
from temper.rollout.weights.weight_files import require_complete

MISSING = "no such file"
WEIGHTS = (".safetensors", ".bin", ".pt")
"""Files of which only the size is compared."""
END = 2**20
"""Bytes at the end of a judge's weights that are compared too. Its trained head is there."""


def content(config: Config) -> dict[str, str]:
    """Return size and SHA-256 of the files of settings by dotted name, and the commit of hub data.

    A model directory has the hash of its small files and the sizes of its weights, which may be hundreds of GB.
    """
    found = {key: _described(path, beside) for key, path, beside in _options(config)}
    found |= {key: _classifier(classifier_folder(path)) for key, path in _classifiers(config)}
    for key, model in _judges(config):
        folder = None if model.on_hub or not model.place.is_dir() else model.place
        found[key] = _classifier(folder) if folder else _commit(model)
    for key, model in _models(config):
        found |= {f"{key}.revision": _commit(model)} if model.on_hub else {f"{key}.path": _described(model.place, ())}
    for key, data, beside in _data(config):
        found |= {f"{key}.revision": _data_commit(data)} if is_on_hub(data) else {f"{key}.path": _rows(data, beside)}
    return found


def named_paths(config: Config) -> dict[str, Path]:
    """Return the settings that name local files and folders, by the keys of overrides."""
    found = {key: path for key, path, _ in _options(config)}
    found |= {key: Path(path) for key, path in _classifiers(config) if not is_hub_name(path)}
    found |= {key: Path(model.path) for key, model in _judges(config) if not model.on_hub}
    found |= {f"{key}.path": Path(model.path) for key, model in _models(config) if not model.on_hub}
    found |= {f"{key}.path": Path(data.path) for key, data, _ in _data(config) if not is_on_hub(data)}
    if config.model.chat_template is not None:
        found["model.chat_template"] = Path(config.model.chat_template)
    return found


def require_inputs(config: Config, *, data: bool = True) -> None:
    """Raise `FileNotFoundError` if a listed stage needs a model, or with `data` rows, that are neither here nor on the hub."""
    stages = [(one.name, one.stage, settings) for one in config.instances if (settings := config.settings(one))]
    found = [(f"{name}.{key}", model) for name, stage, part in stages for key, model in stage.models(part).items()]
    for key, model in (("model.path", config.model.source), *found, *_judges(config)):
        if model is not None:
            _require(key, model.require_place)
    config.model.declared()
    if not data:
        return
    rows = {f"{name}.data": stage.data(part) for name, stage, part in stages}
    if any(stage.takes_tasks(part) for _, stage, part in stages):
        for name, env in config.envs.items():
            rows |= {f"envs.{name}.data": env.data, f"envs.{name}.eval_data": env.eval_data}
    for key, named in rows.items():
        if named is not None:
            _require(key, partial(require_data, named))


def _require(key: str, check: Callable[[], None]) -> None:
    try:
        check()
    except FileNotFoundError as error:
        raise FileNotFoundError(f"{key}: {error}") from error


def to_download(config: Config) -> list[str]:
    """Return the models and data sets of the hub that are not fully local, such as `model Qwen/Qwen3-0.6B`."""
    named = [model for _, model in (*_models(config), *_judges(config))]
    models = [model for model in named if model.on_hub and not is_complete(model)]
    data = [data for _, data, _ in _data(config) if is_on_hub(data) and not has_files(data)]
    return [*dict.fromkeys((*(f"model {one.path}" for one in models), *(f"data set {one.path}" for one in data)))]


def to_convert(config: Config) -> list[Path]:
    """Return the GGUF files of models that the run would convert."""
    named = (model.gguf for _, model in (*_models(config), *_judges(config)))
    return [*dict.fromkeys(file for file in named if file is not None)]


def is_complete(model: ModelSource) -> bool:
    return _is_here(lambda: require_complete(model.folder))


def has_files(data: DataConfig) -> bool:
    return _is_here(lambda: data_files(data))


def _is_here(read: Callable[[], object]) -> bool:
    """Return whether files can be read without a download."""
    try:
        with cache_alone():
            read()
    except FileNotFoundError:
        return False
    return True


def _models(config: Config) -> Iterator[tuple[str, ModelSource]]:
    if config.model.source is not None:
        yield "model", config.model.source
    for name, stage, part in _parts(config):
        yield from ((f"{name}.{setting}", model) for setting, model in stage.models(part).items() if model is not None)


def _data(config: Config) -> Iterator[tuple[str, DataConfig, tuple[str, ...]]]:
    """Yield the settings that name data, each with the names of its companion files."""
    for name, bound in config.environments.items():
        given = {"data": bound.config.data, "eval_data": bound.config.eval_data}
        for setting, data in given.items():
            if data is not None:
                yield f"envs.{name}.{setting}", data, bound.definition.companions
    for name, stage, part in _parts(config):
        if (data := stage.data(part)) is not None:
            yield f"{name}.data", data, ()


def _options(config: Config) -> Iterator[tuple[str, Path, tuple[str, ...]]]:
    """Yield the options of environments that name a file or a folder, each with the names of its companion files.

    Of a folder only these belong to the run. The environment may write to it, or the option may be a word with such a name.
    """
    for name, bound in config.environments.items():
        companions = bound.definition.companions
        for option, value in bound.config.options.items():
            if not isinstance(value, str) or not os.path.exists(value):  # also a text that cannot be a path
                continue
            needed = companions if os.path.isdir(value) else ()
            if os.path.isfile(value) or any((Path(value) / file).is_file() for file in needed):
                yield f"envs.{name}.options.{option}", Path(value), needed


def _classifiers(config: Config) -> Iterator[tuple[str, str]]:
    for name, env in config.envs.items():
        if env.judge is not None and env.judge.classifier:
            yield f"envs.{name}.judge.classifier", env.judge.classifier


def _judges(config: Config) -> Iterator[tuple[str, ModelSource]]:
    for name, env in config.envs.items():
        if env.judge is not None and env.judge.is_served_by_run:
            yield f"envs.{name}.judge.model", config.judges[env.judge.model]


def _parts(config: Config) -> Iterator[tuple[str, Stage[Any], Any]]:
    parts = {name: (all_stages()[name], part) for name, part in config.sections.items()}
    parts |= {one.name: (one.stage, config.settings(one)) for one in config.instances if one.stage.trains}
    yield from ((name, stage, part) for name, (stage, part) in parts.items())


def _commit(model: ModelSource) -> str:
    try:
        return model.folder.name
    except FileNotFoundError:  # reported by the stage that reads it
        return MISSING


def _data_commit(data: DataConfig) -> str:
    try:
        return download_card(data.path, data.revision).commit
    except FileNotFoundError:
        return MISSING


def _rows(data: DataConfig, beside: tuple[str, ...]) -> str:
    path = Path(data.path).expanduser()
    if not path.is_dir():
        return _described(path, beside)
    files = sorted(file for file in path.rglob("*") if file.is_file())
    return _listed([(str(file.relative_to(path)), file) for file in files])


def _described(path: Path, beside: tuple[str, ...]) -> str:
    folder = path if path.is_dir() else path.parent
    further = [folder / name for name in beside if (folder / name).is_file()]
    if path.is_file() and not further:
        return f"{path.stat().st_size} bytes, SHA-256 {file_sha256(path)}"
    if not path.exists():
        return MISSING
    held = further or [inner for inner in folder.iterdir() if inner.is_file()]
    files = [path, *further] if path.is_file() else sorted(held)
    return _listed([("" if file == path else file.name, file) for file in files])


def _classifier(folder: Path) -> str:
    ends = hashlib.sha256()
    for file in sorted(one for one in folder.iterdir() if one.suffix in WEIGHTS):
        with file.open("rb") as opened:
            opened.seek(-min(END, file.stat().st_size), os.SEEK_END)
            ends.update(opened.read())
    return f"{_described(folder, ())}, of the ends of its weights {ends.hexdigest()}"


def _listed(files: list[tuple[str, Path]]) -> str:
    whole = hashlib.sha256()
    for name, file in files:
        inside = str(file.stat().st_size) if file.suffix in WEIGHTS else file_sha256(file)
        whole.update(f"{name} {inside}\n".encode())
    return f"{sum(file.stat().st_size for _, file in files)} bytes, SHA-256 of the list of files {whole.hexdigest()}"
