"""Rows of the function-calling leaderboard in its layout, with questions and answers in separate files."""

import json
from pathlib import Path
from typing import Any

import pytest
from support.refusals import refuses
from support.task_data import DATA, needs_data

from temper.envs.binding import bind
from temper.envs.config import EnvConfig
from temper.envs.core.task import Task
from temper.envs.core.turn_text import parse_calls
from temper.envs.data.config import DataConfig
from temper.envs.source import open_source
from temper.envs.tool_use import leaderboard_rows, reference

AREA = {"base": {"type": "integer"}, "height": {"type": "float", "description": "In cm."}, "what": {"type": "any"}}


def question(row_id: str, properties: dict[str, Any], name: str = "math.area") -> dict[str, Any]:
    """Return a question with one function."""
    parameters = {"type": "dict", "properties": properties, "required": list(properties)[:1]}
    return {
        "id": row_id,
        "question": [[{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Call it."}]],
        "function": [{"name": name, "description": "Does it.", "parameters": parameters}],
    }


def written(folder: Path, questions: list[dict[str, Any]], answers: list[dict[str, Any]]) -> Path:
    """Write a category's two files and return the file of questions."""
    category = leaderboard_rows.category_of(questions[0])
    file = folder / f"BFCL_v4_{category}.json"
    file.write_text("".join(json.dumps(row) + "\n" for row in questions))
    (folder / "possible_answer").mkdir(exist_ok=True)
    if answers:
        (folder / "possible_answer" / file.name).write_text("".join(json.dumps(row) + "\n" for row in answers))
    return file


def tasks(file: Path) -> list[Task]:
    """Return all tasks of a file of questions."""
    source = open_source(bind("tool_use", EnvConfig(eval_data=DataConfig(path=str(file)))), split="heldout", seed=0)
    assert source.size is not None
    return [source.task(index) for index in range(source.size)]


def right(task: Task, text: str) -> bool:
    return leaderboard_rows.judge(task, parse_calls(text)).parts["correct"] == 1.0


def call(name: str, **arguments: Any) -> str:
    return f"<tool_call>{json.dumps({'name': name, 'arguments': arguments})}</tool_call>"


def test_answers_lie_in_a_file_of_their_own_and_are_found_by_id(tmp_path: Path) -> None:
    answers = [
        {"id": f"simple_python_{index}", "ground_truth": [{"math.area": {"base": [index], "height": [2.0, ""]}}]}
        for index in (1, 0)
    ]
    first, second = tasks(written(tmp_path, [question(f"simple_python_{index}", AREA) for index in (0, 1)], answers))
    assert (first.key, second.key) == ("simple_python_0", "simple_python_1")
    assert right(first, call("math_area", base=0))
    assert right(second, call("math_area", base=1, height=2))
    assert not right(first, call("math_area", base=1))


def test_functions_are_shown_as_the_leaderboard_shows_them(tmp_path: Path) -> None:
    answers = [{"id": "live_simple_0-0-0", "ground_truth": [{"math.area": {"base": [1]}}]}]
    (task,) = tasks(written(tmp_path, [question("live_simple_0-0-0", AREA)], answers))
    assert [message["role"] for message in task.messages] == ["system", "user"]
    (tool,) = task.tools
    assert tool["function"]["name"] == "math_area"
    assert tool["function"]["description"] == "Does it. Note that the provided function is in Python 3 syntax."
    assert tool["function"]["parameters"] == {
        "type": "object",
        "properties": {
            "base": {"type": "integer"},
            "height": {"type": "number", "format": "float", "description": "In cm. This is a float type value."},
            "what": {"type": "string"},
        },
        "required": ["base"],
    }


JAVA = {
    "ids": {"type": "ArrayList", "items": {"type": "long"}, "description": "Ids."},
    "what": {"type": "any", "description": "It."},
    "names": {"type": "Array", "items": {"type": "String"}, "description": "Names."},
    "map": {"type": "HashMap", "description": "Options."},
    "share": {"type": "float", "description": "Share."},
}
SCRIPT = {
    "list": {"type": "array", "items": {"type": "String"}, "description": "List."},
    "options": {"type": "dict", "properties": {"deep": {"type": "boolean"}}, "description": "Options."},
    "count": {"type": "Bigint", "description": "Count."},
}


def test_arguments_of_java_are_texts_that_are_read_as_literals(tmp_path: Path) -> None:
    accepted = {"ids": [[1, 2]], "what": ["x"], "names": [["a"], ""], "map": [{"k": [True, False]}], "share": [0.5]}
    answers = [{"id": "simple_java_0", "ground_truth": [{"f": accepted}]}]
    (task,) = tasks(written(tmp_path, [question("simple_java_0", JAVA, "f")], answers))
    shown = task.tools[0]["function"]["parameters"]["properties"]
    assert {schema["type"] for schema in shown.values()} == {"string"}
    assert (
        shown["what"]["description"] == "It. This parameter can be of any type of Java object in string representation."
    )
    assert shown["ids"] == {
        "type": "string",
        "description": "Ids. This is Java ArrayList type parameter in string representation. "
        "The list elements are of type long; they are not in string representation.",
    }
    ids, options = "new ArrayList<>(Arrays.asList(1L, 2L))", 'new HashMap<>() {{ put("k", true); }}'
    assert right(task, call("f", ids=ids, what="x", map=options, share="0.5f"))
    assert not right(task, call("f", ids=ids, what="x", map=options, share=0.5))
    assert not right(task, call("f", ids=[1, 2], what="x", map=options, share="0.5f"))
    assert right(task, *reference.reference(task))
    assert [name for name, turns in reference.negatives(task) if right(task, *turns)] == []


def test_arguments_of_javascript_are_read_as_literals(tmp_path: Path) -> None:
    accepted = {"list": [["a", "b"]], "options": [{"deep": [True]}], "count": [5]}
    answers = [{"id": "simple_javascript_0", "ground_truth": [{"f": accepted}]}]
    (task,) = tasks(written(tmp_path, [question("simple_javascript_0", SCRIPT, "f")], answers))
    assert right(task, call("f", list="['a', 'b']", options="{deep: true}", count="5n"))
    assert not right(task, call("f", list="['a', 'b']", options="{deep: true}", count="5"))
    described = task.tools[0]["function"]["parameters"]["properties"]["options"]["description"]
    assert described.endswith('not in string representation. {"deep": {"type": "boolean"}}')
    assert right(task, *reference.reference(task))
    assert [name for name, turns in reference.negatives(task) if right(task, *turns)] == []


@pytest.mark.parametrize(
    ("category", "called"), [("irrelevance", False), ("live_irrelevance", False), ("live_relevance", True)]
)
def test_where_no_answer_is_listed_a_call_is_right_or_none_is(tmp_path: Path, category: str, called: bool) -> None:
    (task,) = tasks(written(tmp_path, [question(f"{category}_0", AREA)], []))
    assert right(task, call("other")) is called
    assert right(task, "There is no function for this.") is not called
    assert right(task, "<tool_call>{") is not called
    assert right(task, *reference.reference(task))
    assert [right(task, *turns) for _, turns in reference.negatives(task)] == [False]


def test_a_question_without_its_answer_is_refused(tmp_path: Path) -> None:
    file = written(tmp_path, [question("multiple_0", AREA)], [])
    with pytest.raises(ValueError, match="possible_answer/BFCL_v4_multiple.json"):
        tasks(file)
    written(tmp_path, [question("multiple_0", AREA)], [{"id": "multiple_1", "ground_truth": []}])
    with pytest.raises(ValueError, match="'multiple_0'"):
        tasks(file)
    (tmp_path / "possible_answer" / file.name).write_text("{")
    with refuses("BFCL_v4_multiple.json:1", "possible_answer"):
        tasks(file)


@needs_data
@pytest.mark.parametrize(("category", "count"), [("simple_python", 400), ("parallel", 200)])
def test_references_of_real_rows_in_two_files_pass(tmp_path: Path, category: str, count: int) -> None:
    rows = [json.loads(line) for line in (DATA / f"bfcl_{category}.jsonl").read_text().splitlines()]
    answers = [{"id": row["id"], "ground_truth": row.pop("ground_truth")} for row in rows]
    made = tasks(written(tmp_path, rows, answers))
    assert [task.key for task in made] == [f"{category}_{index}" for index in range(count)]
    assert all(right(task, *reference.reference(task)) for task in made)
