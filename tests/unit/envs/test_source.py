"""Task sources: generated and from files, splits, malformed data."""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import pytest
from support.refusals import refuses

from temper.envs.all_tasks import read_tasks
from temper.envs.binding import bind, bind_all
from temper.envs.catalog import environment
from temper.envs.config import EnvConfig
from temper.envs.data.config import DataConfig
from temper.envs.data.split import split_of
from temper.envs.source import RowSource, distinct_tasks, open_source, read_all_rows
from temper.orchestrator.data.chat_data import Demonstrations
from temper.orchestrator.loop.mixture import open_mixture

ENV_IDS = ("math", "code", "tool_use")
MINE = "support.user_functions.parts"
Writer = Callable[[bytes], DataConfig]


@pytest.fixture
def write(tmp_path: Path) -> Writer:
    def write_file(content: bytes) -> DataConfig:
        path = tmp_path / "rows.jsonl"
        path.write_bytes(content)
        return DataConfig(path=str(path))

    return write_file


def rows(count: int) -> bytes:
    lines = [json.dumps({"question": f"What is {n}+1?", "answer": f"So\n#### {n + 1}"}) for n in range(count)]
    return "\n".join(lines).encode()


@pytest.mark.parametrize("env_id", ENV_IDS)
@pytest.mark.parametrize("level", [1, 2])
def test_the_splits_of_generated_tasks_never_meet(env_id: str, level: int) -> None:
    config = EnvConfig(level=level)
    train, held = (open_source(bind(env_id, config), split=split, seed=3) for split in ("train", "heldout"))
    prompts = [{json.dumps(source.task(i).messages) for i in range(300)} for source in (train, held)]
    assert not prompts[0] & prompts[1]
    assert {split_of(held.task(i)) for i in range(50)} == {"heldout"}


@pytest.mark.parametrize("env_id", ENV_IDS)
def test_a_generated_task_depends_on_seed_and_index_only(env_id: str) -> None:
    first, second, other = (open_source(bind(env_id, EnvConfig()), split="train", seed=seed) for seed in (1, 1, 2))
    second.task(7)
    assert [first.task(i) for i in range(20)] == [second.task(i) for i in range(20)]
    assert [first.task(i) for i in range(20)] != [other.task(i) for i in range(20)]


@pytest.mark.parametrize("env_id", ENV_IDS)
def test_prompts_and_demonstrations_stay_small(env_id: str) -> None:
    source, demonstrate = open_source(bind(env_id, EnvConfig()), split="train", seed=0), environment(env_id).demonstrate
    assert demonstrate is not None
    for task in (source.task(index) for index in range(200)):
        assert len(task.messages[0]["content"]) <= 60
        for message in demonstrate(task):
            assert len(message.get("reasoning_content", "")) <= 60
            assert len(message["content"]) <= 60


def test_an_unknown_environment_is_named_with_the_nearest() -> None:
    with refuses("'maths'", "'math'"):
        environment("maths")


def test_wrong_settings_are_refused() -> None:
    for wrong, named in (
        (EnvConfig(share=-1), ["envs.sums.share=-1"]),
        (EnvConfig(level=0), ["envs.sums.level=0"]),
        (EnvConfig(max_turns=0), ["envs.sums.max_turns=0"]),
        (EnvConfig(kind="math", tools=["pyhton"]), ["envs.sums", "'pyhton'"]),
        (EnvConfig(kind="math", weights={"formt": 1.0}), ["envs.sums", "'formt'", "'format'"]),
        (EnvConfig(), ["envs.sums", "unknown environment 'sums'"]),
    ):
        with refuses(*named):
            bind("sums", wrong)
    with refuses("split", "'dev'"):
        open_source(bind("math", EnvConfig()), split="dev", seed=0)


def test_rows_are_divided_by_content_and_come_round_again(write: Writer) -> None:
    config = EnvConfig(data=write(rows(100)))
    train, held = (open_source(bind("math", config), split=split, seed=0) for split in ("train", "heldout"))
    assert isinstance(train, RowSource)
    assert isinstance(held, RowSource)
    assert len(train.tasks) + len(held.tasks) == 100
    assert not {task.key for task in train.tasks} & {task.key for task in held.tasks}
    assert held.task(0) == held.task(len(held.tasks))


