"""Gymnasium games in text: reference paths, observations, unreadable actions, options."""

from typing import Any

import gymnasium
import numpy
import pytest
from gymnasium import spaces
from support.bound import generated, opened
from support.refusals import refuses

from temper.envs.binding import bind
from temper.envs.catalog import configure_env
from temper.envs.config import EnvConfig
from temper.envs.core.definition import EnvDefinition
from temper.envs.core.errors import EnvironmentFault
from temper.envs.core.task import Task
from temper.envs.core.turn_text import turn_text
from temper.envs.data.split import SplitConfig
from temper.envs.games.actions import describe_space, parse_action
from temper.envs.games.env import GymEnv
from temper.envs.games.known_games import drawing
from temper.envs.games.tasks import shortest_win
from temper.envs.source import distinct_tasks, open_source
from temper.envs.transcript import score_turns
from temper.rewards.score import Outcome

LAKE = {"id": "FrozenLake-v1", "kwargs": {"is_slippery": False, "map_name": "4x4"}}
PLANNED = {
    "FrozenLake-v1": {"is_slippery": False},
    "FrozenLake8x8-v1": {"is_slippery": False},
    "CliffWalking-v1": {},
    "Taxi-v4": {},
}
DRAWN_BY_CHANCE = ("FrozenLake-v1", "Blackjack-v1", "CartPole-v1")


def environment_of(game: str, kwargs: dict[str, Any]) -> EnvDefinition:
    return configure_env("gym", {"id": game, "kwargs": kwargs})


def task_of(options: dict[str, Any], *, seed: int = 0) -> Task:
    return generated("gym", options, seed=seed)


@pytest.mark.parametrize("game", PLANNED)
def test_the_shortest_way_wins_and_each_negatives_of_it_does_not(game: str) -> None:
    env = environment_of(game, PLANNED[game])
    assert env.reference is not None
    for seed in range(5):
        task = task_of({"id": game, "kwargs": PLANNED[game]}, seed=seed)
        won = score_turns(task, env.reference(task))
        assert (won.reward, won.score.outcome, won.score.parts["bad_actions"]) == (1.0, Outcome.OK, 0.0)
        assert env.negatives is not None
        for name, turns in env.negatives(task):
            assert score_turns(task, turns).score.parts["correct"] == 0.0, name


@pytest.mark.parametrize("game", PLANNED)
def test_a_demonstration_shows_what_the_game_shows(game: str) -> None:
    env = environment_of(game, PLANNED[game])
    assert env.demonstrate is not None
    task = task_of({"id": game, "kwargs": PLANNED[game]})
    messages = env.demonstrate(task)
    playing = opened(task)
    for said, seen in zip(messages[::2], messages[1::2], strict=False):
        *_, info = playing.step(turn_text(said, thinks=True))
        assert info["messages"] == [seen]
    _, reward, terminated, truncated, _ = playing.step(turn_text(messages[-1], thinks=True))
    assert (reward, terminated, truncated) == (1.0, True, False)


@pytest.mark.parametrize("game", DRAWN_BY_CHANCE)
def test_a_game_of_chance_has_no_reference_but_is_repeatable(game: str) -> None:
    env = environment_of(game, {})
    assert (env.reference, env.demonstrate, env.negatives) == (None, None, None)
    task = task_of({"id": game})
    played = []
    for _ in range(2):
        playing, seen = opened(task), []
        for turn in range(4):
            observation, _, terminated, truncated, info = playing.step(
                f"</think>{task.env.options['actions'][turn % 2]}"
            )
            seen.append((observation, terminated, truncated, info["parts"]))
            if terminated or truncated:
                break
        played.append(seen)
    assert played[0] == played[1]


def test_a_hand_of_cards_is_played_to_its_end() -> None:
    task = task_of({"id": "Blackjack-v1"}, seed=1)
    assert "Your cards: 15" in task.messages[0]["content"]
    returns = {seed: score_turns(task_of({"id": "Blackjack-v1"}, seed=seed), ["stick"]) for seed in range(20)}
    assert {judged.score.parts["return"] for judged in returns.values()} <= {-1.0, 0.0, 1.0}
    assert all(judged.score.parts["correct"] == float(judged.score.parts["return"] > 0) for judged in returns.values())
    assert len({judged.reward for judged in returns.values()}) == 2


@pytest.mark.parametrize("game", ["FrozenLake-v1", "FrozenLake8x8-v1", "Taxi-v4", "Blackjack-v1"])
def test_a_game_that_is_held_out_is_not_trained_on(game: str) -> None:
    bound_env = bind("game", EnvConfig(kind="gym", options={"id": game, "kwargs": PLANNED.get(game, {})}))
    train, heldout = (open_source(bound_env, split=split, seed=0) for split in ("train", "heldout"))
    trained, kept = ({train.task(i).messages[0]["content"] for i in range(60)}, distinct_tasks(heldout, 12))
    assert len(kept) == len({task.messages[0]["content"] for task in kept}) == 12
    assert not trained & {task.messages[0]["content"] for task in kept}
    assert heldout.task(3) == heldout.task(3)


