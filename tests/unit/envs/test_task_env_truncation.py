"""Truncated episodes: the environment scores them, and no limit is an escape."""

import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.bound import bound, generated
from support.scripted_engine import RENDERER, ROOM, play
from support.tiny_shop import write_shop

from temper.envs.catalog import configure_env, environment
from temper.envs.core.task import Task
from temper.envs.core.turn_text import call_message, turn_text
from temper.envs.retail import rows
from temper.envs.retail.env import with_folder
from temper.envs.transcript import score_turns
from temper.rewards.score import Outcome
from temper.rollout.config import EpisodeLimits
from temper.rollout.trajectory import Stop

NO_CLOSING = "I think and think"
CANCEL = ("cancel_pending_order", {"order_id": "#W4", "reason": "no longer needed"})
LOOK = ("get_order_details", {"order_id": "#W4"})


def game(name: str, kwargs: dict[str, Any] | None = None, **options: Any) -> Task:
    return generated("gym", {"id": name, "kwargs": kwargs or {}, **options})


def weighing(task: Task, weights: dict[str, float]) -> Task:
    return replace(task, env=replace(task.env, settings=replace(task.env.settings, weights=weights)))


def moves(task: Task) -> list[str]:
    reference = configure_env("gym", {"id": task.env.options["id"], "kwargs": task.env.options["kwargs"]}).reference
    assert reference is not None
    return ["</think>" + said for said in reference(task)]


def test_default_limits_allow_a_long_game() -> None:
    task = game("FrozenLake-v1", {"is_slippery": False, "map_name": "4x4"})
    won = play(task, moves(task), limits=replace(EpisodeLimits(), total_tokens=10_000))
    assert (won.reward, won.stop, won.score.outcome, len(won.turns)) == (1.0, Stop.ENV, Outcome.OK, 6)


def test_the_turns_of_the_run_cut_an_episode_where_they_are_set() -> None:
    task = game("FrozenLake-v1", {"is_slippery": False, "map_name": "4x4"})
    cut = play(task, moves(task), limits=replace(ROOM, turns=4))
    assert (cut.reward, cut.stop, cut.score.outcome, len(cut.turns)) == (0.0, Stop.TURNS, Outcome.TRUNCATED, 4)
    assert cut.score.detail == "truncated after the run's limit of turns: return 0"
    assert cut.turns[-1].observation


def test_no_limit_is_an_escape_from_the_cliff() -> None:
    task = game("CliffWalking-v1")
    task = weighing(task, {"return": 1.0})
    way = moves(task)
    right = play(task, way)
    assert (right.reward, right.stop) == (-13.0, Stop.ENV)
    prompt = len(RENDERER.prompt_ids(task))
    idle = play(task, ["</think>hm"])
    ways_out = {
        "a thought without an end": play(task, [*way[:3], NO_CLOSING], limits=replace(ROOM, turn_tokens=15)),
        "a turn that is too long at once": play(task, ["</think>" + "hm" * 99], limits=replace(ROOM, turn_tokens=15)),
        "an episode that is too long": play(task, way, limits=replace(ROOM, total_tokens=prompt + 60)),
        "a turn that is too long for the episode": play(
            task, [NO_CLOSING], limits=replace(ROOM, total_tokens=prompt + 9)
        ),
        "a malformed thought": play(task, [NO_CLOSING]),
        "turns": play(task, way, limits=replace(ROOM, turns=2)),
    }
    assert idle.reward == -64.0
    assert {name: one.reward for name, one in ways_out.items() if not (one.reward or 0.0) <= -64.0} == {}
    assert {one.stop for one in ways_out.values()} == {Stop.LENGTH, Stop.EPISODE_LENGTH, Stop.TURNS, Stop.ENV}
    assert {one.score.outcome for one in ways_out.values() if one.stop is not Stop.ENV} == {Outcome.TRUNCATED}


def test_an_idle_turn_costs_what_the_first_step_costs() -> None:
    climb = game("MountainCar-v0", max_steps=5)
    assert (climb.env.options["idle"], game("CartPole-v1").env.options["idle"]) == (-1.0, 0.0)
    assert game("CartPole-v1", idle=-0.5).env.options["idle"] == -0.5


def call(name: str, arguments: dict[str, Any]) -> str:
    return turn_text({"content": "", "tool_calls": [call_message(name, arguments)]}, thinks=True)


@pytest.mark.parametrize("after", ["turns", "thought"])
def test_a_truncated_shop_is_judged_by_its_database(tmp_path: Path, after: str) -> None:
    row = {
        "user_id": "bob_ray_2",
        "instruction": "You are Bob Ray.",
        "actions": [{"name": CANCEL[0], "kwargs": CANCEL[1]}],
        "outputs": [],
    }
    shop = write_shop(tmp_path)
    task = bound(rows.load(row, folder=shop), with_folder(shop))
    limits = replace(ROOM, turns=1) if after == "turns" else replace(ROOM, turn_tokens=200)
    thinks = ["so " * 100]
    done, undone = (play(task, [call(*what), *thinks], limits=limits) for what in (CANCEL, LOOK))
    assert (done.reward, done.score.parts["state"], done.score.outcome) == (1.0, 1.0, Outcome.TRUNCATED)
    assert (undone.reward, undone.score.parts["state"], undone.score.outcome) == (0.0, 0.0, Outcome.TRUNCATED)
    assert done.stop is (Stop.TURNS if after == "turns" else Stop.LENGTH)
    assert done.score.detail.endswith("database as wanted, 0 of 0 outputs stated")


def test_a_malformed_turn_keeps_earlier_errors(tmp_path: Path) -> None:
    shop = write_shop(tmp_path)
    task = rows.load({"user_id": "bob_ray_2", "instruction": "You.", "actions": [], "outputs": []}, folder=shop)
    task = weighing(bound(task, with_folder(shop)), {"correct": 1.0, "tool_errors": -0.2})
    bad = score_turns(task, [call("get_order_details", {"order_id": "#W99"}), f"<think>{NO_CLOSING}"])
    assert (bad.reward, bad.score.parts["correct"], bad.score.parts["format"], bad.score.outcome) == (
        -0.2,
        0.0,
        0.0,
        Outcome.WRONG,
    )


def test_tools_that_failed_count_where_the_episode_is_cut_off() -> None:
    make = environment("tool_use").generate
    assert make is not None
    task = bound(make(random.Random(0), 1), "tool_use")
    task = weighing(task, {"correct": 1.0, "tool_errors": -0.2})
    failing = call("no_such_tool", {})
    cut = play(task, [failing, NO_CLOSING], limits=replace(ROOM, turn_tokens=len(failing) + 1))
    own = play(task, [failing])
    assert (cut.reward, own.reward) == (-0.2, -0.2)
    assert (own.stop, own.score.outcome, len(own.turns)) == (Stop.TURNS, Outcome.TRUNCATED, 4)
