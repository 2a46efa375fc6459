"""The home of `datasets`: Parquet and CSV files, folders of them and data sets of the hub, row by row."""

import csv
import json
from collections.abc import Iterator
from datetime import date, datetime
from pathlib import Path
from typing import Any

import datasets

from envs.core.row_format import Row
from envs.data.config import DataConfig
from envs.data.folder import patterns, split_files
from envs.data.hub import CARD, card_of, snapshot

datasets.disable_progress_bars()
PLAIN = (str, int, float, bool)


def table_rows(path: Path) -> Iterator[Row]:
    """Yield the rows of one file, none before it is asked for. Raise `ValueError` where it can't be read."""
    if path.suffix.lower() == ".json":
        yield from _listed(path)
        return
    try:
        for row in _opened(path):
            yield _plain(row)
    except (ValueError, OSError, datasets.exceptions.DatasetsError) as error:
        raise ValueError(f"{path} can't be read: {error}") from error


def files_of(data: DataConfig, *, on_hub: bool) -> list[Path]:
    """Return the files behind a folder, or behind a name on the hub, which are downloaded where they are not there yet."""
    if not on_hub:
        return split_files(Path(data.path).expanduser(), data.config, data.split, data.path)
    folder = hub_folder(data)
    return split_files(folder, data.config, data.split, data.path)


def hub_folder(data: DataConfig) -> Path:
    """Return where the data set of the hub lies, with the files of its configuration."""
    card = card_of(data.path, data.revision)
    needed = (CARD, *patterns(card.folder, data.config, data.path))
    return snapshot(data.path, kind="dataset", revision=card.commit, patterns=needed).folder


def _opened(path: Path) -> datasets.IterableDataset:
    if path.suffix.lower() == ".parquet":
        return datasets.IterableDataset.from_parquet(str(path))
    separator = "\t" if path.suffix.lower() == ".tsv" else ","
    with path.open(newline="", encoding="utf-8-sig") as file:
        names = next(csv.reader(file, delimiter=separator), [])
    features = datasets.Features({name: datasets.Value("string") for name in names})
    return datasets.IterableDataset.from_csv(str(path), features=features, sep=separator, keep_default_na=False)


def _listed(path: Path) -> Iterator[Row]:
    try:
        rows = json.loads(path.read_text(encoding="utf-8-sig"))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path} is no JSON: {error}") from error
    for number, row in enumerate(rows, start=1):
        if not isinstance(row, dict):
            raise ValueError(f"{path}: row {number} is {type(row).__name__}, not an object")
        yield row


def _plain(value: Any) -> Any:
    """Return a value as JSON has it: what is null in a column is absent from its row, and bytes, as of images, are left out."""
    if isinstance(value, dict):
        plain = {key: _plain(inner) for key, inner in value.items()}
        return {key: inner for key, inner in plain.items() if inner is not None}
    if isinstance(value, list | tuple):
        return [_plain(inner) for inner in value]
    if isinstance(value, datetime | date):
        return value.isoformat()
    return value if isinstance(value, PLAIN) else None
