"""Parsing of a turn into reasoning, answer and tool calls, and the calculator."""

import pytest

from temper.envs.core.turn_text import BadCall, Call, call_message, parse_calls, parse_turn, turn_text
from temper.envs.tools.calculator import calculate


@pytest.mark.parametrize(
    ("text", "thinks", "expected"),
    [
        ("a b\n</think>\n\n85", True, ("a b", "85", True)),
        ("<think>a</think>85", True, ("a", "85", True)),
        ("a </think> b </think>\n \n  85", True, ("a </think> b", "  85", True)),
        ("never closed 85", True, ("never closed 85", "", False)),
        ("a</think>b<think>85", True, ("a</think>b<think>85", "", False)),
        ("</think>85", True, ("", "85", True)),
        ("85", False, (None, "85", True)),
        ("a</think>85", False, ("a</think>85", "", False)),
        ("", True, ("", "", False)),
    ],
)
def test_a_turn_splits_into_thought_and_answer(text: str, thinks: bool, expected: tuple[str, str, bool]) -> None:
    parsed = parse_turn(text, thinks=thinks)
    assert (parsed.reasoning, parsed.answer, parsed.readable) == expected


CALL = Call(name="a", arguments={})
READ = {"readable": True, "well_formed": True}


@pytest.mark.parametrize(
    ("text", "thinks", "expected"),
    [
        ('so</think>I ask. <tool_call>{"name": "a"}</tool_call>', True, {"reasoning": "so", "calls": (CALL,), **READ}),
        (
            "a</think>b</think>85",
            True,
            {"reasoning": "a</think>b", "answer": "85", "readable": True, "well_formed": False},
        ),
        ('not closed <tool_call>{"name": "a"}</tool_call>', True, {"answer": "", "calls": (), "readable": False}),
        ("85", False, {"reasoning": None, "answer": "85", "calls": (), **READ}),
        ("so</think>85", False, {"answer": "", "readable": False, "well_formed": False}),
    ],
)
def test_a_turn_is_read_with_its_calls_and_faults(text: str, thinks: bool, expected: dict[str, object]) -> None:
    parsed = parse_turn(text, thinks=thinks)
    assert {name: getattr(parsed, name) for name in expected} == expected
    assert parsed.text == text


def test_tool_calls_are_read_across_lines_and_in_order() -> None:
    text = 'x<tool_call>\n{"name": "get",\n "arguments": {"key": "ann"}}\n</tool_call>\n'
    text += '<tool_call>{"name":"calc"}</tool_call>'
    assert parse_calls(text) == [Call(name="get", arguments={"key": "ann"}), Call(name="calc", arguments={})]


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("<tool_call>{broken</tool_call>", "not JSON"),
        ('<tool_call>{"name": "a", "name": "b", "arguments": {}}</tool_call>', "twice"),
        ('<tool_call>{"name": "a", "arguments": {"x": 1, "x": 2}}</tool_call>', "twice"),
        ('<tool_call>{"name": "get"}', "not closed"),
        ("<tool_call>[1]</tool_call>", "no name"),
        ('<tool_call>{"name": "get", "arguments": 3}</tool_call>', "object"),
        ("<tool_call>" + "[" * 100_000 + "</tool_call>", "not JSON"),
    ],
)
def test_a_malformed_call_becomes_a_clear_error(text: str, error: str) -> None:
    (call,) = parse_calls(text)
    assert isinstance(call, BadCall)
    assert error in call.error


def test_an_unclosed_call_before_a_good_one_is_its_own_error() -> None:
    calls = parse_calls('<tool_call>{"name": "a"<tool_call>{"name": "b"}</tool_call>')
    assert calls == [BadCall(error="error: tool call not closed"), Call(name="b", arguments={})]


def test_the_text_of_a_message_reads_back() -> None:
    message = {"reasoning_content": "need ann", "content": "", "tool_calls": [call_message("get", {"key": "ann"})]}
    parsed = parse_turn(turn_text(message, thinks=True), thinks=True)
    assert (parsed.reasoning, parsed.well_formed) == ("need ann", True)
    assert parsed.calls == (Call(name="get", arguments={"key": "ann"}),)


@pytest.mark.parametrize(
    ("expression", "value"),
    [("47+38", "85"), ("-(2-5)*4", "12"), ("7/2", "3.5"), ("8/2", "4"), ("17//5%2", "1"), ("+3", "3")],
)
def test_the_calculator_knows_arithmetic(expression: str, value: str) -> None:
    assert calculate(expression) == value


@pytest.mark.parametrize(
    "expressions",
    [
        ["2**99", "1/0", "1e999", "9" * 40, "1" * 300, "1j"],
        ["__import__('os')", "x", "True", "1 if 1 else 2", "'a'*9", "(" * 150, ""],
    ],
)
def test_the_calculator_refuses_everything_else(expressions: list[str]) -> None:
    for expression in expressions:
        with pytest.raises(ValueError, match=r"\w"):
            calculate(expression)


def test_a_closing_tag_in_a_text_of_a_call_does_not_end_it() -> None:
    call = '<tool_call>{"name": "f", "arguments": {"t": "</tool_call> 4 <tool_call>"}}</tool_call>'
    parsed = parse_turn(f"So {call} it is.", thinks=False)
    assert parsed.calls == (Call(name="f", arguments={"t": "</tool_call> 4 <tool_call>"}),)
    assert parsed.content == "So  it is."
