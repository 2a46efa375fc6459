"""Benchmarks: found by name, read in the published format, and never trained on."""

import base64
import json
import pickle
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from support.preset_rows import (
    ASKED,
    BESIDE,
    BOXED,
    LATER,
    LEETCODE,
    MBPP_ROW,
    RIGHT,
    ROWS,
    SILENCE,
    WRONG,
    Row,
    contest,
    packed,
)
from support.refusals import refuses

from temper.envs.binding import BoundEnv, bind
from temper.envs.coding.io_tests import unpack_tests
from temper.envs.config import EnvConfig
from temper.envs.core.task import Task
from temper.envs.core.thinking_mode import OFF
from temper.envs.data.config import DataConfig
from temper.envs.mathematics.reference import negatives, reference
from temper.envs.presets.catalog import PRESETS, with_preset
from temper.envs.presets.preset import Preset
from temper.envs.source import distinct_tasks, open_source
from temper.envs.transcript import score_turns
from temper.orchestrator.config.schema import to_settings
from temper.orchestrator.pipeline.config import make_config


def bound(name: str, **given: Any) -> BoundEnv:
    """Return the environment of a preset with additional settings."""
    config: EnvConfig = to_settings(EnvConfig, with_preset(name, {"preset": name, **given}))
    return bind(name, config)


def tasks(name: str, folder: Path, rows: list[Row], **data: Any) -> list[Task]:
    """Return the tasks of rows in a file."""
    folder = folder / "set"
    folder.mkdir(exist_ok=True)
    path = folder / "rows.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    for beside, text in BESIDE.get(name, {}).items():
        (folder / beside).parent.mkdir(parents=True, exist_ok=True)
        (folder / beside).write_text(text)
    env = bound(name, eval_data={"path": str(path), **data}, thinking=False)
    return distinct_tasks(open_source(env, split="heldout", seed=1), None)


@pytest.mark.parametrize("name", PRESETS)
def test_published_rows_are_asked_as_published_and_judged(name: str, tmp_path: Path) -> None:
    task = tasks(name, tmp_path, ROWS[name])[0]
    assert task.thinking == OFF
    assert task.messages[-1]["content"] == ASKED[name]
    later = LATER.get(name, [])
    judged = [score_turns(task, [said, *later]).score.parts["correct"] for said in (RIGHT[name], WRONG[name], "")]
    assert judged == [1.0, 0.0, float(name in SILENCE)]


@pytest.mark.parametrize("preset", PRESETS.values(), ids=PRESETS)
def test_a_set_says_what_a_number_needs(preset: Preset) -> None:
    texts = (preset.title, preset.prompt, preset.rule, preset.samples, preset.source, preset.differs)
    assert all(text.strip() and text.isascii() for text in texts)
    assert preset.rows > 0
    env = bound(preset.name)
    assert (env.config.share, env.config.kind) == (0.0, preset.env)
    assert env.config.eval_data == preset.data


def right(task: Task, said: str) -> float:
    return score_turns(task, [said]).score.parts["correct"]


def test_a_contest_of_calls_is_judged_by_its_private_tests_too(tmp_path: Path) -> None:
    _, call = tasks("livecodebench", tmp_path, ROWS["livecodebench"])
    system, asked = (message["content"] for message in call.messages)
    assert system.startswith("You are an expert Python programmer.")
    assert f"```python\n{LEETCODE['starter_code'].rstrip()}\n```" in asked
    program = "```python\nclass Solution:\n    def add(self, a: int, b: List[int]) -> int:\n        return {}\n```"
    assert [right(call, program.format(body)) for body in ("a + sum(b)", "a + b[0]", "3")] == [1.0, 0.0, 0.0]


def test_a_row_of_packed_tests_may_have_tens_of_mib(tmp_path: Path) -> None:
    whole = base64.b64encode(b"x\x9c" + bytes(13 * 2**20)).decode()
    (task,) = tasks("livecodebench", tmp_path, [contest(private_test_cases=whole)])
    assert task.spec["packed"] == whole


def test_a_result_in_a_list_is_no_result_of_a_contest(tmp_path: Path) -> None:
    row = contest(
        starter_code=LEETCODE["starter_code"],
        metadata=LEETCODE["metadata"],
        public_test_cases=json.dumps([{"input": "1\n[2]", "output": "[3]", "testtype": "functional"}]),
        private_test_cases="[]",
    )
    (task,) = tasks("livecodebench", tmp_path, [row])
    program = "```python\nclass Solution:\n    def add(self, a: int, b: List[int]):\n        return {}\n```"
    assert [right(task, program.format(body)) for body in ("[3]", "3")] == [1.0, 0.0]


