"""Typed functions as tools: schema, results, the model's mistakes, time-outs and faults."""

import json
import time
from typing import Any

import pytest

from temper.envs.core.turn_text import Call
from temper.envs.tools.function_tool import make_function_tool, read_function_schema
from temper.envs.tools.text_tool import answer_call

MINE = "support.user_functions"


def answer(function: str, *, timeout_s: float = 5.0, **arguments: Any) -> str:
    tool = make_function_tool(f"{MINE}.{function}", timeout_s=timeout_s)
    return answer_call(Call(name=function, arguments=arguments), {function: tool})


def test_annotations_and_docstring_give_the_schema() -> None:
    declared = read_function_schema(f"{MINE}.population")["function"]
    assert declared["parameters"]["required"] == ["city"]
    assert declared["parameters"]["properties"]["year"]["type"] == "integer"
    assert set(declared) == {"name", "description", "parameters"}


def test_a_function_answers_sync_or_async() -> None:
    assert answer("population", city="Oslo", year=1) == "700001"
    assert json.loads(answer("capitals", countries=["Norway"])) == {"Norway": "Oslo"}


@pytest.mark.parametrize(
    "arguments", [{}, {"city": 3}, {"city": "Oslo", "unknown": 1}, {"city": "Oslo", "year": "1"}, {"city": "Bergen"}]
)
def test_mistakes_of_the_model_are_results(arguments: dict[str, Any]) -> None:
    assert answer("population", **arguments).startswith("error:")


def test_a_slow_call_is_an_error_in_time() -> None:
    began = time.monotonic()
    assert answer("slow", timeout_s=0.2, seconds=30.0).startswith("error:")
    assert time.monotonic() - began < 5.0
    assert answer("slow", seconds=0.0) == "awake"


def test_a_fault_of_the_function_is_no_result() -> None:
    with pytest.raises(KeyError):
        answer("faulty")
