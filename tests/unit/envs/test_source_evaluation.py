"""Rows of evaluation and training: separate data, splits by file and column, streams, overlap."""

import json
import logging
from pathlib import Path

import pytest
from support.refusals import refuses

from temper.envs.binding import BoundEnv, bind
from temper.envs.config import EnvConfig
from temper.envs.core.setting import Kind, kind_of
from temper.envs.data.blocks import BLOCK
from temper.envs.data.config import DataConfig, DropOverlap
from temper.envs.data.overlap import OverlapIndex, PromptText, prompt_text
from temper.envs.data.split import SplitConfig
from temper.envs.source import RowSource, StreamedSource, distinct_tasks, open_source, read_all_rows, read_row_tasks
from temper.orchestrator.pipeline.config import KINDS, load_config
from temper.orchestrator.pipeline.overlap_check import find_overlaps, overlaps_of
from temper.orchestrator.pipeline.overlaps import read_overlaps, write_overlaps
from temper.orchestrator.run.folder import RunDir, RunState

DEMO = Path("configs/demo.yaml")
REAL = Path("../shared/data/gsm8k_train.jsonl")
LONG = "A farmer sells {n} eggs on each of the seven days of a week and keeps the rest for his own kitchen. How many?"


def save(path: Path, questions: list[str], **further: str | None) -> DataConfig:
    given = {name: value for name, value in further.items() if value is not None}
    rows = [{"question": said, "answer": "#### 1"} | given for said in questions]
    with path.open("a") as file:
        file.writelines(json.dumps(row) + "\n" for row in rows)
    return DataConfig(path=str(path))


def numbered(first: int, count: int) -> list[str]:
    return [f"What is {n}+1?" for n in range(first, first + count)]


def asked(env: BoundEnv, split: str) -> list[str]:
    tasks = distinct_tasks(open_source(env, split=split, seed=1), None)
    return [task.messages[0]["content"].partition("\n")[0] for task in tasks]


def test_evaluation_data_is_held_out_whole_and_in_order(tmp_path: Path) -> None:
    test = save(tmp_path / "test.jsonl", [*numbered(0, 30), *numbered(3, 2)])
    env = bind("math", EnvConfig(data=save(tmp_path / "train.jsonl", numbered(100, 50)), eval_data=test))
    assert asked(env, "heldout") == [*numbered(0, 30), *numbered(3, 2)]
    assert sorted(asked(env, "train")) == sorted(numbered(100, 50))  # all of them, though a hash would hold some out
    held = open_source(env, split="heldout", seed=1)
    assert isinstance(held, RowSource)
    assert (held.size, len({task.key for task in held.tasks})) == (32, 32)
    assert held.tasks[30].key == f"{held.tasks[3].key}#2"


def test_no_row_of_a_set_is_lost_for_its_id(tmp_path: Path) -> None:
    test = tmp_path / "test.jsonl"
    rows = [
        {"id": name, "question": f"What is {n}+1?", "answer": "#### 1"} for n, name in enumerate(["a", "a", "a#2", "b"])
    ]
    test.write_text("".join(json.dumps(row) + "\n" for row in rows))
    env = bind(
        "math", EnvConfig(data=save(tmp_path / "train.jsonl", numbered(9, 3)), eval_data=DataConfig(path=str(test)))
    )
    tasks = distinct_tasks(open_source(env, split="heldout", seed=1), None)
    assert [task.key for task in tasks] == ["a", "a#3", "a#2", "b"]


