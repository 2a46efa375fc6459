"""Rows with a check function that calls the program's functions by name, as in MBPP."""

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import count
from typing import Any

import pytest
from support.code_tasks import play, reward, task_of
from support.task_data import DATA, needs_data

from temper.envs.coding import checks
from temper.envs.coding.reference import reference

SIGNATURE = "def digits(n):\n"
PROMPT = f"{SIGNATURE}    '''\n    Write a function to check whether a number is a palindrome.\n    '''\n"
BODIES = {
    "two columns": "  text = str(n)\n  return text\ndef is_palindrome(n):\n  return digits(n) == digits(n)[::-1]\n",
    "a tab": "\ttext = str(n)\n\tif text:\n\t\treturn text\ndef is_palindrome(n):\n\treturn digits(n) == digits(n)[::-1]\n",
    "eight columns": "        return str(n)\n\n\ndef is_palindrome(n):\n    return digits(n) == digits(n)[::-1]\n",
    "a comment in front": "# text\n return str(n)\ndef is_palindrome(n):\n return digits(n) == digits(n)[::-1]\n",
    "a text over lines": "  text = f'''{n\n}'''\n  return text\ndef is_palindrome(n):\n  return digits(n) == digits(n)[::-1]\n",
}


def row(**fields: str) -> dict[str, Any]:
    test = "def check(candidate):\n    assert is_palindrome(121) == True\n    assert is_palindrome(12) == False\n"
    return {
        "prompt": PROMPT,
        "entry_point": "digits ",
        "test": test,
        "canonical_solution": BODIES["two columns"],
    } | fields


@pytest.mark.parametrize("body", BODIES.values(), ids=BODIES)
def test_a_body_of_any_indentation_passes(body: str) -> None:
    task = task_of(row(canonical_solution=body))
    answers = [f"```python\n{SIGNATURE}{body}\n```", body, f"```python\n{body}\n```", *reference(task)]
    assert [reward(task, answer) for answer in answers] == [1.0] * 4


def test_functions_that_the_check_calls_are_requested() -> None:
    given = row()
    for task in (task_of(given), task_of({name: given[name] for name in ("prompt", "entry_point", "test")})):
        assert task.spec["entry_point"] == "digits"
        assert task.spec["names"] == ["digits", "is_palindrome"]
        request = task.messages[-1]["content"]
        assert request.endswith(
            "also define `is_palindrome`. For example this must hold:\n\nassert is_palindrome(121) == True"
        )
        judged = play(task, "    return n")
        assert judged[1] == 0.0
        assert "name 'is_palindrome' is not defined" in judged[4]["detail"]
        assert reward(task, BODIES["eight columns"]) == 1.0


def test_a_function_of_the_program_may_be_called_check() -> None:
    test = "def check(candidate):\n    assert check(70) == False\n    assert check(73) == True\n"
    body = "    return int(str(n)[::-1])\ndef check(n):\n    return 2 * digits(n) == n + 1\n"
    for fields in ({}, {"canonical_solution": body}):
        task = task_of({"prompt": SIGNATURE, "entry_point": "digits", "test": test} | fields)
        assert task.spec["names"] == ["digits", "check"]
        assert reward(task, body) == 1.0
        assert reward(task, body.replace("n + 1", "n")) == 0.0
        assert reward(task, "    pass") == 0.0


def test_each_assertion_counts_where_credit_is_a_fraction() -> None:
    test = "def check(candidate):\n    assert candidate(1) == '1'\n"
    test += "    assert is_palindrome(11)\n    assert not is_palindrome(12)\n"
    task = task_of(row(test=test), credit="fraction")
    half = "    return str(n)\ndef is_palindrome(n):\n    return True\n"
    assert [reward(task, answer) for answer in (BODIES["a tab"], half, "    pass")] == [1.0, pytest.approx(2 / 3), 0.0]


def real_rows() -> Iterator[dict[str, Any]]:
    with (DATA / "mbpp_check.jsonl").open(encoding="utf-8") as file:
        yield from map(json.loads, file)


@needs_data
def test_every_real_solution_passes_and_every_stub_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    """With four times the processor time: one of these solutions takes up to 5 s on a busy machine."""
    monkeypatch.setattr(checks, "LIMITS", replace(checks.LIMITS, wall_s=60.0, cpu_s=4 * checks.LIMITS.cpu_s))

    def scores(number: int, given: dict[str, Any]) -> list[float]:
        task, prompt, body = task_of(given), given["prompt"], given["canonical_solution"]
        signature = prompt.partition("'''")[0].rstrip()
        stub = ("pass", "return None")[number % 2]
        alone = [reward(task, answer) for answer in (body, f"    {stub}") if number % 2]
        whole = (f"```python\n{signature}\n{body}\n```", f"{prompt}    {stub}")
        return [*(reward(task, answer) for answer in whole), *alone]

    with ThreadPoolExecutor(4) as pool:
        for given, result in zip(real_rows(), pool.map(scores, count(), real_rows()), strict=True):
            assert result in ([1.0, 0.0], [1.0, 0.0, 1.0, 0.0]), given["task_id"]
