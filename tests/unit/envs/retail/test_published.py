"""The folder of the shop made of tau-bench's files, which are read and never run."""

import json
from pathlib import Path

from support.refusals import refuses

from temper.envs.retail.published import convert

TASKS = """
from tau_bench.types import Action, Task

TASKS = [
    Task(
        annotator="0",
        user_id="ann",
        instruction="You are Ann, " "who wants all.",
        actions=[Action(name="cancel", kwargs={"order_id": "#W1", "items": ["1", "2"], "amount": -5})],
        outputs=["10"],
    ),
    Task(annotator="1", user_id="bob", instruction="Nothing.", actions=[], outputs=[]),
]
"""
TOOL = """
class Cancel:
    @staticmethod
    def invoke(data, order_id):
        raise RuntimeError("this is not run")

    @staticmethod
    def get_info():
        return {"type": "function", "function": {"name": "cancel", "parameters": {"type": "object"}}}
"""


def published(folder: Path, tasks: str = TASKS, tool: str = TOOL) -> Path:
    (folder / "data").mkdir(parents=True)
    (folder / "tools").mkdir()
    (folder / "data" / "users.json").write_text('{"ann": {}}')
    (folder / "data" / "readme.md").write_text("About.")
    (folder / "wiki.md").write_text("Be kind.")
    (folder / "tools" / "__init__.py").write_text("from .cancel import Cancel\nALL_TOOLS = [Cancel]\n")
    (folder / "tools" / "cancel.py").write_text(tool)
    (folder / "tasks_test.py").write_text(tasks)
    return folder


def test_tables_policy_schemas_and_tasks_are_written(tmp_path: Path) -> None:
    made = convert(published(tmp_path / "retail"), tmp_path / "out")
    assert sorted(made) == ["policy.md", "tasks_test.jsonl", "tools.json", "users.json"]
    assert (tmp_path / "out" / "policy.md").read_text() == "Be kind."
    (tool,) = json.loads((tmp_path / "out" / "tools.json").read_text())
    assert tool["function"]["name"] == "cancel"
    first, second = map(json.loads, (tmp_path / "out" / "tasks_test.jsonl").read_text().splitlines())
    assert first == {
        "user_id": "ann",
        "instruction": "You are Ann, who wants all.",
        "actions": [{"name": "cancel", "kwargs": {"order_id": "#W1", "items": ["1", "2"], "amount": -5}}],
        "outputs": ["10"],
    }
    assert (second["actions"], second["outputs"]) == ([], [])


def test_what_is_no_literal_or_no_domain_is_refused(tmp_path: Path) -> None:
    with refuses("tau-bench"):
        convert(tmp_path, tmp_path / "out")
    called = published(tmp_path / "a", tasks="TASKS = [Task(user_id=open('x'))]")
    with refuses("tasks_test.py"):
        convert(called, tmp_path / "out")
    with refuses("cancel.py", "get_info"):
        convert(published(tmp_path / "b", tool="x = 1"), tmp_path / "out")
    with refuses("cancel.py"):
        convert(published(tmp_path / "c", tool="def"), tmp_path / "out")