def test_of_rows_with_one_id_only_equal_ones_are_left_out(tmp_path: Path) -> None:
    for shard in range(2):
        rows = [{"id": n, "question": f"What is {n}+{n % 50 and shard}?", "answer": "#### 1"} for n in range(100)]
        (tmp_path / f"train-{shard}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    env = bind("math", EnvConfig(data=DataConfig(path=str(tmp_path))))
    train, held = (open_source(env, split=split, seed=1) for split in ("train", "heldout"))
    assert isinstance(train, RowSource)
    assert isinstance(held, RowSource)
    assert len(train.tasks) + len(held.tasks) == 198
    assert len({task.key for task in train.tasks}) == len(train.tasks)


def test_generated_tasks_may_have_evaluation_data(tmp_path: Path) -> None:
    env = bind("math", EnvConfig(eval_data=save(tmp_path / "test.jsonl", numbered(0, 3))))
    assert asked(env, "heldout") == numbered(0, 3)
    with pytest.raises(ValueError, match="tasks have no end"):
        asked(env, "train")
    config = load_config(DEMO, ["envs.math.eval_data=test.jsonl"])
    assert config.envs["math"].eval_data == DataConfig(path="test.jsonl")  # a text alone is the path
    assert kind_of(KINDS, "envs.math.eval_data.streaming") is Kind.FREE
    assert {kind_of(KINDS, f"envs.math.eval_data{part}") for part in ("", ".path", ".filter.n")} == {Kind.IMMUTABLE}


def test_a_column_says_which_rows_are_held_out(tmp_path: Path) -> None:
    data = save(tmp_path / "rows.jsonl", numbered(0, 4), part="test")
    save(tmp_path / "rows.jsonl", numbered(4, 5), part="train")
    env = bind("math", EnvConfig(data=data, split=SplitConfig(by="column", column="part")))
    assert asked(env, "heldout") == numbered(0, 4)
    assert sorted(asked(env, "train")) == numbered(4, 5)


def test_a_larger_share_holds_out_what_a_smaller_one_does(tmp_path: Path) -> None:
    data = save(tmp_path / "rows.jsonl", numbered(0, 2000))
    held = [
        set(asked(bind("math", EnvConfig(data=data, split=SplitConfig(share=share))), "heldout"))
        for share in (1 / 8, 0.3, 0.5)
    ]
    assert [round(len(one) / 2000, 1) for one in held] == [0.1, 0.3, 0.5]
    assert held[0] < held[1] < held[2]


def test_splits_that_can_not_be_are_refused(tmp_path: Path) -> None:
    data = save(tmp_path / "rows.jsonl", numbered(0, 9))
    held, column = save(tmp_path / "test.jsonl", numbered(0, 9)), SplitConfig(by="column", column="part", share=0.5)
    streamed = DataConfig(path=data.path, streaming=True)
    for wrong, key in (
        (EnvConfig(data=data, split=SplitConfig(share=1.0)), "envs.math.split.share=1.0"),
        (EnvConfig(data=data, eval_data=data, split=SplitConfig(by="hash")), "envs.math.split.by=hash"),
        (EnvConfig(data=data, split=SplitConfig(by="file")), "envs.math.split.by=file"),
        (EnvConfig(data=data, split=SplitConfig(by="column")), "envs.math.split.by=column"),
        (EnvConfig(drop_overlap="exact"), "envs.math.drop_overlap=exact"),
        (EnvConfig(data=streamed, drop_overlap="ngrams"), "envs.math.drop_overlap=ngrams"),
        (EnvConfig(data=data, split=SplitConfig(heldout=["dev"])), "envs.math.split.heldout=['dev']"),
        (EnvConfig(data=data, split=column), "envs.math.split.share=0.5: envs.math.split.column"),
        (EnvConfig(data=data, eval_data=held, split=SplitConfig(share=0.5)), "envs.math.split.share=0.5: eval_data"),
        (EnvConfig(eval_data=DataConfig(path="x", streaming=True)), "envs.math.eval_data.streaming"),
    ):
        with refuses(key):
            bind("math", wrong)
    bind("math", EnvConfig(eval_data=held, split=SplitConfig(share=0.5)))  # of the tasks that are generated
    with refuses("model.revision=main", "model.path"):
        load_config(DEMO, ["model.revision=main"])


def test_streamed_rows_come_in_blocks_and_again_after_the_last(tmp_path: Path) -> None:
    count = 2 * BLOCK + 100
    test = save(tmp_path / "test.jsonl", numbered(0, 3))
    path = save(tmp_path / "rows.jsonl", numbered(3, count)).path
    env = bind("math", EnvConfig(data=DataConfig(path=path, streaming=True), eval_data=test))
    first, again, other = (open_source(env, split="train", seed=seed) for seed in (1, 1, 2))
    assert isinstance(first, StreamedSource)
    drawn = [first.task(index).messages[0]["content"] for index in range(2 * count)]
    assert len(set(drawn[:count])) == count
    assert set(drawn[:count]) == set(drawn[count:])
    assert drawn[:count] != drawn[count:]  # the second time in another order
    for index in (count - 1, 5, BLOCK, 0):  # also those that have to be read again
        assert again.task(index).messages[0]["content"] == drawn[index]
    assert [other.task(index).messages[0]["content"] for index in range(20)] != drawn[:20]
    assert other.task(count + 7).messages[0]["content"] in drawn  # behind an end that is not known yet
    assert asked(env, "heldout") == numbered(0, 3)
    assert first.size is None


def test_training_rows_that_overlap_with_evaluation_are_left_out(tmp_path: Path) -> None:
    same, near = LONG.format(n=12), LONG.format(n=12).replace("How many?", "What is the sum?")
    data = save(tmp_path / "train.jsonl", [f"  {same.upper()} ", near, *numbered(0, 5)])
    held = save(tmp_path / "test.jsonl", [same, *numbered(20, 3)])
    left = {
        by: sorted(asked(bind("math", EnvConfig(data=data, eval_data=held, drop_overlap=by)), "train"))
        for by in ("none", "exact", "ngrams")
    }
    assert (len(left["none"]), len(left["exact"]), left["ngrams"]) == (7, 6, numbered(0, 5))
    counts: dict[DropOverlap, int] = {"exact": 6, "ngrams": 5}
    for by, count in counts.items():
        streamed = EnvConfig(data=DataConfig(path=data.path, streaming=True), eval_data=held, drop_overlap=by)
        source = open_source(bind("math", streamed), split="train", seed=1)
        assert len({source.task(index).key for index in range(60)}) == count


def test_all_settings_with_data_are_compared_for_overlaps(tmp_path: Path) -> None:
    rows = tmp_path / "rows.jsonl"
    save(rows, numbered(0, 10), source="a")
    save(rows, numbered(10, 10), source="b")
    held = save(tmp_path / "test.jsonl", numbered(0, 4))
    envs = [
        f"envs.{name}={{kind: math, eval_data: {held.path}, data: {{path: {rows}, filter: {{source: {name}}}}}}}"
        for name in ("a", "b")
    ]
    found = {one.env: one for one in find_overlaps(load_config(DEMO, envs))}
    assert {(len(found[env].found.exact), found[env].found.training) for env in ("a", "b")} == {(4, 20)}
    assert found["a"].training == (f"envs.a.data={rows}", f"envs.b.data={rows}")


def test_prompts_are_compared_with_their_signs() -> None:
    def user(content: object) -> PromptText:
        return prompt_text([{"role": "user", "content": content}])

    held = [user("What is 3 + 4?"), user("x^2+1"), user([{"type": "text", "text": "In parts"}]), user([]), user(" ")]
    index = OverlapIndex((str(number), text) for number, text in enumerate(held))
    near = ("What is 3 - 4?", "what is 3 4", "x^2-1", "x^2 1", "", [{"type": "image"}])
    for other in map(user, near):
        index.compare(other)
        assert not index.has_overlap(other, "ngrams")
    assert index.result().exact == ()
    for same in ("what  is\n3 + 4?", "in parts"):
        index.compare(user(same))
        assert index.has_overlap(user(same), "exact")
    assert index.result().exact == ("0", "2")
    assert (index.result().prompts, index.result().silent) == (5, 2)


def test_shared_rules_of_evaluation_prompts_are_no_overlap() -> None:
    def texts(questions: list[str]) -> list[PromptText]:
        return [prompt_text([{"role": "user", "content": said}]) for said in questions]

    rule = "Answer with one letter of those that stand before the choices, and say nothing else at all, please."
    held = texts([LONG.format(n=12), *(f"{question} {rule}" for question in numbered(0, 3))])
    index = OverlapIndex(("same id", text) for text in held)
    trained = texts([*(f"Case {n}: {LONG.format(n=12)}" for n in range(16)), *(f"{n}? {rule}" for n in range(16))])
    for each in trained:
        index.compare(each)
    found = index.result()
    assert (found.prompts, found.long, found.shared) == (4, 4, ("same id",))
    assert [index.has_overlap(each, "ngrams") for each in trained] == [True] * 16 + [False] * 16


def test_the_overlap_with_all_training_prompts_is_counted(tmp_path: Path) -> None:
    held = save(tmp_path / "test.jsonl", [LONG.format(n=12), *numbered(20, 3)])
    data = save(tmp_path / "train.jsonl", [LONG.format(n=13), *numbered(0, 20)])
    chats = tmp_path / "chats.jsonl"
    said = [f"{question}\nPut the final answer in \\boxed{{}}." for question in numbered(20, 2)]
    answer = {"role": "assistant", "content": "1"}
    rows = [{"messages": [{"role": "user", "content": each}, answer]} for each in said]
    chats.write_text("".join(json.dumps(row) + "\n" for row in rows))
    settings = [f"envs.math.data={data.path}", f"envs.math.eval_data={held.path}", "envs.math.drop_overlap=ngrams"]
    config = load_config(DEMO, [*settings, f"sft.data={chats}"])
    (found,) = find_overlaps(config)
    assert (found.found.prompts, found.found.training, len(found.found.exact)) == (4, 23, 2)
    assert (found.found.long, len(found.found.shared), found.left_out) == (1, 1, 1)
    assert found.kept == {f"sft.data={chats}": 2}
    assert (f"sft.data={chats}" in found.note, "drop_overlap" in found.note) == (True, False)
    assert "2 of 4 prompts are among 23 training prompts, 1 of the 1 with 13 words" in found.counts
    write_overlaps(tmp_path, [found])
    assert read_overlaps(tmp_path) == [found]


@pytest.mark.parametrize(
    ("trained", "by", "remedy"),
    [
        (LONG.format(n=12).upper(), "none", "envs.math.drop_overlap=exact"),
        (LONG.format(n=12).replace("How many?", "What is the sum?"), "none", "envs.math.drop_overlap=ngrams"),
        (LONG.format(n=12).upper(), "exact", ""),
        (numbered(9, 1)[0], "none", ""),
    ],
)
def test_the_start_names_the_setting_that_leaves_overlapping_rows_out(
    tmp_path: Path, trained: str, by: str, remedy: str
) -> None:
    held = save(tmp_path / "test.jsonl", [LONG.format(n=12)])
    data = save(tmp_path / "train.jsonl", [trained, *numbered(0, 5)])
    settings = [f"envs.math.data={data.path}", f"envs.math.eval_data={held.path}", f"envs.math.drop_overlap={by}"]
    (found,) = find_overlaps(load_config(DEMO, settings))
    assert found.note == "; ".join(filter(None, (found.counts, found.remedy)))
    assert found.remedy.split(" ")[0] == remedy


@pytest.mark.skipif(not REAL.is_file(), reason="needs ../shared/data/gsm8k_train.jsonl")
def test_half_of_gsm8k_is_compared_with_the_other_half(tmp_path: Path) -> None:
    lines = REAL.read_text().splitlines()
    (tmp_path / "train.jsonl").write_text("\n".join(lines[:-500]))
    (tmp_path / "test.jsonl").write_text("\n".join([*lines[-500:], lines[0]]))
    settings = [f"envs.math.data={tmp_path / 'train.jsonl'}", f"envs.math.eval_data={tmp_path / 'test.jsonl'}"]
    (found,) = find_overlaps(load_config(DEMO, settings))
    assert found.found.prompts == 501
    assert len(found.found.exact) >= 1
    assert len(found.found.shared) < 50


def test_rows_are_read_once_for_all_who_ask_of_an_environment(tmp_path: Path) -> None:
    data = save(tmp_path / "rows.jsonl", numbered(0, 40))
    env = bind("math", EnvConfig(data=data))
    (first, *_) = read_row_tasks(env, data)
    Path(data.path).unlink()  # nobody reads it again
    train, held = (open_source(env, split=split, seed=1) for split in ("train", "heldout"))
    assert isinstance(train, RowSource)
    assert isinstance(held, RowSource)
    assert len(train.tasks) + len(held.tasks) == 40
    assert any(task is first.task for task in (*train.tasks, *held.tasks))
    with refuses("envs.math.data", error=FileNotFoundError):
        read_all_rows(bind("math", EnvConfig(data=data)), data)


def test_rows_without_the_splits_column_are_trained_on(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    for first, part in ((0, "test"), (4, None), (8, "train")):
        save(path, numbered(first, 4), part=part)
    data = DataConfig(path=str(path))
    rows = list(read_row_tasks(bind("math", EnvConfig(data=data, split=SplitConfig(by="column", column="part"))), data))
    assert [each.heldout for each in rows] == [True] * 4 + [False] * 8
    wrong = bind("math", EnvConfig(data=data, split=SplitConfig(by="column", column="prat")))
    with refuses("split.column", "'prat'"):
        open_source(wrong, split="train", seed=1)


def test_the_first_bad_row_of_a_stream_is_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text("no row\n" * 3)
    data = DataConfig(path=save(path, numbered(0, 5)).path, streaming=True, on_error="skip")
    with caplog.at_level(logging.WARNING):
        next(read_row_tasks(bind("math", EnvConfig(data=data)), data))
    (said,) = caplog.messages
    assert said.startswith(f"{path}:1: not a JSON object")


def test_overlaps_are_found_once_for_the_same_settings(tmp_path: Path) -> None:
    data, held = save(tmp_path / "rows.jsonl", numbered(0, 9)), save(tmp_path / "test.jsonl", numbered(0, 3))
    said = [f"envs.math.data={data.path}", f"envs.math.eval_data={held.path}"]
    folder = RunDir(tmp_path / "run")
    folder.open()
    try:
        folder.store(RunState(fingerprint={"seed": "1"}))
        (found,) = overlaps_of(load_config(DEMO, said), folder)
        assert len(found.found.exact) == 3
        save(Path(held.path), numbered(3, 1))
        assert overlaps_of(load_config(DEMO, said), folder) == [found]
        folder.store(RunState(fingerprint={"seed": "2"}))
        (again,) = overlaps_of(load_config(DEMO, said), folder)
        assert (len(again.found.exact), again.of == found.of) == (4, False)
        assert [again.found] == [one.found for one in find_overlaps(load_config(DEMO, said))]
    finally:
        folder.close()
