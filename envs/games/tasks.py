"""Games as tasks: the first observation and the prompt."""

import random
from collections.abc import Mapping
from typing import Any

import gymnasium

from temper.envs.core.task import Task
from temper.envs.data.split import digest
from temper.envs.games.known_games import GymGame, drawing, known_game

NUMBERS = 1_000_000
PROMPT = """{rules}
One action a turn. {actions}. Put your action in \\boxed{{}}.
{view}"""


def begin(options: Mapping[str, Any], number: int) -> tuple[GymGame, str]:
    kwargs = dict(known_game(options["id"]).laid_out(number, options["kwargs"]))
    if options["frame"] == "ansi":
        kwargs["render_mode"] = "ansi"
    game = gymnasium.make(options["id"], disable_env_checker=True, **kwargs)
    observation, _ = game.reset(seed=number)
    return game, view(game, options, observation)


def begin_of(task: Task) -> tuple[GymGame, str]:
    return begin(task.env.options, task.spec["number"])


def view(game: GymGame, options: Mapping[str, Any], observation: Any) -> str:
    words = known_game(options["id"]).words(observation, game.unwrapped)
    return f"{words}\n{drawing(str(game.render()))}" if options["frame"] == "ansi" else words


def act(game: GymGame, action: Any) -> tuple[Any, float, bool, bool]:
    observation, reward, ended, cut, _ = game.step(action)
    return observation, float(reward), ended, cut


def describe_actions(options: Mapping[str, Any]) -> str:
    """Return a sentence, without its full stop, about the actions."""
    names = options["actions"]
    return f"The actions are: {', '.join(names)}" if names else f"An action is {options['form']}"


def prompt(options: Mapping[str, Any], first: str) -> str:
    """Return the prompt of a game. Games with the same start share one prompt, on one side of the split."""
    return PROMPT.format(rules=options["rules"], actions=describe_actions(options), view=first).strip()


def generate(rng: random.Random, level: int, *, options: Mapping[str, Any]) -> Task:
    number = rng.randrange(NUMBERS)
    game, first = begin(options, number)
    dynamics = repr(getattr(game.unwrapped, "P", None))
    game.close()
    messages = ({"role": "user", "content": prompt(options, first)},)
    return Task(messages=messages, spec={"number": number}, key=digest([messages, dynamics])[:16])
