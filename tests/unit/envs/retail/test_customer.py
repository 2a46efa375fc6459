"""A customer who is a script or a model: the dialogue, its end, faults, and exploits that earn nothing."""

import dataclasses
import json
import threading
from pathlib import Path
from typing import Any

import pytest
from support.bound import bound, opened, say
from support.chat_server import ChatServerDouble, told
from support.refusals import failure_kind
from support.tiny_shop import CANCEL, DETAILS, INSTRUCTION, TRANSFER, play, row

from temper.envs.binding import bind
from temper.envs.catalog import configure_env
from temper.envs.config import EnvConfig
from temper.envs.core.clock import CURRENT, Clock
from temper.envs.core.errors import EnvironmentFault, FailureKind
from temper.envs.core.task import Task
from temper.envs.core.thinking_mode import OFF, UNLIMITED
from temper.envs.data.config import DataConfig
from temper.envs.retail import reference
from temper.envs.retail.customer import MAX_CHARACTERS, OPENING, STOP, USER_REPLY
from temper.envs.source import open_source
from temper.envs.transcript import score_turns

HELLO = "Hello, how can I help?"


def task_of(shop: Path, given: dict[str, Any], customer: Any = "script", **settings: Any) -> Task:
    env = configure_env("retail", {"database": str(shop), "idle": "keep", "customer": customer})
    return bound(dataclasses.replace(env.formats[0].load(given), thinking=OFF), env, **settings)


def asking(server: ChatServerDouble, **more: Any) -> dict[str, Any]:
    return {"url": server.url, "model": "tiny", "retries": 0} | more


def saying(*replies: str) -> ChatServerDouble:
    """Return a server that gives these replies in order, the last one again and again."""
    left = list(replies)
    return ChatServerDouble(lambda _: told(left.pop(0) if len(left) > 1 else left[0]))


def test_a_script_gives_the_instruction_agrees_once_and_stops(shop: Path) -> None:
    task = task_of(shop, row(CANCEL))
    assert [message["content"] for message in task.messages] == ["Be kind.\n", OPENING]
    env = opened(task)
    assert env.step(HELLO)[4]["messages"] == [{"role": "user", "content": INSTRUCTION}]
    env.step(say("", CANCEL))
    assert env.step("Shall I?")[4]["messages"] == [{"role": "user", "content": USER_REPLY}]
    _, reward, terminated, *_ = env.step("Done.")
    assert (reward, terminated) == (1.0, True)


def test_a_model_hears_text_without_calls_or_reasoning(shop: Path) -> None:
    with saying("Cancel it.", "<think>hm</think>\nYes.", f"Thanks {STOP}") as server:
        task = dataclasses.replace(task_of(shop, row(CANCEL), asking(server)), thinking=UNLIMITED)
        env = opened(task)
        env.step(f"secret\n</think>\n{HELLO}")
        env.step(say("I look it up.", DETAILS, thinks=True))
        *_, info = env.step("secret\n</think>\nShall I?")
        assert info["messages"] == [{"role": "user", "content": "Yes."}]
        env.step(say("", CANCEL, thinks=True))
        _, reward, terminated, truncated, _ = env.step("secret\n</think>\nDone.")
    assert (reward, terminated, truncated) == (1.0, True, False)
    system, *talk = server.bodies[-1]["messages"]
    assert system["role"] == "system"
    assert INSTRUCTION in system["content"]
    assert talk == [
        {"role": "user", "content": HELLO},
        {"role": "assistant", "content": "Cancel it."},
        {"role": "user", "content": "I look it up.\nShall I?"},
        {"role": "assistant", "content": "Yes."},
        {"role": "user", "content": "Done."},
    ]
    assert server.bodies[-1]["model"] == "tiny"


def test_no_text_of_the_agent_is_too_long_for_the_customer(shop: Path) -> None:
    with saying("Go on.") as server:
        opened(task_of(shop, row(CANCEL), asking(server))).step("x" * 65_536)
    assert len(server.bodies[0]["messages"][-1]["content"]) == MAX_CHARACTERS


@pytest.mark.parametrize("reply", ["", " \n", "<think>hm</think>"])
def test_a_second_reply_is_asked_for_and_then_a_fault(shop: Path, reply: str) -> None:
    with saying(reply, "Cancel it.", reply) as server:
        env = opened(task_of(shop, row(CANCEL), asking(server)))
        assert env.step(HELLO)[4]["messages"] == [{"role": "user", "content": "Cancel it."}]
        with pytest.raises(EnvironmentFault):
            env.step(HELLO)
    assert len(server.bodies) == 4


@pytest.mark.parametrize(("text", "reason"), [("Cancel", "length"), ("x" * (MAX_CHARACTERS + 1), "stop")])
def test_a_long_reply_is_cut(shop: Path, text: str, reason: str) -> None:
    with ChatServerDouble(lambda _: told(text, reason=reason)) as server:
        (message,) = opened(task_of(shop, row(CANCEL), asking(server))).step(HELLO)[4]["messages"]
    assert message["content"] == text[:MAX_CHARACTERS]


def test_an_endless_dialogue_earns_nothing(shop: Path) -> None:
    with saying("x" * MAX_CHARACTERS) as server:
        env = opened(task_of(shop, row(CANCEL), asking(server)))
        steps = [env.step("x" * MAX_CHARACTERS) for _ in range(5)]
    assert [done for _, _, done, _, _ in steps] == [False, False, False, False, True]
    assert steps[-1][1] == 0.0


@pytest.mark.parametrize("fault", ["500", "401", "rubbish", "broken off"])
def test_a_server_that_fails_is_a_fault_and_no_reward(shop: Path, fault: str) -> None:
    with ChatServerDouble(lambda _: told("Hi."), faults=[fault] * 2) as server:
        assert failure_kind(score_turns(task_of(shop, row(CANCEL), asking(server)), [HELLO])) is FailureKind.ENVIRONMENT


