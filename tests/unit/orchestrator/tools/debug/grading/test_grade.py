"""`temper env grade` scores the responses in order. Worker failures lose no response."""

import json
import multiprocessing
from pathlib import Path
from typing import Any

import pytest

from temper.envs.core.errors import Failure, FailureKind
from temper.envs.core.task import EnvRef, Task
from temper.envs.transcript import read_transcript_turns, score_turns
from temper.orchestrator.__main__ import main
from temper.orchestrator.tools.debug.grading.scoring_pool import ScoringPool

MATH = [{"question": f"What is {n}+1?", "answer": f"So\n#### {n + 1}"} for n in range(20)]
SIDES = {"base": {"type": "integer"}, "height": {"type": "integer"}}
CALLS = [
    {
        "id": "area_7",
        "question": [[{"role": "user", "content": "The area of a triangle with base 10 and height 5?"}]],
        "function": [
            {
                "name": "area",
                "parameters": {"type": "dict", "properties": SIDES, "required": list(SIDES)},
                "description": "",
            }
        ],
        "ground_truth": [{"area": {"base": [10], "height": [5]}}],
    }
]


def jsonl(path: Path, rows: list[Any]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def graded(folder: Path, env: str, tasks: list[Any], responses: list[Any], *more: str) -> tuple[int, list[Any]]:
    out = folder / "out" / "graded.jsonl"
    arguments = ["--data", str(jsonl(folder / "tasks.jsonl", tasks)), "--out", str(out), *more]
    arguments += ["--responses", str(jsonl(folder / "responses.jsonl", responses))]
    status = main(["env", "grade", "--env", env, *arguments])
    return status, [json.loads(line) for line in out.read_text().splitlines()] if out.exists() else []


def test_responses_are_scored_in_their_order_and_may_share_a_key(tmp_path: Path) -> None:
    responses = [{"key": n, "response": f"#### {answer}"} for n in (3, 0, 3) for answer in (n + 1, n + 2)]
    status, rows = graded(tmp_path, "math", MATH, responses, "--workers", "2")
    assert (status, multiprocessing.active_children()) == (0, [])
    assert [row["key"] for row in rows] == [3, 3, 0, 0, 3, 3]
    assert [row["reward"] for row in rows] == [1.0, 0.0] * 3
    assert all(row["failure"] is None and row["seconds"] >= 0 and "correct" in row["parts"] for row in rows)


def test_a_thought_is_not_an_answer(tmp_path: Path) -> None:
    right = ("<think>2? no, 9</think>\\boxed{1}", "it is 9</think>\\boxed{1}")
    texts = (*right, "<think>\\boxed{1}</think>9", "<think>\\boxed{1}")
    _, rows = graded(tmp_path, "math", MATH, [{"key": "0", "response": text} for text in texts])
    assert [row["reward"] for row in rows] == [1.0, 1.0, 0.0, 0.0]


def test_a_row_that_is_no_response_is_a_failure_and_never_a_zero(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    responses = [{"key": 99, "response": "1"}, {"key": 0}, {"key": 0, "messages": []}, {"key": 0, "response": "1"}]
    status, rows = graded(tmp_path, "math", MATH, responses)
    assert status == 1
    assert [row["reward"] for row in rows] == [None, None, None, 1.0]
    assert [row["failure"] and row["failure"]["type"] for row in rows] == ["bad_row", "bad_row", "bad_row", None]
    assert "no task has the key 99" in rows[0]["failure"]["message"]
    assert "bad_row" in capsys.readouterr().out


def test_calls_and_messages_are_the_models_turns(tmp_path: Path) -> None:
    call: dict[str, Any] = {"name": "area", "arguments": {"base": 10, "height": 5}}
    as_text = {"role": "assistant", "tool_calls": [{"function": call | {"arguments": '{"base": 10, "height": 5}'}}]}
    said: list[dict[str, Any]] = [
        {"calls": [call]},
        {"calls": [call], "response": "It is 25."},
        {"calls": [call, call]},
        {"messages": [{"role": "user", "content": "?"}, as_text, {"role": "tool", "content": "25"}]},
        {"response": f"<tool_call>{json.dumps(call)}</tool_call>"},
        {"calls": [call | {"arguments": '{"base": 10, "hei'}]},
        {"calls": []},
    ]
    status, rows = graded(tmp_path, "tool_use", CALLS, [{"key": "area_7"} | row for row in said])
    assert status == 0
    assert [row["reward"] for row in rows] == [1.0, 1.0, 0.0, 1.0, 1.0, 0.0, 0.0]


def test_turns_keep_their_order_and_their_text() -> None:
    messages = [
        {"role": "assistant", "content": "first", "reasoning_content": "hm"},
        {"role": "tool", "content": "ignored"},
        {"role": "assistant", "content": [{"type": "text", "text": "sec"}, {"type": "text", "text": "ond"}]},
    ]
    assert read_transcript_turns({"messages": messages}) == ["first", "second"]
    assert read_transcript_turns({"calls": [{"name": "f", "arguments": {}}], "response": "done"})[1:] == ["done"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--env", "maths"], "'maths'"),
        (["--format", "tau"], "'tau'"),
        (["--workers", "0"], "workers is 0"),
        (["--options", "x: 1"], "'x'"),
        (["--options", "[1]"], "--options"),
        (["--data", "absent.jsonl"], "absent.jsonl"),
    ],
)
def test_mistakes_are_named(tmp_path: Path, capsys: pytest.CaptureFixture, arguments: list[str], message: str) -> None:
    status, rows = graded(tmp_path, "math", MATH, [{"key": 0, "response": "1"}], *arguments)
    assert (status, rows) == (2, [])
    assert message in capsys.readouterr().err


FAULTY = """
import os, random, time
from temper.envs.core.definition import EnvDefinition
from temper.envs.task_env import TaskEnv
from temper.envs.core.errors import GraderError
from temper.envs.core.step_result import StepResult
from temper.envs.core.task import Task
from temper.rewards.score import binary_score

class Faulty(TaskEnv):
    env_id = "{name}"
    def turn(self, task, parsed):
        answer = parsed.answer
        if answer == "die": os._exit(3)
        if answer == "hang": time.sleep(600)
        if answer == "raise": raise ValueError("a bug")
        if answer == "nan": return StepResult(reward=float("nan"), done=True)
        if answer == "grader": raise GraderError("no reference")
        return self.end(binary_score(answer == "right"))

def generate(rng, level):
    return Task(messages=({{"role": "user", "content": str(rng.random())}},), spec={{}})

ENVIRONMENT = EnvDefinition(id="{name}", entry_point="{name}:Faulty", generate=generate)
"""


@pytest.fixture
def faulty(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Task:
    (tmp_path / "faulty_grader.py").write_text(FAULTY.format(name="faulty_grader"))
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    env = EnvRef(name="faulty_grader", entry_point="faulty_grader:Faulty")
    return Task(env=env, key="1", messages=({"role": "user", "content": "?"},), spec={})


def test_a_fault_of_the_environment_is_typed_and_never_a_zero(faulty: Task) -> None:
    raised, grader, nan, right = (score_turns(faulty, [text]) for text in ("raise", "grader", "nan", "right"))
    assert [one.reward for one in (raised, grader, nan, right)] == [None, None, None, 1.0]
    assert raised.failure == Failure(kind=FailureKind.ENVIRONMENT, message="ValueError: a bug")
    assert grader.failure == Failure(kind=FailureKind.GRADER, message="GraderError: no reference")
    assert nan.failure is not None
    assert nan.failure.kind is FailureKind.GRADER


def test_a_process_that_dies_loses_only_the_script_that_killed_it(faulty: Task) -> None:
    texts = ["right", "die", "wrong"] + ["right"] * 20
    with ScoringPool(2) as pool:
        scored = list(pool.scores((faulty, [text]) for text in texts))
    assert [one.reward for one in scored] == [{"right": 1.0, "wrong": 0.0}.get(text) for text in texts]
    assert {one.failure.kind for one in scored if one.failure is not None} == {FailureKind.WORKER}


def test_a_process_that_hangs_is_ended_at_the_deadline(faulty: Task) -> None:
    with ScoringPool(1, deadline_s=2.0) as pool:
        scored = list(pool.scores((faulty, [text]) for text in ("right", "hang", "right")))
    assert [one.reward for one in scored] == [1.0, None, 1.0]
    assert multiprocessing.active_children() == []


def test_what_nobody_asked_for_any_more_is_not_given_to_the_next(faulty: Task) -> None:
    with ScoringPool(1) as pool:
        first = pool.scores((faulty, [text]) for text in ("right", "hang", "wrong"))
        assert next(first).reward == 1.0
        first.close()
        assert [one.reward for one in pool.scores([(faulty, ["wrong"])])] == [0.0]