def test_training_rows_are_shuffled_anew_in_each_epoch(write: Writer) -> None:
    env = bind("math", EnvConfig(data=write(rows(100))))
    source = open_source(env, split="train", seed=0)
    assert source.size is not None
    count = source.size
    seen = [source.task(index).key for index in range(3 * count)]
    first, second, third = seen[:count], seen[count : 2 * count], seen[2 * count :]
    assert sorted(first) == sorted(second) == sorted(third)
    assert len(set(first)) == count
    assert first != second != third != first
    resumed = open_source(env, split="train", seed=0)  # a resumed run asks for later draws only, and out of order
    assert [resumed.task(index).key for index in reversed(range(3 * count))] == seen[::-1]
    assert [open_source(env, split="train", seed=1).task(count + i).key for i in range(count)] != second


def test_the_split_of_a_row_does_not_depend_on_its_place(write: Writer) -> None:
    lines = rows(64).split(b"\n")
    keys, counts = [], []
    for content in (lines, lines[::-1], lines[:32] + lines):
        env = bind("math", EnvConfig(data=write(b"\n".join(content))))
        held, train = (open_source(env, split=split, seed=0) for split in ("heldout", "train"))
        assert isinstance(held, RowSource)
        assert isinstance(train, RowSource)
        keys.append({task.key for task in held.tasks})
        counts.append(len(held.tasks) + len(train.tasks))
    assert keys[0] == keys[1] == keys[2]
    assert counts == [64, 64, 64]


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        (b'{"question": "a", "answer": "#### 1"', "not a JSON object"),
        (b'{"question": "\xff\xfe", "answer": "#### 1"}', "not UTF-8"),
        (b'{"question": "a"}', "gsm8k.*columns"),
        (b'{"question": "a", "answer": "####"}', "no final answer"),
        (b'{"question": 3, "answer": "#### 1"}', "question is 3"),
        (b"[1, 2]", "but list"),
        (b"[" * 100_000, "not a JSON object"),
    ],
)
def test_a_bad_row_is_named_or_skipped_and_counted(write: Writer, bad: bytes, message: str) -> None:
    lines = rows(40).split(b"\n")
    path = write(b"\n".join([*lines[:2], bad, b"", *lines[2:], bad]))
    with pytest.raises(ValueError, match=rf"rows\.jsonl:3: .*{message}") as error:
        open_source(bind("math", EnvConfig(data=path)), split="train", seed=0)
    assert "on_error=skip" in str(error.value)
    found = read_all_rows(bind("math", EnvConfig(data=path, on_error="skip")), path)
    assert (len(found.tasks), found.skipped) == (40, 2)


def test_a_byte_order_mark_and_windows_line_ends_are_read(write: Writer) -> None:
    path = write(b"\xef\xbb\xbf" + rows(40).replace(b"\n", b"\r\n"))
    source = open_source(bind("math", EnvConfig(data=path)), split="train", seed=0)
    assert "What is" in source.task(0).messages[0]["content"]


def test_missing_and_empty_files_are_refused_with_a_remedy(write: Writer, tmp_path: Path) -> None:
    with refuses("absent.jsonl", error=FileNotFoundError):
        open_source(
            bind("math", EnvConfig(data=DataConfig(path=str(tmp_path / "absent.jsonl")))), split="train", seed=0
        )
    with refuses("rows.jsonl"):
        open_source(bind("math", EnvConfig(data=write(b"\n \n"))), split="train", seed=0)
    with refuses("rows.jsonl", 2):
        open_source(bind("math", EnvConfig(data=write(b"x\ny"), on_error="skip")), split="train", seed=0)
    with pytest.raises(ValueError, match="heldout"):
        open_source(bind("math", EnvConfig(data=write(rows(1)))), split="heldout", seed=0)


