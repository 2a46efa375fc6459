"""Episodes with a model behind an OpenAI-compatible server: requests, answers and failures."""

import asyncio
import json
from typing import Any

import pytest
from support.bound import generated
from support.chat_server import CALL, HANG_S, KEY, MATH, Body, ChatServerDouble, Say, asked, told

from temper.envs.catalog import environment
from temper.envs.core.bounds import SettingError
from temper.envs.core.errors import FailureKind
from temper.envs.core.task import Message, Task
from temper.envs.core.thinking_mode import LOW_EFFORT, OFF, UNLIMITED, up_to
from temper.envs.core.turn_text import BadCall, Call
from temper.rollout.remote.chat_messages import read_turn, request_body, to_openai
from temper.rollout.remote.client import ChatClient, ChatServer, Refused, ServerFault
from temper.rollout.sampling import PLAIN, Sampling
from temper.rollout.trajectory import Closed, Stop, TurnFault

RIGHT = told("\\boxed{4}", reasoning_content="two and two")
GET = {"type": "function", "function": {"name": "get", "arguments": {"key": "a"}}}


def expert(task: Task) -> Say:
    """Returns the expert's next turn for the task, by the number of turns so far."""
    show = environment(task.env.name).demonstrate
    assert show is not None
    turns = [message for message in show(task) if message["role"] == "assistant"]

    def say(body: Body) -> dict[str, Any]:
        message = turns[sum(one["role"] == "assistant" for one in body["messages"])]
        calls = [
            {
                **call,
                "id": f"x{n}",
                "function": call["function"] | {"arguments": json.dumps(call["function"]["arguments"])},
            }
            for n, call in enumerate(message.get("tool_calls") or ())
        ]
        reasoning = {"reasoning_content": message["reasoning_content"]}
        more = {"tool_calls": calls} if calls else {}
        return told(message["content"] or None, reason="tool_calls" if calls else "stop", **reasoning, **more)

    return say


def test_an_answer_has_a_score_and_the_servers_lengths() -> None:
    with ChatServerDouble(lambda body: RIGHT) as server:
        group = asked(
            server, MATH, samples=3, sampling=Sampling(temperature=0.6, top_p=0.9, max_tokens=50, stop=["\n\n"])
        )
    assert [one.reward for one in group.trajectories] == [1.0] * 3
    turn = group.trajectories[0].turns[0]
    assert (turn.thinking.tokens, turn.thinking.answer_tokens, turn.thinking.closed) == (4, 5, Closed.ITSELF)
    assert "two and two" in turn.text
    assert not turn.faults
    body = server.bodies[0]
    assert (body["model"], body["temperature"], body["top_p"], body["max_tokens"]) == ("tiny", 0.6, 0.9, 50)
    assert body["stop"] == ["\n\n"]
    assert "top_k" not in body
    assert body["messages"] == [{"role": "user", "content": "2+2=?"}]
    assert len({one["seed"] for one in server.bodies}) == 3


def test_an_expert_behind_a_server_earns_1_with_tools() -> None:
    task = generated("tool_use", seed=4)
    with ChatServerDouble(expert(task)) as server:
        (answer,) = asked(server, task).trajectories
    assert (answer.reward, answer.stop) == (1.0, Stop.ENV)
    assert all(not turn.faults for turn in answer.turns)
    assert server.bodies[0]["tools"] == list(task.tools)
    last = server.bodies[-1]["messages"]
    results = [message["tool_call_id"] for message in last if message["role"] == "tool"]
    calls = [call["id"] for message in last for call in message.get("tool_calls", ())]
    assert calls == results
    assert len(results) == len(set(results)) >= 1
    spans = [span for turn in answer.turns for span in turn.tool_spans]
    assert [span.name for span in spans] == [call["function"]["name"] for m in last for call in m.get("tool_calls", ())]