@pytest.mark.parametrize("options", [LAKE, {"id": "CliffWalking-v1"}])
def test_a_game_that_always_begins_alike_can_not_be_held_out(options: dict[str, Any]) -> None:
    whole = bind("game", EnvConfig(kind="gym", options=options, split=SplitConfig(share=1e-9)))
    assert len(distinct_tasks(open_source(whole, split="train", seed=0), 5)) == 1
    with pytest.raises(ValueError, match="heldout"):
        open_source(whole, split="heldout", seed=0)


def test_games_that_run_alike_have_one_key_and_others_do_not() -> None:
    unseen = {"id": "FrozenLake-v1", "kwargs": {"is_slippery": False}, "frame": "text"}
    one, other = task_of(unseen, seed=1), task_of(unseen, seed=2)
    assert one.messages == other.messages
    assert one.key != other.key
    assert task_of(LAKE, seed=1).key == task_of(LAKE, seed=2).key


def test_a_turn_without_an_action_is_told_so_and_counts() -> None:
    env = opened(task_of({**LAKE, "max_steps": 3}))
    observation, reward, terminated, truncated, _ = env.step("</think>I wait.")
    assert observation.startswith("error: ")
    assert (reward, terminated, truncated) == (0.0, False, False)
    assert env.step("</think>I go Down.")[0].startswith("You are in row 1, column 0.\n  (Down)\nSFFF\n[F]HFH")
    _, reward, terminated, truncated, info = env.step("</think>\\boxed{jump}")
    assert (reward, terminated, truncated, info["outcome"]) == (0.0, False, True, "cut")
    assert info["parts"] == {"correct": 0.0, "format": 1.0, "return": 0.0, "bad_actions": 2 / 3}


def test_a_hole_ends_the_game_as_lost() -> None:
    assert score_turns(task_of(LAKE), ["down", "right", "down", "down"]).score.outcome is Outcome.WRONG
    env = opened(task_of(LAKE))
    env.step("</think>down")
    _, reward, terminated, *_ = env.step("</think>right")
    assert (reward, terminated) == (0.0, True)


def test_stepping_off_the_cliff_is_no_win() -> None:
    task = task_of({"id": "CliffWalking-v1"})
    reference = configure_env("gym", {"id": "CliffWalking-v1"}).reference
    assert reference is not None
    judged = score_turns(task, ["right", *reference(task)])
    assert (judged.score.outcome, judged.score.parts["return"]) == (Outcome.WRONG, -113.0)
    kind = task_of({"id": "CliffWalking-v1", "success": -200.0})
    assert score_turns(kind, ["right", *reference(task)]).score.outcome == Outcome.OK


@pytest.mark.parametrize(
    ("answer", "action"),
    [
        ("left", 0),
        ("Go LEFT, or rather right.", 2),
        ("left \\boxed{up}, not down", 3),
        ("\\boxed{Down}", 1),
        ("\\boxed{jump} left", None),
        ("upright", None),
        ("", None),
    ],
)
def test_the_last_action_that_is_named_is_taken(answer: str, action: int | None) -> None:
    assert parse_action(answer, spaces.Discrete(4), ["left", "down", "right", "up"]) == action


NESTED = spaces.Dict({"go": spaces.Discrete(3), "by": spaces.Box(-1.0, 1.0, (2,)), "say": spaces.Text(9)})


@pytest.mark.parametrize(
    ("space", "cases"),
    [
        (spaces.Discrete(2, start=5), [("b", 6)]),
        (spaces.Text(9), [("I say \\boxed{hello}", "hello"), (" hello\n", "hello"), ("far too long", None)]),
        (spaces.Box(-2.0, 2.0, (1,)), [("\\boxed{0.5}", [0.5]), ("\\boxed{2.5}", None)]),
        (spaces.Box(-2.0, 2.0, (2, 2)), [("[[1, 0], [0.25, -1]]", [[1, 0], [0.25, -1]])]),
        (spaces.Box(-2.0, 2.0, (2,)), [("1, -1", [1, -1]), ("1", None), ("[1, NaN]", None)]),
        (spaces.Box(0, 9, (2,), numpy.int64), [("[1.5, 2]", None)]),
        (spaces.Box(0, 255, (1,), numpy.uint8), [("300", None)]),
        (spaces.Box(-numpy.inf, numpy.inf, (1,)), [("1e400", None)]),
        (spaces.MultiDiscrete([3, 2]), [("\\boxed{2, 1}", [2, 1]), ("\\boxed{2, 2}", None)]),
        (spaces.MultiBinary(2), [("[1, 0]", [1, 0]), ("[257, 0]", None), ("no list", None)]),
        (NESTED, [('\\boxed{{"go": 2, "by": [0.5, 1], "say": "ab"}}', {"go": 2, "by": [0.5, 1], "say": "ab"})]),
        (NESTED, [('{"go": true, "by": [0.5, 1], "say": "ab"}', None), ('{"go": 2}', None)]),
        (spaces.Tuple((spaces.Discrete(3), spaces.Discrete(2))), [("[2, 1]", (2, 1))]),
    ],
)
def test_an_action_is_an_element_of_its_space(space: "spaces.Space[Any]", cases: list[tuple[str, Any]]) -> None:
    describe_space(space)
    for answer, action in cases:
        found = parse_action(answer, space, ["a", "b"])
        assert (found is None) == (action is None), answer
        if action is not None:
            assert space.contains(found)
            numpy.testing.assert_equal(_plain(found), action)


