"""Rows of data: files of every kind, folders with a card, columns, filters, and the place of every fault."""

import importlib
import json
import re
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet
import pytest
from support.refusals import refuses

from temper.envs.core.row_fields import is_given
from temper.envs.core.row_format import Row
from temper.envs.data.config import DataConfig, near_names
from temper.envs.data.rows import is_on_hub, open_rows, read_rows, require_data
from temper.orchestrator.config.schema import data_option

REAL = Path("../shared/data/gsm8k_train.jsonl")
ROWS: list[Row] = [{"question": f"What is {n}+1?", "answer": f"So\n#### {n + 1}", "level": n} for n in range(5)]


def save(path: Path, rows: list[Row]) -> str:
    """Write rows in the format of the file's ending and return its path."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == ".parquet":
        pa.parquet.write_table(pa.Table.from_pylist(rows), path)
    elif path.suffix in (".csv", ".tsv"):
        options = pa.csv.WriteOptions(delimiter="\t" if path.suffix == ".tsv" else ",")
        pa.csv.write_csv(pa.Table.from_pylist(rows), path, options)
    elif path.suffix == ".json":
        path.write_text(json.dumps(rows))
    else:
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def given(row: Row, _number: int) -> Row:
    return row


def rows_of(path: str, **said: Any) -> list[Row]:
    return read_rows(DataConfig(path=path, **said), parse=given, on_error="raise")[0]


@pytest.mark.parametrize("ending", ["jsonl", "parquet", "json"])
def test_the_same_rows_come_of_files_of_every_kind(ending: str, tmp_path: Path) -> None:
    assert rows_of(save(tmp_path / f"rows.{ending}", ROWS)) == ROWS


@pytest.mark.parametrize("ending", ["csv", "tsv"])
def test_every_column_of_a_csv_file_is_text(ending: str, tmp_path: Path) -> None:
    rows = [*ROWS, {"question": "", "answer": "NA", "level": 9}]
    assert rows_of(save(tmp_path / f"rows.{ending}", rows)) == [row | {"level": str(row["level"])} for row in rows]


@pytest.mark.parametrize(
    ("ending", "place"),
    [
        ("jsonl", "rows.jsonl:2"),
        ("parquet", "rows.parquet: row 2"),
        ("csv", "rows.csv: row 2"),
        ("json", "rows.json: row 2"),
    ],
)
def test_a_bad_row_is_named_by_its_place_or_counted(ending: str, place: str, tmp_path: Path) -> None:
    path = save(tmp_path / f"rows.{ending}", ROWS)

    def parse(row: Row, number: int) -> Row:
        if number == 1:
            raise ValueError("no answer")
        return row

    with pytest.raises(ValueError, match=rf"{re.escape(place)}: no answer.*on_error=skip"):
        read_rows(DataConfig(path=path), parse=parse, on_error="raise")
    items, skipped = read_rows(DataConfig(path=path, on_error="skip"), parse=parse, on_error="raise")
    assert (len(items), skipped) == (4, 1)


def test_skipping_is_advised_only_after_a_usable_row(tmp_path: Path) -> None:
    path = save(tmp_path / "rows.jsonl", ROWS)

    def parse(row: Row, number: int) -> Row:
        raise ValueError(f"row {number} is bad")

    with pytest.raises(ValueError, match="row 0 is bad") as error:
        read_rows(DataConfig(path=path), parse=parse, on_error="raise")
    assert "on_error" not in str(error.value)
    with pytest.raises(ValueError, match="row 0 is bad") as error:
        read_rows(DataConfig(path=path), parse=parse, on_error="skip")
    assert "on_error" not in str(error.value)


@pytest.mark.parametrize("compression", ["gzip", "bz2", "lzma"])
@pytest.mark.parametrize("name", ["rows.jsonl.gz", "rows.csv", "rows.parquet"])
def test_a_compressed_file_is_refused_as_such(compression: str, name: str, tmp_path: Path) -> None:
    path = tmp_path / name
    path.write_bytes(importlib.import_module(compression).compress(b'{"question": "?"}\n'))
    with pytest.raises(ValueError, match=f"{name} is compressed"):
        read_rows(DataConfig(path=str(path)), parse=given, on_error="skip")


@pytest.mark.parametrize("indent", [None, 1])
@pytest.mark.parametrize("name", ["rows.json", "rows.jsonl"])
def test_a_file_that_is_one_object_is_named_with_its_list_of_rows(
    indent: int | None, name: str, tmp_path: Path
) -> None:
    path = tmp_path / name
    path.write_text(json.dumps({"version": "1.1", "data": ROWS}, indent=indent))
    with refuses("data"):
        read_rows(DataConfig(path=str(path)), parse=given, on_error="skip")


@pytest.mark.parametrize(
    "row",
    [
        {"messages": [{"role": "user", "content": "Hi"}]},
        {"messages": [{"role": "user", "content": "Hi"}], "data": [{"page": 1}]},
        {"question": "2+3?", "test": [{"input": "2 3", "output": "5"}]},
        {"instruction": "Cancel it.", "records": [{"id": 7}]},
    ],
)
def test_a_file_of_one_row_with_lists_of_objects_is_read(row: Row, tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text(json.dumps(row))
    assert rows_of(str(path)) == [row]
    path.write_text(json.dumps(row, indent=1))
    with refuses("rows.jsonl"):
        rows_of(str(path))


def test_an_unread_column_of_a_table_may_have_any_type(tmp_path: Path) -> None:
    path = tmp_path / "rows.parquet"
    odd = {
        "map": pa.array([[(b"a", 1)]], type=pa.map_(pa.binary(), pa.int32())),
        "duration": pa.array([3], type=pa.duration("s")),
    }
    for name, column in odd.items():
        pa.parquet.write_table(pa.table({"question": ["?"], "answer": [1.5], name: column}), path)
        (row,) = rows_of(str(path))
        assert (row["question"], row["answer"]) == ("?", 1.5)


def test_an_empty_file_is_called_empty(tmp_path: Path) -> None:
    for name, text in (("rows.jsonl", "\n"), ("rows.json", "[]"), ("rows.csv", "question,answer\n")):
        (tmp_path / name).write_text(text)
        with refuses(name):
            rows_of(str(tmp_path / name))


def test_what_is_null_in_a_column_is_absent_from_its_row(tmp_path: Path) -> None:
    rows = [{"messages": [{"role": "user", "content": "a", "name": None}], "id": 1}, {"id": 2, "picture": b"\x89PNG"}]
    first, second = rows_of(save(tmp_path / "rows.parquet", rows))
    assert first == {"messages": [{"role": "user", "content": "a"}], "id": 1}
    assert second == {"id": 2}


def test_columns_are_renamed_also_out_of_others(tmp_path: Path) -> None:
    path = save(tmp_path / "rows.jsonl", [{"problem": "1+1?", "solution": {"text": "2"}, "id": 7}])
    columns = {"question": "problem", "answer": "solution.text"}
    assert rows_of(path, columns=columns) == [{"question": "1+1?", "answer": "2", "id": 7, "solution": {"text": "2"}}]
    with refuses("columns.answer", "rows.jsonl:1", "'gold'", "'id'"):
        rows_of(path, columns={"answer": "gold"})


@pytest.mark.parametrize("ending", ["jsonl", "csv"])
@pytest.mark.parametrize(
    ("rule", "left"),
    [
        (3, [3]),
        ([0, 4], [0, 4]),
        ({"min": 2}, [2, 3, 4]),
        ({"min": 1, "max": 2}, [1, 2]),
        ({"min": "02", "max": 10}, [2, 3, 4]),
        ({"max": "10"}, [0, 1, 2, 3, 4]),
    ],
)
def test_a_filter_leaves_rows_out_by_values_and_ranges(ending: str, rule: Any, left: list[int], tmp_path: Path) -> None:
    path = save(tmp_path / f"rows.{ending}", ROWS)
    assert [int(row["level"]) for row in rows_of(path, filter={"level": rule})] == left


def test_a_filter_that_can_not_hold_is_refused(tmp_path: Path) -> None:
    path = save(tmp_path / "rows.jsonl", ROWS)
    with refuses("difficulty"):
        rows_of(path, filter={"level": 1, "difficulty": 1})
    with refuses("rows.jsonl"):
        rows_of(path, filter={"level": 9})
    with refuses("filter", "{'above': 3}"):
        DataConfig(path=path, filter={"level": {"above": 3}})
    for bounds in ({"min": "2024-08-01", "max": 5}, {"min": [1]}):
        with pytest.raises(ValueError, match="filter="):
            DataConfig(path=path, filter={"level": bounds})


@pytest.mark.parametrize("ending", ["jsonl", "parquet"])
def test_a_row_in_which_a_column_is_null_does_not_pass_a_filter(ending: str, tmp_path: Path) -> None:
    path = save(tmp_path / f"rows.{ending}", [{"question": "?", "level": None}, *ROWS])
    for rule, left in (({"min": 3}, [3, 4]), ([0, 1], [0, 1])):
        assert [row["level"] for row in rows_of(path, filter={"level": rule})] == left


def test_a_filter_knows_a_number_however_it_is_written(tmp_path: Path) -> None:
    path = save(tmp_path / "rows.csv", [{"level": text} for text in ("1.0", "1", "1.50", "one", "10")])
    assert [row["level"] for row in rows_of(path, filter={"level": 1})] == ["1.0", "1"]
    assert [row["level"] for row in rows_of(path, filter={"level": [1.5, "one"]})] == ["1.50", "one"]


@pytest.mark.parametrize(
    ("name", "text", "place"),
    [
        ("rows.csv", "question,answer\nq1,a1,\nq2,a2,\n", "line 2"),
        ("rows.csv", "question,answer\nq1\n", "line 2"),
        ("rows.csv", "question,question\na,b\n", "'question'"),
        ("rows.csv", 'question,answer\n"q"1,a\n', "line 2"),
        ("rows.tsv", 'question\tanswer\n"q\ta\nq2\ta2\n', "line 3"),
        ("rows.tsv", 'question\tanswer\nq1\t"a\nq2\ta"\n', "line 3"),
    ],
)
def test_fields_that_do_not_stand_under_the_header_are_refused(
    name: str, text: str, place: str, tmp_path: Path
) -> None:
    (tmp_path / name).write_text(text)
    with refuses(name, place):
        rows_of(str(tmp_path / name))


def test_a_csv_file_may_have_line_breaks_quotes_and_long_fields(tmp_path: Path) -> None:
    rows = [{"question": 'a "b", c\nd', "answer": "x" * 300_000}, {"question": "\u00e4", "answer": ""}]
    assert rows_of(save(tmp_path / "rows.csv", rows)) == rows
    (tmp_path / "short.csv").write_bytes(b"\xef\xbb\xbfquestion,answer\r\nq,a\r\n\r\nr,b\r\n")
    assert [row["question"] for row in rows_of(str(tmp_path / "short.csv"))] == ["q", "r"]


def test_decimal_numbers_of_a_table_are_texts_with_all_their_places(tmp_path: Path) -> None:
    path = save(tmp_path / "rows.parquet", [{"answer": Decimal("12.50")}, {"answer": Decimal("-1000.00")}])
    assert rows_of(path) == [{"answer": "12.50"}, {"answer": "-1000.00"}]
    assert rows_of(path, filter={"answer": 12.5}) == [{"answer": "12.50"}]


def test_an_option_of_a_command_names_data_by_its_path_or_in_full() -> None:
    assert data_option("rows.jsonl") == DataConfig(path="rows.jsonl")
    assert data_option("{path: a/b, columns: {question: q}}") == DataConfig(path="a/b", columns={"question": "q"})
    for wrong, key in (("{path: [", "path"), ("{pth: a}", "pth"), ("{split: test}", "path")):
        with refuses(key):
            data_option(wrong)


CARD = """---
configs:
- config_name: socratic
  data_files: socratic/*.jsonl
- config_name: main
  data_files:
  - {split: train, path: main/train-*}
  - {split: test, path: main/test-*}
---
A data set.
"""


def test_a_folder_with_a_card_has_its_configurations_and_splits(tmp_path: Path) -> None:
    (tmp_path / "README.md").write_text(CARD)
    save(tmp_path / "main" / "train-00000-of-00002.parquet", ROWS[:2])
    save(tmp_path / "main" / "train-00001-of-00002.parquet", ROWS[2:4])
    save(tmp_path / "main" / "test-00000-of-00001.parquet", ROWS[4:])
    save(tmp_path / "socratic" / "rows.jsonl", ROWS[:1])
    folder = str(tmp_path)
    assert rows_of(folder, config="main", split="train") == ROWS[:4]
    assert rows_of(folder, config="main", split="test") == ROWS[4:]
    assert rows_of(folder, config="socratic") == ROWS[:1]
    for key, choices, config, split in (
        ("config", "socratic, main", None, None),
        ("split", "train, test", "main", None),
        ("split=dev", "train, test", "main", "dev"),
    ):
        with refuses(key, choices):
            rows_of(folder, config=config, split=split)


def test_a_folder_without_a_card_has_the_splits_that_its_files_are_named_by(tmp_path: Path) -> None:
    save(tmp_path / "train.csv", ROWS[:3])
    save(tmp_path / "test.csv", ROWS[3:])
    assert [row["question"] for row in rows_of(str(tmp_path), split="test")] == [row["question"] for row in ROWS[3:]]
    with refuses("config=main"):
        rows_of(str(tmp_path), config="main")
    empty = tmp_path / "empty"
    empty.mkdir()
    with pytest.raises(FileNotFoundError, match="empty"):
        rows_of(str(empty))


def test_damaged_files_are_refused_with_their_name(tmp_path: Path) -> None:
    broken = tmp_path / "rows.parquet"
    broken.write_bytes(b"PAR1 nothing")
    with refuses("rows.parquet"):
        rows_of(str(broken))
    with refuses("split", "revision"):
        rows_of(str(broken), split="train", revision="main")


def test_a_name_on_the_hub_is_told_from_a_file_that_is_not_there(tmp_path: Path) -> None:
    assert is_on_hub(DataConfig(path="openai/gsm8k"))
    for path in (
        "data/gsm8k.jsonl",
        "gsm8k",
        "/data/gsm8k",
        "./data/gsm8k",
        "a/b/c",
        "models/gsm8k",
        "runs/old",
        str(tmp_path),
    ):
        assert not is_on_hub(DataConfig(path=path)), path
    with refuses("models/gsm8k", "hf download", error=FileNotFoundError):
        require_data(DataConfig(path="models/gsm8k"))
    (tmp_path / "rows").mkdir()
    assert near_names(tmp_path / "rows") == ""


def test_rows_are_read_as_they_are_needed(tmp_path: Path) -> None:
    path = save(tmp_path / "rows.jsonl", ROWS)
    reading = open_rows(DataConfig(path=path))
    assert next(reading).row == ROWS[0]
    Path(path).write_text("")
    assert next(reading).place.endswith("rows.jsonl:2")  # of what was read ahead


def test_an_image_column_without_an_image_is_empty(tmp_path: Path) -> None:
    nothing = {"bytes": None, "path": None}
    images = [nothing, None, {"bytes": b"x", "path": None}]
    pyarrow.parquet.write_table(
        pa.table({"image": images, "images": [[one] for one in images]}), tmp_path / "rows.parquet"
    )
    rows = [placed.row or {} for placed in open_rows(DataConfig(path=str(tmp_path / "rows.parquet")))]
    assert [is_given(row.get(name)) for name in ("image", "images") for row in rows] == [False, False, True] * 2


def test_a_dropped_column_may_be_absent_from_rows(tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl").write_text('{"a": 1, "images": ["x"]}\n{"a": 2}\n')
    data = DataConfig(path=str(tmp_path / "rows.jsonl"), columns={"unread": "images"})
    rows, _ = read_rows(data, parse=lambda row, _: row, on_error="raise")
    assert [("images" in row, row["a"]) for row in rows] == [(False, 1), (False, 2)]
    with refuses("columns.b"):
        read_rows(replace(data, columns={"b": "images"}), parse=lambda row, _: row, on_error="raise")