@pytest.mark.parametrize("name", ["gsm8k", "math500", "aime24", "aime25"])
def test_the_last_box_is_the_answer_to_a_question_of_mathematics(name: str, tmp_path: Path) -> None:
    (task,) = tasks(name, tmp_path, ROWS[name][:1])
    answer = task.spec["answer"]
    said = [
        f"\\boxed{{m+n={answer}}}",
        f"First \\boxed{{12345}}, then \\boxed{{{answer}}}.",
        f"First \\boxed{{{answer}}}, then \\boxed{{12345}}.",
    ]
    assert [right(task, each) for each in said] == [0.0, 1.0, 0.0]
    assert "equation" in PRESETS[name].differs
    with refuses("options.boxes='first'", "agree", "last"):
        bound(name, options={"boxes": "first"})


def test_a_window_of_dates_is_a_filter(tmp_path: Path) -> None:
    def dates(**window: str) -> list[str]:
        rows = [contest(contest_date=f"{day}T00:00:00", question_content=day) for day in days]
        found = tasks("livecodebench", tmp_path, rows, filter={"contest_date": window})
        return [day for task in found for day in days if f"\n{day}\n" in task.messages[-1]["content"]]

    days = ("2024-07-31", "2024-08-01", "2025-05-01")
    assert dates(min="2024-08-01") == ["2024-08-01", "2025-05-01"]
    assert dates(min="2024-07-01", max="2024-08-01") == ["2024-07-31", "2024-08-01"]


def test_the_releases_of_a_folder_are_one_split(tmp_path: Path) -> None:
    for number, name in enumerate(("test.jsonl", "test2.jsonl", "test6.jsonl")):
        (tmp_path / name).write_text(json.dumps(contest(question_content=f"Task {number}.")) + "\n")
    env = bound("livecodebench", eval_data={"path": str(tmp_path), "split": "test"})
    assert len(distinct_tasks(open_source(env, split="heldout", seed=1), None)) == 3


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_packed_tests_are_read_of_every_protocol(protocol: int) -> None:
    tests = [{"input": "1\n" * 50_000, "output": "caf\u00e9", "testtype": "stdin"}]
    assert unpack_tests(packed(tests, protocol)) == [("1\n" * 50_000, "caf\u00e9")]


class Harm:
    """A pickle that must never be loaded."""

    def __reduce__(self) -> Any:
        return (pytest.fail, ("it was unpickled",))


@pytest.mark.parametrize(
    "held", [Harm(), ["[]", "[]"], b"[]", 7, ("[]",), None], ids=["code", "list", "bytes", "number", "tuple", "nothing"]
)
def test_a_pickle_of_anything_but_one_text_is_refused(held: Any) -> None:
    text = base64.b64encode(zlib.compress(pickle.dumps(held))).decode()
    with pytest.raises(ValueError, match="packed tests"):
        unpack_tests(text)


def test_broken_packed_tests_are_no_wrong_answer(tmp_path: Path) -> None:
    whole = packed([{"input": "1", "output": "1", "testtype": "stdin"}])
    broken = base64.b64encode(zlib.compress(b"\x80\x04no")).decode()
    for text in (whole[:-8], whole[:20] + "!" + whole[20:], broken, packed([])):
        with pytest.raises(ValueError, match="packed tests"):
            unpack_tests(text)
    for text in (whole[:-8], packed([])):
        (task,) = tasks("livecodebench", tmp_path, [contest(private_test_cases=text, public_test_cases="[]")])
        failure = score_turns(task, [RIGHT["livecodebench"]]).failure
        assert failure is not None
        assert "packed tests" in failure.message


def test_a_set_may_skip_rows_that_can_not_be_judged(tmp_path: Path) -> None:
    assert len(tasks("ifeval", tmp_path, ROWS["ifeval"])) == 1


def test_the_question_repeated_is_no_answer_whatever_the_prompt(tmp_path: Path) -> None:
    (task,) = tasks("gsm8k", tmp_path, ROWS["gsm8k"])
    assert right(task, reference(task)[0]) == 1.0
    wrong = {name: turns for name, turns in negatives(task) if "thinking" not in name}
    assert {name for name, turns in wrong.items() if score_turns(task, turns).score.parts["correct"]} == set()
    assert right(task, "How many are 3 and 4? 7") == 1.0