def test_a_server_that_is_down_is_a_fault_and_no_reward(shop: Path) -> None:
    with saying("Hi.") as server:
        task = task_of(shop, row(CANCEL), asking(server))
    assert failure_kind(score_turns(task, [HELLO, say("", CANCEL), "Done."])) is FailureKind.ENVIRONMENT


def test_waiting_for_the_customer_is_off_the_clock(shop: Path) -> None:
    clock = Clock(60.0)
    clock.turn(on=True)
    token = CURRENT.set(clock)
    try:
        with ChatServerDouble(lambda _: told("Hi."), seconds=1.0) as server:
            env = opened(task_of(shop, row(CANCEL), asking(server)))
            left = clock.left_s
            env.step(HELLO)
            assert left - clock.left_s < 0.5
    finally:
        CURRENT.reset(token)


def test_dialogues_at_once_do_not_mix(shop: Path) -> None:
    with ChatServerDouble(lambda body: told(body["messages"][-1]["content"])) as server:
        task, seen = task_of(shop, row(CANCEL), asking(server)), {}

        def talk(name: str) -> None:
            env = opened(task)
            seen[name] = [env.step(f"{name}{turn}")[0] for turn in range(3)]

        threads = [threading.Thread(target=talk, args=(name,)) for name in "abcd"]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(20)
    assert seen == {name: [f"{name}{turn}" for turn in range(3)] for name in "abcd"}


IDLE = [row(), row(DETAILS), row(TRANSFER), row(DETAILS, outputs=("10.1",))]


@pytest.mark.parametrize("given", IDLE)
def test_silence_ends_the_dialogue_and_earns_nothing(shop: Path, given: dict[str, Any]) -> None:
    with saying(STOP) as server:
        for customer in ("script", asking(server)):
            for silence in ("", " \n", "...", say("", thinks=False)):
                assert play(task_of(shop, given, customer), silence)["reward"] == 0.0
    assert not server.bodies
    assert play(task_of(shop, row()), HELLO, say("", DETAILS), "")["reward"] == 0.0


@pytest.mark.parametrize("given", IDLE)
def test_a_transfer_at_once_earns_nothing(shop: Path, given: dict[str, Any]) -> None:
    for turn in (say("", TRANSFER), say("10.1", TRANSFER), say("10.1", DETAILS, TRANSFER)):
        assert play(task_of(shop, given), turn)["reward"] == 0.0


@pytest.mark.parametrize(("actions", "reward"), [((CANCEL, TRANSFER), 1.0), ((CANCEL,), 0.0)])
def test_a_transfer_is_right_only_if_the_reference_has_it(shop: Path, actions: Any, reward: float) -> None:
    ended = play(task_of(shop, row(*actions)), HELLO, say("", CANCEL, TRANSFER))
    assert (ended["reward"], ended["truncated"]) == (reward, False)


def test_a_list_of_numbers_states_no_output(shop: Path) -> None:
    task = task_of(shop, row(DETAILS, outputs=("10.1",)))
    assert play(task, HELLO, "It costs 10.1.", "Bye.")["reward"] == 1.0
    guesses = [" ".join(f"{cents / 10}" for cents in range(start, start + 40)) for start in (70, 110, 150)]
    assert play(task, *guesses)["reward"] == 0.0


@pytest.mark.parametrize(("turns", "reward"), [(3, 0.0), (4, 1.0)])
def test_a_turn_limit_before_the_customers_end_is_not_right(shop: Path, turns: int, reward: float) -> None:
    script = [HELLO, say("", CANCEL), "Shall I?", "Done."][:turns]
    ended = play(task_of(shop, row(CANCEL), max_turns=turns), *script)
    assert (ended["reward"], ended["truncated"]) == (reward, turns == 3)


@pytest.mark.parametrize(
    "given",
    [row(CANCEL), row(TRANSFER), row(CANCEL, TRANSFER, outputs=("10.1",)), row(DETAILS, outputs=("10.1", "Mug"))],
)
def test_the_reference_is_right_and_all_negatives_wrong(shop: Path, given: dict[str, Any]) -> None:
    task = task_of(shop, given)
    assert score_turns(task, reference.reference(task)).reward == 1.0
    negatives = dict(reference.negatives(task))
    assert {"one change more", "a transfer at once"} <= negatives.keys()
    assert [name for name, turns in negatives.items() if score_turns(task, turns).reward != 0.0] == []


def test_a_model_has_no_reference_turns_and_no_replay(shop: Path) -> None:
    with saying(STOP) as server:
        task = task_of(shop, row(CANCEL), asking(server))
    with pytest.raises(ValueError, match="script"):
        reference.reference(task)
    assert not task.env.replays
    assert task_of(shop, row(CANCEL)).env.replays


def test_rows_keep_their_keys_and_sides_with_a_customer(shop: Path) -> None:
    rows = [row(CANCEL) | {"instruction": f"You are Bob Ray {number}."} for number in range(40)]
    (shop / "tasks.jsonl").write_text("".join(json.dumps(one) + "\n" for one in rows), encoding="utf-8")

    def keys(split: str, **options: Any) -> list[str]:
        config = EnvConfig(data=DataConfig(path=str(shop / "tasks.jsonl")), options=options)
        source = open_source(bind("retail", config), split=split, seed=1)
        assert source.size is not None
        return [source.task(index).key for index in range(source.size)]

    for split in ("train", "heldout"):
        assert keys(split) == keys(split, customer="script")
    assert len({*keys("train"), *keys("heldout")}) == 40