def _plain(found: Any) -> Any:
    if isinstance(found, dict):
        return {key: _plain(value) for key, value in found.items()}
    return found.tolist() if isinstance(found, numpy.ndarray) else found


class Password(gymnasium.Env[Any, Any]):
    """Won by the password, or by the right setting of its knobs."""

    def __init__(self, space: "spaces.Space[Any]", won: Any) -> None:
        self.action_space, self.won = space, won
        self.observation_space = spaces.Dict({"hint": spaces.Text(20), "at": spaces.Box(0.0, 1.0, (2,))})

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        return {"hint": f"no {seed}", "at": numpy.zeros(2, numpy.float32)}, {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        seen = {"hint": "no", "at": numpy.ones(2, numpy.float32)}
        return seen, float(numpy.all(action == self.won)), True, False, {}


@pytest.mark.parametrize(
    ("space", "won", "right", "wrong"),
    [
        (spaces.Text(20), "xyzzy", "I try \\boxed{xyzzy}", "plugh"),
        (spaces.Box(0.0, 1.0, (2,)), [0.5, 1.0], "\\boxed{0.5, 1}", "\\boxed{0.5, 0}"),
    ],
)
def test_a_game_of_texts_or_numbers_is_played_by_its_id(space: Any, won: Any, right: str, wrong: str) -> None:
    gymnasium.register("tests/Password-v0", entry_point=Password)  # type: ignore[arg-type]  # a class makes one too
    try:
        task = task_of({"id": "tests/Password-v0", "kwargs": {"space": space, "won": won}, "frame": "text"})
        assert "hint: no" in task.messages[0]["content"]
        assert "at: [0., 0.]" in task.messages[0]["content"]
        assert score_turns(task, [right]).reward == 1.0
        assert score_turns(task, [f"I think.</think>{right}"]).reward == 1.0
        assert score_turns(task, [wrong]).reward == 0.0
    finally:
        del gymnasium.registry["tests/Password-v0"]


def test_what_a_terminal_shows_in_colours_stands_in_brackets() -> None:
    assert drawing("\n|\x1b[34;1mR\x1b[0m:\x1b[43m \x1b[0m|\n") == "|[R]:[ ]|"
    taxi = task_of({"id": "Taxi-v4"}).messages[0]["content"]
    assert "\x1b" not in taxi
    assert "The passenger is at" in taxi


def test_games_of_chance_or_without_a_win_have_no_plan() -> None:
    with pytest.raises(ValueError, match="random"):
        shortest_win({0: {0: [(0.5, 0, 0.0, False), (0.5, 1, 1.0, True)]}}, 0)
    with pytest.raises(ValueError, match="can't be won"):
        shortest_win({0: {0: [(1.0, 0, 0.0, False)]}, 1: {0: [(1.0, 1, 1.0, True)]}}, 0)
    assert shortest_win({0: {0: [(1.0, 0, 0.0, False)], 1: [(1.0, 1, 1.0, True)]}}, 0) == [1]


def test_names_rules_and_the_frame_are_the_users_to_choose() -> None:
    options = {"id": "CartPole-v1", "actions": ["west", "east"], "rules": "Balance the pole.", "max_steps": 5}
    prompt = task_of(options).messages[0]["content"]
    assert prompt.startswith("Balance the pole.\nOne action a turn. The actions are: west, east.")
    assert "SFFF" not in task_of({**LAKE, "frame": "text"}).messages[0]["content"]


def test_a_game_with_another_beginning_is_a_fault() -> None:
    task = task_of({"id": "Blackjack-v1"})
    task.messages[0]["content"] += " "
    with refuses("Blackjack-v1", error=EnvironmentFault):
        GymEnv().reset(options={"task": task})