def test_calls_and_reasoning_in_the_text_are_parsed() -> None:
    text = 'I look.</think>\nSo:<tool_call>{"name": "get", "arguments": {"key": "a"}}</tool_call>'
    turn = read_turn({"choices": [told(text)]}, thinks=True, sampling=PLAIN)
    assert turn.parsed.calls == (Call(name="get", arguments={"key": "a"}),)
    assert (turn.parsed.reasoning, turn.parsed.well_formed) == ("I look.", True)
    assert turn.message == {"role": "assistant", "content": "So:", "reasoning_content": "I look.", "tool_calls": [GET]}
    plain = read_turn({"choices": [told("no thought")]}, thinks=True, sampling=PLAIN)
    assert (plain.parsed.answer, plain.parsed.readable, plain.thinking.closed) == ("no thought", True, Closed.NONE)


def test_a_call_without_json_arguments_is_a_bad_call() -> None:
    bad = {"id": "x", "type": "function", "function": {"name": "get", "arguments": '{"key": '}}
    turn = read_turn({"choices": [told(None, tool_calls=[bad, CALL])]}, thinks=True, sampling=PLAIN)
    assert turn.parsed.calls == (
        BadCall(error="error: tool call is not JSON"),
        Call(name="get", arguments={"key": "a"}),
    )
    task = generated("tool_use", seed=4)
    said = iter([told(None, tool_calls=[bad]), told("\\boxed{0}")])
    with ChatServerDouble(lambda body: next(said)) as server:
        (answer,) = asked(server, task).trajectories
    assert answer.turns[0].faults == (TurnFault.TOOL_CALL,)
    assert server.bodies[1]["messages"][-1]["content"] == "error: tool call is not JSON"


def test_every_call_that_goes_back_has_its_result() -> None:
    before: list[Message] = [
        {"role": "user", "content": "?"},
        {"role": "assistant", "content": "", "tool_calls": [GET, GET, GET]},
        {"role": "tool", "content": "1"},
        {"role": "tool", "content": "2"},
        {"role": "assistant", "content": "hm", "tool_calls": [GET]},
        {"role": "user", "content": "go on"},
    ]
    told_ = to_openai(before)
    assert [call["id"] for call in told_[1]["tool_calls"]] == ["call_0", "call_1"]
    assert [message["tool_call_id"] for message in told_[2:4]] == ["call_0", "call_1"]
    assert told_[1]["tool_calls"][0]["function"]["arguments"] == '{"key": "a"}'
    assert "tool_calls" not in told_[4]


def test_a_thinking_mode_becomes_request_fields() -> None:
    def body(thinking: Any) -> Body:
        return request_body("m", MATH.messages, (), thinking, PLAIN, seed=2**40)

    assert set(body(UNLIMITED)) == {"model", "messages", "temperature", "seed"}
    assert body(OFF)["chat_template_kwargs"] == {"enable_thinking": False, "thinking": False}
    assert body(LOW_EFFORT)["thinking"] == "low"
    assert body(up_to(64))["thinking_budget"] == 64


def test_truncated_thinking_is_not_an_answer() -> None:
    with ChatServerDouble(lambda body: told(None, reason="length", reasoning_content="hm, hm")) as server:
        (answer,) = asked(server, MATH).trajectories
    assert (answer.stop, answer.reward, answer.truncated) == (Stop.LENGTH, 0.0, True)
    assert answer.turns[0].truncated
    assert answer.turns[0].thinking.closed is Closed.NEVER


def test_a_reply_that_is_no_answer_is_asked_for_again() -> None:
    faults = ["429", "503", "529", "520", "broken off", "overloaded"]
    for some in (faults[:4], faults[4:]):
        with ChatServerDouble(lambda body: RIGHT, faults=some) as server:
            group = asked(server, MATH)
        assert [one.reward for one in group.trajectories] == [1.0]
        assert len(server.bodies) >= len(some)
    with ChatServerDouble(lambda body: RIGHT, faults=["overloaded"] * 2) as server:
        (lost,) = asked(server, MATH, retries=1).failed
    assert lost.failure is not None
    assert (lost.failure.kind, "overloaded" in lost.failure.message) == (FailureKind.ENGINE, True)


