"""A data folder in the hub's layout: the configurations of its card, and the files of each split."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from datasets.data_files import EmptyDatasetError, get_data_patterns, resolve_pattern, sanitize_patterns
from huggingface_hub import metadata_load

from temper.envs.data.hub import CARD

FILES = ("*.parquet", "*.jsonl", "*.json", "*.csv", "*.tsv")
"""Names of data files. Only these and the card of a data set are downloaded."""


def patterns(folder: Path, config: str | None, name: str) -> tuple[str, ...]:
    """Return the file patterns of a configuration by the card in `folder`, or those of all data."""
    card = _card(folder)
    if not card:
        return FILES
    chosen = card[_choose(config, card, name, "config")]
    listed = [pattern for split in _named(chosen).values() for pattern in split]
    return tuple(pattern.replace("**/", "*") for pattern in listed) or FILES


def split_files(folder: Path, config: str | None, split: str | None, name: str) -> list[Path]:
    """Return the files of a split, in order.

    Raise `ValueError` with the available names if configuration or split are unknown, or ambiguous and not set.
    """
    card = _card(folder)
    if config is not None and not card:
        raise ValueError(f"{name} has no configurations; remove config={config}")
    chosen = card[_choose(config, card, name, "config")] if card else {}
    base = folder / str(chosen.get("data_dir", ""))
    try:
        splits: Mapping[str, Sequence[str]] = _named(chosen) or get_data_patterns(base.as_posix())
    except EmptyDatasetError as error:
        raise FileNotFoundError(f"{base} has no data files of {name}, such as {', '.join(FILES)}") from error
    found = splits[_choose(split, splits, name, "split")]
    files = dict.fromkeys(file for pattern in found for file in _matching(pattern, base))
    if not files:
        raise FileNotFoundError(f"{name} has no files in {base} that match {', '.join(found)}; download it again")
    return [Path(file) for file in files]


def _matching(pattern: str, base: Path) -> list[str]:
    try:
        return sorted(resolve_pattern(pattern, base.resolve().as_posix()))
    except FileNotFoundError:  # only one of several patterns of a split has to match
        return []


def _card(folder: Path) -> dict[str, dict[str, Any]]:
    path = folder / CARD
    data = (metadata_load(path) if path.is_file() else None) or {}
    return {str(entry["config_name"]): entry for entry in data.get("configs") or []}


def _named(config: Mapping[str, Any]) -> dict[str, list[str]]:
    files = config.get("data_files")
    return {} if files is None else {str(key): [*value] for key, value in sanitize_patterns(files).items()}


def _choose(given: str | None, known: Mapping[str, Any], name: str, what: str) -> str:
    if given is None and len(known) == 1:
        return next(iter(known))
    default = [key for key, value in known.items() if isinstance(value, dict) and value.get("default")]
    if given is None and default:
        return default[0]
    if given is None or given not in known:
        fault = f"{what}={given}: {name} has no such {what}" if given else f"{name} has more than one {what}"
        raise ValueError(f"{fault}; set {what} to one of {', '.join(known)}")
    return given
