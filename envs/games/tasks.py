"""Games as tasks: how a game begins, what the model sees of it, which action its answer names.

The action is what the last `\\boxed{}` names, else the last name of an action in the answer; letter case is ignored.
"""

import random
import re
from collections.abc import Mapping
from typing import Any

import gymnasium

from envs.core.task import Task
from envs.data.split import digest
from envs.games.known_games import GymGame, drawing, known_game
from rewards.answers import boxes

NUMBERS = 1_000_000
PROMPT = """{rules}
One action a turn. The actions are: {actions}. Put your action in \\boxed{{}}.
{view}"""


def begin(options: Mapping[str, Any], number: int) -> tuple[GymGame, str]:
    """Begin the game of this number; return it and its first view."""
    mode = "ansi" if options["frame"] == "ansi" else None
    kwargs = known_game(options["id"]).laid_out(number, options["kwargs"])
    game = gymnasium.make(options["id"], render_mode=mode, disable_env_checker=True, **kwargs)
    observation, _ = game.reset(seed=number)
    return game, view(game, options, observation)


def begin_of(task: Task) -> tuple[GymGame, str]:
    """Begin the game of a task; return it and its first view."""
    return begin(task.env.options, task.spec["number"])


def view(game: GymGame, options: Mapping[str, Any], observation: Any) -> str:
    """Return what the model sees: the observation in words, and the drawing where there is one."""
    words = known_game(options["id"]).words(observation, game.unwrapped)
    return f"{words}\n{drawing(str(game.render()))}" if options["frame"] == "ansi" else words


def act(game: GymGame, action: int) -> tuple[Any, float, bool, bool]:
    """Take the action of this number; return the observation, the reward, and whether the game ended or was cut off."""
    assert isinstance(game.action_space, gymnasium.spaces.Discrete)
    observation, reward, ended, cut, _ = game.step(int(game.action_space.start) + action)
    return observation, float(reward), ended, cut


def prompt(options: Mapping[str, Any], first: str) -> str:
    """Return the whole prompt of a game: games that begin alike have one prompt, on one side of the split."""
    actions = ", ".join(options["actions"])
    return PROMPT.format(rules=options["rules"], actions=actions, view=first).strip()


def action_of(answer: str, actions: list[str]) -> int | None:
    """Return the number of the action that the answer names by the rule above; None where it names none."""
    numbers = {name.lower(): number for number, name in enumerate(actions)}
    boxed = boxes(answer)
    if boxed:
        return numbers.get(boxed[-1].lower())
    named = re.findall(rf"(?<!\w)(?:{'|'.join(map(re.escape, actions))})(?!\w)", answer, re.IGNORECASE)
    return numbers[named[-1].lower()] if named else None


def generate(rng: random.Random, level: int, *, options: Mapping[str, Any]) -> Task:
    """Make a task of a game; its one level says nothing. Games that begin and run alike have one key, whatever their number."""
    number = rng.randrange(NUMBERS)
    game, first = begin(options, number)
    dynamics = repr(getattr(game.unwrapped, "P", None))
    game.close()
    messages = ({"role": "user", "content": prompt(options, first)},)
    return Task(messages=messages, spec={"number": number}, key=digest([messages, dynamics])[:16])
