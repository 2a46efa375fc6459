"""Rows of data as tasks: read once for all who ask, and what can't be said of them."""

import json
import logging
import re
from pathlib import Path

import pytest

from temper.envs.binding import EnvConfig, bind
from temper.envs.data.config import DataConfig
from temper.envs.data.split import SplitConfig
from temper.envs.source import RowSource, all_rows, open_source, row_tasks
from temper.orchestrator.pipeline.config import load_config
from temper.orchestrator.pipeline.overlap_check import find_overlaps, overlaps_of
from temper.orchestrator.run.folder import RunDir, RunState

DEMO = Path("configs/demo.yaml")


def save(path: Path, first: int, count: int, **further: str | None) -> DataConfig:
    given = {name: value for name, value in further.items() if value is not None}
    rows = [{"question": f"What is {n}+1?", "answer": "#### 1"} | given for n in range(first, first + count)]
    with path.open("a") as file:
        file.writelines(json.dumps(row) + "\n" for row in rows)
    return DataConfig(path=str(path))


def test_rows_are_read_once_for_all_who_ask_of_an_environment(tmp_path: Path) -> None:
    data = save(tmp_path / "rows.jsonl", 0, 40)
    env = bind("math", EnvConfig(data=data))
    (first, *_) = row_tasks(env, data)
    Path(data.path).unlink()  # nobody reads it again
    train, held = (open_source(env, split=split, seed=1) for split in ("train", "heldout"))
    assert isinstance(train, RowSource)
    assert isinstance(held, RowSource)
    assert len(train.tasks) + len(held.tasks) == 40
    assert any(task is first.task for task in (*train.tasks, *held.tasks))
    with pytest.raises(FileNotFoundError, match=r"^envs\.math\.data: no data file .*; or null for generated tasks"):
        all_rows(bind("math", EnvConfig(data=data)), data)


def test_a_row_without_the_column_of_the_split_is_trained_on_and_a_column_that_no_row_has_is_refused(
    tmp_path: Path,
) -> None:
    path = tmp_path / "rows.jsonl"
    for first, part in ((0, "test"), (4, None), (8, "train")):
        save(path, first, 4, part=part)
    data = DataConfig(path=str(path))
    rows = list(row_tasks(bind("math", EnvConfig(data=data, split=SplitConfig(by="column", column="part"))), data))
    assert [each.heldout for each in rows] == [True] * 4 + [False] * 8
    wrong = bind("math", EnvConfig(data=data, split=SplitConfig(by="column", column="prat")))
    with pytest.raises(ValueError, match=r"split\.column names 'prat', which no row has"):
        open_source(wrong, split="train", seed=1)


def test_settings_that_nothing_would_read_are_refused(tmp_path: Path) -> None:
    data, held = save(tmp_path / "rows.jsonl", 0, 9), save(tmp_path / "test.jsonl", 0, 9)
    column = SplitConfig(by="column", column="part", share=0.5)
    for wrong, said in (
        (
            EnvConfig(data=data, split=SplitConfig(heldout=["dev"])),
            "envs.math.split.heldout=['dev']: values of a column",
        ),
        (EnvConfig(data=data, split=column), "envs.math.split.share=0.5: envs.math.split.column says what"),
        (
            EnvConfig(data=data, eval_data=held, split=SplitConfig(share=0.5)),
            "envs.math.split.share=0.5: eval_data says",
        ),
        (
            EnvConfig(eval_data=DataConfig(path="x", streaming=True)),
            "envs.math.eval_data.streaming: rows of evaluation",
        ),
    ):
        with pytest.raises(ValueError, match=f"^{re.escape(said)}"):
            bind("math", wrong)
    bind("math", EnvConfig(eval_data=held, split=SplitConfig(share=0.5)))  # of the tasks that are generated
    with pytest.raises(ValueError, match=r"model\.revision=main is that of model\.path, which is not given"):
        load_config(DEMO, ["model.revision=main"])


def test_the_first_bad_row_of_a_stream_is_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text("no row\n" * 3)
    data = DataConfig(path=save(path, 0, 5).path, streaming=True, on_error="skip")
    with caplog.at_level(logging.WARNING):
        next(row_tasks(bind("math", EnvConfig(data=data)), data))
    (said,) = caplog.messages
    assert said.startswith(f"{path}:1: not a JSON object")


def test_an_overlap_that_was_found_is_not_looked_for_again_while_settings_and_files_are_the_same(
    tmp_path: Path,
) -> None:
    data, held = save(tmp_path / "rows.jsonl", 0, 9), save(tmp_path / "test.jsonl", 0, 3)
    said = [f"envs.math.data={data.path}", f"envs.math.eval_data={held.path}"]
    folder = RunDir(tmp_path / "run")
    folder.open()
    try:
        folder.store(RunState(fingerprint={"seed": "1"}))
        (found,) = overlaps_of(load_config(DEMO, said), folder)
        assert len(found.found.exact) == 3
        save(Path(held.path), 3, 1)
        assert overlaps_of(load_config(DEMO, said), folder) == [found]
        folder.store(RunState(fingerprint={"seed": "2"}))
        (again,) = overlaps_of(load_config(DEMO, said), folder)
        assert (len(again.found.exact), again.of == found.of) == (4, False)
        assert [again.found] == [one.found for one in find_overlaps(load_config(DEMO, said))]
    finally:
        folder.close()
