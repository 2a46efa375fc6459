"""Answers of servers as turns: places of reasoning, answer and calls, and finish reasons."""

import json
from typing import Any

import pytest
from support.chat_server import CALL, MATH, ChatServerDouble, asked, told

from temper.envs.core.turn_text import BadCall, Call
from temper.orchestrator.tools.inspect.report.transcripts import to_transcript
from temper.rollout.remote.chat_messages import ChatTurn, read_turn
from temper.rollout.remote.client import ServerFault
from temper.rollout.sampling import PLAIN
from temper.rollout.trajectory import Closed, Stop
from temper.rollout.trajectory_json import group_lines

GET = Call(name="get", arguments={"key": "a"})
GUESS = "Let me think. First guess \\boxed{4}. But let me check"


def read(content: str | None, *, reason: Any = "stop", thinks: bool = True, **message: Any) -> ChatTurn:
    """The turn in an answer of a server."""
    return read_turn({"choices": [told(content, reason=reason, **message)]}, thinks=thinks, sampling=PLAIN)


def test_structured_calls_with_reasoning_in_the_text_are_kept() -> None:
    turn = read("I look it up\n</think>\n\nSo:", reason="tool_calls", tool_calls=[CALL])
    assert turn.parsed.calls == (GET,)
    assert (turn.parsed.reasoning, turn.parsed.content, turn.parsed.well_formed) == ("I look it up", "So:", True)
    assert [call["function"]["name"] for call in turn.message["tool_calls"]] == ["get"]
    assert turn.parsed.answer == 'So:<tool_call>{"name": "get", "arguments": {"key": "a"}}</tool_call>'


@pytest.mark.parametrize("reason", ["length", "MAX_TOKENS", "model_length"])
def test_a_truncated_text_may_be_thinking(reason: str) -> None:
    turn = read(GUESS, reason=reason)
    assert (turn.parsed.readable, turn.parsed.answer, turn.finished) == (False, "", False)
    assert (turn.parsed.text, turn.thinking.closed) == (GUESS, Closed.NEVER)
    with ChatServerDouble(lambda body: told(GUESS, reason=reason)) as server:
        (answer,) = asked(server, MATH).trajectories
    assert (answer.reward, answer.stop) == (0.0, Stop.LENGTH)


def test_a_truncated_text_after_thinking_is_an_answer() -> None:
    assert read("so</think>\\boxed{4}, that is", reason="length").parsed.answer == "\\boxed{4}, that is"
    assert read("\\boxed{4}, that", reason="length", reasoning_content="so").parsed.answer == "\\boxed{4}, that"
    assert read(GUESS, reason="length", thinks=False).parsed.answer == GUESS


@pytest.mark.parametrize("reason", [None, "", "abort", "error", "insufficient_system_resource"])
def test_an_unknown_finish_reason_is_an_error(reason: Any) -> None:
    with pytest.raises(ServerFault, match=f"finish_reason is {reason!r}"):
        read("\\boxed{4", reason=reason)


def test_with_thinking_off_a_tag_is_unreadable() -> None:
    turn = read("In HTML </think> is a tag", thinks=False)
    assert (turn.parsed.readable, turn.parsed.answer) == (False, "")
    assert read("4\n", thinks=False).parsed.answer == "4"


def test_what_can_not_be_written_as_text_does_not_come_in() -> None:
    bad = {**CALL, "function": {"name": "get", "arguments": '{"key": "\\ud800"}'}}
    turn = read("\ud800", tool_calls=[bad], reasoning_content="\udfff")
    assert turn.parsed.calls == (Call(name="get", arguments={"key": "\ufffd"}),)
    assert (turn.parsed.content, turn.parsed.reasoning) == ("\ufffd", "\ufffd")
    deep = {**CALL, "function": {"name": "get", "arguments": '{"key": ' + "[" * 200 + "]" * 200 + "}"}}
    (call,) = read(None, tool_calls=[deep]).parsed.calls
    assert isinstance(call, BadCall)
    assert "too deeply" in call.error


def test_the_thought_and_the_answer_of_each_turn_are_kept() -> None:
    with ChatServerDouble(lambda body: told("\\boxed{4}", reasoning_content="two and two")) as server:
        (line,) = group_lines(asked(server, MATH))
    row = json.loads(line)
    passages = [(one.role, one.text) for one in to_transcript(row, source="-").passages]
    assert passages[1:3] == [("reasoning", "two and two"), ("answer", "\\boxed{4}")]