@pytest.mark.parametrize(
    ("fault", "kind", "said"),
    [
        ("500", FailureKind.ENGINE, "status 500"),
        ("rubbish", FailureKind.ENGINE, "chat completion"),
        ("403", FailureKind.REFUSED, "as told"),
        ("hang", FailureKind.TIMEOUT, "no answer in 0.3 s"),
        ("too long", FailureKind.PROMPT_TOO_LONG, "maximum context length"),
    ],
)
def test_what_goes_wrong_outside_the_model_is_a_typed_failure(fault: str, kind: FailureKind, said: str) -> None:
    assert HANG_S > 0.3
    with ChatServerDouble(lambda body: RIGHT, faults=[fault] * 2) as server:
        group = asked(server, MATH, retries=1, timeout_s=0.3 if fault == "hang" else 20.0)
    (lost,) = group.failed
    assert lost.failure is not None
    assert lost.failure.kind is kind
    assert said in lost.failure.message


def test_a_filtered_answer_is_not_retried() -> None:
    with ChatServerDouble(lambda body: told(None, reason="content_filter")) as server:
        group = asked(server, MATH, again=3)
    assert [one.failure.kind for one in group.failed if one.failure] == [FailureKind.REFUSED]
    assert len(server.bodies) == 1


def test_an_episode_that_failed_is_tried_again_and_counted() -> None:
    with ChatServerDouble(lambda body: RIGHT, faults=["rubbish"]) as server:
        group = asked(server, MATH, samples=2, again=1)
    assert [one.reward for one in group.trajectories] == [1.0, 1.0]
    assert [one.kind for one in group.retried] == [FailureKind.ENGINE]


def test_a_conversation_that_outgrows_the_server_is_cut_there() -> None:
    task = generated("tool_use", seed=4)
    with ChatServerDouble(expert(task), faults=["", "too long"]) as server:
        (answer,) = asked(server, task).trajectories
    assert (answer.stop, len(answer.turns)) == (Stop.EPISODE_LENGTH, 1)


def test_no_more_requests_are_under_way_than_allowed() -> None:
    with ChatServerDouble(lambda body: RIGHT, seconds=0.05) as server:
        group = asked(server, MATH, samples=9, concurrency=2)
    assert len(group.trajectories) == 9
    assert server.busiest == 2


def test_the_key_is_sent_and_is_in_no_message() -> None:
    with ChatServerDouble(lambda body: RIGHT, key=KEY) as server:
        right = asked(server, MATH, key=KEY)
        wrong = asked(server, MATH, key="another-secret")
    assert len(right.trajectories) == 1
    (lost,) = wrong.failed
    assert lost.failure is not None
    assert (lost.failure.kind, "401" in lost.failure.message) == (FailureKind.REFUSED, True)
    assert "secret" not in lost.failure.message
    assert KEY not in repr(ChatServer(url="http://127.0.0.1:1/v1", key=KEY))


@pytest.mark.parametrize(
    ("given", "key"),
    [
        ({"url": "ftp://x/v1"}, "url"),
        ({"url": "http://user:pass@127.0.0.1/v1"}, "url"),
        ({"url": "http://example.com/v1", "key": KEY}, "url"),
        ({"url": "http://127.0.0.1/v1", "concurrency": 0}, "concurrency"),
    ],
)
def test_a_server_that_can_not_be_one_is_refused(given: dict[str, Any], key: str) -> None:
    with pytest.raises(SettingError) as error:
        ChatServer(**given)
    assert error.value.key == key
    assert KEY not in str(error.value)


def test_a_server_tells_its_models_or_why_not() -> None:
    async def models(server: ChatServer) -> list[str]:
        async with ChatClient(server) as client:
            return await client.models()

    with ChatServerDouble(lambda body: RIGHT) as server:
        assert asyncio.run(models(ChatServer(url=server.url))) == ["tiny"]
        nowhere = server.url
    with pytest.raises(ServerFault, match="attempts: 2"):
        asyncio.run(models(ChatServer(url=nowhere, retries=1, backoff_s=0.01)))
    with ChatServerDouble(lambda body: RIGHT) as server, pytest.raises(Refused, match="404"):
        asyncio.run(models(ChatServer(url=f"{server.url}/elsewhere")))
