"""Rows of environments: a question may be messages, and fields that would be dropped are refused."""

import json
from typing import Any

import pytest

from temper.envs.catalog import ENVIRONMENTS
from temper.envs.core.row_format import load_row

HEAD = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "Hi"},
    {"role": "assistant", "content": "Hello"},
]
CHECK = "def check(candidate):\n    assert candidate() == 1"
ROWS: list[tuple[str, str, dict[str, Any]]] = [
    ("math", "question", {"answer": "5"}),
    ("math", "problem", {"answer": "5"}),
    ("code", "question", {"inputs": ["2"], "outputs": ["4"]}),
    ("code", "text", {"test_list": ["assert one() == 1"], "code": "def one():\n    return 1"}),
    ("code", "prompt", {"entry_point": "one", "test": CHECK}),
    ("multiple_choice", "question", {"choices": ["5", "6"], "answer": 0}),
    ("short_answer", "question", {"answer": "5"}),
    ("instruction_following", "prompt", {"instruction_id_list": ["punctuation:no_comma"], "kwargs": [{}]}),
    ("workspace", "prompt", {"files": {"m.py": "x = 1\n"}, "tests": {"test_m.py": "from m import x\nassert x == 2\n"}}),
    ("rows", "prompt", {}),
    ("rows", "messages", {}),
]


@pytest.mark.parametrize(("kind", "name", "others"), ROWS)
def test_a_question_may_be_a_list_of_messages(kind: str, name: str, others: dict[str, Any]) -> None:
    formats = ENVIRONMENTS[kind].formats
    plain = load_row(formats, {"prompt" if name == "messages" else name: "2+3?"} | others)
    last = {"role": "user", "content": [{"type": "text", "text": "2+3?"}]}
    for given in ([*HEAD, last], json.dumps([*HEAD, last])):
        task = load_row(formats, {name: given} | others)
        assert task.messages == (*HEAD, *plain.messages)
        assert task.spec == plain.spec
    with_column = load_row(formats, {name: [*HEAD[1:], last], "system": "Be brief."} | others)
    assert with_column.messages == task.messages


@pytest.mark.parametrize(
    ("row", "named"),
    [
        ({"prompt": [{"role": "system", "content": "Be brief."}]}, "`prompt`"),
        ({"prompt": [*HEAD]}, "`prompt`"),
        ({"prompt": [HEAD[0], HEAD[1]], "system": "Be long."}, "`system`"),
        ({"prompt": "Q", "images": ["a.png"]}, "`images`"),
        ({"prompt": [{"role": "user", "content": [{"type": "image", "image": "a"}]}]}, "'image'"),
        ({"prompt": "Q", "chat_template_kwargs": {"enable_thinking": False}}, "`chat_template_kwargs`"),
    ],
)
def test_a_prompt_that_can_not_be_kept_whole_is_refused(row: dict[str, Any], named: str) -> None:
    with pytest.raises(ValueError, match=named):
        load_row(ENVIRONMENTS["rows"].formats, row)


def test_the_columns_line_finds_nested_answers() -> None:
    row = {"prompt": [HEAD[1]], "reward_model": {"style": "rule", "ground_truth": "5"}, "extra_info": {"answer": "#"}}
    with pytest.raises(ValueError, match="{question: prompt, answer: reward_model.ground_truth}"):
        load_row(ENVIRONMENTS["math"].formats, row)
