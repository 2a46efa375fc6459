"""The shop's episodes on a small database: answers to turns, ends and scores."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
from support.bound import bound, opened, say
from support.refusals import refuses
from support.tiny_shop import ADDRESS, CANCEL, DETAILS, INSTRUCTION, ORDERS, TOOLS, TRANSFER, play, row

from temper.envs.all_tasks import read_tasks
from temper.envs.catalog import configure_env
from temper.envs.core.errors import EnvironmentFault
from temper.envs.core.task import Task
from temper.envs.core.thinking_mode import OFF, UNLIMITED
from temper.envs.data.config import DataConfig
from temper.envs.retail import reference, rows
from temper.envs.retail.customer import USER_REPLY
from temper.envs.retail.env import ENVIRONMENT, RetailEnv, with_folder
from temper.envs.retail.outputs import contains_output, outputs_in

AGREED = {"role": "user", "content": USER_REPLY}


def task_of(shop: Path, row: dict[str, Any], **settings: Any) -> Task:
    return bound(dataclasses.replace(rows.load(row, folder=shop), thinking=OFF), with_folder(shop), **settings)


def test_a_task_shows_policy_instruction_and_tools(shop: Path) -> None:
    task = task_of(shop, row(CANCEL, outputs=("10.1",)))
    assert task.messages == ({"role": "system", "content": "Be kind.\n"}, {"role": "user", "content": INSTRUCTION})
    assert task.tools == tuple(TOOLS)
    assert task.spec == {
        "user_id": "bob_ray_2",
        "actions": [{"name": CANCEL[0], "arguments": CANCEL[1]}],
        "outputs": ["10.1"],
    }
    assert task.env.options == {"database": str(shop.resolve())}


def test_each_call_is_answered_in_order_by_one_tool_message(shop: Path) -> None:
    env = opened(task_of(shop, row(CANCEL)))
    wrong = ("get_order_details", {"order_id": "#W9"})
    broken = "<tool_call>{</tool_call>"
    observation, reward, terminated, truncated, info = env.step(say("", DETAILS, CANCEL, DETAILS, wrong) + broken)
    contents = [message["content"] for message in info["messages"]]
    assert [message["role"] for message in info["messages"]] == ["tool"] * 5
    assert json.loads(contents[0]) == ORDERS["#W4"]
    assert json.loads(contents[1])["status"] == json.loads(contents[2])["status"] == "cancelled"
    assert contents[3:] == ["Error: order not found", "Error: tool call is not JSON"]
    assert (observation, reward, terminated, truncated) == ("\n".join(contents), 0.0, False, False)


def test_the_second_turn_without_calls_ends_the_episode(shop: Path) -> None:
    env = opened(task_of(shop, row(CANCEL)))
    *_, terminated, _, info = env.step("Shall I cancel #W4?")
    assert (terminated, info["messages"]) == (False, [AGREED])
    *_, terminated, _, info = env.step(say("", CANCEL))
    assert not terminated
    _, reward, terminated, truncated, info = env.step("It is cancelled.")
    assert (reward, terminated, truncated) == (1.0, True, False)
    assert info["outcome"] == "ok"
    assert info["parts"] == {"correct": 1.0, "format": 1.0, "state": 1.0, "outputs": 1.0, "tool_errors": 0.0}


@pytest.mark.parametrize("replies", [0, 2])
def test_turns_that_are_given_are_all_played(shop: Path, replies: int) -> None:
    task = task_of(shop, row(CANCEL), max_turns=replies + 2, scripted=True)
    ended = play(task, *[say("", CANCEL)], *["Done."] * (replies + 1))
    assert ended["reward"] == 1.0


def test_a_transfer_ends_the_episode_after_its_turns_calls(shop: Path) -> None:
    ended = play(task_of(shop, row(CANCEL)), say("", TRANSFER, CANCEL))
    assert (ended["reward"], ended["truncated"]) == (1.0, False)
    refused = say("", ("transfer_to_human_agents", {}))
    ended = play(task_of(shop, row(TRANSFER)), refused, "Shall I?", "Done.")
    assert (ended["reward"], ended["parts"]["tool_errors"]) == (1.0, 1.0)


@pytest.mark.parametrize("last", [say("", CANCEL), "Shall I?"])
def test_an_episode_without_turns_left_is_judged_by_state(shop: Path, last: str) -> None:
    ended = play(task_of(shop, row(CANCEL), max_turns=2), say("", DETAILS), last)
    assert (ended["reward"], ended["truncated"]) == (float(last != "Shall I?"), True)


def test_calls_beyond_the_limit_of_a_turn_are_not_carried_out(shop: Path) -> None:
    env = opened(task_of(shop, row(CANCEL)))
    *_, info = env.step(say("", *[DETAILS] * 64, CANCEL))
    assert len(info["messages"]) == 65
    assert info["messages"][64]["content"].startswith("error:")
    env.step("Done.")
    assert env.step("Done.")[1] == 0.0


def test_text_beside_a_call_of_a_shared_tool_is_said(shop: Path) -> None:
    task = task_of(shop, row(CANCEL, outputs=("49.5",)), tools=("calculator",), max_turns=10)
    sums = ("calculator", {"expression": "40+9.5"})
    assert play(task, say("It is 49.5.", sums), say("", CANCEL), "Done.", "Bye.")["reward"] == 1.0
    assert play(task, say("It is 49.5.", sums, CANCEL), "Done.", "Bye.")["reward"] == 1.0
    assert play(task, say("Wait.", sums, CANCEL), "Done.", "Bye.")["reward"] == 0.0


def test_a_change_that_is_taken_back_leaves_the_state_as_it_was(shop: Path) -> None:
    away = ("modify_user_address", {"user_id": "bob_ray_2", **ADDRESS, "city": "Austin"})
    back = ("modify_user_address", {"user_id": "bob_ray_2", **ADDRESS})
    assert play(task_of(shop, row()), say("", away), say("", back), "Done.", "Done.")["reward"] == 1.0


@pytest.mark.parametrize(
    ("holds", "cases"),
    [
        (False, [("10", "In 2010."), ("10", "It is 10.50."), ("10.5", "It is 210.5"), ("Mug", "Mugs")]),
        (True, [("10", "It is 10."), ("10", "Items 10,11"), ("1,234.50", "It is $1234.50, sir")]),
        (True, [("Blue Mug", "A BLUE, mug."), ("1234567", "1,234,567"), ("$5", "It costs $5."), ("-5", "It is -5")]),
    ],
)
def test_an_output_is_said_as_a_whole_word_or_number(holds: bool, cases: list[tuple[str, str]]) -> None:
    assert [case for case in cases if contains_output(case[1], case[0]) is not holds] == []


def test_no_number_is_said_by_an_agent_that_says_too_many(shop: Path) -> None:
    task = task_of(shop, row(CANCEL, outputs=("10.1", "blue")))
    ids = " ".join(f"#W{number} {number}" for number in range(1_000_000_000, 1_000_000_100))
    assert play(task, say(f"blue 10.1 {ids}", CANCEL), "Well.", "Done.")["reward"] == 1.0
    guesses = " ".join(f"{cents / 10}" for cents in range(1000))
    ended = play(task, say(f"blue {guesses}", CANCEL), "Well.", "Done.")
    assert (ended["reward"], ended["parts"]["outputs"]) == (0.0, 0.5)


def test_the_numbers_of_a_list_are_neither_said_nor_guesses() -> None:
    listed = "\n".join(f"{number}. blue, ${number + 40}.5" for number in range(1, 19))
    assert outputs_in(f"There are 18 of them:\n{listed}", ["18"]) == ["18"]
    assert outputs_in(listed, ["18"]) == []
    assert outputs_in("How many?\n18.", ["18"]) == ["18"]


def test_the_published_rule_takes_any_part_of_the_text(shop: Path) -> None:
    given = rows.load(row(CANCEL, outputs=("10", "blue")), folder=shop)
    env = configure_env("retail", {"database": str(shop), "outputs": "part"})
    task = bound(dataclasses.replace(given, thinking=OFF), env)
    many = " ".join(map(str, range(100, 150)))
    assert play(task, say(f"blues {many}", CANCEL), "Well.", "Done.")["reward"] == 1.0


@pytest.mark.parametrize(("options", "kept"), [({}, 2), ({"idle": "keep"}, 4)])
def test_rows_that_are_right_by_doing_nothing_are_left_out(shop: Path, options: dict[str, Any], kept: int) -> None:
    rows = [row(CANCEL), row(), row(DETAILS, TRANSFER), row(DETAILS, outputs=("10.1",))]
    data = shop / "tasks.jsonl"
    data.write_text("".join(json.dumps(one) + "\n" for one in rows))
    env = configure_env("retail", options)
    assert len(read_tasks(DataConfig(path=str(data)), env)) == kept


def test_an_output_inside_a_call_or_a_thought_is_not_said(shop: Path) -> None:
    task = task_of(shop, row(outputs=("blue",)))
    assert play(task, say("", ("think", {"thought": "blue"})), "Well.", "Done.")["reward"] == 0.0
    thinking = dataclasses.replace(task, thinking=UNLIMITED)
    assert play(thinking, "blue\n</think>\nWell.", "blue\n</think>\nDone.")["reward"] == 0.0
    assert play(thinking, "well\n</think>\nIt is blue.", "\n</think>\nDone.")["reward"] == 1.0


def test_an_unreadable_call_costs_format_and_a_tool_error(shop: Path) -> None:
    ended = play(task_of(shop, row(CANCEL)), "<tool_call>{</tool_call>", say("", CANCEL), "Done.", "Done.")
    assert ended["parts"] == {"correct": 1.0, "format": 0.0, "state": 1.0, "outputs": 1.0, "tool_errors": 0.5}


def test_refused_reference_actions_change_nothing(shop: Path) -> None:
    task = task_of(shop, row(CANCEL, CANCEL))
    assert play(task, say("", CANCEL), "Done.", "Done.")["reward"] == 1.0
    negatives = [name for name, _ in reference.negatives(task)]
    assert negatives == ["one change more"]


def test_the_reference_script_is_right_and_every_negatives_wrong(shop: Path) -> None:
    address = ("modify_user_address", {"user_id": "bob_ray_2", **ADDRESS, "city": "Austin"})
    task = task_of(shop, row(DETAILS, CANCEL, TRANSFER, address, outputs=("10.1", "Mug")))
    assert play(task, *reference.reference(task))["reward"] == 1.0
    negatives = dict(reference.negatives(task))
    named = ("cancel_pending_order (1) left out", "modify_user_address (3) with zip '802799'", "one change more")
    assert {*named, "output '10.1' unsaid", "output 'Mug' unsaid"} <= negatives.keys()
    assert [name for name, turns in negatives.items() if play(task, *turns)["reward"] != 0.0] == []


@pytest.mark.parametrize(
    ("field", "value", "named"),
    [
        ("user_id", "nobody", "'nobody'"),
        ("user_id", 1, "1"),
        ("outputs", [1], "texts"),
        ("actions", [{"name": "fly", "kwargs": {}}], "'fly'"),
        ("actions", [{"name": "think"}], "think"),
        ("actions", None, "null"),
    ],
)
def test_a_broken_row_is_named(shop: Path, field: str, value: Any, named: str) -> None:
    with refuses(field, named):
        rows.load(row(CANCEL) | {field: value}, folder=shop)


def test_a_missing_database_is_a_mistake_or_in_play_a_fault(shop: Path, tmp_path: Path) -> None:
    task = task_of(shop, row(CANCEL))
    gone = dataclasses.replace(task.env, options={"database": str(tmp_path / "gone")})
    task = dataclasses.replace(task, env=gone)
    with pytest.raises(EnvironmentFault, match="gone/users.json"):
        RetailEnv().reset(options={"task": task})
    with pytest.raises(ValueError, match="gone/users.json"):
        rows.load(row(CANCEL), folder=tmp_path / "gone")


def test_the_option_database_names_the_folder(shop: Path) -> None:
    assert ENVIRONMENT.configure is not None
    assert ENVIRONMENT.configure({"database": str(shop)}).options == {"database": str(shop.resolve())}

    with pytest.raises(ValueError, match="users.json"):
        ENVIRONMENT.configure({"database": str(shop / "gone")})
