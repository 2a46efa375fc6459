"""Parquet and CSV files, folders of them and hub data sets, row by row."""

import csv
import json
import math
from collections import Counter
from collections.abc import Iterator
from datetime import date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow.lib
import pyarrow.parquet

from temper.envs.core.row_fields import MEDIA, is_given
from temper.envs.core.row_format import Row
from temper.envs.data.config import DataConfig
from temper.envs.data.folder import patterns, split_files
from temper.envs.data.hub import CARD, download_card, download_snapshot
from temper.envs.data.jsonl import MAX_LINE_BYTES

csv.field_size_limit(MAX_LINE_BYTES)
NO_TEXT = "not read"
"""Replaces the content of a column of images or other media, so that readers can refuse the column by name."""
PLAIN = (str, int, float, bool)
BATCH_ROWS = 16
"""Rows of a Parquet file in memory at a time, as Python values."""


def read_table(path: Path) -> Iterator[Row]:
    """Yield the rows of one file lazily, with null columns as None. Raise `ValueError` if it can't be read."""
    if path.suffix.lower() == ".json":
        yield from _listed(path)
        return
    try:
        if path.suffix.lower() != ".parquet":
            yield from _separated(path)
            return
        with pyarrow.parquet.ParquetFile(path) as file:
            for batch in file.iter_batches(BATCH_ROWS):
                for row in batch.to_pylist():
                    media = {name: NO_TEXT for name in MEDIA if is_given(row.get(name))}
                    yield {name: _plain(value) for name, value in row.items()} | media
    except (ValueError, OSError, pyarrow.lib.ArrowException) as error:
        raise ValueError(f"{path} can't be read: {error}") from error


def find_files(data: DataConfig, *, on_hub: bool) -> list[Path]:
    """Return the files of a folder or hub name, downloaded if necessary."""
    folder = download_data(data) if on_hub else Path(data.path).expanduser()
    return split_files(folder, data.config, data.split, data.path)


def download_data(data: DataConfig) -> Path:
    card = download_card(data.path, data.revision)
    needed = (CARD, *patterns(card.folder, data.config, data.path))
    return download_snapshot(data.path, kind="dataset", revision=card.commit, patterns=needed).folder


def _separated(path: Path) -> Iterator[Row]:
    """Yield the rows of a CSV or TSV file. Raise `ValueError` if the fields do not match the header."""
    tabs = path.suffix.lower() == ".tsv"
    with path.open(newline="", encoding="utf-8-sig") as file:
        lines = csv.reader(file, delimiter="\t" if tabs else ",", strict=True)
        try:
            names = next(lines, [])
            if twice := [name for name, count in Counter(names).items() if count > 1]:
                raise ValueError(f"the header names {twice[0]!r} twice")
            for fields in lines:
                if fields and len(fields) != len(names):
                    raise ValueError(f"line {lines.line_num} has {len(fields)} fields, the header has {len(names)}")
                if tabs and any("\t" in text and "\n" in text for text in fields):
                    raise ValueError(
                        f"line {lines.line_num} ends a field of several lines with tabs; a quote may be missing"
                    )
                if fields:
                    yield dict(zip(names, fields, strict=True))
        except csv.Error as error:
            raise ValueError(f"line {lines.line_num}: {error}") from error


def _listed(path: Path) -> Iterator[Row]:
    try:
        rows = json.loads(path.read_text(encoding="utf-8-sig"))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path} is not valid JSON: {error}") from error
    for number, row in enumerate(rows, start=1):
        if not isinstance(row, dict):
            raise ValueError(f"{path}: row {number} is {type(row).__name__}, not an object")
        yield row


def _plain(value: Any) -> Any:
    """Return a value as JSON data. NaN is null, null fields are omitted, and bytes, such as images, are dropped."""
    if isinstance(value, dict):
        plain = {key: _plain(inner) for key, inner in value.items()}
        return {key: inner for key, inner in plain.items() if inner is not None}
    if isinstance(value, list | tuple):
        return [inner if isinstance(inner, float) else _plain(inner) for inner in value]
    if isinstance(value, float) and math.isnan(value):
        return None
    if isinstance(value, datetime | date):
        return value.isoformat()
    if isinstance(value, Decimal):
        return f"{value:f}"
    return value if isinstance(value, PLAIN) else None