def remarks_of(
    rows: Sequence[Mapping[str, object]], write: Writer, env: str = "math", **settings: object
) -> tuple[str, ...]:
    data = write("\n".join(map(json.dumps, rows)).encode())
    return read_all_rows(bind(env, EnvConfig(data=data, **settings)), data).remarks  # type: ignore[arg-type]


def test_repeated_rows_and_conflicting_answers_are_counted(write: Writer) -> None:
    row = {"question": "What is 2+3?", "answer": "5"}
    assert remarks_of([row, {"question": "What is 2+4?", "answer": "5"}], write) == ()
    (repeats,) = remarks_of([row | {"id": n} for n in range(3)], write)
    assert repeats.startswith("2 ")
    assert remarks_of([row, row | {"answer": "5.0"}, row | {"answer": "\\frac{10}{2}"}], write) == ()
    (different,) = remarks_of([row, row | {"answer": "6"}, row | {"answer": "7"}], write)
    assert different.startswith("1 ")
    assert all(named in different for named in ("rows 1 and 2", '"5"', '"6"'))
    aliases = [{"question": "Who?", "answer": ["Al", "Albert"]}, {"question": "Who?", "answer": ["albert", "A."]}]
    assert remarks_of(aliases, write, "short_answer") == ()
    assert remarks_of([*aliases, {"question": "Who?", "answer": "Bo"}], write, "short_answer")


def test_rows_with_equal_ids_get_numbers_for_commands_too(write: Writer) -> None:
    lines = [json.dumps({"id": 7, "question": f"What is {n}+1?", "answer": n + 1}) for n in (1, 2, 2)]
    tasks = read_tasks(write("\n".join(lines).encode()), environment("math"))
    assert {key: task.spec["answer"] for key, task in tasks.items()} == {"7": "2", "7#2": "3"}


def test_rows_with_an_own_reward_compare_their_golds(write: Writer) -> None:
    rows: list[dict[str, object]] = [
        {"prompt": "Q?", "id": n, "level": n, "reward_model": {"ground_truth": gold}} for n, gold in enumerate("554")
    ]
    (different,) = remarks_of(rows, write, "rows", reward=MINE)
    assert "rows 1 and 3" in different


def test_the_columns_remedy_names_the_only_field_left(write: Writer) -> None:
    data = write(b'{"prompt_text": "Q?", "result": "7"}')
    for env, columns in (
        ("math", "{question: prompt_text, answer: result}"),
        ("short_answer", "{question: prompt_text, answer: result}"),
        ("rows", "{question: prompt_text}"),
    ):
        reward = MINE if env == "rows" else None
        with pytest.raises(ValueError, match=re.escape(columns)):
            open_source(bind(env, EnvConfig(data=data, reward=reward)), split="train", seed=0)


def test_a_source_gives_each_of_its_tasks_once(write: Writer) -> None:
    source = open_source(bind("math", EnvConfig(data=write(rows(100)))), split="heldout", seed=0)
    assert isinstance(source, RowSource)
    assert distinct_tasks(source, 5) == source.tasks[:5]
    assert distinct_tasks(source, 1000) == source.tasks
    generated = open_source(bind("math", EnvConfig()), split="heldout", seed=0)
    assert len({task.key for task in distinct_tasks(generated, 40)}) == 40


def test_an_environment_that_has_pythons_tool_runs_programs() -> None:
    assert bind("code", EnvConfig()).runs_programs
    assert bind("sums", EnvConfig(kind="math", tools=["calculator", "python"])).runs_programs
    assert not bind("math", EnvConfig(tools=["calculator"])).runs_programs


def demonstrations(config: EnvConfig) -> Demonstrations:
    envs = bind_all({"lake": config})
    return Demonstrations(open_mixture(envs, {}, split="train", seed=0), envs)


def test_an_environment_without_demonstrations_is_refused() -> None:
    slippery = EnvConfig(kind="gym", options={"id": "FrozenLake-v1", "kwargs": {"is_slippery": True}})
    with refuses("sft.shares.lake=0", "'lake'"):
        demonstrations(slippery)
    dry = EnvConfig(kind="gym", options={"id": "FrozenLake-v1", "kwargs": {"is_slippery": False}})
    assert demonstrations(dry).dialogue(0).reply