def test_prompts_of_ones_own_name_what_their_rows_have(tmp_path: Path) -> None:
    prompt = "{question} Call it {name}; {test} holds. {other}"
    env = bound("mbpp", options={"prompt": prompt})
    assert env.config.options["prompt"] == prompt
    path = tmp_path / "rows.jsonl"
    path.write_text(json.dumps(MBPP_ROW))
    env = bound("mbpp", options={"prompt": prompt, "system": "Be brief."}, eval_data=str(path))
    (task,) = distinct_tasks(open_source(env, split="heldout", seed=1), None)
    assert [message["content"] for message in task.messages] == [
        "Be brief.",
        "Write a function to double a number. Call it twice; assert twice(2) == 4 holds. {other}",
    ]
    for wrong in (
        {"prompt": {"program": "{question} {tests}"}},
        {"prompt": "{tests}"},
        {"prompt": 3},
        {"prompts": "x"},
    ):
        with pytest.raises(ValueError, match=r"options|unknown"):
            bound("mbpp", options=wrong)


def test_the_page_of_benchmarks_lists_each_entry() -> None:
    page = (Path(__file__).parents[4] / "docs" / "evaluation.md").read_text(encoding="utf-8")
    rows = [f"| `{one.name}` | {one.title} | {one.rows} | `{one.env}` | {one.data.name} |" for one in PRESETS.values()]
    assert [row for row in rows if row not in page] == []


def settings(**envs: Mapping[str, Any]) -> Any:
    return {"name": "it", "stages": ["init", "rl", "eval"], "envs": envs}


def test_a_preset_is_one_line_and_is_not_trained_on() -> None:
    config = make_config(settings(math={}, gsm8k={"preset": "gsm8k"}))
    gsm8k = config.envs["gsm8k"]
    assert (gsm8k.share, gsm8k.kind, gsm8k.thinking) == (0.0, "math", True)
    for wrong in (
        settings(gsm8k={"preset": "gsm8k", "share": 1.0}),
        settings(gsm8k={"preset": "gsm8k", "data": {"path": "openai/gsm8k", "config": "main", "split": "test"}}),
        settings(math={}, gsm8k={"preset": "gsm8k"}) | {"rl": {"shares": {"gsm8k": 0.5}}},
    ):
        with pytest.raises(ValueError, match="gsm8k"):
            make_config(wrong)


def test_a_preset_with_data_of_its_own_is_trained_on_these() -> None:
    train = {"path": "openai/gsm8k", "config": "main", "split": "train"}
    env = make_config(settings(gsm8k={"preset": "gsm8k", "data": train})).envs["gsm8k"]
    assert env.data is not None
    assert env.eval_data is not None
    assert (env.share, env.data.split, env.eval_data.split) == (1.0, "train", "test")


def test_what_is_given_wins_and_a_file_has_no_configuration() -> None:
    given = {"path": "mine.jsonl", "columns": {"question": "q"}}
    env = bound("gsm8k", eval_data=given, options={"system": "Be brief."}, max_turns=2).config
    assert env.eval_data is not None
    assert (env.eval_data.path, env.eval_data.config, env.eval_data.revision) == ("mine.jsonl", None, None)
    assert env.options == {"system": "Be brief.", "prompt": f"{{question}}{BOXED}", "boxes": "last"}
    assert env.max_turns == 2
    assert bound("gsm8k", eval_data="mine.jsonl").config.eval_data == DataConfig(path="mine.jsonl")
    part = bound("gsm8k", eval_data={"revision": "main"}).config.eval_data
    assert part is not None
    assert (part.path, part.split, part.revision) == ("openai/gsm8k", "test", "main")


def test_unknown_sets_and_other_environments_are_refused() -> None:
    with refuses("envs.it", "'gsm9k'", "'gsm8k'"):
        with_preset("it", {"preset": "gsm9k"})
    with refuses("kind"):
        with_preset("it", {"preset": "gsm8k", "kind": "code"})


def test_a_saved_configuration_with_a_preset_is_read_again() -> None:
    once = make_config(settings(math={}, gsm8k={"preset": "gsm8k"})).envs["gsm8k"]
    saved = {name: value for name, value in vars(once).items() if name not in ("split", "eval_data")}
    again = to_settings(EnvConfig, with_preset("gsm8k", saved | {"eval_data": vars(once.eval_data)}))
    assert again == once
